"""Usage on SQLite and on PostgreSQL, also as it is kept with the ends of responses."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from responses_app.models import Project
from responses_app.models.usage import Usage
from responses_app.stores.base import ClaimLost, StoredResponse
from responses_app.stores.database.usage import DatabaseUsage
from responses_app.stores.usage import UsageSum, UsedTokens
from tests.contracts.adapters.stores import OnBothCase, rows, within
from tests.contracts.files import Hands
from tests.contracts.store import Turn, exchange
from tests.contracts.store_life import OpenStore, reclaimed
from tests.contracts.usage import ALWAYS, PROJECTS, UsageContract, entry

USED = UsedTokens(input=100, cached=64, output=7)


class TestInDatabases(OnBothCase, UsageContract):
    @pytest.fixture
    async def usage(self, alias: str, hands: Hands) -> AsyncIterator[DatabaseUsage]:
        await asyncio.to_thread(_forget_all, alias)
        await asyncio.to_thread(_know_projects, alias)
        usage = DatabaseUsage(using=alias, now=hands)
        yield usage
        await usage.aclose()

    async def test_rows_become_fewer(self, usage: DatabaseUsage, alias: str, hands: Hands) -> None:
        await usage.keep([entry() for _ in range(100)])
        assert len(await asyncio.to_thread(rows, alias, Usage)) == 100
        hands.time += 2 * 3600
        await usage.fold()
        [row] = await asyncio.to_thread(rows, alias, Usage)
        assert (row.seconds, row.requests) == (60, 100)

    async def test_an_end_counts_once_however_often_it_is_kept(
        self, usage: DatabaseUsage, open_store: OpenStore
    ) -> None:
        store, turn = await open_store(), Turn("p")
        await store.accept(turn.begun())
        end = ended(turn, key_id="session:3", transport="batch")
        for stored in (end, end, replace(turn.failed(), accepted=True)):
            await store.save(stored)
        assert await usage.sums(replace(ALWAYS, groups=["project", "user", "model", "source", "batch"])) == [
            UsageSum(
                start=0,
                requests=1,
                tokens=USED,
                project=turn.project,
                user="3",
                model="test",
                source="responses",
                batch=True,
            )
        ]

    async def test_what_is_deleted_has_been_used(self, usage: DatabaseUsage, open_store: OpenStore) -> None:
        """Whether it was deleted before its end or behind it."""
        store, before, behind = await open_store(), Turn("a"), Turn("b")
        for turn in (before, behind):
            await store.accept(turn.begun())
        await store.save(ended(behind))
        for turn in (before, behind):
            assert await store.delete(turn.project, turn.response_id)
        await store.save(ended(before))
        assert [each.tokens for each in await usage.sums(replace(ALWAYS, groups=["project"]))] == [USED, USED]

    async def test_who_was_taken_for_dead_counts_nothing(self, usage: DatabaseUsage, open_store: OpenStore) -> None:
        store, turn = await open_store(), Turn("p")
        await store.accept(turn.begun("queued"))
        (taken,), _ = await reclaimed(store, "worker_heir", turn.project)
        with pytest.raises(ClaimLost):
            await store.save(ended(turn))
        assert list(await usage.sums(ALWAYS)) == []
        await store.save(replace(ended(turn), claim=taken.claim))
        assert [each.tokens for each in await usage.sums(ALWAYS)] == [USED]


def ended(turn: Turn, **fields: Any) -> StoredResponse:
    """Return the end of an accepted response that has used `USED`."""
    end = turn.saying(*exchange(1))
    usage = {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 64}, "output_tokens": 7}
    return replace(end, response={**end.response, "usage": usage}, accepted=True, **fields)  # type: ignore[arg-type]


def _forget_all(alias: str) -> None:
    within(alias, lambda connection: Usage.objects.using(connection.alias).all().delete())


def _know_projects(alias: str) -> None:
    rows = [Project(name=name, created_at=datetime.now(UTC)) for name in PROJECTS]
    within(alias, lambda connection: Project.objects.using(alias).bulk_create(rows, ignore_conflicts=True))
