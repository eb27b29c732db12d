"""Makes the goldens. Each part is made in a process of its own: settings are read when a process begins."""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from difflib import unified_diff
from pathlib import Path

from tests.kit.server import PYTHON_WARNINGS, ROOT, clean_environ

FILES = Path(__file__).parent / "files"
MAKE_SECONDS = 600  # bound of each part, on a busy machine too
FIXED = {"SECRET_KEY": "the goldens' own", "TZ": "UTC", "LOG_LEVEL": "error"}
PATIENT = {  # however busy the machine is
    "STREAM_FIRST_WORD_MS": "60000",
    "RESPONSES_PING_INTERVAL_SECONDS": "0",
    "DATABASE_TIMEOUT_SECONDS": "60",
}
WITH_TOOLS = {
    "SEARCH_URL": "http://127.0.0.1:9",
    "IMAGE_SERVICE_URL": "http://127.0.0.1:9/v1",
    "MCP_SERVERS": '{"wiki": "https://wiki.example/mcp"}',
    "ENABLE_COMPUTER_CALL": "on",
    "RESPONSES_COMPATIBILITY_MODE": "off",
    "AUTH": "on",
}
Texts = Iterator[tuple[str, str]]  # names of files, and what is in them


def make(folder: Path) -> None:
    """Make all goldens in a folder."""
    with ExitStack() as stack:
        running = [
            (part, stack.enter_context(_begun(part, folder, stack.enter_context(tempfile.TemporaryDirectory()))))
            for part in PARTS
        ]
        for part, process in running:
            said, _ = process.communicate(timeout=MAKE_SECONDS)
            assert process.returncode == 0, f"{part}: {said.decode()}"
    _tell_the_difference(folder / "openapi.json", folder / "openapi_with_tools.json")


def _begun(part: str, folder: Path, data: str) -> "subprocess.Popen[bytes]":
    settings, _ = PARTS[part]
    environ = clean_environ(DATA_DIR=data, PYTHONWARNINGS=PYTHON_WARNINGS, **FIXED, **settings)
    if part == "streams":
        from tests.inprocess.goldens.streams import SCRIPT

        script = Path(data, "script.json")
        script.write_text(json.dumps(SCRIPT))
        environ |= {"ENGINE": "scripted", "ENGINE_SCRIPT": str(script)}
    command = [sys.executable, "-m", "tests.inprocess.goldens.making", part, str(folder)]
    return subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def _tell_the_difference(plain: Path, other: Path) -> None:
    """Write what another text has otherwise in place of it: most of it is the same."""
    before, now = (path.read_text().splitlines(keepends=True) for path in (plain, other))
    other.unlink()
    other.with_suffix(".diff").write_text("".join(list(unified_diff(before, now, n=3))[2:]))


def plain() -> Texts:
    """What needs no engine: the OpenAPI document, what the reference shows, commands, the schema, the admin."""
    from tests.inprocess.goldens import site

    _migrate()
    yield "admin.txt", site.admin_headings()  # while no worker has registered itself
    yield "schema.sql", site.schema()
    yield from site.reference()
    yield "openapi.json", asyncio.run(site.openapi())


def tools() -> Texts:
    """The OpenAPI document of a server with every tool and every field, where everybody needs a key."""
    from tests.inprocess.goldens import site

    _migrate()
    yield "openapi_with_tools.json", asyncio.run(site.openapi())


def streams() -> Texts:
    """Scripted exchanges."""
    _migrate()
    yield from asyncio.run(_streams()).items()


async def _streams() -> dict[str, str]:
    from tests.inprocess.goldens.asgi import Application
    from tests.inprocess.goldens.streams import GROUPS

    async with Application() as app:
        return {
            f"stream_{name}.txt": "\n".join([record.text() async for record in group(app)])
            for name, group in GROUPS.items()
        }


def takeovers() -> Texts:
    """Responses that other workers go on with."""
    from tests.inprocess.goldens.takeovers import cuts

    yield "takeover.txt", asyncio.run(cuts())


def _migrate() -> None:
    import django
    from django.core.management import call_command

    django.setup(set_prefix=False)
    call_command("migrate", verbosity=0)


PARTS: Mapping[str, tuple[Mapping[str, str], Callable[[], Texts]]] = {
    "streams": (PATIENT, streams),
    "takeovers": ({}, takeovers),
    "plain": ({}, plain),
    "tools": (WITH_TOOLS, tools),
}


if __name__ == "__main__":
    part, folder = sys.argv[1:]
    for name, text in PARTS[part][1]():
        Path(folder, name).write_text(text)
