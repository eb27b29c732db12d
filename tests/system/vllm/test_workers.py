"""Several workers on one engine core: each of them does its own streams, and may die; and so may the core.

The tests are one story of one server, since a start takes a minute: they run in their order. Only this finds a request
or a process that outlives its worker in a shared engine core.
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import openai
import psutil
import pytest
from openai import OpenAI
from openai.types.responses import ResponseStreamEvent

from tests.kit.sdk import MODEL, WEATHER, sdk_of
from tests.kit.served import Supervised
from tests.kit.server import Server
from tests.system.engine_process import assert_away, assert_failed
from tests.system.vllm.engines import full_blocks
from tests.system.vllm.server import (
    ENGINE_OPTIONS,
    MODEL_FOLDER,
    START_SECONDS,
    descendants,
    engine_core,
    wait_until_gone,
)

WORKERS = 2
PATIENT = 2 * START_SECONDS  # for three processes that load vLLM at once
STOPS_WITHIN = 60.0  # seconds: workers that do nothing, and then the engine core: some 10, on a machine that is busy 26


class OnOneCore(Supervised):
    """Two workers and their engine core."""

    def __init__(self, folder: Path) -> None:
        options = json.dumps(ENGINE_OPTIONS)
        super().__init__(
            folder, workers=WORKERS, engine="vllm", model=MODEL_FOLDER, model_name=MODEL, engine_options=options
        )
        self.start_seconds = PATIENT

    def start(self, *, wait: bool = True) -> Self:
        Server.start(self, wait=wait)
        self.wait_for_serving(WORKERS)
        return self

    def wait_for_serving(self, count: int) -> None:
        self.wait_for_line(" serves\n", count=count, seconds=PATIENT)

    def core(self) -> psutil.Process:
        assert self.process is not None
        return engine_core(self.process.pid)

    def connect(self) -> OpenAI:
        """Return an SDK with connections of its own."""
        return sdk_of(self)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnOneCore]:
    server = OnOneCore(tmp_path_factory.mktemp("workers"))
    try:
        yield server.start()
    finally:
        if server.is_running:
            server.stop()


class Endless:
    """A stream that the model has begun to speak in, over a connection of its own, and who it is answered by."""

    def __init__(self, served: OnOneCore) -> None:
        self._client = served.connect()
        self.events: Iterator[ResponseStreamEvent] = iter(
            self._client.responses.create(model=MODEL, input="say endless", stream=True)
        )
        self.until("response.output_text.delta")
        (self.worker,) = (pid for pid in served.pids() if self._is_with(pid))

    def until(self, kind: str) -> None:
        """Read on to an event of this kind."""
        assert any(event.type == kind for event in self.events)

    def close(self) -> None:
        """Go away."""
        self._client.close()

    def _is_with(self, pid: int) -> bool:
        (own,) = (
            connection.laddr.port
            for connection in psutil.Process().net_connections("tcp")
            if connection.status == psutil.CONN_ESTABLISHED and connection.laddr.port == self._port()
        )
        return any(
            connection.raddr and connection.raddr.port == own
            for connection in psutil.Process(pid).net_connections("tcp")
        )

    def _port(self) -> int:
        (connection,) = self._client._client._transport._pool.connections  # type: ignore[attr-defined]
        stream = connection._connection._network_stream
        return int(stream.get_extra_info("socket").getsockname()[1])


def test_each_worker_answers_and_the_core_is_one(served: OnOneCore) -> None:
    while len(served.answered_by()) < WORKERS:
        with served.connect() as client:
            assert client.responses.create(model=MODEL, input="say short").output_text == "Hello you"
    assert served.process is not None
    assert "libtorch" not in Path(f"/proc/{served.process.pid}/maps").read_text(), "the supervisor has no vLLM"
    cores = [each for each in descendants(served.process.pid) if "EngineCore" in " ".join(each.cmdline())]
    assert len(cores) == 1
    assert served.output.count("that workers share") == WORKERS


def test_what_one_worker_left_in_the_prefix_cache_any_other_finds(served: OnOneCore) -> None:
    with served.connect() as client:
        first = client.responses.create(model=MODEL, input="the weather of Paris and Rome", tools=[WEATHER])
    (call,) = [item for item in first.output if item.type == "function_call"]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "18 °C in Paris"}
    assert first.usage is not None
    for _ in range(4):  # over connections of their own, which are spread over both workers
        with served.connect() as client:
            second = client.responses.create(
                model=MODEL,
                input=[output],
                tools=[WEATHER],
                previous_response_id=first.id,  # type: ignore[list-item]
            )
        assert second.usage is not None
        cached = second.usage.input_tokens_details.cached_tokens
        assert cached >= full_blocks(first.usage.input_tokens + first.usage.output_tokens)


def test_a_worker_that_is_killed_costs_the_others_nothing_and_the_core_forgets_it(served: OnOneCore) -> None:
    streams = [Endless(served)]
    while {stream.worker for stream in streams} != set(served.pids()):
        streams.append(Endless(served))
    victim, other = streams[0], streams[-1]
    lost = sum(stream.worker == victim.worker for stream in streams)
    os.kill(victim.worker, signal.SIGKILL)
    served.wait_for_line(f"what it had running is aborted: {lost} requests")
    with pytest.raises(openai.APIConnectionError):
        victim.until("response.completed")
    for _ in range(20):
        other.until("response.output_text.delta")
    for stream in streams:
        stream.close()
    core = served.core()
    # One that has something to generate does nothing else.
    served.wait_for(lambda: core.cpu_percent(interval=0.5) <= 40)
    served.wait_for_serving(WORKERS + 1)
    replaced = max(map(int, served.answered_by())) + 1
    while str(replaced) not in served.answered_by():
        with served.connect() as client:
            assert client.responses.create(model=MODEL, input="say short").output_text == "Hello you"


def test_a_core_that_dies_is_started_again_and_the_workers_attach_anew(served: OnOneCore) -> None:
    with served.connect() as client:
        before = client.responses.create(model=MODEL, input="say short")
    stream = Endless(served)
    core, workers = served.core(), served.pids()
    processes = [core, *descendants(core.pid)]
    killed = time.monotonic()
    core.kill()
    assert_failed(stream.events)
    print(f"failed {1000 * (time.monotonic() - killed):.0f} ms after the engine core died")
    with served.connect() as client:
        assert_away(served, client)
    stream.close()
    wait_until_gone(processes)
    served.wait_for_line("the vLLM engine is back", count=WORKERS, seconds=PATIENT)
    print(f"both workers have an engine again {time.monotonic() - killed:.0f} s after it died")
    assert served.pids() == workers
    for _ in range(4):
        with served.connect() as client:
            after = client.responses.create(model=MODEL, input="say short", previous_response_id=before.id)
            assert after.output_text == "Hello you"


def test_sigterm_ends_the_workers_and_then_the_core(served: OnOneCore) -> None:
    assert served.process is not None
    processes = descendants(served.process.pid)
    told = time.monotonic()
    assert served.stop() == 0
    print(f"ended {time.monotonic() - told:.1f} s after SIGTERM")
    assert time.monotonic() - told < STOPS_WITHIN
    wait_until_gone(processes, timeout=2)
    assert "Traceback" not in served.output
