"""Runs a command in a sandbox of sandlock, with its own standard streams, until it ends. Run as a program."""

import ctypes
import json
import os
import sys

_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36  # `linux/prctl.h`


def main() -> None:
    """Become the user of the container, and run what the argument says, a JSON object of `sandlock.Sandlock`."""
    settings = json.loads(sys.argv[1])
    sys.path.append(settings["library"])
    from sandlock import Sandbox  # before the user may not read it any more

    if settings["uid"] is not None:
        os.setgroups([])
        os.setresgid(settings["uid"], settings["uid"], settings["uid"])
        os.setresuid(settings["uid"], settings["uid"], settings["uid"])
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1)  # else the supervisor could not look at its own children
    # What its children leave behind is its own, so whoever ends it finds them all below it.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
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


if __name__ == "__main__":
    main()
