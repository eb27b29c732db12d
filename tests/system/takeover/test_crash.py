"""kill -9 under load: what was promised is there after the restart, and nothing hangs for ever.

Only this finds what a worker has promised that was not yet on disk when it died under load.

With one server on its database, and with two on one PostgreSQL, where the other takes over while it serves.
"""

import time
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from tests.kit.background import ANSWER, begin, get, new_server, speak
from tests.kit.clients import Frame, http_client, text_of
from tests.kit.databases import postgres_url
from tests.kit.raw_streams import RawStream
from tests.kit.scripts import gate, release
from tests.kit.server import Server, manage
from tests.kit.stored import stored_statuses
from tests.kit.waiting import eventually
from tests.wire.transports.load import Promises, under_load

LEASE = 3  # WORKER_LEASE_SECONDS
A_BIT = 20.0  # seconds: for a third of a lease until somebody looks, and for a machine that is busy
ENOUGH = 60  # promises before the kill
RUNNING = ("queued", "in_progress")


def crash_server(folder: Path, **settings: object) -> Server:
    """Return a server whose background queue is long enough for the load, not started."""
    limits = {"worker_lease_seconds": LEASE, "background_max_running": 5, "background_max_queued": 50}
    return new_server(folder, **{**limits, **settings})


class Left:
    """What runs in a server when it dies: responses that were silent so far, and some that talked."""

    def __init__(self) -> None:
        self.silent: list[Frame] = []
        self.talking: list[str] = []
        self.foreground: list[str] = []

    @property
    def ids(self) -> set[str]:
        return {*self.talking, *self.foreground, *(response["id"] for response in self.silent)}

    @classmethod
    async def begin(cls, server: Server, stack: AsyncExitStack) -> "Left":
        """Take three of the five turns, and a foreground stream."""
        left = cls()
        http = await stack.enter_async_context(http_client(server))
        left.silent = [await begin(http, "[dumb a]", metadata={"mine": "yes"}), await begin(http, "[dumb b]")]
        for background, text, ids in ((True, gate("b0"), left.talking), (False, "[hang]", left.foreground)):
            stream = await RawStream.create(server, input=text, background=background)
            events = await stream.until("response.output_text.delta")
            ids.append(events[0]["response"]["id"])
            stack.callback(stream.kill)
        return left


async def nothing_runs(server: Server) -> bool:
    """Say whether no stored response waits or runs."""
    return not set(stored_statuses(server).values()) & set(RUNNING)


async def assert_kept(http: httpx.AsyncClient, promises: Promises) -> None:
    """Check that what was promised is there: what ended, as it was; what was accepted, ended or failed."""
    for seen in promises.seen:
        assert await get(http, seen["id"]) == seen
    for response_id in promises.ids - {seen["id"] for seen in promises.seen}:
        response = await get(http, response_id)
        assert response["status"] in ("completed", "failed")
        if response["status"] == "failed":
            assert_stopped(response)
        else:
            assert text_of(response) == "Hello there, friend."
        items = (await http.get(f"/responses/{response_id}/input_items")).json()["data"]
        assert items[0]["content"][0]["text"].startswith("Hello ")


def assert_stopped(response: Frame) -> None:
    """Check that a response failed because its server is gone."""
    assert response["status"] == "failed"
    assert response["error"]["code"] == "server_error"
    assert "server stopped" in response["error"]["message"]


async def assert_left(http: httpx.AsyncClient, left: Left) -> None:
    """Check what became of what ran: in the background it was gone on with, the rest has failed."""
    for response in left.silent:
        done = await get(http, response["id"])
        assert (done["status"], text_of(done)) == ("completed", ANSWER)
        assert (done["created_at"], done["metadata"]) == (response["created_at"], response["metadata"])
    for response_id in left.talking:
        done = await get(http, response_id)
        assert (done["status"], text_of(done)) == ("completed", "Hello there, friend.")
    for response_id in left.foreground:
        assert_stopped(await get(http, response_id))


@pytest.mark.each_database
async def test_what_was_promised_is_kept_and_nothing_hangs(folder: Path) -> None:
    server = crash_server(folder, worker_lease_seconds=1).start()  # nobody else is there
    try:
        async with AsyncExitStack() as stack:
            left = await Left.begin(server, stack)
            promises = await stack.enter_async_context(under_load(server, enough=ENOUGH))
            server.kill()
        for name in "ab":
            speak(server, name)
        release(server, "b0")
        server.start()
        server.kill()  # once more, before it could look after anything
        server.start()
        await settled(server, promises.ids | left.ids)
        await eventually(lambda: nothing_runs(server), timeout=A_BIT)  # nor anything that nobody was promised
        async with http_client(server) as http:
            await assert_kept(http, promises)
            await assert_left(http, left)
        server.stop()
        assert_quiet(server)
    finally:
        server.stop()


async def test_another_server_takes_over_while_it_serves(folder: Path) -> None:
    url = postgres_url(folder, manage)
    victim, heir = (crash_server(folder / name, database_url=url) for name in ("victim", "heir"))
    try:
        victim.start()
        heir.start()
        async with AsyncExitStack() as stack:
            own = await RawStream.create(heir, input=gate("a0"))
            stack.callback(own.kill)
            own_id = (await own.until("response.output_text.delta"))[0]["response"]["id"]
            left = await Left.begin(victim, stack)
            async with under_load(heir, enough=ENOUGH // 2) as heirs:
                async with under_load(victim, enough=ENOUGH // 2) as victims:
                    for name in "ab":
                        speak(heir, name)
                    release(heir, "b0")
                    victim.kill()
                await settled(heir, victims.ids | left.ids)
                before = len(heirs.seen)
                await eventually(lambda: len(heirs.seen) > before)  # it has served all the time
            http = await stack.enter_async_context(http_client(heir))
            assert (await get(http, own_id))["status"] == "in_progress", "who runs it lives"
            release(heir, "a0")
            assert (await own.rest())[-1]["type"] == "response.completed"
            await eventually(lambda: nothing_runs(heir))
            await assert_kept(http, victims)
            await assert_kept(http, heirs)
            await assert_left(http, left)
        heir.stop()
        assert_quiet(heir)
    finally:
        victim.stop()
        heir.stop()


async def settled(server: Server, ids: set[str]) -> None:
    """Wait until none of these responses waits or runs, as long as that may take after a crash."""
    crashed = time.monotonic()

    async def are_settled() -> bool:
        statuses = stored_statuses(server)
        return not {statuses[response_id] for response_id in ids} & set(RUNNING)

    await eventually(are_settled, timeout=LEASE + A_BIT)
    print(f"{len(ids)} responses, settled after {time.monotonic() - crashed:.1f} s")


def assert_quiet(server: Server) -> None:
    """Check that nothing broke on the way."""
    for noise in ("Traceback", "was never", "Task was destroyed", "Unhandled"):
        assert noise not in server.output, server.output[-3000:]
