"""What the usage of a response tells clients, and what is stored of it."""

import json
from collections.abc import Iterator

import httpx
import pytest

from tests.kit.clients import Frame, Socket
from tests.kit.inprocess import Server
from tests.kit.stored import stored

DETAILS = ("input_tokens_details", "output_tokens_details")
TURNS = {"input_tokens_per_turn", "cached_tokens_per_turn", "output_tokens_per_turn", "tool_output_tokens_per_turn"}


@pytest.fixture(scope="module", params=["off", "on"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("usage")
    with Server(folder, responses_usage_per_turn=request.param) as started:
        yield started


@pytest.fixture
def per_turn(server: Server) -> set[str]:
    """The lists that clients of the server are shown."""
    return TURNS if server.environ["RESPONSES_USAGE_PER_TURN"] == "on" else set()


def lists_of(response: Frame) -> set[str]:
    """Return the names of what is not a number in the details of a response's usage."""
    usage = response["usage"]
    return {name for details in DETAILS for name, value in usage[details].items() if type(value) is not int}


def response_of(stream: httpx.Response) -> Frame:
    """Return the response of a stream's terminal event, behind which `[DONE]` stands."""
    response: Frame = json.loads(stream.text.split("data: ")[-2])["response"]
    return response


@pytest.mark.parametrize("asked", [False, True])
async def test_every_way_to_a_response(
    server: Server, http: httpx.AsyncClient, per_turn: set[str], asked: bool
) -> None:
    headers = {"Respsite-Dialect": "usage-per-turn"} if asked else {}
    per_turn = TURNS if asked else per_turn
    http.headers.update(headers)
    body = (await http.post("/responses", json={"input": "hi"})).json()
    streamed = response_of(await http.post("/responses", json={"input": "hi", "stream": True}))
    async with await Socket.open(server.ws_url, additional_headers=headers) as socket:
        await socket.create()
        framed = (await socket.until("response.completed"))[-1]["response"]
    got = (await http.get(f"/responses/{body['id']}")).json()
    picked_up = response_of(await http.get(f"/responses/{streamed['id']}", params={"stream": "true"}))
    compacted = (await http.post("/responses/compact", json={"input": "hi", "model": "demo"})).json()
    assert (got, picked_up) == (body, streamed)
    for response in (body, streamed, framed, got, picked_up, compacted):
        assert lists_of(response) == per_turn


async def test_what_is_stored_has_the_turns(server: Server, http: httpx.AsyncClient) -> None:
    """Whatever clients are shown: the admin reads it."""
    response = (await http.post("/responses", json={"input": "hi"})).json()
    [(kept,)] = stored(server, f"SELECT body FROM responses_app_response WHERE id = '{response['id']}'")
    assert lists_of(json.loads(kept) if isinstance(kept, str) else kept) == TURNS
