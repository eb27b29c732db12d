"""The index of what was asked and answered, on SQLite and on PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model

from responses_app.models import Response
from responses_app.models.words import ResponseWords, WordsToRead
from responses_app.protocol.items.words import phrases_of
from responses_app.stores.database import words
from responses_app.stores.database.responses.removal import remove
from responses_app.stores.database.transfer.erasure import Subject, count, erase
from responses_app.stores.database.words import DatabaseWords, SearchTooSlow, WordsQuery, find, is_behind
from tests.contracts.adapters.stores import rows, within
from tests.contracts.store import Turn, exchange
from tests.contracts.store_life import OpenStore

Result = TypeVar("Result")

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
END = "UPDATE responses_app_response SET status = 'completed' WHERE id = %s"
ENDLESS = {
    "sqlite": "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i > 0) "
    "SELECT max(i), %s, %s, %s, %s FROM n",
    "postgresql": "SELECT pg_sleep(600), %s::text, %s::bigint, %s::bigint, %s::bigint",
}


class TestWords:
    @pytest.fixture
    async def kept(self, alias: str) -> AsyncIterator["Kept"]:
        kept = Kept(alias)
        await kept.execute("DELETE FROM responses_app_response")
        await kept.execute(f"DELETE FROM {words.NOTED}")
        yield kept
        await kept.words.aclose()

    async def test_what_was_asked_and_answered_is_found_the_newest_first(self, kept: "Kept") -> None:
        await kept.response(1, asked="How many eggs does a turtle lay?", answered="Some hundred, on the beach.")
        await kept.response(2, asked="And a bird?", answered="Fewer eggs. Its beak has no teeth.")
        await kept.read()
        for search, expected in {
            "turtle": [1],
            "TURTLE beach": [1],
            "eggs": [2, 1],
            "turtle beak": [],
            '"no teeth"': [2],
            '"teeth no"': [],
            "egg": [],
            "egg*": [2, 1],
            '"a tur"*': [1],
            "turtl* bea*": [1],
            '"some hundred, ON the"': [1],
            "turtle?": [1],
        }.items():
            assert await kept.found(search) == expected, search

    async def test_any_script_is_found(self, kept: "Kept") -> None:
        await kept.response(1, asked="海龟的壳是由骨头组成的。", answered="Größe und Gewicht: ÉTÉ\u0301")
        await kept.read()
        for search in ("骨头", "海龟的壳", "grösse", "GRÖSSE", "gewicht", "ete", "组成*"):
            assert await kept.found(search) == [1], search
        assert await kept.found("头骨") == []

    async def test_only_the_words_of_people_and_answers_are_found(self, kept: "Kept") -> None:
        items = [
            {"type": "message", "role": "developer", "content": "secretinstruction"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "question"}]},
            {"type": "function_call_output", "call_id": "c", "output": "tooloutput"},
        ]
        output = [
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "thoughts"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "reply"}]},
        ]
        await kept.response(1, items=items, output=output)
        await kept.read()
        assert {each: await kept.found(each) for each in ("question", "reply")} == {"question": [1], "reply": [1]}
        for unread in ("secretinstruction", "tooloutput", "thoughts"):
            assert await kept.found(unread) == []

    async def test_of_long_texts_the_last_asked_and_the_first_answered_are_found(self, kept: "Kept") -> None:
        filler = "word " * 4_000
        items = [{"type": "message", "role": "user", "content": text} for text in ("early", filler, "late")]
        await kept.response(1, items=items, answered=f"beginning {filler} end")
        await kept.read()
        found = [each for each in ("early", "late", "beginning", "end") if await kept.found(each)]
        assert found == ["late", "beginning"]

    async def test_the_first_words_are_kept(self, kept: "Kept") -> None:
        family = "\N{MAN}\u200d\N{WOMAN}\u200d\N{GIRL}"
        await kept.response(1, asked="  a\x00 b\n\nc\ud800 ")
        await kept.response(2, asked="x" * 118 + family)
        await kept.response(3, items=[{"type": "function_call_output", "call_id": "c", "output": "o"}])
        await kept.read()
        found = {int(row.response_id[5:], 16): row.first_words for row in await kept.rows(ResponseWords)}
        assert found == {1: "a b c", 2: "x" * 118 + "…", 3: "function call output"}

    async def test_projects_and_times_narrow_a_search(self, kept: "Kept") -> None:
        for number, (project, hours) in enumerate([("a", 1), ("b", 2), ("a", 30)], 1):
            await kept.response(number, asked="same", project=project, at=NOW - timedelta(hours=hours))
        await kept.read()
        assert await kept.found("same") == [1, 2, 3]
        assert await kept.found("same", project="a") == [1, 3]
        assert await kept.found("same", since=NOW - timedelta(hours=24)) == [1, 2]
        assert await kept.found("same", until=NOW - timedelta(hours=1)) == [2, 3]
        assert await kept.found("same", limit=1) == [1]

    async def test_what_is_deleted_is_gone(self, kept: "Kept") -> None:
        for number in (1, 2):
            await kept.response(number, asked="same")
        await kept.read()
        await kept.run(lambda db: remove(db, [_id(1)]))
        assert await kept.found("same") == [2]
        await kept.execute("DELETE FROM responses_app_response")  # as an older version would, say
        assert await kept.found("same") == []
        assert await kept.rows(ResponseWords) == []
        assert await kept.said() == 0

    async def test_a_project_that_is_forgotten_leaves_nothing(self, kept: "Kept") -> None:
        await kept.response(1, asked="same", project="gone")
        await kept.response(2, asked="same", project="gone")
        await kept.read(steps=1)
        gone = Subject(project="gone")
        assert (await kept.run(lambda db: count(gone, using=db.alias)))["searchable responses"] == 2
        assert await kept.run(lambda db: list(erase(gone, using=db.alias)))
        assert not any((await kept.run(lambda db: count(gone, using=db.alias))).values())
        await kept.read()
        assert await kept.rows(WordsToRead) == []

    async def test_what_runs_is_read_when_it_has_ended(self, kept: "Kept") -> None:
        await kept.response(1, asked="same", status="in_progress")
        await kept.read()
        assert await kept.found("same") == []
        await kept.execute(END, [_id(1)])
        await kept.read()
        assert await kept.found("same") == [1]

    async def test_an_end_that_the_store_keeps_is_found(self, kept: "Kept", open_store: OpenStore) -> None:
        store, turn = await open_store(), Turn("p")
        await store.accept(turn.begun())
        await kept.read()
        await store.save(turn.saying(*exchange(0)))
        await kept.read()
        [row] = await kept.rows(ResponseWords)
        assert (row.response_id, row.project) == (turn.response_id, turn.project)

    async def test_what_was_stored_before_is_read_step_by_step(
        self, kept: "Kept", monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(words, "AT_ONCE", 2)
        for number in range(1, 8):
            await kept.response(number, asked="same", status="in_progress" if number == 4 else "completed")
        await kept.execute(f"DELETE FROM {words.NOTED}")
        await kept.execute(f"INSERT INTO {words.NOTED} (id, below) VALUES ('older', 'zzzz')")  # as a migration does
        await kept.read(steps=2)
        assert await kept.found("same") == [7, 6, 5]
        assert await kept.run(is_behind)
        await kept.response(8, asked="same")  # what is new goes first
        await kept.read(steps=1)
        assert await kept.found("same") == [8, 7, 6, 5]
        await kept.execute(END, [_id(4)])
        await kept.words.aclose()
        kept.words = DatabaseWords(using=kept.alias)  # another worker goes on
        await kept.read()
        assert await kept.found("same") == [8, 7, 6, 5, 4, 3, 2, 1]
        assert not await kept.run(is_behind)
        assert await kept.rows(WordsToRead) == []

    async def test_one_step_reads_so_many_bytes(self, kept: "Kept", monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(words, "MOST_BYTES", 1_000)
        monkeypatch.setattr(words, "MOST_READ", 5_000)
        for number, size in enumerate([600, 600, 3_000, 5_001], 1):
            await kept.response(number, asked="same", size=size)
        await kept.read(steps=1)
        assert await kept.found("same") == [3]  # the largest is not read, and costs nothing
        assert len(await kept.rows(ResponseWords)) == 2
        await kept.read()
        assert await kept.found("same") == [3, 2, 1]

    async def test_two_at_once_read_each_once(self, kept: "Kept") -> None:
        for number in range(1, 60):
            await kept.response(number, asked="same")
        other = DatabaseWords(using=kept.alias)
        async with asyncio.TaskGroup() as group:
            for each in (kept.words, other) * 3:
                group.create_task(each.read_some())
        await kept.read()
        await other.aclose()
        assert len(await kept.found("same")) == 59
        assert await kept.said() == 59

    async def test_ids_with_the_same_number_are_both_found(self, kept: "Kept", monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(words, "blake2b", lambda *_, **__: _Digest())
        for number in (1, 2, 3):
            await kept.response(number, asked="same")
        await kept.read()
        assert sorted(await kept.found("same")) == [1, 2, 3]

    async def test_a_row_that_is_damaged_is_passed_over(self, kept: "Kept") -> None:
        for number in (1, 2, 3):
            await kept.response(number, asked="same")
        for number, body in ((1, "{"), (2, "[]")):
            await kept.execute("UPDATE responses_app_response SET body = %s WHERE id = %s", [body, _id(number)])
        await kept.read()
        assert await kept.found("same") == [3]

    @pytest.mark.parametrize(
        "search",
        [
            "a" * 10_000,
            "a " * 5_000,
            "NOT a",
            "a OR b",
            "(a",
            "NEAR(a b)",
            "a:b",
            "'a",
            "^a",
            "-a",
            'a"',
            "a\\",
            "é'\"*",
        ],
    )
    async def test_operators_are_words_and_signs(self, kept: "Kept", search: str) -> None:
        await kept.response(1, asked="something else")
        await kept.read()
        assert await kept.found(search) == []

    async def test_a_search_that_takes_too_long_is_ended(self, kept: "Kept", monkeypatch: pytest.MonkeyPatch) -> None:
        await kept.response(1, asked="same")
        await kept.read()
        with monkeypatch.context() as patched:
            patched.setattr(words, "_FOUND", ENDLESS)
            with pytest.raises(SearchTooSlow):
                await kept.found("same", seconds=0.05)
        assert await kept.found("same") == [1]


class _Digest:
    def digest(self) -> bytes:
        return b"\xff\xff\xff\xff"


class Kept:
    """Responses of a database, and their index."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.words = DatabaseWords(using=alias)

    async def response(self, number: int, **options: Any) -> None:
        """Keep a response."""
        await asyncio.to_thread(_keep, self.alias, number, **options)

    async def read(self, steps: int = 1_000) -> None:
        """Read until there is nothing more, or so many steps."""
        for _ in range(steps):
            if not await self.words.read_some():
                return

    async def found(self, search: str, **options: Any) -> list[int]:
        """Return the numbers of what is found."""
        query = WordsQuery(phrases=phrases_of(search), **{"limit": 100, "seconds": 60.0, **options})
        return [int(each[5:], 16) for each in await self.run(lambda db: find(db, query))]

    async def run(self, act: Callable[[BaseDatabaseWrapper], Result]) -> Result:
        """Do something in a transaction."""
        return await asyncio.to_thread(within, self.alias, act)

    async def execute(self, sql: str, parameters: Sequence[str] = ()) -> None:
        """Execute a statement."""
        await self.run(lambda db: db.cursor().execute(sql, parameters))

    async def rows(self, model: type[Model]) -> list[Any]:
        """Return all rows of a model."""
        return await asyncio.to_thread(rows, self.alias, model)

    async def said(self) -> int:
        """Return of how many responses words are kept."""

        def counted(db: BaseDatabaseWrapper) -> int:
            with db.cursor() as cursor:
                cursor.execute(f"SELECT COUNT(*) FROM {words.WORDS if db.vendor == 'postgresql' else words.SAID}")
                return int(cursor.fetchone()[0])

        return await self.run(counted)


def _id(number: int) -> str:
    return f"resp_{number:032x}"


def _keep(
    alias: str,
    number: int,
    *,
    asked: str = "",
    answered: str = "",
    items: Sequence[Any] | None = None,
    output: Sequence[Any] | None = None,
    project: str = "default",
    status: str = "completed",
    at: datetime | None = None,
    size: int = 100,
) -> None:
    said: Mapping[str, Any] = {"type": "message", "role": "user", "content": asked}
    text = [{"type": "output_text", "text": answered}]
    spoken = [{"type": "message", "role": "assistant", "content": text}] if answered else []
    Response.objects.using(alias).create(
        id=_id(number),
        project=project,
        status=status,
        model="m",
        created_at=at or NOW + timedelta(seconds=number),
        input_items=[said] if items is None else items,
        body={"id": _id(number), "output": spoken if output is None else output},
        size=size,
    )
    connections[alias].close()
