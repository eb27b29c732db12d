"""What a client can get wrong about a response that is there already, or not any more: each error names its `param`."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import pytest

from tests.kit.clients import Frame, read_error_answer, server_sent
from tests.kit.inprocess import Server
from tests.kit.laws import assert_laws

NOBODY = "resp_00000000000000000000000000000000"
ENDPOINTS = {
    "get": ("GET", ""),
    "stream": ("GET", "?stream=true"),
    "resume": ("GET", "?stream=true&starting_after=3"),
    "delete": ("DELETE", ""),
    "cancel": ("POST", "/cancel"),
    "input_items": ("GET", "/input_items"),
}
STRANGE_IDS = {
    "nobody's": NOBODY,
    "a conversation's": "conv_1",
    "empty": "%20",
    "NUL": "resp_%00",
    "newline": "resp_%0A",
    "emoji": "%F0%9F%99%82",
    "no UTF-8": "resp_%ff",
    "a surrogate": "%ED%A0%80",
    "SQL": "' OR 1=1 --",
    "long": "r" * 10_000,
}


@pytest.fixture
async def response_id(http: httpx.AsyncClient) -> str:
    """A finished response that was not streamed."""
    return str((await http.post("/responses", json={"input": "Hello"})).json()["id"])


@pytest.fixture
async def streamed(http: httpx.AsyncClient) -> list[Frame]:
    """The events of a finished stream."""
    return await events_of(http, "POST", "/responses", json={"input": "Hello", "stream": True})


@pytest.fixture
async def running(http: httpx.AsyncClient) -> AsyncIterator[str]:
    """A background response that runs."""
    made = (await http.post("/responses", json={"input": "[hang]", "background": True})).json()
    yield made["id"]
    await http.post(f"/responses/{made['id']}/cancel")


async def events_of(http: httpx.AsyncClient, method: str, path: str, **options: Any) -> list[Frame]:
    """Read a stream to its end."""
    async with http.stream(method, path, **options) as answer:
        assert answer.status_code == 200, await answer.aread()
        return [data async for _, data in server_sent(answer) if isinstance(data, dict)]


@pytest.mark.parametrize("case", STRANGE_IDS)
async def test_an_unknown_id_is_a_404(http: httpx.AsyncClient, case: str) -> None:
    for method, rest in ENDPOINTS.values():
        answer = await http.request(method, f"/responses/{STRANGE_IDS[case]}{rest}")
        message = read_error_answer(answer, status=404, code=None, param="response_id")
        assert len(message) < 200
        assert case != "nobody's" or NOBODY in message


async def test_a_deleted_response_is_a_404(http: httpx.AsyncClient, response_id: str, streamed: list[Frame]) -> None:
    for deleted in (response_id, streamed[0]["response"]["id"]):
        assert (await http.delete(f"/responses/{deleted}")).json()["deleted"] is True
        for method, rest in ENDPOINTS.values():
            answer = await http.request(method, f"/responses/{deleted}{rest}")
            message = read_error_answer(answer, status=404, code=None, param="response_id")
            assert deleted in message


async def test_what_was_not_stored_is_a_404(http: httpx.AsyncClient) -> None:
    events = await events_of(http, "POST", "/responses", json={"input": "Hello", "stream": True, "store": False})
    for method, rest in ENDPOINTS.values():
        answer = await http.request(method, f"/responses/{events[0]['response']['id']}{rest}")
        read_error_answer(answer, status=404, code=None, param="response_id")


@pytest.mark.parametrize("unknown", ["a%2Fb", "resp_1/cancel/now", "resp_1/input_items/msg_1", "%2F"])
async def test_an_id_with_a_slash_is_not_a_path_of_ours(http: httpx.AsyncClient, unknown: str) -> None:
    for method in ("GET", "DELETE"):
        read_error_answer(await http.request(method, f"/responses/{unknown}"), status=404, code="not_found")


BAD_QUERIES: dict[str, tuple[str, Mapping[str, str], str]] = {
    "limit 0": ("/input_items", {"limit": "0"}, "limit"),
    "order": ("/input_items", {"order": "up"}, "order"),
    "after": ("/input_items", {"after": "msg_0"}, "after"),
    "after NUL": ("/input_items", {"after": "\0"}, "after"),
    "include of items": ("/input_items", {"include": "all"}, "include[0]"),
    "include of items, as a list": ("/input_items", {"include[]": "all"}, "include[0]"),
    "include as a list": ("", {"include[]": ""}, "include[0]"),
    "stream": ("", {"stream": "yes"}, "stream"),
    "starting_after text": ("", {"stream": "true", "starting_after": "first"}, "starting_after"),
    "starting_after empty": ("", {"stream": "true", "starting_after": ""}, "starting_after"),
    "starting_after negative": ("", {"stream": "true", "starting_after": "-1"}, "starting_after"),
    "starting_after float": ("", {"stream": "true", "starting_after": "1e3"}, "starting_after"),
    "starting_after full-width": ("", {"stream": "true", "starting_after": "３"}, "starting_after"),
    "starting_after huge": ("", {"stream": "true", "starting_after": "9" * 5000}, "starting_after"),
    "starting_after future": ("", {"stream": "true", "starting_after": "99999"}, "starting_after"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_QUERIES)
async def test_a_wrong_query_is_named(http: httpx.AsyncClient, streamed: list[Frame], case: str) -> None:
    path, query, param = BAD_QUERIES[case]
    answer = await http.get(f"/responses/{streamed[0]['response']['id']}{path}", params=query)
    read_error_answer(answer, status=400, code="invalid_value", param=param)


async def test_the_event_to_come_is_not_an_event_yet(http: httpx.AsyncClient, streamed: list[Frame]) -> None:
    path = f"/responses/{streamed[0]['response']['id']}?stream=true&starting_after="
    last = streamed[-1]["sequence_number"]
    assert await events_of(http, "GET", f"{path}{last - 1}") == streamed[-1:]
    assert await events_of(http, "GET", f"{path}{last}") == []
    message = read_error_answer(
        await http.get(f"{path}{last + 1}"), status=400, code="invalid_value", param="starting_after"
    )
    assert str(last) in message


async def test_a_query_of_too_many_parameters(http: httpx.AsyncClient, response_id: str) -> None:
    query = "&".join(["limit=1"] * 1100)
    for path in (f"/responses/{response_id}", f"/responses/{response_id}/input_items"):
        read_error_answer(await http.get(f"{path}?{query}"), status=400, code=None)


async def test_what_was_not_streamed_can_be_all_the_same(http: httpx.AsyncClient, response_id: str) -> None:
    events = await events_of(http, "GET", f"/responses/{response_id}?stream=true")
    assert_laws(events)
    assert events[-1]["response"] == (await http.get(f"/responses/{response_id}")).json()
    assert (await http.get(f"/responses/{response_id}?stream=false&starting_after=1")).json()["id"] == response_id


async def test_a_foreground_response_cannot_be_cancelled(http: httpx.AsyncClient, response_id: str) -> None:
    answer = await http.post(f"/responses/{response_id}/cancel")
    message = read_error_answer(answer, status=400, code=None, param="response_id")
    assert "synchronous" in message


async def test_a_foreground_response_that_runs_cannot_be_cancelled(http: httpx.AsyncClient) -> None:
    async with http.stream("POST", "/responses", json={"input": "[hang]", "stream": True}) as answer:
        async for _, data in server_sent(answer):
            assert isinstance(data, dict)
            refused = await http.post(f"/responses/{data['response']['id']}/cancel")
            read_error_answer(refused, status=400, code=None, param="response_id")
            assert (await http.get(f"/responses/{data['response']['id']}")).json()["status"] == "in_progress"
            break


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_and_a_previous_response_exclude_each_other(http: httpx.AsyncClient, stream: bool) -> None:
    body = {"input": "Hello", "stream": stream, "conversation": "conv_1", "previous_response_id": NOBODY}
    answer = await http.post("/responses", json=body)
    message = read_error_answer(answer, status=400, code="mutually_exclusive_parameters", param="conversation")
    assert message.startswith("Mutually exclusive parameters:")


async def test_a_body_of_a_cancel_or_delete_is_not_read(http: httpx.AsyncClient, running: str) -> None:
    headers = {"content-type": "application/json"}
    answer = await http.post(f"/responses/{running}/cancel", content=b"{ no JSON", headers=headers)
    assert answer.json()["status"] == "cancelled"
    answer = await http.request("DELETE", f"/responses/{running}", content=b"[]", headers=headers)
    assert answer.json() == {"id": running, "object": "response", "deleted": True}


async def test_paths_without_v1(server: Server, http: httpx.AsyncClient, response_id: str) -> None:
    for path in (f"/responses/{response_id}", f"/responses/{response_id}/"):
        assert (await http.get(f"{server.url}{path}")).json()["id"] == response_id
    assert (await http.get(f"{server.url}/responses/{response_id}/input_items/")).json()["object"] == "list"
