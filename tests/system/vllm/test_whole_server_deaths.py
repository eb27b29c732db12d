"""The whole server when its vLLM dies, comes back, and when it is told to stop. These tests come last: they kill.

Only this finds a process or a stream that outlives a real engine core.
"""

import time
from pathlib import Path

import pytest

from tests.kit.sdk import MODEL, sdk_of
from tests.kit.server import Server
from tests.system.engine_process import assert_away, assert_failed, begin
from tests.system.vllm.fronts import LoadingServer
from tests.system.vllm.server import VllmServer, descendants, engine_core, wait_until_gone

STOPS_WITHIN = 60.0  # seconds; vLLM takes 3 to 8, and is killed after 8; a busy machine takes its time for that


@pytest.mark.parametrize("front", ["front_with_vllm"], indirect=True)
def test_an_engine_core_that_dies_is_replaced(front: Server) -> None:
    assert front.process is not None
    with sdk_of(front) as client:
        before = client.responses.create(model=MODEL, input="say short")
        stream = begin(client, "say endless")
        core = engine_core(front.process.pid)
        processes = [core, *descendants(core.pid)]
        killed = time.monotonic()
        core.kill()
        assert_failed(stream)
        print(f"failed {1000 * (time.monotonic() - killed):.0f} ms after the engine core died")
        assert_away(front, client)
        wait_until_gone(processes)
        front.wait_until("/ready", 200)
        print(f"ready again {time.monotonic() - killed:.0f} s after the engine core died")
        after = client.responses.create(model=MODEL, input="say short", previous_response_id=before.id)
        assert after.output_text == "Hello you"
    assert engine_core(front.process.pid).pid != core.pid


@pytest.mark.parametrize("front", ["front_with_vllm"], indirect=True)
def test_nothing_survives_sigterm(front: Server) -> None:
    assert front.process is not None
    with sdk_of(front) as client:
        stream = begin(client, "say endless")
        processes = descendants(front.process.pid)
        assert len(processes) >= 2
        told = time.monotonic()
        status = front.stop()
        print(f"ended {time.monotonic() - told:.1f} s after SIGTERM, with status {status}")
        assert time.monotonic() - told < STOPS_WITHIN
        *_, last = stream
        assert last.type == "response.failed"
        assert last.response.status == "failed"
    wait_until_gone(processes, timeout=2)
    assert "Exception ignored" not in front.output
    assert "did not" not in front.output


def test_nothing_survives_sigterm_while_the_model_loads(tmp_path: Path) -> None:
    with LoadingServer(tmp_path) as front:
        assert front.process is not None
        deadline = time.monotonic() + 60
        while not descendants(front.process.pid):
            assert time.monotonic() < deadline, front.output
            time.sleep(0.02)
        processes = descendants(front.process.pid)
        told = time.monotonic()
        front.stop()
        print(f"ended {time.monotonic() - told:.1f} s after SIGTERM while it loaded")
        assert time.monotonic() - told < STOPS_WITHIN
    wait_until_gone(processes, timeout=5)


def test_what_vllm_refuses_stops_the_server_with_one_sentence(tmp_path: Path) -> None:
    front = LoadingServer(tmp_path, engine_options='{"max_model_length": 4096}')
    with pytest.raises(AssertionError, match="the server ended"):
        front.start(wait=True)
    assert "the engine cannot start, so the server stops: ENGINE_OPTIONS has 'max_model_length'" in front.output
    assert "Traceback" not in front.output


@pytest.mark.parametrize("front", ["front_of_server"], indirect=True)
def test_a_vllm_server_that_dies(front: Server, vllm_server: VllmServer) -> None:
    """That one which comes back is used again, `tests/wire/transports/test_vllm_server_engine.py` says."""
    with sdk_of(front) as client:
        stream = begin(client, "say endless")
        vllm_server.kill()
        assert_failed(stream)
        assert_away(front, client)
