"""Workers behind one socket with a Redis between them: what runs survives, whoever is killed, replaced or told to stop.

Only this finds an answer that is lost between two workers while clients of all kinds are at work.
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit.background import begin, until
from tests.kit.clients import Socket, http_client, text_of
from tests.kit.laws import assert_laws
from tests.kit.raw_streams import RawStream
from tests.kit.redis_server import RedisServer
from tests.kit.scripts import BEGIN
from tests.kit.served import Supervised
from tests.system.cluster.load import ANSWER, ASKED, Load, Tally

NUMBERS = " ".join(str(number) for number in range(100))
SCRIPT = [
    {"when": "[long]", "say": f"{BEGIN}{NUMBERS}<|return|>", "delay": 0.015},
    {"when": "[longer]", "say": f"{BEGIN}{NUMBERS}<|return|>", "delay": 0.03},
    {"when": ASKED, "say": f"{BEGIN}{ANSWER}<|return|>", "delay": 0.015},
    {"when": "[hang]", "say": f"{BEGIN}Hello<|return|>", "hang_after": 4},
    {"say": f"{BEGIN}Hello.<|return|>"},
]
WORKERS = 2
# Of what clients come again after: no response has failed, and no server was away.
RETRIED = {"503", "503 frame", "ReadError", "RemoteProtocolError", "ConnectionResetError", "BrokenPipeError"}
RETRIED |= {"IncompleteReadError"} | {
    f"WebSocket {why}" for why in (503, 1006, 1012, "ConnectionResetError", "InvalidMessage")
}
CLIENTS = 12  # of four kinds
ANSWERS = 5  # that each kind has behind what happened
PATIENCE = 120.0  # seconds in which some answers come on a machine that is busy


@contextmanager
def workers(folder: Path, **settings: object) -> Iterator[Supervised]:
    """Serve with several workers and a Redis of their own: it counts the connections of a killed one for a while."""
    usual = {"worker_lease_seconds": 5.0, "background_max_running": 40, "shutdown_grace_seconds": 60}
    with (
        RedisServer() as redis,
        Supervised(folder, workers=WORKERS, script=SCRIPT, redis_url=redis.url, **{**usual, **settings}) as server,
    ):
        yield server
    for noise in ("Traceback", "was never", "Task was destroyed", "Unhandled"):
        assert noise not in server.output, server.output[-3000:]


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervised]:
    """Workers that let what runs end. A test may replace or kill some, and leaves as many, which serve."""
    with workers(tmp_path_factory.mktemp("patient")) as server:
        yield server


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervised]:
    """Workers that wait for nothing as they stop, and take six WebSockets. A test leaves them running."""
    with workers(tmp_path_factory.mktemp("hasty"), shutdown_grace_seconds=0, max_websocket_connections=6) as one:
        yield one


async def test_a_rolling_replacement_fails_nothing(patient: Supervised) -> None:
    before = patient.pids()
    load = Load(patient, clients=CLIENTS, settle_seconds=PATIENCE)
    async with load.running() as tally:
        began = time.monotonic()
        patient.hup()
        await asyncio.to_thread(patient.wait_for_line, "all workers are replaced", seconds=PATIENCE)
        await asyncio.to_thread(patient.wait_for, lambda: len(patient.pids()) == WORKERS, PATIENCE)
        print(f"replaced in {time.monotonic() - began:.1f} s; {tally.completed} completed, again: {tally.retried}")
        await load.more(ANSWERS)
    assert not set(before) & set(patient.pids())
    assert tally.failed == []
    assert reasons(tally) <= RETRIED, "what ran was waited for"
    assert tally.retried["WebSocket 1012"], "each of the old ones said goodbye"


async def test_a_worker_that_is_killed_costs_nothing_in_the_background(patient: Supervised) -> None:
    chance = random.Random(11)
    load = Load(patient, clients=CLIENTS, settle_seconds=PATIENCE)
    before = patient.output.count(" serves\n")
    async with load.running() as tally:
        for number in range(2):
            os.kill(chance.choice(patient.pids()), signal.SIGKILL)
            line = " serves\n"
            await asyncio.to_thread(patient.wait_for_line, line, count=before + number + 1, seconds=PATIENCE)
        print(f"{tally.completed} completed, again: {tally.retried}")
        await load.more(ANSWERS)
    assert tally.failed == []
    assert reasons(tally) <= RETRIED, "the streams of a killed worker are cut, and come again"


def reasons(tally: Tally) -> set[str]:
    """Return why clients came again."""
    return {why.removesuffix(" of a background stream") for why in tally.retried}


async def test_a_background_response_outlives_all_workers(hasty: Supervised) -> None:
    async with http_client(hasty) as http:
        ids = [(await begin(http, "[longer]"))["id"] for _ in range(6)]
    await asyncio.to_thread(hasty.stop)
    assert "goes to another worker: the server stops" in hasty.output
    await asyncio.to_thread(hasty.start)
    async with http_client(hasty) as http:
        for response_id in ids:
            assert text_of(await until(http, response_id, "completed", timeout=PATIENCE)) == NUMBERS


async def test_what_one_worker_runs_any_other_cancels_and_follows(hasty: Supervised) -> None:
    before = len(hasty.output)
    sockets = [await Socket.open(hasty.ws_url) for _ in range(6)]
    async with await Socket.open(hasty.ws_url) as one_more:
        assert (await one_more.error())["error"]["code"] == "websocket_connection_limit_reached"
    for number, socket in enumerate(sockets):
        assert (await socket.ask("Hello", f"lane{number}"))["status"] == "completed"
        await socket.raw.close()
    assert len(hasty.answered_by(since=before)) > 1, "the limit is one over several workers"

    async with http_client(hasty) as http:
        followed = await begin(http, "[long]")
        cancelled = [await begin(http, "[hang]") for _ in range(9)]
    streams = [await RawStream.resume(hasty, followed["id"]) for _ in range(9)]
    first, *others = await asyncio.gather(*(stream.rest() for stream in streams))
    assert_laws(first)
    assert others == [first] * 8

    for response in cancelled:
        async with http_client(hasty) as http:  # a connection of its own, to whichever worker takes it
            answer = await http.post(f"/responses/{response['id']}/cancel")
            assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
