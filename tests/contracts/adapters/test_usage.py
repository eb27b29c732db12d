"""What a store of usage does, on SQLite and on PostgreSQL, also as usage is kept with the ends of responses."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from responses_app.resources.projects.model import Project
from responses_app.resources.usage.fields import Group, UsageEntry, UsageQuery, UsageSum, UsedTokens
from responses_app.resources.usage.model import Usage
from responses_app.resources.usage.store import UsageStore
from responses_app.stores.base import ClaimLost, StoredResponse
from tests.contracts.adapters.stores import rows, within
from tests.contracts.files import NOW, Hands
from tests.contracts.store import Turn, exchange, new_id, save_all
from tests.contracts.store_life import OpenStore, reclaimed

HOUR, DAY = 3600, 86_400
PROJECTS = ("p", "a", "b", "p0", "p1", "p2")
ALWAYS = UsageQuery(start=0, end=NOW * 2)
EVERY: tuple[Group, ...] = ("project", "key", "user", "model", "source", "batch")


USED = UsedTokens(input=100, cached=64, output=7)


class TestInDatabases:
    @pytest.fixture
    async def usage(self, alias: str, hands: Hands) -> AsyncIterator[UsageStore]:
        await asyncio.to_thread(_forget_all, alias)
        await asyncio.to_thread(_know_projects, alias)
        usage = UsageStore(using=alias, now=hands)
        yield usage
        await usage.aclose()

    async def test_what_is_told_twice_counts_once(self, usage: UsageStore) -> None:
        first = entry()
        await usage.keep([first, entry(input=5, cached=1, output=2)])
        await usage.keep([first])
        await usage.keep([replace(first, tokens=UsedTokens(input=1, cached=1, output=1))])
        [total] = await usage.sums(ALWAYS)
        assert total == UsageSum(start=0, requests=2, tokens=UsedTokens(input=15, cached=5, output=5))

    async def test_a_project_that_is_gone_has_used_nothing(self, usage: UsageStore) -> None:
        await usage.keep([entry(project="gone"), entry(project="default"), entry(project="p")])
        found = await usage.sums(replace(ALWAYS, groups=["project"]))
        assert [each.project for each in found] == ["default", "p"]

    async def test_nothing_used_is_no_sum(self, usage: UsageStore) -> None:
        await usage.keep([])
        assert list(await usage.sums(ALWAYS)) == []
        assert list(await usage.sums(replace(ALWAYS, width=HOUR, groups=EVERY))) == []

    async def test_many_tokens_add_up_exactly(self, usage: UsageStore) -> None:
        most = 2**40
        await usage.keep([entry(input=most, cached=most - 1, output=most + 1) for _ in range(50)])
        [total] = await usage.sums(ALWAYS)
        assert total.tokens == UsedTokens(input=50 * most, cached=50 * most - 50, output=50 * most + 50)

    async def test_sums_are_told_apart_by_whatever_is_asked(self, usage: UsageStore) -> None:
        await usage.keep(
            [
                entry(project="a", key_id="key_1", model="m"),
                entry(project="a", key_id="key_1", model="n", batch=True),
                entry(project="a", key_id="session:7", model="m"),
                entry(project="b", key_id="", model="m", source="embeddings"),
            ]
        )
        assert counts(await usage.sums(replace(ALWAYS, groups=["project"])), "project") == {"a": 3, "b": 1}
        assert counts(await usage.sums(replace(ALWAYS, groups=["key"])), "key") == {"key_1": 2, "": 2}
        assert counts(await usage.sums(replace(ALWAYS, groups=["user"])), "user") == {"7": 1, "": 3}
        assert counts(await usage.sums(replace(ALWAYS, groups=["model"])), "model") == {"m": 3, "n": 1}
        assert counts(await usage.sums(replace(ALWAYS, groups=["source"])), "source") == {
            "responses": 3,
            "embeddings": 1,
        }
        assert counts(await usage.sums(replace(ALWAYS, groups=["batch"])), "batch") == {False: 3, True: 1}
        whole = await usage.sums(replace(ALWAYS, groups=EVERY))
        assert len(whole) == 4
        assert (whole[-1].project, whole[-1].key, whole[-1].user, whole[-1].batch) == ("b", "", "", False)

    @pytest.mark.parametrize(
        ("wanted", "requests"),
        [
            ({"projects": ["a"]}, 2),
            ({"projects": ["a", "b"]}, 3),
            ({"projects": ["nobody"]}, 0),
            ({"keys": ["key_1"]}, 1),
            ({"users": ["7"]}, 1),
            ({"users": ["key_1"]}, 0),
            ({"models": ["m%"]}, 0),
            ({"models": ["m"], "batch": True}, 1),
            ({"batch": False}, 2),
            ({"sources": ["decisions"]}, 1),
            ({"projects": ["b' OR 1=1 --"]}, 0),
        ],
    )
    async def test_filters(self, usage: UsageStore, wanted: dict[str, Sequence[str]], requests: int) -> None:
        await usage.keep(
            [
                entry(project="a", key_id="key_1", model="m", batch=True),
                entry(project="a", key_id="session:7", model="n"),
                entry(project="b", key_id="key_2", model="m", source="decisions"),
            ]
        )
        found = await usage.sums(replace(ALWAYS, **wanted))
        assert sum(each.requests for each in found) == requests

    async def test_buckets_begin_where_days_do(self, usage: UsageStore) -> None:
        day = NOW // DAY * DAY
        await usage.keep([entry(at=at) for at in (day - 1, day, day + HOUR - 1, day + HOUR, day + DAY)])
        window = replace(ALWAYS, start=day, end=day + DAY)
        assert [(each.start, each.requests) for each in await usage.sums(replace(window, width=DAY))] == [(day, 3)]
        hours = await usage.sums(replace(window, width=HOUR, groups=["model"]))
        assert [(each.start, each.requests, each.model) for each in hours] == [(day, 2, "m"), (day + HOUR, 1, "m")]
        assert [each.start for each in await usage.sums(window)] == [day]

    async def test_days_of_a_long_time_are_told_apart_as_those_of_a_short_one(self, usage: UsageStore) -> None:
        day = NOW // DAY * DAY
        await usage.keep(
            [entry(at=day + n * 7 * HOUR, project=f"p{n % 3}", model=f"m{n % 2}", batch=n % 5 == 0) for n in range(60)]
        )
        long = replace(ALWAYS, start=day + 5 * HOUR, end=day + 16 * DAY, width=DAY)
        for more in ({}, {"projects": ["p1"]}, {"batch": True}, {"models": ["m0"]}, {"sources": ["embeddings"]}):
            for groups in ((), ("project",), ("model",), ("model", "project")):
                query = replace(long, groups=groups, **more)  # type: ignore[arg-type]
                short = []
                for start in range(day, day + 16 * DAY, DAY):
                    part = replace(query, start=max(start, query.start), end=start + DAY)
                    short += await usage.sums(part)
                assert list(await usage.sums(query)) == short
                whole = await usage.sums(replace(query, width=None))
                assert sum(each.requests for each in whole) == sum(each.requests for each in short)

    async def test_a_limit_keeps_the_first(self, usage: UsageStore) -> None:
        await usage.keep([entry(model=f"m{number}") for number in range(5)])
        found = await usage.sums(replace(ALWAYS, groups=["model"], limit=2))
        assert [each.model for each in found] == ["m0", "m1"]

    async def test_folding_changes_no_sum(self, usage: UsageStore, hands: Hands) -> None:
        """Whatever the age: the sums of days stay as they are, to the token, and there are fewer rows each time."""
        day = NOW // DAY * DAY
        await usage.keep(
            [
                entry(at=day + number * 7, project=f"p{number % 3}", key_id=["key_1", "session:1"][number % 2])
                for number in range(300)
            ]
        )
        wanted = replace(ALWAYS, width=DAY, groups=EVERY)
        before = await usage.sums(wanted)
        for age in (0, 2 * HOUR, 3 * DAY, 40 * DAY):
            hands.time = float(day + age)
            while await usage.fold():
                pass
            assert await usage.sums(wanted) == before
        assert len(before) == 6

    async def test_minutes_stay_for_two_days_and_hours_for_a_month(self, usage: UsageStore, hands: Hands) -> None:
        minute = NOW // DAY * DAY + 5 * HOUR + 120
        await usage.keep([entry(at=minute + second) for second in (0, 59, 60)])
        shown = {}
        for age in (1, 50, 40 * 24):
            hands.time = float(minute + age * HOUR + 3 * 60)
            while await usage.fold():
                pass
            shown[age] = [(each.start - minute, each.requests) for each in await usage.sums(replace(ALWAYS, width=60))]
        day = minute // DAY * DAY
        assert shown == {1: [(0, 2), (60, 1)], 50: [(-120, 3)], 40 * 24: [(day - minute, 3)]}

    async def test_what_comes_late_is_added_to_its_day(self, usage: UsageStore, hands: Hands) -> None:
        await usage.keep([entry(), entry()])
        hands.time += 40 * DAY
        while await usage.fold():
            pass
        await usage.keep([entry()])
        while await usage.fold():
            pass
        [total] = await usage.sums(replace(ALWAYS, width=DAY))
        assert (total.requests, total.tokens) == (3, UsedTokens(input=30, cached=12, output=9))

    async def test_many_who_fold_count_nothing_twice(self, usage: UsageStore, hands: Hands) -> None:
        for _ in range(3):
            await usage.keep([entry() for _ in range(900)])
        hands.time += 3 * DAY
        await asyncio.gather(*(usage.fold() for _ in range(6)))
        [total] = await usage.sums(ALWAYS)
        assert total.requests == 2700
        while await usage.fold():
            pass
        [total] = await usage.sums(ALWAYS)
        assert (total.requests, total.tokens.input) == (2700, 27_000)

    async def test_rows_become_fewer(self, usage: UsageStore, alias: str, hands: Hands) -> None:
        await usage.keep([entry() for _ in range(100)])
        assert len(await asyncio.to_thread(rows, alias, Usage)) == 100
        hands.time += 2 * 3600
        await usage.fold()
        [row] = await asyncio.to_thread(rows, alias, Usage)
        assert (row.seconds, row.requests) == (60, 100)

    async def test_an_end_counts_once_however_often_it_is_kept(self, usage: UsageStore, open_store: OpenStore) -> None:
        store, turn = await open_store(), Turn("p")
        await store.accept(turn.begun())
        end = ended(turn, key_id="session:3", transport="batch")
        await save_all(store, (end, end, replace(turn.failed(), accepted=True)))
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

    async def test_what_is_deleted_has_been_used(self, usage: UsageStore, open_store: OpenStore) -> None:
        """Whether it was deleted before its end or behind it."""
        store, before, behind = await open_store(), Turn("a"), Turn("b")
        for turn in (before, behind):
            await store.accept(turn.begun())
        await store.save(ended(behind))
        for turn in (before, behind):
            assert await store.delete(turn.project, turn.response_id)
        await store.save(ended(before))
        assert [each.tokens for each in await usage.sums(replace(ALWAYS, groups=["project"]))] == [USED, USED]

    async def test_who_was_taken_for_dead_counts_nothing(self, usage: UsageStore, open_store: OpenStore) -> None:
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


def entry(*, input: int = 10, cached: int = 4, output: int = 3, **fields: object) -> UsageEntry:
    """Return what a request has used."""
    about: dict[str, object] = {"at": NOW, "project": "p", "key_id": "key_1", "model": "m", "source": "responses"}
    tokens = UsedTokens(input=input, cached=cached, output=output)
    return UsageEntry(id=new_id("resp_"), tokens=tokens, **{**about, **fields})  # type: ignore[arg-type]


def counts(sums: Sequence[UsageSum], name: str) -> dict[object, int]:
    """Return the requests by what sums were grouped by."""
    return {getattr(each, name): each.requests for each in sums}
