"""Damaged rows: whatever stands in the database, a server answers in time and in OpenAI's shape, and goes on.

Only this finds a column whose damage nobody has thought of.

Each example damages one value of a server's database, asks for everything that is kept, and puts the value back. What
cannot be read is 500 at worst, and nothing else is harmed: in the end all is answered as in the beginning.
"""

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from responses_app.protocol.requests.resources import RUNNING
from tests.kit.server import Server
from tests.system.fuzz import strategies
from tests.system.fuzz.samples import TOOLS
from tests.system.fuzz.shares import SEED, STORED_SECONDS

TABLES = ("response", "chainpart", "sampleditem", "logpart", "conversation", "conversationitem")
NAMED_BY = ("id", "project", "response_id", "conversation_id", "position")  # what finds a row, and is never damaged
WAIT_SECONDS = 30.0
EXAMPLES = 5  # in one round

Value = str | bytes | int


@dataclass(frozen=True)
class Place:
    """A value in the database."""

    table: str
    column: str
    row: int
    value: Value


@dataclass(frozen=True)
class Kept:
    """What the server keeps."""

    responses: list[str]
    items: list[str]
    conversation: str


def test_a_damaged_row_is_answered_in_the_shape_of_an_error(tmp_path: Path) -> None:
    with Server(tmp_path / "server", log_level="error") as server:
        kept = fill(server)
    with server, httpx.Client(base_url=f"{server.base_url}/", verify=False, timeout=WAIT_SECONDS) as client:
        everything = places(server)
        assert {place.table for place in everything} == set(TABLES)
        before = ask_for(client, kept)
        assert set(before) == {200, 400}, before  # 400: a call has no output yet
        rounds, deadline = 0, time.monotonic() + STORED_SECONDS
        while rounds == 0 or time.monotonic() < deadline:
            one_round(SEED + rounds, server, client, kept, everything)
            rounds += 1
        assert ask_for(client, kept) == before
        assert server.is_running


def one_round(number: int, server: Server, client: httpx.Client, kept: Kept, everything: list[Place]) -> None:
    """Damage some values, one after the other."""

    @seed(number)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(everything).flatmap(lambda place: st.tuples(st.just(place), damaged(place))))
    def check(damage: tuple[Place, Value]) -> None:
        with written(server, *damage):
            ask_for(client, kept)

    try:
        check()
    except BaseException:
        print(f"FUZZ_SEED={number}")
        raise


def fill(server: Server) -> Kept:
    """Make a chain with a call in it, a conversation, and a response in the background."""
    with httpx.Client(base_url=f"{server.base_url}/", verify=False, timeout=WAIT_SECONDS) as client:

        def post(path: str, **body: object) -> Any:
            return client.post(path, json=body).raise_for_status().json()

        first = post("responses", input="Hello")
        called = post("responses", input="call look for Rome", tools=TOOLS[:1], previous_response_id=first["id"])
        call = next(item["call_id"] for item in called["output"] if item["type"] == "function_call")
        output = [{"type": "function_call_output", "call_id": call, "output": "18 degrees"}]
        last = post("responses", input=output, previous_response_id=called["id"])
        conversation = post("conversations", items=[{"role": "user", "content": "Hello"}], metadata={"a": "b"})["id"]
        talked = post("responses", input="And again", conversation=conversation)
        responses = [first, called, last, talked]
        return Kept(
            responses=[response["id"] for response in responses],
            items=[item["id"] for response in responses for item in response["output"]],
            conversation=conversation,
        )


def ask_for(client: httpx.Client, kept: Kept) -> list[int]:
    """Read and continue everything, and return the statuses; nothing is kept of it."""
    asked = []
    for response_id in kept.responses:
        path = f"responses/{response_id}"
        asked += [("GET", path, None), ("GET", f"{path}?stream=true", None), ("GET", f"{path}/input_items", None)]
        asked.append(("POST", "responses", {"input": SHORT, "previous_response_id": response_id, "store": False}))
    references = [{"type": "item_reference", "id": item_id} for item_id in kept.items]
    asked.append(("POST", "responses/input_tokens", {"input": [*references, *SHORT]}))
    path = f"conversations/{kept.conversation}"
    asked += [("GET", path, None), ("GET", f"{path}/items?order=asc", None)]
    asked.append(("POST", "responses/input_tokens", {"input": SHORT, "conversation": kept.conversation}))
    return [answered(client.request(method, path, json=body)) for method, path, body in asked]


SHORT = [{"role": "user", "content": "Hi"}]


def answered(answer: httpx.Response) -> int:
    """Check the form of an answer, and return its status."""
    if answer.headers["content-type"].startswith("text/event-stream"):
        assert answer.text.rstrip().endswith("data: [DONE]"), answer.text[-500:]
        return answer.status_code
    body = answer.json()
    if answer.status_code >= 400:
        assert set(body) == {"error"}, body
        assert set(body["error"]) == {"message", "type", "param", "code"}, body
    return answer.status_code


def places(server: Server) -> list[Place]:
    """Return every value of the tables that may be damaged; a new column comes by itself."""
    found = []
    with database(server) as connection:
        for table in TABLES:
            rows = connection.execute(f"SELECT rowid, * FROM responses_app_{table}")
            names = [column[0] for column in rows.description]
            for row in rows:
                values = zip(names[1:], row[1:], strict=True)
                found += [
                    Place(table, name, row[0], value)
                    for name, value in values
                    if value is not None and name not in NAMED_BY and not name.endswith("_at")
                ]
    return found


def damaged(place: Place) -> "st.SearchStrategy[Value]":
    """Return what may stand in a place: of its type, so that every database could hold it.

    No status of a response that runs: nobody runs it, so it would be taken over, and end.
    """
    value = place.value
    if isinstance(value, int):
        return st.one_of(st.integers(0, 2**31 - 1), st.sampled_from([0, 1]))
    if isinstance(value, bytes):
        cut = st.integers(0, len(value)).map(lambda end: value[:end])
        flipped = st.integers(0, max(0, len(value) - 1)).map(lambda at: value[:at] + b"\xff" + value[at + 1 :])
        return st.one_of(st.binary(max_size=64), cut, flipped)
    cut_text = st.integers(0, len(value)).map(lambda end: value[:end])
    texts = st.one_of(
        st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=16), cut_text
    )
    if value[:1] in ("{", "["):
        texts = st.one_of(texts, *[strategies.mutated(st.builds(json.loads, st.just(value))).map(json.dumps)] * 3)
    return texts.filter(lambda text: text not in RUNNING)


@contextmanager
def written(server: Server, place: Place, value: Value) -> Iterator[None]:
    """Write a value, and afterwards what stood there."""
    statement = f"UPDATE responses_app_{place.table} SET {place.column} = ? WHERE rowid = ?"
    with database(server) as connection:
        connection.execute(statement, (value, place.row))
    try:
        yield
    finally:
        with database(server) as connection:
            connection.execute(statement, (place.value, place.row))


@contextmanager
def database(server: Server) -> Iterator[sqlite3.Connection]:
    """Open a server's database for one transaction."""
    path = server.folder / "respsite.sqlite3"
    with closing(sqlite3.connect(path, timeout=WAIT_SECONDS)) as connection, connection:
        yield connection
