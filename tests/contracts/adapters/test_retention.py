"""What a purge removes, what it leaves, how long it takes, and the command that purges."""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connections

from responses_app.models import ChainPart, Response, SampledItem
from responses_app.resources.conversations.model import Conversation
from responses_app.stores.base import BaseResponseStore, Purged, RetentionSettings, StoredResponse, WorkerState
from responses_app.stores.database.responses import removal
from responses_app.stores.database.responses.removal import purge
from responses_app.stores.database.responses.store import DatabaseResponseStore
from tests.contracts.adapters.stores import queries, rows
from tests.contracts.store import Turn, exchange, new_id, same_chain, sampled_text, save_all
from tests.contracts.store_life import NOW, OpenStore, is_unknown, responses, status
from tests.contracts.store_names import called
from tests.kit.clock import Clock
from tests.kit.postgres_server import PostgresServer
from tests.kit.server import manage

Purging = Callable[..., "asyncio.Future[Purged]"]


class TestTimeAndNumber:
    """What is past its time is purged, as is what is beyond the limits."""

    async def test_a_chain_outlives_its_beginning(self, open_store: OpenStore) -> None:
        clock = Clock(NOW)
        store = await open_store(settings=RetentionSettings(responses_store_ttl=60.0), now=clock)
        first = Turn(created_at=NOW).saying(*exchange(0))
        second = Turn(first.project, first.link, created_at=NOW + 30).saying(*exchange(1))
        await store.save(first)
        await store.save(second)
        clock.now = NOW + 60.0
        assert await is_unknown(store, first)
        assert await same_chain(store, second)
        await purged(store)
        assert await same_chain(store, second)

    async def test_one_that_is_past_its_time_is_not_found_and_free_once_it_is_purged(
        self, open_store: OpenStore
    ) -> None:
        clock, name = Clock(NOW), new_id("name")
        store = await open_store(settings=RetentionSettings(responses_store_ttl=60.0), now=clock)
        turn = Turn(created_at=NOW)
        await store.accept(called(turn, name))
        await store.save(replace(turn.saying(*exchange(0)), accepted=True))
        assert await store.newest_leg(turn.project, name)
        clock.now = NOW + 60.0
        assert await store.newest_leg(turn.project, name) is None
        assert not await store.legs(turn.project, name)
        while (await store.purge()).more:  # those of all projects
            pass
        await store.accept(called(Turn(turn.project, created_at=NOW + 60), name))

    @pytest.mark.parametrize(
        "limits",
        [
            RetentionSettings(responses_store_ttl=50.0),
            RetentionSettings(responses_store_max_entries=4),
            RetentionSettings(responses_store_ttl=50.0, responses_store_max_entries=5),
        ],
        ids=str,
    )
    async def test_the_oldest_go_first(self, open_store: OpenStore, limits: RetentionSettings) -> None:
        clock = Clock(NOW)
        store = await open_store(settings=limits, now=clock)
        saved = list(responses(10))
        await save_all(store, saved)
        clock.now = NOW + 55.5  # six are past their time then
        await purged(store)
        assert [await is_unknown(store, stored) for stored in saved] == [True] * 6 + [False] * 4
        assert sum(step.responses for step in await purged(store)) == 0

    async def test_what_runs_stays(self, open_store: OpenStore) -> None:
        store = await open_store(settings=RetentionSettings(responses_store_max_entries=1))
        project = new_id("proj")
        begun = [Turn(project, created_at=NOW + number).begun() for number in range(3)]
        for accepted in begun:
            await store.accept(accepted)
        ended = list(responses(2, project))
        await save_all(store, ended)
        await purged(store)
        assert [await status(store, accepted) for accepted in begun] == ["in_progress"] * 3
        assert [await is_unknown(store, stored) for stored in ended] == [True, True]

    async def test_the_newest_stays_however_large(self, open_store: OpenStore) -> None:
        store = await open_store(settings=RetentionSettings(responses_store_max_bytes=1))
        saved = list(responses(3))
        await save_all(store, saved)
        await purged(store)
        assert [await is_unknown(store, stored) for stored in saved] == [True, True, False]


class PurgeCase:
    """Each test has an empty database."""

    @pytest.fixture(params=["sqlite", "postgres"])
    def url(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
        if request.param == "sqlite":
            template: Path = request.getfixturevalue("migrated_sqlite")
            (tmp_path / "store.sqlite3").write_bytes(template.read_bytes())
            yield f"sqlite:///{tmp_path}/store.sqlite3"
        else:
            server: PostgresServer = request.getfixturevalue("postgres_server")
            name = server.create_database(template=request.getfixturevalue("migrated_postgres"))
            yield server.url_of(name)
            server.drop_database(name)

    @pytest.fixture
    def purging(self, alias: str) -> Purging:
        """Purge beside the loop, as the command does; the connection is closed after it."""

        def run(limits: RetentionSettings, **options: object) -> Purged:
            try:
                return purge(alias, limits, **{"now": NOW + 100.0, **options})  # type: ignore[arg-type]
            finally:
                connections[alias].close()

        return lambda limits, **options: asyncio.ensure_future(asyncio.to_thread(run, limits, **options))


async def purged(store: BaseResponseStore) -> list[Purged]:
    """Purge until there is no more to do."""
    steps = [await store.purge()]
    while steps[-1].more:
        steps.append(await store.purge())
    return steps


async def saved(open_store: OpenStore, number: int, project: str | None = None) -> list[StoredResponse]:
    """Save responses, a second apart."""
    store = await open_store()
    kept = list(responses(number, project))
    await asyncio.gather(*(store.save(stored) for stored in kept))
    return kept


class TestPurge(PurgeCase):
    async def test_rows_parts_and_items_go(self, open_store: OpenStore, purging: Purging, alias: str) -> None:
        kept = await saved(open_store, 10)
        sizes = {row.pk: row.size for row in await asyncio.to_thread(rows, alias, Response)}
        purged = await purging(RetentionSettings(responses_store_max_entries=4))
        gone = sum(sizes[stored.response["id"]] for stored in kept[:6])
        assert purged == Purged(responses=6, parts=6, bytes=gone)
        for model in (Response, ChainPart, SampledItem):
            assert len(await asyncio.to_thread(rows, alias, model)) == 4

    async def test_by_bytes(self, open_store: OpenStore, purging: Purging, alias: str) -> None:
        await saved(open_store, 10)
        sizes = [row.size for row in sorted(await asyncio.to_thread(rows, alias, Response), key=lambda r: r.created_at)]
        assert (await purging(RetentionSettings(responses_store_max_bytes=sum(sizes[7:])))).responses == 7
        assert (await purging(RetentionSettings(responses_store_max_bytes=sum(sizes[7:])))).responses == 0
        assert (await purging(RetentionSettings(responses_store_max_bytes=sum(sizes[7:]) - 1))).responses == 1

    async def test_each_project_by_itself(self, open_store: OpenStore, purging: Purging) -> None:
        store = await open_store()
        large = await saved(open_store, 6)
        small = await saved(open_store, 2)
        assert (await purging(RetentionSettings(responses_store_max_entries=3))).responses == 3
        assert [await is_unknown(store, stored) for stored in (*large, *small)] == [True] * 3 + [False] * 5

    async def test_a_dry_run_removes_nothing(self, open_store: OpenStore, purging: Purging, alias: str) -> None:
        await saved(open_store, 10)
        before = await asyncio.to_thread(rows, alias, Response)
        limits = RetentionSettings(responses_store_ttl=95.0)
        looked = await purging(limits, dry_run=True)
        assert await asyncio.to_thread(rows, alias, Response) == before
        purged = await purging(limits)
        assert looked == replace(purged, parts=0)
        assert purged.responses == 6

    async def test_what_lives_keeps_its_ancestors_parts(
        self, open_store: OpenStore, purging: Purging, alias: str
    ) -> None:
        store = await open_store()
        chain = [Turn(created_at=NOW).saying(*exchange(0))]
        for number in range(1, 6):
            parent = chain[-1]
            chain.append(Turn(parent.project, parent.link, created_at=NOW + number).saying(*exchange(number)))
        await save_all(store, chain)
        fork = Turn(chain[2].project, chain[2].link, created_at=NOW + 9).saying(*exchange(9))
        await store.save(fork)
        purged = await purging(RetentionSettings(responses_store_max_entries=2))
        assert (purged.responses, purged.parts) == (5, 0)
        assert await same_chain(store, chain[-1])
        assert await same_chain(store, fork)
        purged = await purging(RetentionSettings(responses_store_max_entries=1))
        assert (purged.responses, purged.parts) == (1, 3), "its own part, and the two before it up to the fork"
        assert await same_chain(store, fork)
        assert (await purging(RetentionSettings(responses_store_ttl=1.0))).parts == 4
        assert not await asyncio.to_thread(rows, alias, ChainPart)

    async def test_a_call_is_bounded_and_says_that_there_is_more(self, open_store: OpenStore, purging: Purging) -> None:
        await saved(open_store, 9)
        steps = [await purging(RetentionSettings(responses_store_ttl=1.0), max_responses=4) for _ in range(4)]
        assert [(step.responses, step.more) for step in steps] == [(4, True), (4, True), (1, False), (0, False)]

    async def test_it_tells_how_far_it_is(
        self, open_store: OpenStore, purging: Purging, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(removal, "BATCH", 4)
        await saved(open_store, 9)
        told: list[Purged] = []
        purged = await purging(RetentionSettings(responses_store_ttl=1.0), report=told.append)
        assert [each.responses for each in told] == [4, 8, 9]
        assert told[-1] == purged

    async def test_conversations_and_workers_stay(self, open_store: OpenStore, purging: Purging, alias: str) -> None:
        store = await open_store()
        await store.beat(WorkerState(id="worker_1", started_at=NOW))
        await asyncio.to_thread(self.converse, alias)
        await purging(
            RetentionSettings(responses_store_ttl=1.0, responses_store_max_entries=1, responses_store_max_bytes=1)
        )
        assert len(await asyncio.to_thread(rows, alias, Conversation)) == 1

    async def test_many_are_removed_in_bounded_time_while_others_write(self, open_store: OpenStore, alias: str) -> None:
        """5,000 responses of ten chains."""
        store = await open_store(settings=RetentionSettings(responses_store_max_entries=50))
        project = new_id("proj")
        ends: list[StoredResponse] = []
        for _ in range(10):
            turn, chain = Turn(project, created_at=NOW), []
            for number in range(500):
                chain.append(turn.saying(*exchange(number), sampled=[sampled_text("Yes.")]))
                turn = Turn(project, chain[-1].link, created_at=NOW + number)
            await asyncio.gather(*(store.save(stored) for stored in chain))
            ends.append(chain[-1])
        written = 0
        began = time.perf_counter()
        purging = asyncio.create_task(self.purge_all(store))
        while not purging.done():
            await store.save(Turn().saying(*exchange(1)))
            written += 1
        assert (await purging).responses == 4950
        assert time.perf_counter() - began < 30
        assert written >= 4950 / removal.BATCH / 2, "each waits for a step or two"
        for stored in ends:
            assert await same_chain(store, stored)

    async def test_without_excess_it_only_looks(self, alias: str) -> None:
        with queries(alias) as statements:
            store = DatabaseResponseStore(
                using=alias, settings=RetentionSettings(responses_store_ttl=1000.0, responses_store_max_entries=50)
            )
            await store.start()
            await store.save(Turn().saying(*exchange(1)))
            statements.clear()
            assert await store.purge() == Purged()
            # What was kept for polling, the project, its totals, its newest, its oldest; no other project.
            assert len(statements) == 6
            await store.aclose()

    @staticmethod
    async def purge_all(store: BaseResponseStore) -> Purged:
        total = Purged(more=True)
        while total.more:
            step = await store.purge()
            total = replace(total + step, more=step.more)
        return total

    @staticmethod
    def converse(alias: str) -> None:
        try:
            Conversation.objects.using(alias).create(pk="conv_1", created_at="2026-01-01T00:00:00Z")
        finally:
            connections[alias].close()


class TestCommand(PurgeCase):
    @pytest.fixture
    def command(self, url: str, tmp_path: Path) -> Callable[..., str]:
        def run(*flags: str, **settings: str) -> str:
            return manage("purge_responses", *flags, DATABASE_URL=url, DATA_DIR=str(tmp_path), **settings)

        return run

    async def test_it_removes_what_the_settings_say(
        self, open_store: OpenStore, command: Callable[..., str], alias: str
    ) -> None:
        await saved(open_store, 120)
        output = await asyncio.to_thread(command, RESPONSES_STORE_MAX_ENTRIES="10")
        end = output.removesuffix("\n")
        assert end.startswith("Removed 110 responses (0.")
        assert end.endswith(" MiB) and 110 parts of chains.")
        assert len(await asyncio.to_thread(rows, alias, Response)) == 10

    async def test_its_flags_stand_for_the_settings(
        self, open_store: OpenStore, command: Callable[..., str], alias: str
    ) -> None:
        await saved(open_store, 5)
        flags = ("--max-entries", "3", "--ttl", "0", "--max-bytes", "0")
        settings = {"RESPONSES_STORE_TTL": "1", "RESPONSES_STORE_MAX_BYTES": "1"}
        output = await asyncio.to_thread(command, "--dry-run", *flags, **settings)
        assert output.startswith("Would remove 2 responses (0.0 MiB).")
        assert len(await asyncio.to_thread(rows, alias, Response)) == 5
        await asyncio.to_thread(command, *flags, **settings)
        assert len(await asyncio.to_thread(rows, alias, Response)) == 3

    async def test_without_limits_it_says_what_to_set_and_removes_what_had_store_false(
        self, open_store: OpenStore, command: Callable[..., str]
    ) -> None:
        long_ago = 1_000_000_000
        store, turns = await open_store(now=Clock(long_ago)), [Turn(created_at=long_ago) for _ in range(2)]
        for turn, stored in zip(turns, (True, False), strict=True):
            begun, end = turn.begun("queued"), turn.saying(*exchange(1))
            begun.response["store"] = end.response["store"] = stored
            await store.accept(begun)
            await store.save(replace(end, accepted=True))
        output = await asyncio.to_thread(command)
        assert "Nothing limits what is stored: set RESPONSES_STORE_TTL" in output
        assert "Removed 1 responses" in output
        assert [await status(store, turn.saying()) for turn in turns] == ["completed", None]

    @pytest.mark.parametrize("flags", [("--ttl", "soon"), ("--max-entries", "-1"), ("--max-bytes", "1.5")], ids=str)
    def test_a_wrong_flag_is_told(self, flags: tuple[str, str]) -> None:
        with pytest.raises(CommandError, match=f"argument {flags[0]}: '{flags[1]}' is not valid: it takes a number"):
            call_command("purge_responses", *flags)


def test_without_a_database_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="has been run"):
        manage("purge_responses", "--ttl", "1", DATABASE_URL=f"sqlite:///{tmp_path}/new.sqlite3")
