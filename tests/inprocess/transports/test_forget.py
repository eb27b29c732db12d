"""`manage.py forget` on a server that serves: what a project had is exported, gone, and shown to be gone."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.inprocess.transports.test_ownership import HELLO, client_of
from tests.kit.inprocess import ClosedServer
from tests.kit.stored import stored

TABLES = (
    "response chainpart sampleditem publicname logpart conversation conversationitem apikey project storedfile "
    "filepart skill skillversion vectorstore vectorstorefile vectorstorechunk vectorstorebatch"
).split()


@pytest.fixture
def server(folder: Path) -> Iterator[ClosedServer]:
    with ClosedServer(folder, auth="on", engine_options='{"tokens_per_second": 50}') as server:
        yield server


def made(client: httpx.Client, **fields: Any) -> str:
    """Make a response, and return its id."""
    answer = client.post("/v1/responses", json={"input": HELLO, **fields})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def rows(server: ClosedServer) -> dict[str, int]:
    """Return how many rows each table has."""
    return {table: stored(server, f"SELECT count(*) FROM responses_app_{table}")[0][0] for table in TABLES}


@pytest.mark.each_database
def test_a_project_is_forgotten_whole_and_others_not_at_all(server: ClosedServer) -> None:
    mine, theirs = (client_of(server, server.new_key("--project", name)) for name in ("mine", "theirs"))
    with mine, theirs:
        kept = made(theirs)
        for client in (theirs, mine):
            before = rows(server)
            up = client.post("/v1/files", files={"file": ("a.txt", b"text")}, data={"purpose": "user_data"}).json()
            store = client.post("/v1/vector_stores", json={"name": "s"}).json()["id"]
            client.post(f"/v1/vector_stores/{store}/file_batches", json={"file_ids": [up["id"]]})
            read = f"/v1/vector_stores/{store}/files/{up['id']}"
            while client.get(read).json()["status"] == "in_progress":
                pass
        first = made(mine)
        made(mine, previous_response_id=first)
        made(mine, previous_response_id=first)
        conversation = mine.post("/v1/conversations", json={"items": HELLO, "metadata": {"a": "b"}}).json()["id"]
        made(mine, conversation=conversation)
        rolled = {"x-rollout-id": "task-1"}
        mine.post("/v1/responses", json={"input": "Hi"}, headers=rolled).raise_for_status()
        mine.post("/v1/rollouts", json={"id": "task-2"}).raise_for_status()
        running = made(mine, background=True, input="count to 500")

        file = server.folder / "mine.jsonl"
        said = server.manage("forget", "--project", "mine", "--dry-run", "--export", str(file))
        assert "6 responses, 1 conversations" in said
        assert "2 roll-outs" in said
        assert rows(server)["response"] == 7
        exported = [json.loads(line) for line in file.read_text().splitlines()]
        assert {first, running} < {line["response"]["id"] for line in exported if "response" in line}
        assert [line["conversation"]["metadata"] for line in exported if "conversation" in line] == [{"a": "b"}]
        assert [line["file"]["filename"] for line in exported if "file" in line] == ["a.txt"]
        (kept_store,) = [line for line in exported if "vector_store" in line]
        assert kept_store["vector_store"]["name"] == "s"
        assert [line["base64"] for line in exported if "content_of" in line] == ["dGV4dA=="]
        (first_tree, _) = [line["rollout"] for line in exported if "rollout" in line]
        assert first_tree["sequences"][0]["token_ids"]
        assert os.stat(file).st_mode & 0o777 == 0o600

        said = server.manage("forget", "--project", "mine", "--yes")
        assert "Left are 0 responses, 0 conversations, 0 conversation items" in said
        assert rows(server) == {**before, "apikey": before["apikey"] - 1, "project": before["project"] - 1}
        assert theirs.get(f"/v1/responses/{kept}").status_code == 200
        assert mine.get(f"/v1/responses/{first}").status_code in (401, 404)
        with pytest.raises(AssertionError, match="There is no project mine"):
            server.manage("forget", "--project", "mine", "--yes")


@pytest.mark.each_database
def test_what_one_key_asked_for_is_forgotten_alone(server: ClosedServer) -> None:
    one, other = (client_of(server, server.new_key("--project", "p")) for _ in range(2))
    with one, other:
        gone, kept = made(one), made(other)
        goes_on = made(other, previous_response_id=gone)
        (key_id,) = {row[0] for row in stored(server, f"SELECT key_id FROM responses_app_response WHERE id = '{gone}'")}
        said = server.manage("forget", "--key", key_id, "--yes")
        assert "Left are 0 responses" in said
        assert other.get(f"/v1/responses/{gone}").status_code == 404
        for response_id in (kept, goes_on):
            assert other.get(f"/v1/responses/{response_id}").status_code == 200
        made(other, previous_response_id=goes_on)


def test_nothing_is_erased_unasked_or_over_a_file(server: ClosedServer) -> None:
    client = client_of(server, server.new_key("--project", "p"))
    with client:
        made(client)
        file = server.folder / "there.jsonl"
        file.write_text("there")
        for flags in ([], ["--export", str(file), "--yes"], ["--export", str(server.folder / "no" / "file"), "--yes"]):
            with pytest.raises(AssertionError):
                server.manage("forget", "--project", "p", *flags)
        assert rows(server)["response"] == 1
        assert file.read_text() == "there"
