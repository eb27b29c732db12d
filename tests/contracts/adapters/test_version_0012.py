"""A database of the version with twelve migrations runs on, on SQLite and on PostgreSQL.

All that it kept is read byte for byte, streams too, which are made anew of their logs; chains go on with the tokens
that were kept; what ran when the server was killed is taken over; it moves to another server, and is erased.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
from django.db import connections

from tests.contracts.adapters.conftest import OpenDatabase
from tests.contracts.adapters.old_version import (
    WORDS,
    MakeDatabase,
    behind_system,
    copy_database,
    empty_database,
    ended,
    load,
    migrate,
    version_0012,
)
from tests.kit.clients import http_client, read_error_answer, text_of
from tests.kit.closed import bearer
from tests.kit.databases import DATABASES, database_settings
from tests.kit.scripts import generations
from tests.kit.server import Server, manage
from tests.wire.command_line.program import respsite, settings_of

MIGRATION = ("responses_app", "0012")
HELLO = "<|channel|>final<|message|>Hello there, friend.<|return|>"
NUMBERS = " ".join(str(number) for number in range(40))
LONG = (
    "<|channel|>analysis<|message|>Hm, Paris — 巴黎 🙂.<|end|><|start|>assistant"
    f"<|channel|>final<|message|>{NUMBERS}<|return|>"
)
MOVES = ("/responses", "/conversations", "/chat")


@pytest.fixture(scope="module", params=DATABASES)
def kind(request: pytest.FixtureRequest) -> str:
    """Which database it is."""
    return str(request.param)


@pytest.fixture(scope="module")
def make_old(kind: str, open_database: OpenDatabase, tmp_path_factory: pytest.TempPathFactory) -> MakeDatabase:
    """Makes databases of the old version, migrated to today's; gives their URLs."""
    url = empty_database(kind, tmp_path_factory.mktemp("old"))
    with open_database(url) as alias:
        load(alias, version_0012(), MIGRATION)
        migrate(alias)
    return partial(copy_database, url)


@pytest.fixture(scope="module")
def make_empty(kind: str) -> MakeDatabase:
    """Makes databases of today's version with nothing in them; gives their URLs."""

    def made(folder: Path) -> str:
        settings = database_settings(folder, manage, kind=kind)
        return settings.get("DATABASE_URL", f"sqlite:///{folder}/respsite.sqlite3")

    return made


def new_server(folder: Path, url: str, **settings: object) -> Server:
    """Return a server of today's version for such a database, not started; its engine never hangs."""
    script = [{"when": "[hang]", "say": LONG}, {"when": "[ponder]", "say": LONG}, {"say": HELLO}]
    defaults = {"model_name": "test-model", "auth": "on", "worker_lease_seconds": 1, "journal": True}
    return Server(
        folder,
        script=script,
        database_url=url,
        secret_key=version_0012().secret_key,
        **{**defaults, **settings},  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def server(make_old: MakeDatabase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of today's version on such a database; nothing is added to its project `p`."""
    folder = tmp_path_factory.mktemp("version-0012")
    with new_server(folder / "server", make_old(folder)) as server:
        yield server


@pytest.fixture
def own_server(make_old: MakeDatabase, tmp_path: Path) -> Iterator[Server]:
    """The same, for a test that changes it."""
    with new_server(tmp_path / "server", make_old(tmp_path)) as server:
        yield server


@asynccontextmanager
async def client(server: Server, key: str = "") -> AsyncIterator[httpx.AsyncClient]:
    """A client with the key that the old version had made, or another."""
    async with http_client(server) as http:
        http.headers.update(bearer(key or version_0012().key))
        yield http


async def differing(http: httpx.AsyncClient, *, beginning: tuple[str, ...] = ("/",)) -> list[str]:
    """Return the paths at which something else is read than before."""
    found = []
    for read in version_0012().reads:
        path = read["path"]
        if not path.startswith(beginning):
            continue
        answer = await (http.post(path, json=read["body"]) if "body" in read else http.get(path))
        digest = hashlib.sha256(answer.content).hexdigest()
        if (read["text"] != answer.text) if "text" in read else (read["digest"] != digest):
            found.append(f"{path}: {answer.text}")
    return found


async def test_all_that_was_kept_reads_byte_for_byte_as_before(server: Server) -> None:
    async with client(server) as http:
        assert await differing(http) == []


async def test_what_ran_is_taken_over_behind_its_last_token_and_ends_as_it_would_have(server: Server) -> None:
    async with client(server) as http:
        for name, left in version_0012().unfinished.items():
            response = await ended(http, left["id"])
            answer = await http.get(f"/responses/{left['id']}?stream=true")
            lines = answer.text.splitlines()
            events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
            assert (response["status"], [event["type"] for event in events]) == (left["status"], left["types"]), name
            assert events[-1]["response"] == response
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            assert [each["prompt_tokens"] for each in generations(server, left["id"])] == left["prompts"], name
            if name in ("talking", "thinking"):
                assert events[: len(left["seen"])] == left["seen"], "what its reader has seen stands"
                assert text_of(response) == NUMBERS


async def test_chains_conversations_and_turns_go_on_with_the_tokens_that_were_kept(own_server: Server) -> None:
    heads = {row["id"]: row["head"] for row in version_0012().rows["responses_app_conversation"]}
    async with client(own_server) as http:
        for each in version_0012().continued:
            body = each["body"]
            answer = await http.post("/responses", json=body)
            assert answer.status_code == 200, answer.text
            (generation,) = generations(own_server, answer.json()["id"])
            begins = "previous_response_id" not in body and not heads.get(body.get("conversation"))
            cut = behind_system if begins else list
            assert cut(generation["prompt_tokens"]) == cut(each["prompt"]), body


async def test_keys_open_and_limits_hold(server: Server) -> None:
    kept = version_0012()
    settings = {name: server.environ[name] for name in ("DATABASE_URL", "DATA_DIR")}
    newer = "monthly spend cents: no limit\n"
    assert manage("set_limits", "--project", "p", **settings) == kept.limits + newer
    async with http_client(server) as http:
        body = {"input": "Hello"}
        assert (await http.post("/responses", json=body)).status_code == 401
        first, second = [await http.post("/responses", json=body, headers=bearer(kept.limited)) for _ in range(2)]
        assert first.status_code == 200
        read_error_answer(second, status=429, code="rate_limit_exceeded")
        other = kept.rows["responses_app_response"][0]["id"]
        assert (await http.get(f"/responses/{other}", headers=bearer(kept.limited))).status_code == 404


async def test_it_moves_to_another_server_and_is_deleted_and_erased(
    own_server: Server, make_empty: MakeDatabase, open_database: OpenDatabase, tmp_path: Path
) -> None:
    async with client(own_server) as http:
        for left in version_0012().unfinished.values():
            await ended(http, left["id"])
    file, folder = tmp_path / "kept.jsonl", tmp_path / "elsewhere"
    folder.mkdir()
    exported = respsite("export", file, **settings_of(own_server))
    assert exported.returncode == 0, exported.stderr
    url = make_empty(folder)
    key = manage("create_key", "--project", "p", DATABASE_URL=url).strip()
    with new_server(folder, url) as other:
        imported = respsite("import", file, **settings_of(other))
        assert imported.returncode == 0, imported.stderr
        async with client(other, key) as http:
            assert await differing(http, beginning=MOVES) == []
    async with client(own_server) as http:
        name = version_0012().rows["responses_app_publicname"][0]["name"]  # of a turn with two legs
        for response_id in (name, version_0012().unfinished["talking"]["id"]):
            assert (await http.delete(f"/responses/{response_id}")).json()["deleted"] is True
            assert (await http.get(f"/responses/{response_id}")).status_code == 404
    settings = {name: own_server.environ[name] for name in ("DATABASE_URL", "DATA_DIR")}
    manage("forget", "--project", "p", "--yes", **settings)
    with open_database(own_server.environ["DATABASE_URL"]) as alias:
        left_over = await asyncio.to_thread(counts, alias)
    assert set(left_over.values()) == {0}, left_over


def counts(alias: str) -> dict[str, int]:
    """Return how many rows there are of what belongs to projects; not on an event loop."""
    found = {}
    with connections[alias].cursor() as cursor:
        for table in version_0012().rows:
            if table != WORDS and not table.endswith(("_worker", "_project", "_apikey")):
                cursor.execute(f"SELECT count(*) FROM {table}")
                (found[table],) = cursor.fetchone()
    connections[alias].close()
    return found
