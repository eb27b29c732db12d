"""Makes the goldens. Each part is made in a process of its own, so that they are made at the same time."""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING

import django
from django.core.management import call_command

from tests.kit.server import PYTHON_WARNINGS, ROOT, clean_environ

if TYPE_CHECKING:
    from tests.inprocess.goldens.streams import Group

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
    environ = clean_environ(DATA_DIR=data, PYTHONWARNINGS=PYTHON_WARNINGS, **FIXED)
    command = [sys.executable, "-m", "tests.inprocess.goldens.making", part, str(folder), data]
    return subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def _tell_the_difference(plain: Path, other: Path) -> None:
    """Write what another text has otherwise in place of it: most of it is the same."""
    before, now = (path.read_text().splitlines(keepends=True) for path in (plain, other))
    other.unlink()
    other.with_suffix(".diff").write_text("".join(list(unified_diff(before, now, n=3))[2:]))


def plain(data: Path) -> Texts:
    """What needs no engine: commands, the schema, the admin, what the reference shows, the OpenAPI document."""
    from tests.inprocess.goldens import site

    call_command("migrate", verbosity=0)
    yield "admin.txt", site.admin_headings()  # while no worker has registered itself
    yield "schema.sql", site.schema()
    yield from site.reference()
    yield "openapi.json", site.openapi(data, **_settings({}))  # with the database that has its tables by now


def tools(data: Path) -> Texts:
    """The OpenAPI document of a server with every tool and every field, where everybody needs a key."""
    from tests.inprocess.goldens import site

    yield "openapi_with_tools.json", site.openapi(data / "server", **_settings(WITH_TOOLS))


def streams(data: Path) -> Texts:
    """Scripted exchanges."""
    from tests.inprocess.goldens.streams import GROUPS, SCRIPT
    from tests.kit.inprocess import Server

    async def texts(group: "Group") -> list[str]:
        return [record.text() async for record in group(server)]

    with Server(data / "scripted", script=SCRIPT, **_settings(PATIENT)) as server:
        for name, group in GROUPS.items():
            yield f"stream_{name}.txt", "\n".join(asyncio.run(texts(group)))


def takeovers(data: Path) -> Texts:
    """Responses that other workers go on with."""
    from tests.inprocess.goldens.takeovers import cuts

    yield "takeover.txt", asyncio.run(cuts())


def _settings(chosen: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in {**FIXED, **chosen}.items()}


PARTS: Mapping[str, Callable[[Path], Texts]] = {
    "streams": streams,
    "takeovers": takeovers,
    "plain": plain,
    "tools": tools,
}


if __name__ == "__main__":
    part, folder, data = sys.argv[1:]
    django.setup(set_prefix=False)
    for name, text in PARTS[part](Path(data)):
        Path(folder, name).write_text(text)
