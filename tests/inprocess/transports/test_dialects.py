"""Dialects as clients ask for them: over HTTP, for a WebSocket, of a stream that is picked up again, by the setting."""

from pathlib import Path

import httpx
import pytest

from tests.inprocess.conftest import Connect
from tests.kit.clients import Frame, http_client, read_error_answer, read_error_frame, server_sent
from tests.kit.inprocess import Server
from tests.kit.scripts import WEATHER

HEADER = "Respsite-Dialect"
OPEN_RESPONSES = {HEADER: "open-responses"}
LEGACY = {HEADER: "legacy-events"}
UNKNOWN = {"status": 400, "code": "invalid_value", "param": HEADER}
THINKS: Frame = {"input": "[think] of Paris", "tools": [WEATHER]}


def in_other_names(event: Frame) -> Frame:
    """Return an event of today's spec as the Open Responses specification calls it."""
    return {**event, "type": event["type"].replace("response.reasoning_text.", "response.reasoning.")}


async def stream(http: httpx.AsyncClient, **headers: str) -> list[Frame]:
    """Return the events of a response that thinks."""
    async with http.stream("POST", "/responses", json={**THINKS, "stream": True}, headers=headers) as answer:
        return await events_of(answer)


async def events_of(answer: httpx.Response) -> list[Frame]:
    """Return a stream's events; each line of its name agrees with its type."""
    assert answer.status_code == 200, await answer.aread()
    events = [event async for event in server_sent(answer)]
    assert events.pop() == ("", "[DONE]")
    assert all(name == data["type"] for name, data in events if isinstance(data, dict))
    return [data for _, data in events if isinstance(data, dict)]


def types(events: list[Frame]) -> list[str]:
    return [event["type"] for event in events]


async def test_a_stream_is_picked_up_in_any_dialect(http: httpx.AsyncClient) -> None:
    plain = await stream(http)
    path = f"/responses/{plain[0]['response']['id']}?stream=true"
    for after in (None, 3):
        more = "" if after is None else f"&starting_after={after}"
        async with http.stream("GET", path + more, headers=OPEN_RESPONSES) as answer:
            first = 0 if after is None else after + 1
            assert await events_of(answer) == [in_other_names(event) for event in plain[first:]]
    async with http.stream("GET", path) as answer:
        assert await events_of(answer) == plain


async def test_a_websocket_in_another_dialect(server: Server, open_socket: Connect) -> None:
    plain, other = await open_socket(server), await open_socket(server, additional_headers=OPEN_RESPONSES)
    older = await open_socket(server, additional_headers=LEGACY)
    for socket in (plain, other, older):
        await socket.create(THINKS["input"], "lane", tools=THINKS["tools"])
        await socket.answer("lane")
    assert types(other.log) == types([in_other_names(event) for event in plain.log])
    assert types(other.log) != types(plain.log)
    assert "response.tool_call.delta" in types(older.log)
    assert {frame["stream_id"] for frame in [*other.log, *older.log]} == {"lane"}


async def test_images_of_the_input_are_told_where_they_are_asked_for(http: httpx.AsyncClient) -> None:
    name, url = "message.input_image.image_url", "data:image/png;base64,AA=="
    picture = {"type": "input_image", "image_url": url}
    item = {"role": "user", "content": [{"type": "input_text", "text": "Hello"}, picture]}
    told = {"type": "response.additional_context", "context": {"image_urls": [url]}, "sequence_number": 1}
    for include, expected in (([], []), ([name], [told])):
        asked = {"input": [item], "include": include, "stream": True}
        async with http.stream("POST", "/responses", json=asked, headers=LEGACY) as answer:
            heard = await events_of(answer)
        assert [event for event in heard if "context" in event] == expected
        path = f"/responses/{heard[0]['response']['id']}?stream=true"
        for after, more in ((-1, heard), (1, [*expected, *heard[2 + len(expected) :]])):
            query = f"{path}&starting_after={after}" if after >= 0 else path
            query += "".join(f"&include[]={each}" for each in include)
            async with http.stream("GET", query, headers=LEGACY) as answer:
                assert await events_of(answer) == more


CODEX = {HEADER: "codex-turn"}


def returned(response: Frame, output: str = "18") -> list[Frame]:
    """Return what came of a response's last call."""
    return [{"type": "function_call_output", "call_id": response["output"][-1]["call_id"], "output": output}]


async def test_a_turn_has_one_id_over_http(http: httpx.AsyncClient) -> None:
    http.headers.update(CODEX)
    asked = {**THINKS, "stream": True}
    async with http.stream("POST", "/responses", json=asked) as answer:
        first = await events_of(answer)
    call, response = first[-2]["item"], first[-1]["response"]
    assert [event["type"] for event in first if "tool_call.delta" in event["type"]] == []
    assert "response.function_call_arguments.delta" in types(first)
    assert "response.reasoning.delta" in types(first)
    [added] = [event["item"] for event in first if event["type"] == "response.output_item.added"][1:]
    assert (added["id"], added["call_id"]) == (call["id"], call["call_id"])
    name = response["id"]
    more = {"previous_response_id": name, "tools": [WEATHER], "stream": True}
    async with http.stream("POST", "/responses", json={**more, "input": returned(response)}) as answer:
        second = await events_of(answer)
    assert {event["response"]["id"] for event in second if "response" in event} == {name}
    assert [event["sequence_number"] for event in second] == list(range(len(second)))
    assert [item["type"] for item in second[-1]["response"]["output"]] == ["message"]
    kept = (await http.get(f"/responses/{name}")).json()
    assert kept == second[-1]["response"]
    async with http.stream("GET", f"/responses/{name}?stream=true&starting_after=1") as answer:
        assert await events_of(answer) == second[2:]
    listed = (await http.get(f"/responses/{name}/input_items")).json()["data"]
    assert [item["type"] for item in listed] == ["function_call_output"]
    body = {**more, "stream": False, "input": "Now something else."}
    third = (await http.post("/responses", json=body)).json()
    assert third["id"] != name
    assert (await http.delete(f"/responses/{name}")).json()["id"] == name
    assert (await http.get(f"/responses/{name}")).status_code == 404


@pytest.mark.parametrize("store", [True, False])
async def test_a_turn_has_one_id_over_a_websocket(server: Server, open_socket: Connect, store: bool) -> None:
    socket = await open_socket(server, additional_headers=CODEX)
    fields = {"tools": [WEATHER], "store": store}
    await socket.create("[weather]", "lane", **fields)
    first = (await socket.answer("lane"))[-1]["response"]
    name = first["id"]
    await socket.create(returned(first), "lane", previous_response_id=name, **fields)
    second = await socket.answer("lane")
    assert {frame["response"]["id"] for frame in second if "response" in frame} == {name}
    assert [frame["sequence_number"] for frame in second] == list(range(len(second)))
    completed = {"type": "function_call", "name": "get_weather", "arguments": "", "status": "completed"}
    call_id = first["output"][-1]["call_id"]
    await socket.create([{**completed, "call_id": call_id}], "fork", previous_response_id=name, **fields)
    third = (await socket.answer("fork"))[-1]["response"]
    assert third["id"] == name, "a third leg, in another lane"
    assert {leg["previous_response_id"] for leg in (first, second[-1]["response"], third)} == {None}
    await socket.create("More", "lane", previous_response_id=name, **fields)
    fourth = (await socket.answer("lane"))[-1]["response"]
    assert fourth["id"] != name
    assert fourth["previous_response_id"] == name


async def test_an_unknown_dialect_is_refused(server: Server, http: httpx.AsyncClient, open_socket: Connect) -> None:
    headers = {HEADER: "open-responses, nonsense"}
    requests = [
        http.post("/responses", json=THINKS, headers=headers),
        http.post("/responses", json={**THINKS, "stream": True}, headers=headers),
        http.get("/responses/resp_1", headers=headers),
    ]
    for request in requests:
        message = read_error_answer(await request, **UNKNOWN)
        assert "'nonsense'" in message
        assert "open-responses" in message
    twice = [(HEADER, "openai"), (HEADER, "nonsense")]  # is as good as once with a comma, over both transports
    assert (await http.post("/responses", json=THINKS, headers=twice)).status_code == 400
    for given in (headers, twice):
        socket = await open_socket(server, additional_headers=given)
        assert await socket.closed() == 1000
        (frame,) = socket.log
        read_error_frame(frame, **UNKNOWN)


@pytest.mark.parametrize("asked", [None, "openai"])
async def test_the_setting_holds_where_a_request_says_nothing(folder: Path, asked: str | None) -> None:
    headers = {} if asked is None else {HEADER: asked}
    script = [
        {"say": "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>So.<|return|>"}
    ]
    with Server(folder, script=script, responses_dialect="open-responses") as server:
        async with http_client(server) as http:
            found = types(await stream(http, **headers))
    assert ("response.reasoning.delta" in found) == (asked is None)
    assert ("response.reasoning_text.delta" in found) == (asked is not None)
