"""How long a server's event loop stands still, measured inside its process.

    with Server(folder, application=heartbeat.APPLICATION) as server:
        for _ in tries(server):
            httpx.post(…)

`APPLICATION` is the server's own application and beside it `GET /heartbeat`, which answers with the longest stop since
it was last asked, in seconds. A *stop* is the time from one beat to the next in which the loop's thread was at work, or
waited for the interpreter's lock while another was. What it waited for a processor is not counted (Linux tells it), and
neither is time in which the process used none: so a busy machine is not a stop, as far as that can be told, and a loop
that waits for a disk is none either. What a virtual machine is stopped for nobody tells it: so `tries` has a stop that
it finds tried again.
"""

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.kit.server import Server

APPLICATION = "tests.kit.heartbeat_asgi:application"
BEAT_SECONDS = 0.005
STOP_SECONDS = 0.2  # a stop that is noticed
TRIES = 3


def longest_stop(server: Server) -> float:
    """Return the longest stop of a server's loop since this was last asked, in seconds."""
    answer = httpx.get(f"{server.url}/heartbeat", timeout=30, verify=False)
    return float(answer.json()["longest_stop"])


def tries(server: Server) -> Iterator[None]:
    """Yield, for something to be done, until no stop was too long meanwhile: a stop of ours is there each time.

    Raises:
        AssertionError: one was, in all tries.
    """
    stops: list[float] = []
    while len(stops) < TRIES:
        longest_stop(server)
        yield
        stops.append(longest_stop(server))
        if stops[-1] < STOP_SECONDS:
            return
    raise AssertionError(f"the loop stood still for {stops} s")


class Heartbeat:
    """Beats in the running loop from when it is made."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._loop = asyncio.get_running_loop()
        self._waits = Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/schedstat")
        self._last = self._now()
        self._loop.call_later(BEAT_SECONDS, self._beat)

    def _now(self) -> tuple[float, float, float]:
        """Return the time, what of it this thread waited for a processor, and what the process used of one."""
        return time.perf_counter(), int(self._waits.read_text().split()[1]) / 1e9, time.process_time()

    def _beat(self) -> None:
        now = self._now()
        passed, waited, used = (after - before for before, after in zip(self._last, now, strict=True))
        self.longest = max(self.longest, min(passed - waited - BEAT_SECONDS, used))
        self._last = now
        self._loop.call_later(BEAT_SECONDS, self._beat)
