"""Workers that are stopped beyond their lease, and a PostgreSQL that hangs: nobody overrules what others decided.

Only this finds a worker that goes on with what another one has ended meanwhile, and one that is taken for dead because
the database answered nobody: both need processes that stand still for longer than a lease.
"""

import asyncio
import os
import signal
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx

from tests.kit.background import ANSWER, begin, cancel, get, is_idle, new_server, speak, until
from tests.kit.clients import Frame, http_client, read_error_answer, text_of
from tests.kit.databases import postgres_url, url_on
from tests.kit.postgres_server import PostgresServer, private_postgres_server  # noqa: F401 - a fixture
from tests.kit.raw_streams import RawStream
from tests.kit.scripts import gate, generations, release
from tests.kit.server import Server, manage
from tests.kit.stored import stored
from tests.kit.waiting import eventually
from tests.system.takeover.test_crash import A_BIT, LEASE, assert_quiet, assert_stopped, crash_server

ROWS = "SELECT id, status, worker, epoch, body FROM responses_app_response"
TIMEOUT = 2.0  # DATABASE_TIMEOUT_SECONDS
HANG = 9.0  # seconds: three leases
LONG_LEASE = 8.0  # WORKER_LEASE_SECONDS: a busy machine lets no worker stand still for so long
A_LOOK = 2.0  # seconds: workers look every second at what dead ones left


class Stopped:
    """What runs in a server that is stopped: silent ones that wait, and others that have begun to answer.

    `talking` is in the background, `streamed` are not.
    """

    def __init__(self) -> None:
        self.silent: list[Frame] = []
        self.talking = ""
        self.streams: list[RawStream] = []
        self.streamed: list[str] = []

    @property
    def ended(self) -> set[str]:
        """Those that others let fail."""
        return set(self.streamed)

    @classmethod
    async def begin(cls, server: Server, stack: AsyncExitStack, conversation: str) -> "Stopped":
        """Begin all of them; each would end once it is spoken to or released."""
        some = cls()
        http = await stack.enter_async_context(http_client(server))
        some.silent = [await begin(http, f"[dumb {name}]") for name in "ab"]
        some.talking = (await begin(http, gate("a0")))["id"]
        for fields in ({"conversation": conversation}, {"metadata": {"a": "b"}}):
            stream = await RawStream.create(server, input=gate("a1"), **fields)
            stack.callback(stream.kill)
            some.streams.append(stream)
            some.streamed.append((await stream.until("response.output_text.delta"))[0]["response"]["id"])
        return some


def rows(server: Server) -> dict[str, tuple[Any, ...]]:
    """Return the rows of all responses, by their ids."""
    return {row[0]: row[1:] for row in stored(server, ROWS)}


def statuses(server: Server, ids: set[str]) -> set[str]:
    """Return the states of these responses."""
    return {row[0] for response_id, row in rows(server).items() if response_id in ids}


async def test_a_worker_that_was_stopped_beyond_its_lease_overrules_nobody(folder: Path) -> None:
    url = postgres_url(folder, manage)
    sleeper, heir = (crash_server(folder / name, database_url=url) for name in ("sleeper", "heir"))
    try:
        sleeper.start()
        heir.start()
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(http_client(heir))
            conversation = (await http.post("/conversations", json={})).json()["id"]
            some = await Stopped.begin(sleeper, stack, conversation)
            await eventually(lambda: statuses(heir, some.ended) == {"in_progress"})
            assert sleeper.process is not None
            os.kill(sleeper.process.pid, signal.SIGSTOP)
            for name in "ab":
                speak(sleeper, name)
            for name in ("a0", "a1"):
                release(sleeper, name)
            await eventually(lambda: statuses(heir, some.ended) == {"failed"}, timeout=2 * LEASE + A_BIT)
            speak(heir, "a")
            release(heir, "a0")
            await until(http, some.silent[0]["id"], "completed")
            await until(http, some.talking, "completed")
            await eventually(lambda: len(generations(heir, some.silent[1]["id"])) == 0)  # it waits there
            decided = rows(heir)
            os.kill(sleeper.process.pid, signal.SIGCONT)
            for stream, response_id in zip(some.streams, some.streamed, strict=True):
                events = await stream.rest()
                assert events[-1]["type"] == "response.failed"
                assert_stopped(events[-1]["response"])
                assert_stopped(await get(http, response_id))
            await eventually(lambda: is_idle(sleeper))
            assert rows(heir) == decided
            assert (await http.get(f"/conversations/{conversation}/items")).json()["data"] == []
            speak(heir, "b")
            done = await until(http, some.silent[1]["id"], "completed")
            assert text_of(done) == ANSWER
            assert [len(generations(heir, each["id"])) for each in some.silent] == [1, 1]
            async with http_client(sleeper) as again:
                assert text_of(await get(again, done["id"])) == ANSWER
                answer = await again.post("/responses", json={"input": "And?", "previous_response_id": done["id"]})
                assert answer.json()["status"] == "completed", "it goes on serving"
        for server in (sleeper, heir):
            server.stop()
            assert_quiet(server)
    finally:
        if sleeper.process is not None and sleeper.is_running:
            os.kill(sleeper.process.pid, signal.SIGCONT)
        sleeper.stop()
        heir.stop()


async def refused(http: httpx.AsyncClient, method: str, path: str, **fields: Any) -> float:
    """Ask a server whose database hangs; return how long that took."""
    asked = time.monotonic()
    answer = await http.request(method, path, **fields)
    read_error_answer(answer, status=503, code="server_is_overloaded")
    return time.monotonic() - asked


async def test_a_database_that_hangs_makes_nobody_look_dead(folder: Path, own_postgres_server: PostgresServer) -> None:
    url = url_on(own_postgres_server, manage)
    limits = {"worker_lease_seconds": 3, "database_timeout_seconds": TIMEOUT}
    servers = [new_server(folder / name, database_url=url, **limits) for name in ("one", "two")]
    try:
        async with AsyncExitStack() as stack:
            clients, running, streams = [], [], []
            for server in servers:
                server.start()
                http = await stack.enter_async_context(http_client(server))
                clients.append(http)
                running += [await begin(http, text) for text in ("[dumb a]", gate("b0"))]
                stream = await RawStream.create(server, input=gate("b0"))
                stack.callback(stream.kill)
                streams.append(stream)
                running.append((await stream.until("response.output_text.delta"))[0]["response"])
            ids = {response["id"] for response in running}
            await asyncio.sleep(4)  # a lease and a beat: from now on each of them would take over what dead ones left
            looks, waits = [], []
            with own_postgres_server.hanging():
                until_then = asyncio.create_task(asyncio.sleep(HANG))
                for http, server, other in zip(clients, servers, reversed(running), strict=False):
                    asking = time.monotonic()
                    answer = await http.get(f"{server.url}/ready")
                    assert answer.status_code == 503
                    assert "answer" in answer.json()["database"]
                    looks.append(time.monotonic() - asking)
                    waits.append(await refused(http, "GET", f"/responses/{other['id']}x"))
                    body = {"input": "refuse me", "background": True}
                    waits.append(await refused(http, "POST", "/responses", json=body))
                await until_then
            # A busy machine may make any of them longer, and not all.
            assert max(min(looks), min(waits)) < 2 * TIMEOUT, (looks, waits)
            await asyncio.sleep(4)
            found = rows(servers[0])
            assert {found[each][0] for each in ids} <= {"queued", "in_progress"}
            assert {found[each][2] for each in ids} == {1}, "each is still its first worker's"
            for server in servers:
                speak(server, "a")
                release(server, "b0")
            for stream in streams:
                assert (await stream.rest())[-1]["type"] == "response.completed"
            for response in running:
                assert (await until(clients[0], response["id"], "completed"))["status"] == "completed"
            for response_id, (status, *_) in rows(servers[0]).items():
                assert response_id in ids or status == "failed", "what was refused never runs"
                assert len(generations(servers[0], response_id) + generations(servers[1], response_id)) <= 1
            for http, server in zip(clients, servers, strict=True):
                assert (await http.post("/responses", json={"input": "Hello"})).json()["status"] == "completed"
                assert (await http.get(f"{server.url}/ready")).status_code == 200
        for server in servers:
            server.stop()
            assert_quiet(server)
            assert "have failed" not in server.output
    finally:
        for server in servers:
            server.stop()


async def test_neither_takes_over_what_the_other_runs(folder: Path) -> None:
    first, second = (new_server(folder, worker_lease_seconds=LONG_LEASE) for _ in range(2))
    second.log = folder / "second.log"
    with first, second:
        async with http_client(first) as one, http_client(second) as two:
            response = await begin(one, "[hang]")
            silent = await begin(two, "[dumb c]")
            await until(one, response["id"], "in_progress")
            await asyncio.sleep(LONG_LEASE + A_LOOK)
            assert len(generations(first, silent["id"])) == 0
            assert (await get(two, response["id"]))["status"] == "in_progress"
            await cancel(one, response)
            speak(first, "c")
            await until(one, silent["id"], "completed")
            assert len(generations(first, silent["id"])) == 1
    for server in (first, second):
        assert_quiet(server)
