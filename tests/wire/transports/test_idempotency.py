"""Requests with an `Idempotency-Key` are carried out once, whichever worker they come to, and answered each time."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.kit.clients import Frame, http_client, text_of
from tests.kit.laws import assert_laws
from tests.kit.pairs import LONG, NUMBERS, Pair
from tests.kit.scripts import gate, generations, journal, main_script, release
from tests.kit.stored import stored

AT_ONCE = 50  # equal requests
WAITING = 10  # equal requests, that are refused


def key() -> dict[str, str]:
    """Return the header with a new key."""
    return {"Idempotency-Key": uuid4().hex}


def new_pair(folder: Path) -> Pair:
    """Return two workers, not started; `[long]` takes its time.

    Streams wait for the engine's first word however long it takes, so that an early error always has its status.
    """
    slow = {"when": "[long]", "say": LONG, "delay": 0.001}
    return Pair(folder, script=[slow, *main_script(folder)], journal=True, stream_first_word_ms=60_000)


@pytest.fixture(scope="module")
def pair(database: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    pair = new_pair(tmp_path_factory.mktemp("once"))
    try:
        for worker in pair.workers:
            pair.start(worker)
        yield pair
        for worker in pair.workers:
            worker.stop()
            for noise in ("Traceback", "was never", "Task was destroyed", "locked", "took too"):
                assert noise not in worker.output, worker.output[-4000:]
    finally:
        for worker in pair.workers:
            if worker.is_running:
                worker.kill()


@pytest.fixture
async def clients(pair: Pair) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    async with http_client(pair.workers[0]) as one, http_client(pair.workers[1]) as other:
        yield one, other


Clients = tuple[httpx.AsyncClient, httpx.AsyncClient]


def events_of(content: bytes) -> list[Frame]:
    """Return the events of a stream."""
    lines = [line.removeprefix("data: ") for line in content.decode().splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


async def read_until(answer: httpx.Response, words: str) -> bytes:
    """Return what comes of a stream up to these words."""
    content = b""
    async for chunk in answer.aiter_bytes():
        content += chunk
        if words.encode() in content:
            return content
    raise AssertionError(f"{words!r} did not come in {len(content)} bytes")


@pytest.mark.each_database
async def test_of_fifty_at_once_over_two_workers_one_response_is_made(pair: Pair, clients: Clients) -> None:
    header, name = key(), "a0"
    body = {"input": gate(name)}
    asking = [
        asyncio.create_task(clients[number % 2].post("/responses", json=body, headers=header))
        for number in range(AT_ONCE)
    ]
    release(pair.workers[0], name)
    answers = await asyncio.gather(*asking)
    assert {answer.status_code for answer in answers} == {200}
    (response_id,) = {answer.json()["id"] for answer in answers}
    assert all(answer.json() == answers[0].json() for answer in answers)
    assert len(generations(pair.workers[0], response_id)) == 1
    assert sorted({answer.headers.get("idempotent-replayed", "") for answer in answers}) == ["", "true"]
    assert sum("idempotent-replayed" not in answer.headers for answer in answers) == 1
    rows = stored(pair.workers[0], "SELECT id, input_items FROM responses_app_response")
    assert [row[0] for row in rows if gate(name) in row[1]] == [response_id]


@pytest.mark.parametrize("store", [True, False])
async def test_a_stream_that_was_cut_is_read_again_from_its_beginning(
    pair: Pair, clients: Clients, store: bool
) -> None:
    header, body = key(), {"input": "[long]", "stream": True, "store": store}
    one, other = clients
    async with one.stream("POST", "/responses", json=body, headers=header) as answer:
        begun = await read_until(answer, '"20"')
    again, same = await asyncio.gather(
        other.post("/responses", json=body, headers=header), one.post("/responses", json=body, headers=header)
    )
    assert again.headers["content-type"] == "text/event-stream"
    events = events_of(again.content)
    assert_laws(events)
    assert events == events_of(same.content)
    seen = begun.rpartition(b"\n\n")[0]
    assert events_of(seen) == events[: len(events_of(seen))]
    response = events[-1]["response"]
    assert (response["status"], text_of(response)) == ("completed", NUMBERS)
    assert again.content.endswith(b"data: [DONE]\n\n")
    assert events_of((await other.post("/responses", json=body, headers=header)).content) == events
    assert len(generations(pair.workers[0], response["id"])) == 1


CHAT = {"messages": [{"role": "user", "content": "[long]"}], "model": "scripted", "stream": True}
KEPT_STREAMS: Mapping[str, Mapping[str, object]] = {
    "/chat/completions": CHAT,
    "/messages": {**CHAT, "max_tokens": 2000},
}


@pytest.mark.parametrize("path", KEPT_STREAMS)
async def test_streams_of_other_apis_are_kept_as_they_were_sent(pair: Pair, clients: Clients, path: str) -> None:
    header, body, (one, other) = key(), KEPT_STREAMS[path], clients
    header["anthropic-version"] = "2023-06-01"
    before = len(journal(pair.workers[0]))
    async with one.stream("POST", path, json=body, headers=header) as first:
        assert first.status_code == 200, await first.aread()
        begun = await read_until(first, '"20"')
    again = await other.post(path, json=body, headers=header)
    assert again.content.startswith(begun)
    assert f'"{NUMBERS.split()[-1]}"' in again.text
    assert (await one.post(path, json=body, headers=header)).content == again.content
    assert len(journal(pair.workers[0])) == before + 1


@pytest.mark.each_database
async def test_what_is_made_is_made_once(clients: Clients) -> None:
    one, other = clients
    form = {"purpose": (None, "user_data"), "file": ("a.txt", b"Hello." * 50_000)}
    made: list[tuple[str, dict[str, Any]]] = [
        ("/conversations", {"json": {"metadata": {"a": "b"}}}),
        ("/files", {"files": form}),  # each form has a boundary of its own
        ("/uploads", {"json": {"purpose": "user_data", "filename": "b", "bytes": 1, "mime_type": "text/plain"}}),
        ("/chat/completions", {"json": {**CHAT, "stream": False, "messages": [{"role": "user", "content": "Hi"}]}}),
        ("/completions", {"json": {"prompt": "Hi", "model": "scripted", "max_tokens": 5}}),
        ("/responses/compact", {"json": {"input": "Hi", "model": "scripted"}}),
        ("/responses", {"json": {"input": "Hi", "background": True}}),
    ]
    for path, content in made:
        header = key()
        first = await one.post(path, headers=header, **content)
        assert first.status_code == 200, first.text
        again = await other.post(path, headers=header, **content)
        assert (again.status_code, again.json()["id"]) == (200, first.json()["id"]), path
        assert again.headers["idempotent-replayed"] == "true"
        assert (await one.post(path, headers=key(), **content)).json()["id"] != first.json()["id"]


@pytest.mark.each_database
async def test_items_are_added_once(clients: Clients) -> None:
    one, other = clients
    conversation = (await one.post("/conversations", json={})).json()["id"]
    path, header = f"/conversations/{conversation}/items", key()
    body = {"items": [{"type": "message", "role": "user", "content": "Hi"}]}
    answers = [await client.post(path, json=body, headers=header) for client in (one, other, one)]
    assert answers[0].json() == answers[1].json() == answers[2].json()
    assert len((await one.get(path)).json()["data"]) == 1


@pytest.mark.each_database
async def test_a_key_is_for_one_request(clients: Clients) -> None:
    one, other = clients
    header, body = key(), {"input": "Hi", "store": False}
    assert (await one.post("/responses", json=body, headers=header)).status_code == 200
    others: list[tuple[str, dict[str, object], dict[str, str]]] = [
        ("/responses", {**body, "input": "Ho"}, {}),
        ("/responses", body, {"Respsite-Dialect": "open-responses"}),
        ("/conversations", {}, {}),
    ]
    for path, content, more in others:
        refused = await other.post(path, json=content, headers={**header, **more})
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (422, "idempotency_key_reused")
        assert error["param"] == "Idempotency-Key"


@pytest.mark.parametrize("value", ["", "x" * 256, "é".encode("latin1")])
async def test_what_is_no_key_is_refused(clients: Clients, value: str | bytes) -> None:
    raw = value if isinstance(value, bytes) else value.encode()
    refused = await clients[0].post("/responses", json={"input": "Hi"}, headers={b"Idempotency-Key": raw})  # type: ignore[dict-item]
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_idempotency_key")
    longest = await clients[0].post("/responses", json={"input": "Hi"}, headers={"Idempotency-Key": uuid4().hex * 7})
    assert longest.status_code == 200


@pytest.mark.parametrize("store", [True, False])
async def test_an_error_lets_go_of_the_key(pair: Pair, clients: Clients, store: bool) -> None:
    one, other = clients
    header = key()
    refused = await one.post("/responses", json={"input": 7}, headers=header)
    assert refused.status_code == 400
    body = {"input": "[full]", "store": store}
    before = len(journal(pair.workers[0]))
    for client in (one, other, other):
        assert (await client.post("/responses", json=body, headers=header)).status_code in (429, 503)
    assert len(journal(pair.workers[0])) == before + 3
    good = {"input": "Hi", "store": store}
    answer = await one.post("/responses", json=good, headers=header)
    assert answer.status_code == 200
    assert (await other.post("/responses", json=good, headers=header)).json() == answer.json()


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/conversations", {"metadata": 7}, 400),
        ("/responses", {"input": "[full]"}, 429),
        ("/responses", {"input": "[full]", "store": False}, 429),
        ("/responses", {"input": "[full]", "stream": True}, 429),
        ("/responses", {"input": "[full]", "stream": True, "store": False}, 429),
    ],
)
async def test_all_who_wait_for_an_error_get_it(
    clients: Clients, path: str, body: dict[str, object], status: int
) -> None:
    header = key()
    asking = (clients[number % 2].post(path, json=body, headers=header) for number in range(WAITING))
    assert {answer.status_code for answer in await asyncio.gather(*asking)} == {status}


async def test_a_response_that_was_deleted_is_not_made_again(clients: Clients) -> None:
    one, other = clients
    header, body = key(), {"input": "Hi"}
    response = (await one.post("/responses", json=body, headers=header)).json()
    assert (await one.delete(f"/responses/{response['id']}")).status_code == 200
    gone = await other.post("/responses", json=body, headers=header)
    assert (gone.status_code, gone.json()["error"]["code"]) == (409, "idempotency_answer_deleted")
    assert gone.headers["x-should-retry"] == "false"


async def test_other_methods_and_questions_ask_for_no_key(clients: Clients) -> None:
    header = key()
    for _ in range(2):
        count = await clients[0].post("/responses/input_tokens", json={"input": "Hi"}, headers=header)
        assert "idempotent-replayed" not in count.headers
        assert (await clients[0].get("/models", headers={"Idempotency-Key": "x" * 300})).status_code == 200
