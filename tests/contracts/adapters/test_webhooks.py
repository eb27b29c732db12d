"""Webhooks on SQLite and on PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from responses_app.models.webhooks import WebhookDelivery, WebhookEndpoint, WebhookEvent
from responses_app.stores.database.responses.store import DatabaseResponseStore
from responses_app.stores.database.threads import DatabaseReaders
from responses_app.stores.database.webhooks.webhooks import DatabaseWebhooks
from responses_app.stores.webhooks import Attempt, WebhookSettings
from tests.contracts.store import Turn
from tests.contracts.store_life import OpenStore
from tests.contracts.webhooks import OpenWebhooks, WebhooksContract, ended, endpoint
from tests.kit.clock import Clock

FLOOD, CLAIMS = 5_000, 5
SECONDS = 20.0  # for all claims: where all were compared with all others, one took longer


class TestInDatabases(WebhooksContract):
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
        opened: list[DatabaseWebhooks] = []

        async def open_one(**settings: Any) -> DatabaseWebhooks:
            webhooks = DatabaseWebhooks(using=alias, settings=WebhookSettings(**settings), now=clock)
            await webhooks._threads.run(lambda _: _empty(alias))
            opened.append(webhooks)
            return webhooks

        yield open_one
        for webhooks in opened:
            await webhooks.aclose()

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
                await webhooks.settle(claimed, [Attempt(key=claimed.due[0].key, status_code=200)], worker="A", pause=0)


def _empty(alias: str) -> None:
    for model in (WebhookEvent, WebhookDelivery, WebhookEndpoint):
        model.objects.using(alias).all().delete()
