"""Responses coming and going in a database: what its rows hold, its clock, and chains that are read at once."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import pytest
from django.db.backends.base.base import BaseDatabaseWrapper
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.formats.base import MessageKind
from responses_app.kit.clock import StoreClock, own_clock
from responses_app.kit.errors import StoreError
from responses_app.models import BriefResponse, ChainPart, Response, SampledItem, Worker
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.prompt.chain import ChainLink, drop_oldest, new_link
from responses_app.resources.conversations.fields import ConversationAppend
from responses_app.resources.conversations.model import Conversation, ConversationItem
from responses_app.resources.rollouts.keeping import GenerationKeeper
from responses_app.stores.base import Claim, RetentionSettings, StoredResponse, WorkerState
from responses_app.stores.database.responses.lookups import PART_COLUMNS, chain_of
from responses_app.stores.database.responses.orphans import reclaim
from responses_app.stores.database.responses.removal import purge, remove, remove_one
from responses_app.stores.database.responses.rows import part_row
from responses_app.stores.database.responses.store import DatabaseResponseStore
from responses_app.stores.database.responses.writes import Acceptance, ResponseStep, commit
from tests.contracts.adapters.stores import rows, within
from tests.contracts.store import Turn, call, exchange, facts, new_id, same_chain, sampled_text, save_all, save_chain
from tests.contracts.store_life import NOW, OpenStore, forget, status
from tests.kit.clock import Clock
from tests.unit.protocol.test_chain import DAY, message, random_messages

Result = TypeVar("Result")

USAGE: JsonObject = {
    "input_tokens": 11,
    "input_tokens_details": {"cached_tokens": 3},
    "output_tokens": 7,
    "total_tokens": 18,
}


class TestRows:
    async def test_an_accepted_response(self, store: DatabaseResponseStore, alias: str) -> None:
        turn: Any = Turn(parent=Turn().saying().link)
        begun = turn.begun("queued", claim=Claim("worker_1"))
        begun.response["conversation"] = {"id": "conv_1"}
        await store.accept(begun)
        [row] = await asyncio.to_thread(rows, alias, Response, pk=turn.response_id)
        assert (row.status, row.worker, row.background, row.transport) == ("queued", "worker_1", True, "test")
        assert (row.body, row.input_items, row.request) == (begun.response, list(begun.input_items), begun.request)
        assert (row.previous_response_id, row.conversation_id) == (turn.parent.response_id, "conv_1")
        assert row.size > 100
        await store.begin(turn.project, turn.response_id, Claim("worker_1"))
        [row] = await asyncio.to_thread(rows, alias, Response, pk=turn.response_id)
        assert (row.status, row.worker, row.request) == ("in_progress", "worker_1", begun.request)

    @pytest.mark.parametrize("accepted", [True, False])
    async def test_a_stored_response(self, store: DatabaseResponseStore, alias: str, accepted: bool) -> None:
        turn = Turn()
        stored = turn.saying(*exchange(1), sampled=[sampled_text("Answer.")])
        stored.response["usage"] = USAGE
        stored: Any = replace(stored, accepted=accepted, transport="test", first_token_ms=12, duration_ms=345)
        if accepted:
            await store.accept(turn.begun("queued"))
        await store.save(stored)
        [row] = await asyncio.to_thread(rows, alias, Response, pk=turn.response_id)
        assert (row.status, row.worker, row.request, row.transport) == ("completed", "", None, "test")
        assert (row.input_tokens, row.cached_tokens, row.output_tokens) == (11, 3, 7)
        assert (row.first_token_ms, row.duration_ms) == (12, 345)
        assert (row.body, row.input_items) == (stored.response, list(stored.input_items))
        assert 4 * len(stored.link.own.tokens) + 300 < row.size < 4 * len(stored.link.own.tokens) + 3000

    async def test_what_no_column_takes_is_left_out_of_it(self, store: DatabaseResponseStore, alias: str) -> None:
        turn = Turn()
        begun = turn.begun()
        begun.response["previous_response_id"] = "resp_\x00" + "x" * 1000
        await store.accept(begun)
        [row] = await asyncio.to_thread(rows, alias, Response, pk=turn.response_id)
        assert row.previous_response_id == ""
        assert row.body == begun.response

    async def test_a_worker(self, open_store: OpenStore, alias: str) -> None:
        clock = Clock(NOW)
        store = await open_store(now=clock)
        worker = new_id("worker")
        await store.beat(WorkerState(id=worker, started_at=NOW - 60.0, connections=1, in_flight=2))
        clock.now += 5
        await store.beat(WorkerState(id=worker, started_at=NOW - 60.0, connections=3, in_flight=4))
        [row] = await asyncio.to_thread(rows, alias, Worker, pk=worker)
        assert (row.started_at.timestamp(), row.seen_at.timestamp()) == (NOW - 60, NOW + 5)
        assert (row.connections, row.in_flight) == (3, 4)
        clock.now += 15 + 3599
        await store.reclaim("worker_heir", dead_before=clock.now - 15)
        assert await asyncio.to_thread(rows, alias, Worker, pk=worker)
        clock.now += 1
        await store.reclaim("worker_heir", dead_before=clock.now - 15)
        assert not await asyncio.to_thread(rows, alias, Worker, pk=worker)


async def test_one_with_store_false_is_kept_for_some_minutes_behind_its_end(open_store: OpenStore, alias: str) -> None:
    clock = Clock(NOW)
    store = await open_store(now=clock)
    running, ended, lasting = (Turn(created_at=NOW) for _ in range(3))
    for turn in (running, ended, lasting):
        begun = turn.begun("queued")
        begun.response["store"] = turn is lasting
        await store.accept(begun)
    clock.now += 3600
    for turn in (ended, lasting):
        stored = turn.saying(*exchange(1))
        stored.response["store"] = turn is lasting
        await store.save(replace(stored, accepted=True))
    assert await status(store, ended.saying()) == "completed"
    assert [await store.chain(turn.project, turn.response_id) is None for turn in (ended, lasting)] == [True, False]

    def purged(seconds: float) -> list[str]:
        return list(purge(alias, RetentionSettings(), now=clock.now + seconds).ids)

    assert await asyncio.to_thread(purged, 599) == []
    assert await asyncio.to_thread(purged, 600) == [ended.response_id]
    assert [await status(store, turn.saying()) for turn in (running, ended, lasting)] == ["queued", None, "completed"]
    brief = await asyncio.to_thread(rows, alias, BriefResponse, project=running.project)
    assert [row.pk for row in brief] == [running.response_id]
    assert await asyncio.to_thread(rows, alias, BriefResponse, project=ended.project) == []
    assert await forget(store, running.saying())
    assert await asyncio.to_thread(rows, alias, BriefResponse, project=running.project) == []


class TestDeleting:
    @pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2), (2, 0, 3, 1)], ids=str)
    async def test_the_last_one_takes_all_that_is_left(
        self, store: DatabaseResponseStore, alias: str, order: tuple[int, ...]
    ) -> None:
        """Of a trunk of two, and two that fork from it."""
        trunk = Turn().saying(*exchange(0), sampled=[sampled_text("Answer.")])
        branch = Turn().after(trunk).saying(*exchange(1))
        chain = [trunk, branch, *(Turn().after(branch).saying(*exchange(number)) for number in (2, 3))]
        await save_all(store, chain)
        needed = {0: {0}, 1: {0, 1}, 2: {0, 1, 2}, 3: {0, 1, 3}}
        left = {0, 1, 2, 3}
        for number in order:
            assert await forget(store, chain[number])
            left.remove(number)
            parts = await asyncio.to_thread(rows, alias, ChainPart, project=trunk.project)
            expected = set().union(*(needed[each] for each in left))
            assert {part.pk for part in parts} == {chain[each].response["id"] for each in expected}
        assert not await asyncio.to_thread(rows, alias, SampledItem, project=trunk.project)
        assert not await asyncio.to_thread(rows, alias, Response, project=trunk.project)

    async def test_a_fork_that_is_deleted_at_once(self, store: DatabaseResponseStore, alias: str) -> None:
        trunk = Turn().saying(*exchange(0))
        forks = [Turn().after(trunk).saying(*exchange(number)) for number in (1, 2, 3)]
        await save_all(store, (trunk, *forks))
        ids = [str(stored.response["id"]) for stored in (trunk, *forks)]
        assert await asyncio.to_thread(within, alias, lambda db: remove(db, ids)) == 4
        assert not await asyncio.to_thread(rows, alias, ChainPart, project=trunk.project)

    @pytest.mark.parametrize("deleted", [5, 3, 1], ids=str)
    async def test_after_it_was_read_it_can_be_continued_still(
        self, store: DatabaseResponseStore, alias: str, deleted: int
    ) -> None:
        last: Any = await save_chain(store, length=5)
        ids = [link.response_id for link in last.link.lineage()]
        read = await store.chain(last.project, ids[0])
        await asyncio.to_thread(within, alias, lambda db: remove(db, ids[:deleted]))
        await store.save(Turn(last.project, read).saying(*exchange(5)))
        continued: Any = Turn(last.project, last.link).saying(*exchange(5))
        [end] = await asyncio.to_thread(rows, alias, Response, project=last.project, previous_response_id=ids[0])
        link = await store.chain(last.project, end.pk)
        assert link is not None
        assert link.prompt_tokens() == continued.link.prompt_tokens()

    async def test_a_long_chain(self, store: DatabaseResponseStore, alias: str) -> None:
        last = await save_chain(store, length=1200)
        ids = [link.response_id for link in last.link.lineage()] if last.link else []
        assert await asyncio.to_thread(within, alias, lambda db: remove(db, ids[1:])) == 0
        assert await same_chain(store, last)
        assert await asyncio.to_thread(within, alias, lambda db: remove(db, ids[:1])) == 1200


class TestTwice:
    """A commit whose answer got lost is tried again."""

    async def test_steps(self, store: DatabaseResponseStore, alias: str) -> None:
        turn = Turn()
        stored = replace(turn.saying(*exchange(1), sampled=[sampled_text("Answer.")]), accepted=True)
        for _ in range(2):
            accepting = [ResponseStep(Acceptance(turn.begun("queued"), 0.0))]
            await asyncio.to_thread(within, alias, lambda db: commit(db, accepting, now=NOW, keeper=GenerationKeeper()))  # noqa: B023
        for _ in range(2):
            await asyncio.to_thread(
                within, alias, lambda db: commit(db, [ResponseStep(stored)], now=NOW, keeper=GenerationKeeper())
            )
        assert await status(store, stored) == "completed"
        assert await same_chain(store, stored)

    async def test_inheriting(self, store: DatabaseResponseStore, alias: str) -> None:
        turn = Turn()
        await store.accept(turn.begun("queued"))
        await store.accept(Turn(turn.project).begun())

        def take(connection: BaseDatabaseWrapper, before: object = None) -> object:
            return reclaim(connection, "worker_heir", before, dead_before=NOW)  # type: ignore[arg-type]

        first = await asyncio.to_thread(within, alias, take)
        assert await asyncio.to_thread(within, alias, lambda db: take(db, first)) == first

    async def test_deleting(self, store: DatabaseResponseStore, alias: str) -> None:
        stored = Turn().saying(*exchange(1))
        await store.save(stored)
        arguments = stored.project, str(stored.response["id"])
        assert await asyncio.to_thread(within, alias, lambda db: remove_one(db, *arguments, since=0.0))
        assert not await asyncio.to_thread(within, alias, lambda db: remove_one(db, *arguments, since=0.0))


class TestConversations:
    @pytest.fixture
    def project(self) -> str:
        return new_id("proj")

    @pytest.fixture
    def conversation(self, alias: str, project: str) -> str:
        conversation_id = new_id("conv")
        within(
            alias,
            lambda db: Conversation.objects.using(db.alias).create(
                pk=conversation_id, project=project, created_at=datetime.fromtimestamp(NOW, UTC)
            ),
        )
        return conversation_id

    def appending(self, turn: Turn, conversation: str) -> StoredResponse:
        items: tuple[JsonObject, ...] = ({"type": "message", "id": new_id("msg")},)
        append = ConversationAppend(conversation_id=conversation, items=items, read_version=0)
        return replace(turn.saying(*exchange(1)), conversation=append, accepted=True)

    async def test_a_response_and_its_items_are_kept_together(
        self, store: DatabaseResponseStore, alias: str, project: str, conversation: str
    ) -> None:
        turn = Turn(project)
        stored: Any = self.appending(turn, conversation)
        await store.accept(turn.begun())
        await store.save(stored)
        [item] = await asyncio.to_thread(rows, alias, ConversationItem, conversation_id=conversation)
        assert (item.item, item.response_id) == (stored.conversation.items[0], turn.response_id)
        [row] = await asyncio.to_thread(rows, alias, Conversation, pk=conversation)
        assert row.head == turn.response_id
        assert await store.items(project, [item.item_id, "msg_unknown"]) == {item.item_id: item.item}
        assert await store.items("another", [item.item_id]) == {}

    async def test_a_deleted_response_appends_nothing(
        self, store: DatabaseResponseStore, alias: str, project: str, conversation: str
    ) -> None:
        turn = Turn(project)
        await store.accept(turn.begun())
        await forget(store, turn.begun())
        await store.save(self.appending(turn, conversation))
        assert not await asyncio.to_thread(rows, alias, ConversationItem, conversation_id=conversation)

    async def test_a_conversation_that_is_gone_does_no_harm(self, store: DatabaseResponseStore, project: str) -> None:
        turn = Turn(project)
        await store.accept(turn.begun())
        stored = self.appending(turn, "conv_gone")
        await store.save(stored)
        assert await same_chain(store, stored)

    async def test_what_cannot_be_appended_is_not_kept(
        self, store: DatabaseResponseStore, project: str, conversation: str
    ) -> None:
        turn = Turn(project)
        await store.accept(turn.begun())
        stored: Any = self.appending(turn, conversation)
        stored.conversation.items[0]["content"] = object()  # no JSON
        with pytest.raises(StoreError):
            await store.save(stored)
        assert await status(store, stored) == "in_progress"
        assert await store.chain(project, turn.response_id) is None


TTL = 300.0


class TestStoreClock:
    def test_it_goes_by_this_machine_until_the_store_was_heard(self) -> None:
        assert abs(StoreClock()() - time.time()) < 60

    def test_then_it_goes_by_the_store(self) -> None:
        clock, now = StoreClock(), own_clock()
        clock.heard(1_000_000.0, asked=now, answered=now)
        assert 1_000_000.0 <= clock() < 1_000_060.0

    @pytest.mark.parametrize(
        ("told", "asked", "answered", "expected"),
        [
            (1000.0, 0.0, 0.5, 1000.0),  # within what a slow answer may mean
            (1000.0, -10.0, 0.0, 1000.0),  # so is one of a database that hung for 10 s
            (1600.0, 0.0, 0.0, 1600.0),  # it was set
            (1003.0, 0.0, 2.0, 1001.0),  # it is ahead by 1 s at the least
            (997.0, -2.0, 0.0, 999.0),
        ],
    )
    def test_an_answer_bounds_it(self, told: float, asked: float, answered: float, expected: float) -> None:
        clock, now = StoreClock(), own_clock()
        clock.heard(1000.0, asked=now, answered=now)
        clock.heard(told, asked=now + asked, answered=now + answered)
        assert expected <= clock() < expected + 0.5


class TestOnPostgres:
    @pytest.fixture
    def url(self, postgres_url: str) -> str:
        return postgres_url

    @pytest.mark.parametrize("ahead", [600.0, -600.0])
    async def test_a_worker_with_a_wrong_clock(
        self, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, ahead: float
    ) -> None:
        """Of another worker's response it knows how old it is, and it dates its own as the others do."""
        right, turn = time.time, Turn()
        monkeypatch.setattr(time, "time", lambda: right() + ahead)
        clock = StoreClock()
        store = await open_store(settings=RetentionSettings(responses_store_ttl=TTL), clock=clock)
        await store.beat(WorkerState(id="worker_1", started_at=right(), connections=0, in_flight=0))
        stored = turn.saying(*exchange(1))
        await store.save(replace(stored, response={**stored.response, "created_at": int(right())}))
        assert await store.response(turn.project, turn.response_id) is not None
        await store.purge()
        assert await store.knows(turn.project, turn.response_id)
        assert abs(clock() - right()) < TTL / 2
        old = Turn(project=turn.project)
        stored = old.saying(*exchange(1))
        await store.save(replace(stored, response={**stored.response, "created_at": int(right() - TTL - 60)}))
        assert await store.response(old.project, old.response_id) is None


Turns = Sequence[Sequence[tuple[MessageKind, list[int]]]]


def chain(turns: Turns, parent: ChainLink | None = None) -> ChainLink:
    """Return a chain whose links each call a function too, the same one in every other turn."""
    link = parent
    for number, turn in enumerate(turns):
        messages = [message(kind, *tokens) for kind, tokens in turn]
        link = new_link(
            link,
            response_id=f"resp_{number}",
            started_on=DAY,
            messages=messages,
            items=[call(f"name_{number}", f"call_{number // 2}")],
        )
    assert link is not None
    return link


def rows_of(link: ChainLink) -> list[tuple[Any, ...]]:
    """Return a chain's rows, the oldest first, as the query gives them."""
    rows = []
    for depth, part in enumerate(link.lineage()):
        row = part_row("project", part)
        rows.append((*(row[column] for column in PART_COLUMNS), depth))
    return rows[::-1]


@settings(deadline=None, max_examples=200)
@given(st.lists(random_messages, min_size=1, max_size=6), st.lists(random_messages, max_size=3))
def test_it_means_the_same(turns: Turns, later: Turns) -> None:
    link = chain(turns)
    read = chain_of(rows_of(link))
    assert facts(read) == facts(link)
    assert len(list(read.lineage())) <= 2
    assert read.total_bytes <= link.total_bytes
    whole = link.prompt_tokens()
    assert [drop_oldest(read, limit) for limit in range(len(whole))] == [
        drop_oldest(link, limit) for limit in range(len(whole))
    ]
    if later:
        assert facts(chain(later, read)) == facts(chain(later, link))


@settings(deadline=None, max_examples=100)
@given(st.lists(random_messages, min_size=1, max_size=6), st.lists(random_messages, min_size=1, max_size=3))
def test_so_does_one_that_was_written_again(turns: Turns, later: Turns) -> None:
    """As happens to a chain that was deleted after it was read: its one or two links are stored as parts."""
    link = chain(turns)
    read = chain_of(rows_of(chain(later, chain_of(rows_of(link)))))
    assert facts(read)[1:] == facts(chain(later, link))[1:]


def test_a_chain_of_empty_links() -> None:
    link = chain([[], [], []])
    assert facts(chain_of(rows_of(link))) == facts(link)
