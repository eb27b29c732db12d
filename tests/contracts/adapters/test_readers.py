"""Readers of a database: what is polled together is one statement, and connections that break are replaced."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from django.db import OperationalError, ProgrammingError
from django.db.backends.utils import CursorWrapper

from responses_app.kit import pool, threads
from responses_app.kit.errors import NotMigrated, StoreError
from responses_app.kit.threads import THREADS, DatabaseReaders, Question, any_of
from responses_app.models import Worker
from responses_app.models.engines import EngineDoor

DOORS = EngineDoor._meta.db_table
NUMBERS = Question("model, number", f"FROM {DOORS}")
LACKING = any_of("responses_app_table_of_a_later_version")


class TestPolls:
    """What is asked again and again, on either database."""

    @pytest.fixture
    def statements(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Every statement that polls, as it is sent."""
        sent: list[str] = []
        answers = threads.answers

        def noted(cursor: CursorWrapper, questions: list[Question]) -> object:
            def note(execute: object, sql: str, *rest: object) -> object:
                sent.append(sql)
                return execute(sql, *rest)  # type: ignore[operator]

            with cursor.db.execute_wrapper(note):
                return answers(cursor, questions)

        monkeypatch.setattr(threads, "answers", noted)
        return sent

    async def test_questions_that_come_together_are_one_statement(
        self, alias: str, readers: DatabaseReaders, statements: list[str]
    ) -> None:
        def keep(_: object) -> None:
            EngineDoor.objects.using(alias).update_or_create(model="a", defaults={"number": 3})
            EngineDoor.objects.using(alias).update_or_create(model="b", defaults={"number": 5})

        await readers.run(keep)
        asked = NUMBERS, any_of(DOORS), any_of(f"{DOORS} WHERE model = %s", "c"), any_of(DOORS)
        numbers, some, none, again = await asyncio.gather(*map(readers.poll, asked))
        assert sorted(numbers) == [("a", 3), ("b", 5)]
        assert (bool(some), bool(none), bool(again)) == (True, False, True)
        assert len(statements) == 1
        await readers.poll(NUMBERS)
        assert len(statements) == 2

    async def test_a_time_is_compared_as_the_database_has_it(self, alias: str, readers: DatabaseReaders) -> None:
        seen = datetime(2026, 11, 29, 12, 0, 0, 250_000, tzinfo=UTC)

        def keep(_: object) -> None:
            Worker.objects.using(alias).update_or_create(
                id="worker_of_polls", defaults={"seen_at": seen, "started_at": seen}
            )

        await readers.run(keep)
        table = Worker._meta.db_table
        mine = f"{table} WHERE id = 'worker_of_polls' AND seen_at"
        before, at, later = await asyncio.gather(
            readers.poll(any_of(f"{mine} < %s", seen)),
            readers.poll(any_of(f"{mine} = %s", seen)),
            readers.poll(any_of(f"{mine} < %s", seen.replace(microsecond=250_001))),
        )
        assert (bool(before), bool(at), bool(later)) == (False, True, True)

    async def test_where_a_table_is_lacking_the_other_questions_are_answered(self, readers: DatabaseReaders) -> None:
        numbers, lacking, again = await asyncio.gather(
            readers.poll(NUMBERS), readers.poll(LACKING), readers.poll(LACKING), return_exceptions=True
        )
        assert isinstance(numbers, list)
        assert isinstance(lacking, NotMigrated)
        assert isinstance(again, NotMigrated)
        assert lacking is not again
        with pytest.raises(NotMigrated):
            await readers.poll(LACKING)

    @pytest.mark.parametrize(
        ("failure", "numbers_are"),
        [
            (ProgrammingError("permission denied for table"), [list]),
            # One that is held up holds up the others once.
            (OperationalError("canceling statement due to statement timeout"), [StoreError, list]),
        ],
        ids=["fails", "is held up"],
    )
    async def test_where_one_question_fails_alone_the_others_are_answered(
        self, readers: DatabaseReaders, monkeypatch: pytest.MonkeyPatch, failure: Exception, numbers_are: list[type]
    ) -> None:
        answers, bad = threads.answers, any_of(f"{DOORS} WHERE number = 7")

        def fails(cursor: CursorWrapper, questions: Sequence[Question]) -> object:
            if bad in questions:
                raise failure
            return answers(cursor, questions)

        monkeypatch.setattr(threads, "answers", fails)
        for kind in numbers_are:
            numbers, failed = await asyncio.gather(readers.poll(NUMBERS), readers.poll(bad), return_exceptions=True)
            assert isinstance(numbers, kind)
            assert isinstance(failed, StoreError)

    async def test_one_that_waits_no_more_takes_nothing_from_the_others(self, readers: DatabaseReaders) -> None:
        gone = asyncio.create_task(readers.poll(any_of(DOORS)))
        stays = asyncio.create_task(readers.poll(NUMBERS))
        await asyncio.sleep(0)  # both have asked
        gone.cancel()
        assert isinstance(await stays, list)
        assert gone.cancelled()

    async def test_a_failure_is_told_to_each_who_asked(
        self, readers: DatabaseReaders, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fails(cursor: CursorWrapper, questions: object) -> object:
            raise OperationalError("it is away")

        with monkeypatch.context() as away:
            away.setattr(threads, "answers", fails)
            polls = [readers.poll(NUMBERS), readers.poll(any_of(DOORS))]
            failed = await asyncio.gather(*polls, return_exceptions=True)
        assert all(isinstance(each, StoreError) for each in failed)
        assert failed[0] is not failed[1]
        assert await readers.poll(any_of(DOORS)) is not None

    async def test_a_question_whose_asker_has_left_ends_with_them(self, alias: str) -> None:
        readers = DatabaseReaders(alias).held()
        gone = asyncio.create_task(readers.poll(NUMBERS))
        await asyncio.sleep(0)  # it has asked
        gone.cancel()
        await readers.aclose()
        assert asyncio.all_tasks() <= {asyncio.current_task(), gone}

    async def test_a_closed_one_answers_nobody(self, alias: str) -> None:
        readers = DatabaseReaders(alias).held()
        await readers.aclose()
        with pytest.raises(StoreError):
            await readers.poll(NUMBERS)


class TestOnPostgres:
    @pytest.fixture
    def url(self, postgres_url: str) -> str:
        return postgres_url

    async def test_a_connection_that_breaks_behind_the_login_is_not_kept(
        self, readers: DatabaseReaders, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ended = "SELECT pg_terminate_backend(pg_backend_pid()), %(limit)s, %(process)s"
        with monkeypatch.context() as broken:
            broken.setattr(pool, "_BOUND_SESSION", ended)
            for _ in range(THREADS):
                with pytest.raises(StoreError):
                    await readers.run(lambda db: EngineDoor.objects.using(db.alias).count())
        for _ in range(2 * THREADS):
            assert await readers.run(lambda db: EngineDoor.objects.using(db.alias).count()) >= 0
