"""A database of an older version migrates: its responses read as before, and its chains go on token by token."""

import asyncio
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from django.db import connections

from responses_app.stores.database.responses.store import DatabaseResponseStore
from tests.contracts.adapters.conftest import OpenDatabase
from tests.contracts.adapters.old_version import (
    NEWEST_MIGRATION,
    MakeDatabase,
    behind_system,
    copy_database,
    empty_database,
    ended,
    kept_rows,
    load,
    migrate,
    new_server,
    old_version,
)
from tests.contracts.adapters.stores import queries
from tests.contracts.store_life import reclaimed
from tests.kit.clients import Frame, http_client, read_error_answer, text_of
from tests.kit.databases import DATABASES
from tests.kit.raw_streams import RawStream
from tests.kit.scripts import generations
from tests.kit.server import Server

NO_LOGPROBS = ',"logprobs":[]'  # in lists of items every text that the model wrote has them by now, as at OpenAI


@pytest.fixture(scope="module", params=DATABASES)
def make_old(
    request: pytest.FixtureRequest, open_database: OpenDatabase, tmp_path_factory: pytest.TempPathFactory
) -> MakeDatabase:
    """Makes databases of the old version; gives their URLs."""
    url = empty_database(request.param, tmp_path_factory.mktemp("old"))
    with open_database(url) as alias:
        load(alias)
    return partial(copy_database, url)


@pytest.fixture(scope="module")
def make_migrated(
    make_old: MakeDatabase, open_database: OpenDatabase, tmp_path_factory: pytest.TempPathFactory
) -> MakeDatabase:
    """The same, migrated to today's version."""
    url = make_old(tmp_path_factory.mktemp("migrated"))
    with open_database(url) as alias:
        migrate(alias)
    return partial(copy_database, url)


@pytest.fixture(scope="module")
def server(make_migrated: MakeDatabase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of today's version on a migrated database, to be read only."""
    folder = tmp_path_factory.mktemp("read")
    with new_server(folder / "server", make_migrated(folder)) as server:
        yield server


@pytest.fixture
def own_server(make_migrated: MakeDatabase, tmp_path: Path) -> Iterator[Server]:
    """The same, for a test that adds to it."""
    with new_server(tmp_path / "server", make_migrated(tmp_path)) as server:
        yield server


async def test_all_that_had_ended_reads_byte_for_byte_as_before(server: Server) -> None:
    kept = old_version()
    expected = {f"/responses/{row['id']}": row["body"] for row in kept.finished} | dict(kept.reads)
    async with http_client(server) as http:
        for path, text in expected.items():
            found = (await http.get(path)).text
            assert without_additions(path, found) == without_additions(path, text)


async def test_a_stream_that_was_not_kept_says_so(server: Server) -> None:
    async with http_client(server) as http:
        for row in old_version().finished:
            answer = await http.get(f"/responses/{row['id']}?stream=true")
            message = read_error_answer(answer, status=400, code="stream_not_kept", param="stream")
            assert "kept no log" in message


async def test_what_waited_is_run_with_the_tokens_it_would_have_had(server: Server) -> None:
    unfinished = old_version().unfinished
    async with http_client(server) as http:
        for name in ("silent", "waits"):
            assert text_of(await ended(http, unfinished[name]["id"])) == "Hello there, friend."
    (silent,) = generations(server, unfinished["silent"]["id"])
    assert behind_system(silent["prompt_tokens"]) == behind_system(unfinished["silent"]["prompt"])
    (waits,) = generations(server, unfinished["waits"]["id"])
    assert waits["prompt_tokens"] == unfinished["waits"]["prompt"]


@pytest.mark.parametrize("name", ["foreground", "talking"])
async def test_what_ran_has_failed_and_its_stream_says_so(server: Server, name: str) -> None:
    response_id = old_version().unfinished[name]["id"]
    async with http_client(server) as http:
        response = await ended(http, response_id)
    assert response["status"] == "failed"
    assert response["error"]["code"] == "server_error"
    assert "server stopped" in response["error"]["message"]
    assert response["output"] == []
    events = await (await RawStream.resume(server, response_id)).rest()
    assert events[0]["type"] == "response.created"
    assert events[-1] == {
        "type": "response.failed",
        "sequence_number": len(events) - 1,
        "response": response,
    }


def begins_today(body: Frame) -> bool:
    """Say whether a request begins a chain, whose system message has the date of its first day: no chain is named."""
    if "conversation" in body:
        (head,) = (
            row["head"] for row in old_version().rows["responses_app_conversation"] if row["id"] == body["conversation"]
        )
        return not head
    return "previous_response_id" not in body


async def test_chains_go_on_with_the_tokens_that_were_kept(own_server: Server) -> None:
    async with http_client(own_server) as http:
        for each in old_version().continued:
            answer = await http.post("/responses", json=each["body"])
            assert answer.status_code == 200, answer.text
            (generation,) = generations(own_server, answer.json()["id"])
            cut = behind_system if begins_today(each["body"]) else list
            assert cut(generation["prompt_tokens"]) == cut(each["prompt"]), each["body"]


def test_the_migrations_change_nothing_that_was_kept_and_can_be_undone(
    make_old: MakeDatabase, open_database: OpenDatabase, tmp_path: Path
) -> None:
    url = make_old(tmp_path)
    with open_database(url) as alias:
        before = kept_rows(alias)
        migrate(alias)
        assert kept_rows(alias) == before
        with new_server(tmp_path / "server", url):
            pass
        after = kept_rows(alias)
        migrate(alias, *NEWEST_MIGRATION)
        assert kept_rows(alias) == after
        ended = {row["id"] for row in old_version().finished}
        assert [row for row in after["responses_app_response"] if row["id"] in ended] == [
            row for row in before["responses_app_response"] if row["id"] in ended
        ]
        migrate(alias)
        assert kept_rows(alias) == after


async def test_what_waited_is_found_again_where_the_answer_to_a_claim_is_lost(
    make_old: MakeDatabase, open_database: OpenDatabase, tmp_path: Path
) -> None:
    with open_database(await asyncio.to_thread(make_old, tmp_path)) as alias:
        await asyncio.to_thread(migrate, alias)
        store = DatabaseResponseStore(using=alias)
        await store.start()
        for _ in range(2):
            _, orphans = await reclaimed(store, "worker_heir", "default")
            waited = {old_version().unfinished[name]["id"] for name in ("silent", "waits")}
            assert {accepted.response["id"] for accepted in orphans.claimed} == waited
        await store.aclose()


def test_no_migration_rewrites_a_table(make_old: MakeDatabase, open_database: OpenDatabase, tmp_path: Path) -> None:
    """A large database would take long: a gigabyte of responses on SQLite 9 s, and as much space again."""
    with open_database(make_old(tmp_path)) as alias:
        migrate(alias, "auth")  # Django's own small tables: some of its migrations do
        before = files_of_tables(alias)
        with queries(alias) as statements:
            migrate(alias, "responses_app")
        assert [sql for sql in statements if "ADD COLUMN" in sql], "what is looked for can be seen"
        # Not those of roles and permissions, which are few and Django's own.
        assert [sql for sql in statements if re.match(r"INSERT INTO \W?(new__)?responses_app_\w+.* SELECT ", sql)] == []
        assert files_of_tables(alias) == before


def files_of_tables(alias: str) -> list[tuple[str, int]]:
    """Return where PostgreSQL keeps each table of the old version: in another file once it was rewritten."""
    with connections[alias].cursor() as cursor:
        if connections[alias].vendor == "postgresql":
            cursor.execute(
                "SELECT relname, pg_relation_filenode(oid) FROM pg_class WHERE relname = ANY(%s) ORDER BY relname",
                [list(old_version().rows)],
            )
        found = cursor.fetchall() if connections[alias].vendor == "postgresql" else []
    connections[alias].close()
    return found


def without_additions(path: str, text: str) -> str:
    """Return an answer without what today's version adds to lists of items."""
    return text.replace(NO_LOGPROBS, "") if "items" in path else text
