"""A server and its commands behind a real PgBouncer, which lends each transaction a session: nothing fails of it."""

import json
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.kit.databases import migrated_database, postgres
from tests.kit.pgbouncer import PgBouncer
from tests.kit.server import Server, manage

LEFT = """
SELECT current_setting('statement_timeout'), current_setting('idle_in_transaction_session_timeout'),
    (SELECT count(*) FROM pg_cursors), (SELECT count(*) FROM pg_prepared_statements)
"""


@pytest.mark.needs("postgres")
@pytest.mark.needs("pgbouncer")
def test_a_server_behind_a_pooler(folder: Path) -> None:
    name = postgres().create_database(template=migrated_database(manage))
    # Fewer sessions than a server has threads.
    with PgBouncer(postgres().port, sessions=2) as pooler:
        url = pooler.url_of(name)
        with Server(folder, database_url=url) as server:
            assert server.post("/responses", input="Hello").json()["status"] == "completed"
            kept = {"file": ("a.txt", b"Some words.")}
            file = httpx.post(f"{server.base_url}/files", data={"purpose": "user_data"}, files=kept).json()
            expires = {"anchor": "last_active_at", "days": 1}
            store = server.post("/vector_stores", file_ids=[file["id"]], expires_after=expires)
            assert store.status_code == 200
            server.stop()
            server.start()  # looks after what has expired
            server.wait_until("/ready", 200)
            export = folder / "export.jsonl"
            manage("forget", "--project", "default", "--export", str(export), "--yes", DATABASE_URL=url)
            exported = {key for line in export.read_text().splitlines() for key in json.loads(line)}
            assert {"response", "file", "content_of"} <= exported
        assert "Traceback" not in server.output
        with psycopg.connect(url, autocommit=True) as other:
            assert other.execute(LEFT).fetchone() == ("0", "0", 0, 0)
