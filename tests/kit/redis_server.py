"""A real redis-server for tests: private, without persistence, on a free port of 127.0.0.1."""

import secrets
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from tests.kit.capabilities import require
from tests.kit.waiting import looks

START_SECONDS = 90.0


class RedisServer:
    """Run redis-server; stopped or killed, it can be started again on the same port, empty."""

    def __init__(self) -> None:
        require("redis")
        self.port = low_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._directory = tempfile.TemporaryDirectory(prefix="respsite-redis-")

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def directory(self) -> Path:
        """Where it writes, if it is told to."""
        return Path(self._directory.name)

    def save(self) -> None:
        """Have it write all that it has to its disk."""
        import redis

        with redis.Redis.from_url(self.url) as client:
            client.save()

    @property
    def url(self) -> str:
        """Give the address of database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start the server and return when it answers.

        Raises:
            RuntimeError: it ended, or did not answer within `START_SECONDS`; the text holds its log.
        """
        assert self._process is None, "The server runs already."
        log = Path(self._directory.name, "redis.log")
        options = {"port": self.port, "bind": "127.0.0.1", "save": "", "appendonly": "no", "logfile": log}
        options["dir"] = self._directory.name
        arguments = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        self._process = subprocess.Popen(["redis-server", *arguments])
        for _ in looks(START_SECONDS):
            if self._answers():
                return
            if self._process.poll() is not None:
                break
        self.kill()
        raise RuntimeError(f"redis-server did not start: {log.read_text() if log.exists() else 'no log'}")

    def stop(self) -> None:
        """Let the server shut down, closing its connections; do nothing if it does not run."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server without warning; do nothing if it does not run."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Stall the server: it accepts connections and bytes and answers nothing until `resume()`."""
        assert self._process is not None, "The server does not run."
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a stalled server go on with all it was sent meanwhile."""
        assert self._process is not None, "The server does not run."
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Stop the server for good and remove its directory."""
        self.stop()
        self._directory.cleanup()

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)  # a stalled process sees no other signal than SIGKILL
        process.wait(START_SECONDS)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False


def low_port() -> int:
    """Choose a port below Linux's ephemeral range.

    In that range, a client that keeps trying a port on which nobody listens may at last connect to itself.
    """
    for _ in range(100):
        port = 20000 + secrets.randbelow(12000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("No port is free.")


def _run_redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(name="redis_server", scope="session")
def shared_redis_server() -> Iterator[RedisServer]:
    """Run one server for all tests that leave it running."""
    yield from _run_redis_server()


@pytest.fixture(name="redis", scope="module")
def redis_of_the_module() -> Iterator[RedisServer]:
    """Run a server for the tests of one file, which may do with it what they like."""
    yield from _run_redis_server()


@pytest.fixture(name="own_redis_server")
def private_redis_server() -> Iterator[RedisServer]:
    """Run a server that the test may stop, kill, pause or flush."""
    yield from _run_redis_server()
