"""The server processes of the bench, pinned to one core, and the load to another where there are two."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Self

from bench.report import Report
from tests.kit.postgres_server import PostgresServer
from tests.kit.server import ROOT, START_SECONDS, Server, free_port, manage
from tests.kit.waiting import looks

LANES = 16
SERVER_CORE, CLIENT_CORE = 0, 1
OURS = "respsite.asgi:application"
BARE = "bench.bare:application"
ONE_PER_TURN = "bench.one_per_turn:application"
ENDLESS = "bench.endless:application"

_TEXT = " ".join(["The quick brown fox jumps over the lazy dog near the river"] * 41)  # 12 tokens a sentence
SCRIPT = [
    {"when": "short", "say": "<|channel|>final<|message|>Yes.<|return|>"},
    {"say": f"<|channel|>final<|message|>{_TEXT}<|return|>"},
]


@cache
def can_pin() -> bool:
    """Say whether there are two cores to tell apart."""
    return hasattr(os, "sched_setaffinity") and {SERVER_CORE, CLIENT_CORE} <= os.sched_getaffinity(0)


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """What is done, and what is started, inside stays on this core, where there is one to choose."""
    if not can_pin():
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class BenchServer(Server):
    """daphne with any of the bench's applications; unless another engine is set, one that says 500 events at once."""

    is_forked = False

    def __init__(self, folder: Path, application: str = OURS, **settings: object) -> None:
        self._application = application
        is_scripted = application != ENDLESS and "engine" not in settings
        settings = {"max_websocket_connections": 5000, **settings}
        super().__init__(folder, script=SCRIPT if is_scripted else None, **settings)
        if application == BARE:
            self.environ["DJANGO_SETTINGS_MODULE"] = "bench.bare_settings"
        self.environ["BENCH_FRAMES"] = str(folder.parent / "frames.json")

    def start(self, *, wait: bool = True) -> Self:
        """Start on the server's core."""
        with on_core(SERVER_CORE):
            return super().start(wait=wait)

    def _command(self) -> list[str]:
        return [*super()._command()[:-1], self._application]


class Bench:
    """What rows share: the report, a folder, and the servers that more than one of them needs."""

    def __init__(self, report: Report, folder: Path) -> None:
        self.report = report
        self.folder = folder
        self._servers: dict[str, BenchServer] = {}
        self._stack = ExitStack()

    def __enter__(self) -> "Bench":
        self._stack.enter_context(on_core(CLIENT_CORE))
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def server(self, application: str = OURS) -> BenchServer:
        """Return the shared server of an application, started when it is first needed."""
        if application not in self._servers:
            self._servers[application] = self._stack.enter_context(self.fresh_server(application))
        return self._servers[application]

    def fresh_server(self, application: str = OURS, name: str = "", **settings: object) -> BenchServer:
        """Return a server of a row's own, not started yet."""
        name = name or application.partition(":")[0]
        return BenchServer(self.folder / name, application, **settings)

    @contextmanager
    def migrated_server(self, kind: str, *, name: str) -> Iterator[BenchServer]:
        """Have a server of a row's own, not started yet, on SQLite or on a PostgreSQL that ends with this."""
        if kind == "sqlite":
            yield self.fresh_server(name=f"{name}-{kind}")
            return
        with closing(PostgresServer()) as database:
            database.start()
            server = self.fresh_server(name=f"{name}-{kind}", database_url=database.url)
            manage("migrate", "--verbosity", "0", DATABASE_URL=database.url, DATA_DIR=str(server.folder))
            yield server

    async def compared(
        self, server: BenchServer, run: Callable[[int, bool], Awaitable[None]], *, rounds: int
    ) -> tuple[list[float], list[float]]:
        """Return the server's CPU seconds of each round of `run(round, True)`, and of `run(round, False)`.

        Both in turn, so that what else the machine does is in both, and after a warm-up (round 0).
        """
        costs: dict[bool, list[float]] = {True: [], False: []}
        for number in self.report.rounds(rounds, warm_up=True):
            for way, kept in costs.items():
                cpu = server.cpu_seconds()
                await run(number, way)
                if number:
                    kept.append(server.cpu_seconds() - cpu)
        return costs[True], costs[False]

    def keep_frames(self, frames: list[str], chunks: list[bytes]) -> None:
        """Give the bare server what it is to send: an event a part, as a view does that gathers nothing."""
        events = [part + "\n\n" for part in b"".join(chunks).decode().split("\n\n")[:-1]]
        recorded = {"frames": frames, "chunks": events}
        (self.folder / "frames.json").write_text(json.dumps(recorded))


@contextmanager
def serving(code: str) -> Iterator[int]:
    """Run code in a process of its own, which serves at the port that is its argument; yield that once it answers."""
    port = free_port()
    server = subprocess.Popen([sys.executable, "-c", code, str(port)], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        for _ in looks(START_SECONDS):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
        yield port
    finally:
        server.kill()
        server.wait()


def settle(alias: str = "default") -> None:
    """Do what PostgreSQL's autovacuum does within a minute: until then it counts and looks up words slowly.

    Nobody does the like for SQLite.
    """
    from django.db import connections

    if connections[alias].vendor == "postgresql":
        with connections[alias].cursor() as cursor:
            cursor.execute("VACUUM ANALYZE")
    connections[alias].close()
