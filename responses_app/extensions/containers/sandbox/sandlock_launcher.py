"""Runs a command in a sandbox of sandlock, with its own standard streams, until it ends. Run as a program.

Where the server is killed, nobody else ends what runs in there, which may have stopped the warden: so it is done here.
"""

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

_LOOK_SECONDS = 1.0  # between two looks at whether the server lives
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36  # `linux/prctl.h`


def main() -> None:
    """Become the user of the container, and run what the argument says, a JSON object of `sandlock.Sandlock`."""
    settings = json.loads(sys.argv[1])
    sys.path += [settings["library"], str(Path(__file__).parent)]
    from processes import end_below  # type: ignore[import-not-found]  # before the user may not read it any more
    from sandlock import Sandbox

    if settings["uid"] is not None:
        os.setgroups([])
        os.setresgid(settings["uid"], settings["uid"], settings["uid"])
        os.setresuid(settings["uid"], settings["uid"], settings["uid"])
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1)  # else the supervisor could not look at its own children
    # What its children leave behind is its own, so whoever ends it finds them all below it.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    Thread(target=_end_behind, args=(settings["server"], end_below), daemon=True).start()
    sandbox = Sandbox(
        chroot="/",
        fs_mount=settings["mounts"],
        fs_mount_ro=settings["programs"],
        fs_readable=[*settings["readable"], *settings["programs"]],
        fs_writable=[*settings["mounts"], "/dev/null"],
        max_memory=settings["memory"],
        max_processes=settings["processes"],
        max_open_files=settings["open_files"],
        clean_env=True,
        env=settings["env"],
    )
    sys.exit(sandbox.run_interactive(settings["command"]))


def _end_behind(server: int, end_below: Callable[[int], None]) -> None:
    """Wait for the end of the server; then end all that runs here."""
    # A process whose parent has ended gets another one.
    while os.getppid() == server:
        time.sleep(_LOOK_SECONDS)
    end_below(os.getpid())
    os._exit(1)


if __name__ == "__main__":
    main()
