"""A worker is killed while it embeds a file, then the model changes: another worker goes on, and begins anew.

Only this finds chunks that are embedded twice, or never, where the process of who embeds dies inside a transaction.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.kit.databases import postgres_url
from tests.kit.sdk import sdk_of
from tests.kit.server import Server, manage
from tests.kit.waiting import eventually
from tests.wire.transports.test_search_by_meaning import MEANING, SHELL, filled, found

MANY = "\n\n".join(f"{SHELL} Number {number}. " + f"word{number} " * 60 for number in range(400))
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
                store_id = filled(client, MANY)
                await eventually(lambda: _number(database, WAITING) == 1)
                assert "word7 " in found(client, store_id, "word7")[0], "words are searched meanwhile"
            second.start()
            first.kill()
            database.execute("SELECT pg_advisory_unlock(%s)", [HELD])
            # The time is over in which only the dead one may embed it.
            database.execute("UPDATE responses_app_vectorstorefile SET embedding_until = '2020-01-01'")
            await eventually(lambda: _number(database, EMBEDDED, "hashing-256 (256)") == 1)
            chunks = _number(database, "SELECT count(*) FROM responses_app_vectorstorechunk")
            assert chunks > 128
            assert _number(database, "SELECT sum(count) FROM responses_app_vectorstorecodes") == chunks
            assert _number(database, "SELECT count(*) FROM responses_app_vectorstorevector") == chunks
            steps = [start for (start,) in database.execute("SELECT start FROM steps").fetchall()]
            assert len(set(steps)) == len(steps) > 1, "what the dead worker kept was not done again"
            with sdk_of(second) as client:
                assert found(client, store_id, "turtleshell")
            second.stop()
            third.start()
            await eventually(lambda: _number(database, EMBEDDED, "other-256 (256)") == 1)
            assert _number(database, "SELECT count(DISTINCT model) FROM responses_app_vectorstorecodes") == 1
            assert _number(database, "SELECT count(*) FROM responses_app_vectorstorevector") == chunks
            with sdk_of(third) as client:
                assert found(client, store_id, "turtleshell")
        finally:
            for server in (first, second, third):
                server.stop()
