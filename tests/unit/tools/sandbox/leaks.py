"""Sandboxes of bubblewrap with a hole each, run by a user who is not root: what the self-test says of them, as JSON.

A program of its own, on the standard library and the package of sandboxes alone. There is none whose processes can
reach those of the host by signals: its warden would stop and kill them all.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from responses_app.extensions.containers.sandbox import choosing, session
from responses_app.extensions.containers.sandbox.launch import Interpreter, Launch, find_interpreter
from responses_app.extensions.containers.sandbox.sandboxes import Bubblewrap
from responses_app.extensions.containers.sandbox.settings import SKILLS_FOLDER, SandboxSettings

OTHER = "read the files of another container"
Change = Callable[[list[str]], list[str]]


def without(flag: str, values: int = 0) -> Change:
    def change(argv: list[str]) -> list[str]:
        place = argv.index(flag)
        return argv[:place] + argv[place + 1 + values :]

    return change


def of_the_host(folder: str, source: str) -> Change:
    """Show a folder of the host where the container has one in memory."""

    def change(argv: list[str]) -> list[str]:
        place = argv.index(folder) - 5  # --perms P --size S --tmpfs FOLDER
        return [*argv[:place], "--bind", source, folder, *argv[place + 6 :]]

    return change


def with_a_folder_of_the_host(folder: str) -> Change:
    """Show a folder of the host beside what is in the container's `/tmp`."""

    def change(argv: list[str]) -> list[str]:
        place = argv.index("/tmp") + 1
        return [*argv[:place], "--bind", folder, folder, *argv[place:]]

    return change


def with_the_hosts_processes(argv: list[str]) -> list[str]:
    place = argv.index("--proc")
    return [*argv[:place], "--ro-bind", "/proc", "/proc", *argv[place + 2 :]]


def unchanged(argv: list[str]) -> list[str]:
    return argv


def with_skills_to_write_to(argv: list[str]) -> list[str]:
    place = argv.index(SKILLS_FOLDER, argv.index("--ro-bind"))
    while argv[place - 2] != "--ro-bind":  # where it is made
        place = argv.index(SKILLS_FOLDER, place + 1)
    return [*argv[: place - 2], "--bind", *argv[place - 1 :]]


class Leaky(Bubblewrap):
    def __init__(self, change: Change = unchanged, **more: int) -> None:
        self._change = change
        self._more = more

    def launch(
        self, interpreter: Interpreter, settings: SandboxSettings, *, uid: int | None, skills: Path | None = None
    ) -> Launch:
        changed = replace(settings, **self._more)  # type: ignore[arg-type]
        launch = super().launch(interpreter, changed, uid=uid, skills=skills)
        return replace(launch, argv=self._change(list(launch.argv)))


async def main() -> None:
    """Try each on what it lets out, and the whole one on all of that."""
    python, every = find_interpreter(sys.argv[1]), choosing.ESCAPES
    much = 64 * choosing.LIMITS.sandbox_disk_bytes
    tempfile.tempdir = tempfile.mkdtemp()  # the machine's own may have more files than a container's
    holes: list[tuple[Leaky, list[str]]] = [
        (Leaky(without("--unshare-net")), ["reach the network"]),
        (Leaky(with_a_folder_of_the_host(tempfile.tempdir)), ["read and write files of the host"]),
        (Leaky(with_skills_to_write_to), ["read and write files of the host"]),
        (Leaky(with_the_hosts_processes), ["read of other processes"]),
        (Leaky(without("--seccomp", 1)), ["gain privileges"]),
        (Leaky(sandbox_max_processes=4096), ["start any number of processes"]),
        (Leaky(sandbox_disk_bytes=much), ["fill the disk"]),
        (Leaky(of_the_host("/mnt/data", tempfile.mkdtemp())), [OTHER]),
    ]
    said: list[Any] = []
    session.WATCH_SECONDS = session.REST_SECONDS = session.QUICK_SECONDS = (
        3600.0  # the host does not look at what they use
    )

    async def tried(sandbox: Leaky, names: list[str]) -> None:
        choosing.ESCAPES = tuple(each for each in every if each.name in names)
        said.append([names, await choosing.ways_out(sandbox, python)])

    for sandbox, names in holes:
        await tried(sandbox, names)
    choosing._NOTICE_SECONDS = 0.1
    await tried(Leaky(sandbox_memory_bytes=much), ["take all memory", "take all memory with many processes"])
    print(json.dumps(said))


if __name__ == "__main__":
    asyncio.run(main())
