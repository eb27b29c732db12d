"""A real engine's server process, and how a server of ours does while that is away."""

import contextlib
import os
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types.responses import ResponseStreamEvent

from tests.kit.laws import assert_laws
from tests.kit.oracle import validate_event
from tests.kit.sdk import MODEL, server_sent
from tests.kit.server import ROOT, Server, free_port

LOOK_SECONDS = 0.05  # between two looks whether it is healthy


class EngineProcess(ABC):
    """A server with a key. After `kill()` it can be started again, at the same address."""

    start_seconds: float  # a start takes no longer

    def __init__(self, log: Path, *, key: str, environ: Mapping[str, str] | None = None) -> None:
        self.port = free_port()
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None
        self._environ = environ or {}
        headers = {"authorization": f"Bearer {key}"}
        self._client = httpx.Client(timeout=5, verify=False, headers=headers, base_url=self.url)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Where it listens, without a path."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log_tail(self) -> str:
        """The end of what it has logged."""
        return self.log.read_text(errors="replace")[-6000:] if self.log.exists() else ""

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """Return the words of its command."""

    @abstractmethod
    def running(self) -> int:
        """Return how many generations it runs now."""

    def start(self, *, wait: bool = True) -> Self:
        """Start, and wait until it has loaded its model."""
        environ = {**os.environ, **self._environ}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command(), cwd=ROOT, env=environ, stdout=log, stderr=log, start_new_session=True
            )
        if wait:
            try:
                self._wait_until_healthy(self.process)
            except BaseException:
                self.kill()
                raise
        return self

    def kill(self) -> None:
        """Kill it (-9), and return when it is gone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Kill it, and let go of the rest."""
        self._client.close()
        if self.process is not None:
            self.kill()

    def _wait_until_healthy(self, process: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + self.start_seconds
        while time.monotonic() < deadline:
            assert process.poll() is None, f"it ended:\n{self.log_tail}"
            with contextlib.suppress(httpx.TransportError):
                if self._client.get("/health").status_code == 200:
                    return
            time.sleep(LOOK_SECONDS)
        raise AssertionError(f"it was not healthy after {self.start_seconds} s:\n{self.log_tail}")


def streamed(client: OpenAI, input: str, **fields: object) -> list[str]:
    """Return the deltas of a streamed answer, whose events are OpenAI's and keep the laws of streams."""
    create: Any = client.responses.with_streaming_response.create
    with create(model=MODEL, input=input, stream=True, **fields) as answer:
        events = server_sent(list(answer.iter_lines()))
    for event in events:
        validate_event(event)
    assert_laws(events)
    return [str(event["delta"]) for event in events if event["type"] == "response.output_text.delta"]


def begin(client: OpenAI, input: str, **fields: object) -> Iterator[ResponseStreamEvent]:
    """Return a stream in which the model speaks already."""
    stream = client.responses.create(model=MODEL, input=input, stream=True, **fields)  # type: ignore[call-overload]
    next(event for event in stream if event.type == "response.output_text.delta")
    return iter(stream)


def assert_failed(stream: Iterator[ResponseStreamEvent]) -> None:
    """Assert that a stream ends with a failure that tells the client to try again, and nothing of the inside."""
    *_, last = stream
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.code == "server_error"
    assert "Try again in" in last.response.error.message


def assert_away(front: Server, client: OpenAI) -> None:
    """Assert that a server of ours knows that its engine is away, and says so."""
    assert front.wait_until("/ready", 503).json()["engine"] == "the engine is away"
    with pytest.raises(openai.InternalServerError) as refused:
        client.responses.create(model=MODEL, input="hi")
    assert (refused.value.status_code, refused.value.code) == (503, "server_is_overloaded")
    assert int(refused.value.response.headers["retry-after"]) >= 1
