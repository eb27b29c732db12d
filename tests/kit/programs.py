"""Programs that tests run to their end: clients, mostly."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

NOBODY = "http://127.0.0.1:9"  # the discard port: a proxy that refuses every connection


@dataclass(frozen=True)
class Finished:
    """How a program ended, and what it wrote to its outputs."""

    exit_code: int
    printed: str
    complaints: str


def secluded(home: Path, **variables: str) -> dict[str, str]:
    """Return an environment with a home of its own, in which a program that honours proxies reaches loopback only."""
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), NOBODY)
    return {"PATH": os.environ["PATH"], "HOME": str(home), "NO_PROXY": "127.0.0.1", **proxies, **variables}


async def run_program(*command: str | Path, cwd: Path, environ: Mapping[str, str], seconds: float) -> Finished:
    """Run a program, without input, until it ends; then nothing is left of what it started.

    Raises:
        TimeoutError: it took longer than `seconds`, and was killed.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(seconds):
            printed, complaints = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):  # nothing of it is left, as it should be
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    return Finished(process.returncode or 0, printed.decode(), complaints.decode())
