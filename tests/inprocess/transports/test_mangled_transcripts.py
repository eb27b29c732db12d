"""What a mangling model says, through real servers: a whole stream each, with one end and every word."""

from collections.abc import Iterator

import httpx
import orjson

from responses_app.protocol.errors import JsonObject
from tests.kit.clients import Socket
from tests.kit.fixtures import module_server
from tests.kit.inprocess import Server
from tests.kit.laws import assert_laws, is_subsequence, text_of
from tests.kit.mangling import WORD, Mangled, mangled_transcripts, told
from tests.kit.scripts import HELLO

TRANSCRIPTS = list(mangled_transcripts(150, seed=11))
ASKED_AGAIN = "does not exist"  # of a tool: the model is asked once more, and answers


def _entries() -> Iterator[dict[str, object]]:
    yield {"when": ASKED_AGAIN, "say": HELLO}
    for place, mangled in enumerate(TRANSCRIPTS):
        finish = "stop" if mangled.is_whole else "length"
        yield {"when": f"[mangled {place}]", "tokens": list(mangled.tokens), "finish": finish, "chunk_tokens": 7}


server = module_server("mangled", Server, script=list(_entries()))


def assert_whole(events: list[JsonObject], mangled: Mangled) -> None:
    assert_laws(events)
    response = events[-1]["response"]
    assert isinstance(response, dict)
    assert response["error"] is None, told(mangled)
    items: list[JsonObject] = response["output"]
    assert is_subsequence(mangled.words, [word for item in items for word in WORD.findall(text_of(item))]), told(
        mangled
    )


def test_over_sse(server: Server) -> None:
    with httpx.Client(base_url=server.url, timeout=20) as client:
        for place, mangled in enumerate(TRANSCRIPTS):
            body = {"input": f"[mangled {place}]", "stream": True, "store": False}
            answer = client.post("/v1/responses", json=body)
            assert answer.status_code == 200, told(mangled)
            assert answer.text.endswith("data: [DONE]\n\n")
            lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
            assert_whole([orjson.loads(line) for line in lines], mangled)
    assert "Traceback" not in server.output


async def test_over_one_websocket(server: Server) -> None:
    async with await Socket.open(server.ws_url) as socket:
        for place, mangled in enumerate(TRANSCRIPTS):
            await socket.create(f"[mangled {place}]", store=False)
            assert_whole(await socket.answer(), mangled)
    assert "Traceback" not in server.output
