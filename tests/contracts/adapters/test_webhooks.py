"""Webhooks on SQLite and on PostgreSQL. Events come in with responses, as the workers' writer keeps them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from responses_app.kit.clock import utc
from responses_app.kit.threads import DatabaseReaders
from responses_app.protocol.errors import JsonObject
from responses_app.resources.webhooks.fields import WebhookEndpointChanges
from responses_app.resources.webhooks.messages import EVENT_TYPES, message_of_wait
from responses_app.resources.webhooks.model import WebhookDelivery, WebhookEndpoint, WebhookEvent
from responses_app.resources.webhooks.settings import WebhookSettings
from responses_app.resources.webhooks.store import Attempt, Claimed, EndpointsFull, Webhooks
from responses_app.stores.base import BaseResponseStore, Claim, ClaimLost, LogAppend, StoredResponse
from responses_app.stores.database.responses.store import DatabaseResponseStore
from tests.contracts.store import IDS_NOBODY_MADE, Turn, call, new_id, present
from tests.contracts.store_life import OpenStore
from tests.kit.clock import Clock

LEASE = 30.0
FLOOD, CLAIMS = 5_000, 5
SECONDS = 20.0  # for all claims: where all were compared with all others, one took longer
OpenWebhooks = Callable[..., Awaitable[Webhooks]]


def endpoint(project: str, **fields: Any) -> WebhookEndpoint:
    """Return a new endpoint."""
    given = {"id": new_id("we"), "name": "one", "url": "https://example.com/", "secret": "sealed", **fields}
    given = {"event_types": list(EVENT_TYPES), "created_at": utc(5), "updated_at": utc(5), **given}
    return WebhookEndpoint(project=project, secret_hint="whsec_…abcd", **given)


def columns(row: WebhookEndpoint) -> dict[str, object]:
    """Return all that a row has."""
    return {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields}


def ended(
    turn: Turn, status: str = "completed", output: list[JsonObject] | None = None, **fields: Any
) -> StoredResponse:
    """Return how a response in the background ended."""
    stored = turn.saying() if status == "completed" else turn.failed()
    response = {**stored.response, "status": status, "background": True, "output": output or []}
    return replace(stored, response=response, **fields)


def told(claimed: Claimed | None) -> list[tuple[str, str]]:
    """Return what is due, as the types and the objects that messages name."""
    bodies = [orjson.loads(each.body) for each in (claimed.due if claimed else ())]
    return [(body["type"], body["data"]["id"]) for body in bodies]


def arrived(claimed: Claimed) -> list[Attempt]:
    """Return that all that was due arrived."""
    return [Attempt(key=each.pk, status_code=200) for each in claimed.due]


def lost(message: WebhookDelivery, pause: float = 0.0) -> Attempt:
    """Return that a message did not arrive."""
    return Attempt(key=message.pk, status_code=500, problem="The receiver answered with status 500.", pause=pause)


async def claim(webhooks: Webhooks, worker: str = "A", *, most: int = 8) -> Claimed | None:
    """Dispatch, and claim what is due."""
    while await webhooks.dispatch():
        pass
    return await webhooks.claim(worker, lease_seconds=LEASE, most=most, without=())


async def claimed_by(webhooks: Webhooks, worker: str = "A", *, most: int = 8) -> Claimed:
    """Do the same where something is due."""
    found = present(await claim(webhooks, worker, most=most))
    return found


class TestInDatabases:
    @pytest.fixture
    def clock(self) -> Clock:
        return Clock(1_790_000_000)

    @pytest.fixture
    async def store(self, open_store: OpenStore, clock: Clock) -> DatabaseResponseStore:
        store = await open_store(now=clock)
        assert isinstance(store, DatabaseResponseStore)
        return store

    @pytest.fixture
    async def open_webhooks(self, alias: str, clock: Clock) -> AsyncIterator[OpenWebhooks]:
        opened: list[Webhooks] = []

        async def open_one(**settings: Any) -> Webhooks:
            webhooks = Webhooks(using=alias, settings=WebhookSettings(**settings), now=clock)
            await webhooks._threads.run(lambda _: _empty(alias))
            opened.append(webhooks)
            return webhooks

        yield open_one
        for webhooks in opened:
            await webhooks.aclose()

    @pytest.fixture
    async def webhooks(self, open_webhooks: OpenWebhooks) -> Webhooks:
        return await open_webhooks()

    async def test_endpoints_are_kept_changed_and_forgotten(self, webhooks: Webhooks, clock: Clock) -> None:
        project = new_id("proj")
        first, second = endpoint(project, id=f"we_{1:032x}", name="Äpfel 🍎 %_"), endpoint(project, id=f"we_{2:032x}")
        for each in (first, second):
            await webhooks.create(each)
            await webhooks.create(each)  # as where the answer got lost
            assert columns(present(await webhooks.get(project, each.id))) == columns(each)
        listed = await webhooks.page(project, after=None, descending=True, limit=5)
        assert [each.id for each in listed or ()] == [second.id, first.id]
        listed = await webhooks.page(project, after=second.id, descending=True, limit=5)
        assert [each.id for each in listed or ()] == [first.id]
        same = present(await webhooks.update(project, first.id, WebhookEndpointChanges(name=first.name)))
        assert same.updated_at == utc(5)
        changed = present(await webhooks.update(project, first.id, WebhookEndpointChanges(status="disabled")))
        assert (changed.enabled, changed.updated_at) == (False, utc(clock()))
        assert await webhooks.update("another", first.id, WebhookEndpointChanges(name="x")) is None
        assert not await webhooks.delete("another", first.id)
        assert await webhooks.delete(project, first.id)
        assert not await webhooks.delete(project, first.id)
        assert await webhooks.get(project, first.id) is None

    async def test_a_project_has_as_many_as_it_may_have(self, open_webhooks: OpenWebhooks) -> None:
        webhooks, project = await open_webhooks(webhook_endpoints_max=1), new_id("proj")
        await webhooks.create(endpoint(project))
        with pytest.raises(EndpointsFull):
            await webhooks.create(endpoint(project))
        await webhooks.create(endpoint(new_id("proj")))

    async def test_an_old_secret_is_good_for_as_long_as_was_asked(self, webhooks: Webhooks, clock: Clock) -> None:
        project = new_id("proj")
        await webhooks.create(one := endpoint(project))
        rotated = present(await webhooks.rotate(project, one.id, sealed="new", hint="h", keep_old_seconds=60))
        until = utc(clock.now + 60)
        assert (rotated.secret, rotated.old_secret, rotated.old_secret_until) == ("new", "sealed", until)
        clock.now += 1
        again = present(await webhooks.rotate(project, one.id, sealed="new", hint="h", keep_old_seconds=60))
        assert columns(again) == columns(rotated)
        at_once = present(await webhooks.rotate(project, one.id, sealed="newest", hint="h"))
        assert (at_once.secret, at_once.old_secret) == ("newest", "")

    @pytest.mark.parametrize("status", ["completed", "failed", "incomplete", "cancelled"])
    async def test_an_end_is_told_once(self, webhooks: Webhooks, store: BaseResponseStore, status: str) -> None:
        turn = Turn()
        await webhooks.create(endpoint(turn.project))
        stored = ended(turn, status)
        await store.save(stored)
        await store.save(stored)  # as where the answer got lost
        claimed = await claimed_by(webhooks)
        assert told(claimed) == [(f"response.{status}", turn.response_id)]
        body = orjson.loads(claimed.due[0].body)
        assert set(body) == {"id", "object", "created_at", "type", "data"}
        assert body["id"] == claimed.due[0].event_id
        await webhooks.settle(claimed, arrived(claimed), worker="A", pause=0)
        await store.save(stored)
        assert await claim(webhooks) is None

    async def test_there_is_work_until_all_has_arrived(self, webhooks: Webhooks, store: BaseResponseStore) -> None:
        turn = Turn()
        await webhooks.create(endpoint(turn.project))
        assert not await webhooks.has_work()
        await store.save(ended(turn))
        assert await webhooks.has_work()  # an event of which no delivery is made
        claimed = await claimed_by(webhooks)
        assert await webhooks.has_work()  # a delivery that waits
        await webhooks.settle(claimed, arrived(claimed), worker="A", pause=0)
        assert not await webhooks.has_work()

    async def test_what_nobody_wants_is_not_told(self, webhooks: Webhooks, store: BaseResponseStore) -> None:
        turn = Turn()
        await store.save(ended(Turn(project=turn.project)))  # before there was an endpoint
        await webhooks.create(endpoint(turn.project, event_types=["response.failed"]))
        await webhooks.create(endpoint(new_id("proj")))  # of another project
        off = endpoint(turn.project)
        await webhooks.create(off)
        await webhooks.update(turn.project, off.id, WebhookEndpointChanges(status="disabled"))
        await store.save(ended(turn))
        foreground = Turn(project=turn.project)
        await store.save(replace(foreground.failed()))
        assert await claim(webhooks) is None
        await store.save(ended(failed := Turn(project=turn.project), "failed"))
        assert told(await claim(webhooks)) == [("response.failed", failed.response_id)]

    async def test_one_that_waits_for_its_client_says_so(self, webhooks: Webhooks, store: BaseResponseStore) -> None:
        turn = Turn()
        await webhooks.create(endpoint(turn.project))
        await store.save(ended(turn, output=[call("f", "call_1")]))
        claimed = await claimed_by(webhooks)
        assert told(claimed) == [("response.completed", turn.response_id)]  # in their order, one after the other
        await webhooks.settle(claimed, arrived(claimed), worker="A", pause=0)
        claimed = await claimed_by(webhooks)
        assert told(claimed) == [("response.action_required", turn.response_id)]
        assert orjson.loads(claimed.due[0].body)["data"]["required_action"] == {"type": "function_call"}
        await webhooks.settle(claimed, arrived(claimed), worker="A", pause=0)

    async def test_a_wait_is_told_with_the_log_that_says_so(self, webhooks: Webhooks, store: BaseResponseStore) -> None:
        turn, claim_ = Turn(), Claim("A", 1)
        await webhooks.create(endpoint(turn.project))
        await store.accept(replace(turn.begun("queued"), claim=claim_))
        wait = message_of_wait(turn.response_id, [call("f", "call_1")], ["call_1"], wait="0 1")
        append = LogAppend(
            response_id=turn.response_id, claim=claim_, position=0, data=b"x", project=turn.project, messages=(wait,)
        )
        another = replace(append, claim=Claim("B", 7), messages=(replace(wait, id="evt_of_another"),))
        assert (await store.append([another])).lost == {turn.response_id}
        await store.append([append])
        await store.append([append])  # as where the answer got lost
        claimed = await claimed_by(webhooks)
        assert told(claimed) == [("response.action_required", turn.response_id)]
        assert orjson.loads(claimed.due[0].body)["data"]["required_action"] == {"type": "function_call"}
        await webhooks.settle(claimed, arrived(claimed), worker="A", pause=0)
        await store.append([replace(append, position=1, data=b"")])  # as a worker that takes it over does
        assert await claim(webhooks) is None

    async def test_a_write_that_does_not_count_tells_nothing(
        self, webhooks: Webhooks, store: BaseResponseStore
    ) -> None:
        turn = Turn()
        await webhooks.create(endpoint(turn.project))
        await store.accept(turn.begun("queued"))
        with pytest.raises(ClaimLost):
            await store.save(ended(turn, accepted=True, claim=Claim("another", 7)))
        deleted = Turn(project=turn.project)
        await store.save(ended(deleted, accepted=True))  # its row is gone
        assert await claim(webhooks) is None

    async def test_each_endpoint_gets_what_it_wants(self, webhooks: Webhooks, store: BaseResponseStore) -> None:
        turn = Turn()
        for types in (["response.completed"], ["response.action_required"], ["response.completed"]):
            await webhooks.create(endpoint(turn.project, event_types=types))
        await store.save(ended(turn, output=[call("f", "call_1")]))
        got = [await claimed_by(webhooks), await claimed_by(webhooks), await claimed_by(webhooks)]
        assert sorted(told(each)[0][0] for each in got) == [
            "response.action_required",
            "response.completed",
            "response.completed",
        ]
        assert await claim(webhooks) is None  # all are claimed

    async def test_one_worker_serves_an_endpoint_until_its_time_is_over(
        self, webhooks: Webhooks, store: BaseResponseStore, clock: Clock
    ) -> None:
        turn = Turn()
        await webhooks.create(endpoint(turn.project))
        await store.save(ended(turn))
        first = await claimed_by(webhooks, "A")
        assert await claim(webhooks, "B") is None
        clock.now += LEASE + 1
        second = await claimed_by(webhooks, "B")
        assert second.due == first.due  # the same ids
        # A was only slow: that it failed there says nothing any more, and the endpoint is B's.
        await webhooks.settle(first, [lost(first.due[0], 60)], worker="A", pause=60)
        assert await claim(webhooks, "C") is None
        await webhooks.settle(second, [lost(second.due[0])], worker="B", pause=0)
        third = await claimed_by(webhooks, "C")
        assert third.due[0].attempts == 1
        # What arrived has arrived, whoever says so.
        await webhooks.settle(first, arrived(first), worker="A", pause=0)
        await webhooks.settle(third, [], worker="C", pause=0)
        assert await claim(webhooks, "C") is None

    async def test_what_fails_waits_and_is_parked(
        self, open_webhooks: OpenWebhooks, store: BaseResponseStore, clock: Clock
    ) -> None:
        webhooks = await open_webhooks(webhook_retry_seconds=100)
        turn = Turn()
        await webhooks.create(endpoint(turn.project))
        await store.save(ended(turn))
        claimed = await claimed_by(webhooks)
        await webhooks.settle(claimed, [lost(claimed.due[0], 50)], worker="A", pause=10)
        other = Turn(project=turn.project)
        await store.save(ended(other))
        assert await claim(webhooks) is None  # the endpoint pauses
        clock.now += 11
        claimed = await claimed_by(webhooks)
        assert claimed.endpoint.failures == 1
        assert told(claimed) == [("response.completed", other.response_id)]  # what failed holds up no other
        await webhooks.settle(claimed, arrived(claimed), worker="A", pause=0)
        clock.now += 40
        claimed = await claimed_by(webhooks)
        assert (told(claimed), claimed.endpoint.failures) == ([("response.completed", turn.response_id)], 0)
        await webhooks.settle(claimed, [lost(claimed.due[0], 5_000)], worker="A", pause=0)
        clock.now += 50  # the last attempt, when the time is over
        claimed = await claimed_by(webhooks)
        await webhooks.settle(claimed, [lost(claimed.due[0], 5_000)], worker="A", pause=0)
        clock.now += 10_000
        assert await claim(webhooks) is None

    async def test_what_waits_behind_one_that_failed_is_due_with_it(
        self, webhooks: Webhooks, store: BaseResponseStore, clock: Clock
    ) -> None:
        turn = Turn()
        await webhooks.create(endpoint(turn.project))
        await store.save(ended(turn, output=[call("get_weather", "call_1")]))
        claimed = await claimed_by(webhooks)
        await webhooks.settle(claimed, [lost(claimed.due[0], 50)], worker="A", pause=10)
        clock.now += 11
        assert await claim(webhooks) is None  # it is not this endpoint's turn: nothing can be sent there
        clock.now += 40
        claimed = await claimed_by(webhooks)
        assert (told(claimed), claimed.endpoint.failures) == ([("response.completed", turn.response_id)], 1)
        await webhooks.settle(claimed, arrived(claimed), worker="A", pause=0)
        assert told(await claimed_by(webhooks)) == [("response.action_required", turn.response_id)]

    async def test_an_endpoint_has_only_so_many_waiting(
        self, open_webhooks: OpenWebhooks, store: BaseResponseStore
    ) -> None:
        webhooks, project = await open_webhooks(webhook_max_waiting=3), new_id("proj")
        await webhooks.create(endpoint(project))
        for _ in range(5):
            await store.save(ended(Turn(project=project)))
        claimed = await claimed_by(webhooks)
        assert len(claimed.due) == 3
        await webhooks.settle(claimed, arrived(claimed), worker="A", pause=0)
        await store.save(ended(Turn(project=project)))
        assert len((await claimed_by(webhooks)).due) == 1

    async def test_who_waits_longest_is_next(self, webhooks: Webhooks, store: BaseResponseStore, clock: Clock) -> None:
        projects = [new_id("proj"), new_id("proj")]
        for project in projects:
            await webhooks.create(endpoint(project))
            for _ in range(3):
                await store.save(ended(Turn(project=project)))
        served = []
        for _ in range(4):
            claimed = await claimed_by(webhooks, most=1)
            served.append(claimed.endpoint.project)
            clock.now += 1
            await webhooks.settle(claimed, arrived(claimed), worker="A", pause=0)
        assert served[0] != served[1]
        assert served[:2] == served[2:]
        without = await webhooks.claim("A", lease_seconds=LEASE, most=1, without=projects)
        assert without is None

    async def test_what_was_delivered_is_purged(
        self, open_webhooks: OpenWebhooks, store: BaseResponseStore, clock: Clock
    ) -> None:
        webhooks, turn = await open_webhooks(webhook_kept_seconds=100), Turn()
        await webhooks.create(endpoint(turn.project))
        await store.save(ended(turn))
        claimed = await claimed_by(webhooks)
        await webhooks.settle(claimed, arrived(claimed), worker="A", pause=0)
        assert await webhooks.purge() == 0
        clock.now += 101
        assert await webhooks.purge() == 1

    @pytest.mark.parametrize("name", IDS_NOBODY_MADE)
    async def test_ids_nobody_made(self, webhooks: Webhooks, name: str) -> None:
        project = new_id("proj")
        assert await webhooks.get(project, name) is None
        assert not await webhooks.delete(project, name)
        assert await webhooks.update(project, name, WebhookEndpointChanges(name="x")) is None

    async def test_a_response_writes_one_row_in_its_own_transaction(
        self, alias: str, open_webhooks: OpenWebhooks, store: DatabaseResponseStore
    ) -> None:
        webhooks, turn, readers = await open_webhooks(), Turn(), DatabaseReaders(alias)
        count = lambda: readers.run(lambda _: WebhookEvent.objects.using(alias).count())  # noqa: E731
        await store.save(ended(turn))
        assert await count() == 0  # nobody wants it
        for _ in range(3):
            await webhooks.create(endpoint(turn.project))
        await store.save(ended(Turn(project=turn.project)))
        assert await count() == 1
        await readers.aclose()

    async def test_thousands_that_have_just_come_are_claimed_in_no_time(
        self, alias: str, open_webhooks: OpenWebhooks, clock: Clock
    ) -> None:
        # PostgreSQL has no statistics of them yet. Each is compared with few others whatever it thinks of their number.
        webhooks, flooded = await open_webhooks(), endpoint("flooded")
        await webhooks.create(flooded)
        at = datetime.fromtimestamp(clock.now, UTC)
        rows = [
            WebhookDelivery(
                endpoint_id=flooded.id, project="flooded", event_id=f"evt_{number}", type="response.completed",
                object_id=f"resp_{number}", body="{}", created_at=at, changed_at=at, due_at=at, give_up_at=at,
            )
            for number in range(FLOOD)
        ]  # fmt: skip
        await webhooks._threads.run(lambda _: WebhookDelivery.objects.using(alias).bulk_create(rows, batch_size=500))
        async with asyncio.timeout(SECONDS):
            for number in range(CLAIMS):
                claimed = await webhooks.claim("A", lease_seconds=5.0, most=1, without=())
                assert claimed is not None
                assert claimed.due[0].event_id == f"evt_{number}"
                await webhooks.settle(claimed, [Attempt(key=claimed.due[0].pk, status_code=200)], worker="A", pause=0)


def _empty(alias: str) -> None:
    for model in (WebhookEvent, WebhookDelivery, WebhookEndpoint):
        model.objects.using(alias).all().delete()
