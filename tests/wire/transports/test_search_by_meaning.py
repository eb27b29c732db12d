"""File search with the demo engine's embeddings on real processes: kill -9 of who embeds, and a model that changes."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from openai import OpenAI

from tests.kit.databases import postgres_url
from tests.kit.fixtures import module_server
from tests.kit.sdk import sdk_of
from tests.kit.server import Server, manage
from tests.kit.waiting import eventually

MODEL = "hashing-256"
MEANING = {"file_search_embedding_model": MODEL, "file_search_embedding_seconds": 0.5}  # leases of 11 s
SHELL = "The shell of a turtle is made of bone."
MANY = "\n\n".join(f"{SHELL} Number {number}. " + f"word{number} " * 60 for number in range(400))
SMALL = {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}}
HELD = 4711  # the advisory lock that stops who embeds
# Each step is written down where it is committed; from the second on it waits for the lock.
WATCH = f"""
CREATE TABLE steps (start integer);
CREATE FUNCTION watch() RETURNS trigger AS $$ BEGIN
    IF NEW.start >= 64 THEN PERFORM pg_advisory_xact_lock({HELD}); END IF;
    INSERT INTO steps VALUES (NEW.start); RETURN NEW;
END $$ LANGUAGE plpgsql;
CREATE TRIGGER watch BEFORE INSERT ON responses_app_vectorstorecodes FOR EACH ROW EXECUTE FUNCTION watch();
"""
EMBEDDED = "SELECT count(*) FROM responses_app_vectorstorefile WHERE embedded_by = %s"
WAITING = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = {HELD} AND NOT granted"


server = module_server("meaning", **MEANING)


def _filled(client: OpenAI, text: str = SHELL) -> str:
    store = client.vector_stores.create(name="animals")
    added = client.vector_stores.files.upload_and_poll(
        vector_store_id=store.id, file=("shell.txt", text.encode()), chunking_strategy=SMALL, poll_interval_ms=50
    )  # type: ignore[arg-type]
    assert added.status == "completed"
    return store.id


def _found(client: OpenAI, store_id: str, query: str) -> list[str]:
    return [hit.content[0].text for hit in client.vector_stores.search(store_id, query=query).data]


@pytest.mark.any_database
async def test_what_no_word_finds_is_found_by_its_vector(server: Server) -> None:
    with sdk_of(server) as client:
        store_id = _filled(client)
        # No word of it is there; pieces of its words are, which is what this model goes by.
        await eventually(lambda: _found(client, store_id, "turtleshell") == [SHELL])
        tool = {"type": "file_search", "vector_store_ids": [store_id]}
        weighed = {**tool, "ranking_options": {"hybrid_search": {"embedding_weight": 1, "text_weight": 0.5}}}
        answer = client.responses.with_raw_response.create(
            model="demo",
            input="Search the files for turtleshell",
            tools=[weighed],  # type: ignore[list-item]
        )
        assert "respsite-ignored" not in answer.headers
        assert SHELL in answer.parse().output_text
        client.vector_stores.delete(store_id)


@contextmanager
def _watched(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as database:
        database.execute(WATCH)
        database.execute("SELECT pg_advisory_lock(%s)", [HELD])
        yield database


def _number(database: psycopg.Connection, sql: str, *arguments: object) -> int:
    row = database.execute(sql, arguments).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.any_database  # it is on PostgreSQL by itself
async def test_another_worker_goes_on_and_another_model_begins_anew(tmp_path: Path) -> None:
    url = postgres_url(tmp_path, manage)
    first, second = (Server(tmp_path / name, database_url=url, **MEANING) for name in ("first", "second"))
    models = {"demo": {"engine": "demo"}, "other": {"engine": "hashing", "model": "other-256"}}
    changed = {**MEANING, "file_search_embedding_model": "other", "models": json.dumps(models)}
    third = Server(tmp_path / "third", database_url=url, **changed)
    with _watched(url) as database:
        try:
            first.start()
            with sdk_of(first) as client:
                store_id = _filled(client, MANY)
                await eventually(lambda: _number(database, WAITING) == 1)
                assert "word7 " in _found(client, store_id, "word7")[0], "words are searched meanwhile"
            second.start()
            first.kill()
            database.execute("SELECT pg_advisory_unlock(%s)", [HELD])
            await eventually(lambda: _number(database, EMBEDDED, "hashing-256 (256)") == 1, timeout=90)
            chunks = _number(database, "SELECT count(*) FROM responses_app_vectorstorechunk")
            assert chunks > 128
            assert _number(database, "SELECT sum(count) FROM responses_app_vectorstorecodes") == chunks
            assert _number(database, "SELECT count(*) FROM responses_app_vectorstorevector") == chunks
            steps = [start for (start,) in database.execute("SELECT start FROM steps").fetchall()]
            assert len(set(steps)) == len(steps) > 1, "what the dead worker kept was not done again"
            with sdk_of(second) as client:
                assert _found(client, store_id, "turtleshell")
            second.stop()
            third.start()
            await eventually(lambda: _number(database, EMBEDDED, "other-256 (256)") == 1)
            assert _number(database, "SELECT count(DISTINCT model) FROM responses_app_vectorstorecodes") == 1
            assert _number(database, "SELECT count(*) FROM responses_app_vectorstorevector") == chunks
            with sdk_of(third) as client:
                assert _found(client, store_id, "turtleshell")
        finally:
            for server in (first, second, third):
                server.stop()
