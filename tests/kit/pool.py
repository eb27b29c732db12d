"""Servers that many tests share, by name; each is started when it is first needed.

`main` has small limits and answers everything; `strict` has few connections, takes one response at a time on each,
beats fast, and drops slow readers soon. `closed` asks everybody for a key.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.kit.closed import ClosedServer
from tests.kit.databases import chosen_database
from tests.kit.scripts import LIMIT, flood_script, main_script
from tests.kit.server import Server

Make = Callable[..., Server]
NOISE = (
    "was never",
    "Task was destroyed",
    "Exception in ASGI",
    "Exception inside application",
    "Unhandled",
    "took too",
)


class ServerPool:
    """Starts each server once."""

    def __init__(self, folder: Path, make: Make = Server, make_closed: Make = ClosedServer) -> None:
        self._folder = folder
        self._make, self._make_closed = make, make_closed
        self._servers: dict[str, Server] = {}

    def get(self, name: str, kind: str) -> Server:
        key = f"{name}-{kind}-{chosen_database()}"
        if key not in self._servers:
            make = self._make_closed if name == "closed" else self._make
            self._servers[key] = make(self._folder / key, kind=kind, **SETTINGS[name](self._folder / key)).start()
        return self._servers[key]

    def close(self) -> None:
        """End them all; whatever the tests did to them, no task or connection broke."""
        for server in self._servers.values():
            server.stop()
            noise = [line for line in server.output.splitlines() if any(word in line for word in NOISE)]
            assert not noise, f"{server.log}: {noise[:5]}"


def _main(folder: Path) -> dict[str, Any]:
    return {
        "script": main_script(folder),
        "engine_options": {"max_model_len": 4000},
        "journal": True,
        "model_name": "test-model",
        "websocket_max_queued": 4,
        "websocket_max_message_bytes": LIMIT,
        "max_body_bytes": LIMIT,
        "responses_ping_interval_seconds": 0,
    }


def _strict(folder: Path) -> dict[str, Any]:
    return {
        "script": flood_script(folder),
        "journal": True,
        "max_websocket_connections": 5,
        "responses_ping_interval_seconds": 0.2,
        "websocket_busy": "reject",
        "stream_max_lag_bytes": 512 * 1024,
        "stream_stall_seconds": 1,
    }


def _closed(folder: Path) -> dict[str, Any]:
    return {"auth": "on", "model_name": "m"}


def _demo(folder: Path) -> dict[str, Any]:
    return {}


SETTINGS = {"demo": _demo, "main": _main, "strict": _strict, "closed": _closed}
