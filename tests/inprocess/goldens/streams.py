"""Some hundred scripted exchanges with the application, as text: JSON, SSE, WebSocket, chat, replay and dialects.

An id is written as its prefix and its number within an exchange, a moment as `<time>`, so that the same bytes come on
every day. All else stands as it was sent.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from difflib import unified_diff
from typing import Any

import httpx

from engine.formats.harmony.encoding import decode_tokens, encode_harmony
from responses_app.protocol.events.dialects import PRESETS, Switch
from tests.kit.clients import WAIT_SECONDS, Socket
from tests.kit.inprocess import Server
from tests.kit.scripts import BEGIN, CALL, CALLS, HELLO, SPOKEN, TWICE, WEATHER, call_of

THOUGHT = "<|channel|>analysis<|message|>Hm, Paris.<|end|><|start|>assistant"
WORDS = f"{BEGIN}{' '.join(str(number) for number in range(40))}<|return|>"
HANGS_AFTER = 8  # tokens
SAID_BEFORE_IT_HANGS = decode_tokens(encode_harmony(WORDS)[SPOKEN:HANGS_AFTER])
SCRIPT: list[dict[str, Any]] = [
    {"when": "[die]", "say": WORDS, "fault": "unavailable", "fault_after": 8},
    {"when": "[break]", "say": WORDS, "fault": "failed", "fault_after": 8},
    {"when": "[crash]", "say": WORDS, "fault": "crash", "fault_after": 8},
    {"when": "[away]", "fault": "unavailable"},
    {"when": "[full]", "fault": "overloaded"},
    {"when": "[hang]", "say": WORDS, "hang_after": HANGS_AFTER},
    {"when": "[silence]", "say": HELLO, "hang_after": 0},
    {"when": "[weather]", "say": CALL},
    {"when": "[think]", "say": f"{THOUGHT}{CALL}"},
    {"when": "[muse]", "say": f"{THOUGHT}{HELLO}"},
    {"when": "[twice]", "say": TWICE},
    {"when": "[weird]", "say": "<|channel|>weird<|message|>text here<|return|>"},
    {"when": "[json]", "say": f'{BEGIN}{{"city":"Paris"}}<|return|>'},
    {"when": "[umlauts]", "say": f"{BEGIN}Grüße 🙂 שלום<|return|>"},
    {"when": "[undeclared]", "say": CALL.replace("get_weather", "somewhere.else")},
    *({"when": f"[call {name}]", "say": call_of(name, text)} for name, text in CALLS.items()),
    {"when": "[words]", "say": WORDS},
    {"when": "[yes]", "say": f"{BEGIN}yes<|return|>"},
    {"say": HELLO, "cached_tokens": 3},
]
RESPONSES, CHAT, COMPLETIONS = "/v1/responses", "/v1/chat/completions", "/v1/completions"
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
FORMAT = {"format": {"type": "json_schema", "name": "place", "schema": CITY, "strict": True}}
CHAT_WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER["parameters"]}}
DECLARED: dict[str, dict[str, Any]] = {
    "crm.find": {
        "type": "namespace", "name": "crm", "description": "Customers.",
        "tools": [{"type": "function", "name": "find", "parameters": {"type": "object", "properties": {}}}],
    },
    "sql": {"type": "custom", "name": "sql"},
    "local_shell": {"type": "local_shell"},
    "shell": {"type": "shell", "environment": {"type": "local"}},
    "apply_patch": {"type": "apply_patch"},
    "tool_search": {"type": "tool_search", "execution": "client"},
}  # fmt: skip
ASKS: dict[str, dict[str, Any]] = {
    "hello": {"input": "hi"},
    "settings": {
        "input": "hi", "instructions": "Be brief.", "metadata": {"a": "b"}, "temperature": 0.5, "top_p": 0.9,
        "user": "ada", "reasoning": {"effort": "low"}, "max_output_tokens": 500, "safety_identifier": "s",
    },
    "items": {"input": [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    ]},
    "umlauts": {"input": "[umlauts]"},
    "thought and answer": {"input": "[muse]"},
    "sealed thought": {"input": "[muse]", "include": ["reasoning.encrypted_content"], "store": False},
    "call": {"input": "[weather]", "tools": [WEATHER]},
    "thought and call": {"input": "[think]", "tools": [WEATHER]},
    "two calls": {"input": "[twice]", "tools": [WEATHER]},
    "undeclared call": {"input": "[undeclared]", "tools": [WEATHER]},
    "few tokens": {"input": "[words]", "max_output_tokens": 16},
    "log probabilities": {"input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2},
    "format": {"input": "[json]", "text": FORMAT},
    "unknown channel": {"input": "[weird]"},
    "engine dies": {"input": "[die]"},
    "engine fails": {"input": "[break]"},
    "engine crashes": {"input": "[crash]"},
    "engine is away": {"input": "[away]"},
    "engine is full": {"input": "[full]"},
    "unknown model": {"input": "hi", "model": "nothing"},
    "unknown field": {"input": "hi", "colour": "red"},
    "wrong type": {"input": 7},
    "wrong tools": {"input": "hi", "tools": [{"type": "function"}]},
    "no input": {},
    "unknown parent": {"input": "hi", "previous_response_id": "resp_0"},
    **{f"call of {name}": {"input": f"[call {name}]", "tools": [tool]} for name, tool in DECLARED.items()},
}  # fmt: skip
USER = [{"role": "user", "content": "hi"}]
CHATS: dict[str, dict[str, Any]] = {
    "hello": {"messages": USER},
    "roles": {"messages": [{"role": "system", "content": "Be brief."}, *USER], "user": "ada", "seed": 1},
    "thought and answer": {"messages": [{"role": "user", "content": "[muse]"}]},
    "thought and call": {"messages": [{"role": "user", "content": "[think]"}], "tools": [CHAT_WEATHER]},
    "two calls": {"messages": [{"role": "user", "content": "[twice]"}], "tools": [CHAT_WEATHER]},
    "few tokens": {"messages": [{"role": "user", "content": "[words]"}], "max_tokens": 16},
    "log probabilities": {"messages": USER, "logprobs": True, "top_logprobs": 2},
    "two choices": {"messages": USER, "n": 2},
    "stop": {"messages": [{"role": "user", "content": "[words]"}], "stop": ["12"]},
    "usage": {"messages": USER, "stream_options": {"include_usage": True}},
    "format": {
        "messages": [{"role": "user", "content": "[json]"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "place", "schema": CITY, "strict": True}},
    },
    "engine dies": {"messages": [{"role": "user", "content": "[die]"}]},
    "engine is full": {"messages": [{"role": "user", "content": "[full]"}]},
    "wrong role": {"messages": [{"role": "nobody", "content": "hi"}]},
}
COMPLETED: dict[str, dict[str, Any]] = {
    "hello": {},
    "echo": {"echo": True},
    "log probabilities": {"logprobs": 1},
}
PATHS = (
    *("/v1/models", "/v1/models/scripted", "/v1/models/nothing", "/health", "/ready", "/v1/nothing", "/v1/files"),
    *("/v1/files/file-0", "/v1/uploads/upload_0", "/v1/containers", "/v1/vector_stores"),
)
TERMINAL = ("response.completed", "response.failed", "response.incomplete", "error")
HOST = {"host": "localhost"}
UNSTEADY = ("openai-processing-ms", "date", "content-length")
_ID = re.compile(r"\b([a-z]+[_-])([0-9a-f]{32})\b")
_TIME = re.compile(r'("(?:\w+_at|created|timestamp)":\s?)\d{10}(?:\.\d+)?')
_SEALED = re.compile(r'("encrypted_content":")[^"]+')
_KEPT = re.compile(r'("streams_kept_bytes":)\d+')  # as zlib compresses them, and whether it has yet
_FILLED = re.compile(r'(?<="obfuscation":")\w+')


@dataclass
class Record:
    """One exchange as text."""

    name: str
    lines: list[str] = field(default_factory=list)

    def asked(self, what: str, body: object = None, headers: Mapping[str, str] | None = None) -> None:
        """Note what is sent."""
        self.lines.append(f"> {what}")
        self.lines += [f"> {name}: {value}" for name, value in (headers or {}).items()]
        if body is not None:
            self.lines.append(f"> {json.dumps(body, ensure_ascii=False)}")

    def answered(self, answer: httpx.Response) -> None:
        """Note what is answered."""
        self.lines.append(f"< {answer.status_code}")
        self.lines += [
            f"< {name}: {value}" for name, value in sorted(answer.headers.multi_items()) if name not in UNSTEADY
        ]
        self.lines.append(answer.content.decode().rstrip("\n"))

    def text(self) -> str:
        """Return it, with its ids numbered."""
        numbers: dict[str, dict[str, int]] = {}

        def numbered(found: re.Match[str]) -> str:
            known = numbers.setdefault(found[1], {})
            return f"{found[1]}<{known.setdefault(found[2], len(known) + 1)}>"

        text = _ID.sub(numbered, "\n".join(self.lines))
        text = _SEALED.sub(r"\1<sealed>", _TIME.sub(r"\1<time>", text))
        text = _KEPT.sub(r"\1<bytes>", text)
        # What a delta is filled up with is random; how much of it there is, is not.
        text = _FILLED.sub(lambda found: "x" * len(found[0]), text)
        return f"=== {self.name}\n{text}\n"


async def request(
    server: Server, method: str, target: str, body: object = None, headers: Mapping[str, str] | None = None
) -> httpx.Response:
    """Send a request with no header but these, and read its answer to the end."""
    given: Any = {"content": body} if isinstance(body, bytes) else {"json": body}
    asked = httpx.Request(method, f"{server.url}{target}", headers={**HOST, **(headers or {})}, **given)
    async with httpx.AsyncClient(verify=False) as client:
        return await client.send(asked)


async def connected(server: Server, headers: Mapping[str, str] | None = None) -> Socket:
    """Open a WebSocket."""
    return await Socket.open(server.ws_url, additional_headers={**HOST, **(headers or {})})


async def next_of(socket: Socket) -> str:
    """Return the text of the next frame."""
    return str(await asyncio.wait_for(socket.raw.recv(), WAIT_SECONDS))


async def until(socket: Socket, *ends: str) -> list[str]:
    """Return the texts of the frames up to one of these types."""
    frames = [await next_of(socket)]
    while json.loads(frames[-1])["type"] not in ends:
        frames.append(await next_of(socket))
    return frames


class Exchange:
    """What happens in one record: each request is sent and noted."""

    def __init__(self, server: Server, name: str) -> None:
        self.server = server
        self.record = Record(name)

    async def ask(
        self, method: str, target: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Send a request; note it and its answer."""
        self.record.asked(f"{method} {target}", body, headers)
        answer = await request(self.server, method, target, body, headers)
        self.record.answered(answer)
        return answer


Group = Callable[[Server], AsyncIterator[Record]]


async def whole(server: Server) -> AsyncIterator[Record]:
    """Each request, answered as JSON."""
    for name, body in ASKS.items():
        exchange = Exchange(server, f"JSON: {name}")
        await exchange.ask("POST", RESPONSES, body)
        yield exchange.record


async def streamed(server: Server) -> AsyncIterator[Record]:
    """Each request, answered as server-sent events."""
    for name, body in ASKS.items():
        exchange = Exchange(server, f"SSE: {name}")
        await exchange.ask("POST", RESPONSES, {**body, "stream": True})
        yield exchange.record


async def sockets(server: Server) -> AsyncIterator[Record]:
    """Each request over a WebSocket, and what only a WebSocket has."""
    for name, body in ASKS.items():
        yield await talked(server, name, [{"type": "response.create", **body}])
    lane = {"type": "response.create", "stream_id": "a", "input": "[think]", "tools": [WEATHER]}
    yield await talked(server, "a lane", [lane])
    yield await talked(
        server, "a warm-up", [{"type": "response.create", "generate": False, "instructions": "Be brief."}]
    )
    yield await talked(server, "no JSON", ["{"])
    yield await talked(server, "an unknown frame", [{"type": "response.dance"}])
    steering = {"type": "response.steer", "previous_response_id": "resp_0", "input": "x"}
    yield await talked(server, "steering of nothing", [steering], ends=("response.steer.failed", "error"))
    yield await _continued_on_a_socket(server)
    yield await _cancelled_on_a_socket(server)
    yield await _waited(server)


async def talked(
    server: Server, name: str, frames: list[Any], headers: Mapping[str, str] | None = None, *,
    ends: tuple[str, ...] = TERMINAL,
) -> Record:  # fmt: skip
    """Send frames one after the other, each with its answer."""
    record = Record(f"WebSocket: {name}")
    record.asked(f"GET {RESPONSES}", None, headers)
    async with await connected(server, headers) as socket:
        for frame in frames:
            record.asked(frame if isinstance(frame, str) else json.dumps(frame, ensure_ascii=False))
            await socket.send(frame)
            record.lines += await until(socket, *ends)
    return record


async def _continued_on_a_socket(server: Server) -> Record:
    record = Record("WebSocket: a call and its output")
    async with await connected(server) as socket:
        await socket.send({"type": "response.create", "input": "[think]", "tools": [WEATHER], "store": False})
        record.lines += await until(socket, *TERMINAL)
        response = json.loads(record.lines[-1])["response"]
        given = {"type": "function_call_output", "call_id": response["output"][-1]["call_id"], "output": "18 °C"}
        frame = {"type": "response.create", "previous_response_id": response["id"], "input": [given], "store": False}
        record.asked(json.dumps(frame, ensure_ascii=False))
        await socket.send(frame)
        record.lines += await until(socket, *TERMINAL)
    return record


async def _cancelled_on_a_socket(server: Server) -> Record:
    record = Record("WebSocket: cancelled")
    async with await connected(server) as socket:
        await socket.send({"type": "response.create", "input": "[hang]"})
        frames = [await next_of(socket)]
        while "".join(json.loads(frame).get("delta", "") for frame in frames) != SAID_BEFORE_IT_HANGS:
            frames.append(await next_of(socket))
        record.lines += frames
        record.asked("response.cancel")
        await socket.send({"type": "response.cancel", "response_id": json.loads(frames[0])["response"]["id"]})
        record.lines += await until(socket, *TERMINAL)
    return record


async def _waited(server: Server) -> Record:
    record = Record("WebSocket: a response that waits for an output")
    headers = {"Respsite-Tool-Mode": "wait"}
    async with await connected(server, headers) as socket:
        await socket.send({"type": "response.create", "input": "[think]", "tools": [WEATHER]})
        record.asked(f"GET {RESPONSES}", None, headers)
        frames: list[str] = []
        while not frames or '"function_call"' not in frames[-1] or '"response.output_item.done"' not in frames[-1]:
            frames.append(await next_of(socket))
        response_id = json.loads(frames[0])["response"]["id"]
        call_id = json.loads(frames[-1])["item"]["call_id"]
        record.lines += frames
        given = {"tool_call_id": call_id, "output": "18 °C"}
        target = f"{RESPONSES}/{response_id}/tool_outputs"
        record.asked(f"POST {target}", given)
        record.answered(await request(server, "POST", target, given))
        record.lines += await until(socket, *TERMINAL)
    return record


async def chats(server: Server) -> AsyncIterator[Record]:
    """Chat completions and completions, whole and streamed."""
    for stream in (False, True):
        kind = "streamed" if stream else "whole"
        for name, body in CHATS.items():
            if "stream_options" in body and not stream:
                continue
            exchange = Exchange(server, f"chat, {kind}: {name}")
            await exchange.ask("POST", CHAT, {**body, "model": "scripted", "stream": stream})
            yield exchange.record
        for name, fields in COMPLETED.items():
            exchange = Exchange(server, f"completion, {kind}: {name}")
            given = {"model": "scripted", "prompt": "Once [words]", "max_tokens": 12, "stream": stream, **fields}
            await exchange.ask("POST", COMPLETIONS, given)
            yield exchange.record


async def replays(server: Server) -> AsyncIterator[Record]:
    """Stored responses, read and streamed again, from each place on, and in other dialects."""
    for name in ("thought and call", "engine dies", "few tokens"):
        exchange = Exchange(server, f"stored: {name}")
        created = await exchange.ask("POST", RESPONSES, {**ASKS[name], "stream": True})
        kept = _id_of(created)
        await exchange.ask("GET", f"{RESPONSES}/{kept}")
        await exchange.ask("GET", f"{RESPONSES}/{kept}/input_items")
        await exchange.ask("GET", f"{RESPONSES}/{kept}?stream=true")
        last = created.content.count(b"\nevent: ") + (created.content.startswith(b"event: ")) - 1
        for after in sorted({0, 2, last // 2, last - 1, last, last + 7}):
            await exchange.ask("GET", f"{RESPONSES}/{kept}?stream=true&starting_after={after}")
        await exchange.ask(
            "GET", f"{RESPONSES}/{kept}?stream=true&starting_after=2", None, {"Respsite-Dialect": "legacy-events"}
        )
        await exchange.ask("DELETE", f"{RESPONSES}/{kept}")
        await exchange.ask("GET", f"{RESPONSES}/{kept}")
        yield exchange.record
    yield await _background(server)
    yield await _chain(server)


async def _background(server: Server) -> Record:
    exchange = Exchange(server, "stored: background, followed, cancelled")
    kept = _id_of(await request(server, "POST", RESPONSES, {"input": "[silence]", "background": True}))
    while b"in_progress" not in (await request(server, "GET", f"{RESPONSES}/{kept}")).content:
        pass
    await exchange.ask("POST", f"{RESPONSES}/{kept}/cancel")
    await exchange.ask("POST", f"{RESPONSES}/{kept}/cancel")
    done = _id_of(await request(server, "POST", RESPONSES, {"input": "hi", "background": True}))
    await exchange.ask("GET", f"{RESPONSES}/{done}?stream=true")
    await exchange.ask("GET", f"{RESPONSES}/{done}")
    return exchange.record


async def _chain(server: Server) -> Record:
    exchange = Exchange(server, "stored: a call, its output, and one more turn")
    first = (await exchange.ask("POST", RESPONSES, ASKS["thought and call"])).json()
    given = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "18 °C"}
    body = {"input": [given], "previous_response_id": first["id"], "tools": [WEATHER]}
    second = (await exchange.ask("POST", RESPONSES, body)).json()
    third = await exchange.ask("POST", RESPONSES, {"input": "[muse]", "previous_response_id": second["id"]})
    await exchange.ask("GET", f"{RESPONSES}/{_id_of(third)}/input_items?order=asc&limit=2")
    await exchange.ask("POST", f"{RESPONSES}/input_tokens", {"input": "hi", "previous_response_id": second["id"]})
    return exchange.record


async def dialects(server: Server) -> AsyncIterator[Record]:
    """The same exchanges in each dialect; behind the first one, only the lines that differ from it."""
    standard: list[str] = []
    for name in (*PRESETS, *Switch):
        headers = {"Respsite-Dialect": str(name)}
        exchange = Exchange(server, f"dialect {name}")
        for ask in ("thought and call", "engine dies"):
            await exchange.ask("POST", RESPONSES, {**ASKS[ask], "stream": True}, headers)
        sealed = {**ASKS["sealed thought"], "stream": True}
        await exchange.ask("POST", RESPONSES, sealed, headers)
        await exchange.ask("POST", RESPONSES, ASKS["thought and call"], headers)
        lines = exchange.record.text().splitlines()
        exchange.record.lines = list(unified_diff(standard, lines, n=0, lineterm=""))[2:] if standard else lines[1:]
        standard = standard or lines
        yield exchange.record
    unknown = Exchange(server, "dialect unknown")
    await unknown.ask("POST", RESPONSES, {"input": "hi"}, {"Respsite-Dialect": "klingon"})
    yield unknown.record


async def resources(server: Server) -> AsyncIterator[Record]:
    """What is kept beside responses, and what the server says of itself."""
    exchange = Exchange(server, "conversations")
    made = await exchange.ask(
        "POST", "/v1/conversations", {"metadata": {"a": "b"}, "items": [{"type": "message", **USER[0]}]}
    )
    place = f"/v1/conversations/{made.json()['id']}"
    await exchange.ask("POST", RESPONSES, {"input": "[think]", "tools": [WEATHER], "conversation": made.json()["id"]})
    listed = await exchange.ask("GET", f"{place}/items")
    await exchange.ask("GET", f"{place}/items/{listed.json()['data'][0]['id']}")
    await exchange.ask("POST", place, {"metadata": {"c": "d"}})
    await exchange.ask("DELETE", f"{place}/items/{listed.json()['data'][0]['id']}")
    await exchange.ask("DELETE", place)
    await exchange.ask("GET", place)
    yield exchange.record
    yield await _stored_chat(server)
    yield await _vector_stores(server)
    for target in PATHS:
        exchange = Exchange(server, f"GET {target}")
        await exchange.ask("GET", target)
        await exchange.ask("PATCH", target)
        yield exchange.record
    exchange = Exchange(server, "a decision")
    await exchange.ask("POST", "/v1/decisions", {"model": "scripted", "input": "[yes]", "labels": ["yes", "no"]})
    yield exchange.record
    exchange = Exchange(server, "another page, another host")
    await exchange.ask("GET", "/v1/models", None, {"origin": "http://evil.example"})
    await exchange.ask("GET", "/v1/models", None, {"host": "evil.example"})
    yield exchange.record


async def _stored_chat(server: Server) -> Record:
    exchange = Exchange(server, "a stored chat completion")
    body = {**CHATS["thought and call"], "model": "scripted", "store": True, "metadata": {"a": "b"}}
    place = f"{CHAT}/{_id_of(await exchange.ask('POST', CHAT, body))}"
    await exchange.ask("GET", place)
    await exchange.ask("GET", f"{place}/messages")
    await exchange.ask("GET", f"{CHAT}?limit=1")
    await exchange.ask("POST", place, {"metadata": {"c": "d"}})
    await exchange.ask("DELETE", place)
    await exchange.ask("GET", place)
    return exchange.record


async def _vector_stores(server: Server) -> Record:
    exchange = Exchange(server, "files and vector stores")
    boundary = {"content-type": "multipart/form-data; boundary=xx"}
    form = (
        b'--xx\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nassistants\r\n--xx\r\n'
        b'content-disposition: form-data; name="file"; filename="a.txt"\r\ncontent-type: text/plain\r\n\r\n'
        b"Rome is warm.\r\n--xx--\r\n"
    )
    exchange.record.asked("POST /v1/files", None, boundary)
    uploaded = await request(server, "POST", "/v1/files", form, boundary)
    exchange.record.answered(uploaded)
    file_id = uploaded.json()["id"]
    await exchange.ask("GET", f"/v1/files/{file_id}")
    await exchange.ask("GET", f"/v1/files/{file_id}/content")
    await exchange.ask("GET", "/v1/files?limit=1")
    made = await exchange.ask("POST", "/v1/vector_stores", {"name": "Cities", "metadata": {"a": "b"}})
    if made.status_code == 200:
        place = f"/v1/vector_stores/{made.json()['id']}"
        await exchange.ask("POST", f"{place}/files", {"file_id": file_id, "attributes": {"year": 2026}})
        while b"in_progress" in (await request(server, "GET", f"{place}/files/{file_id}")).content:
            pass
        await exchange.ask("GET", f"{place}/files/{file_id}")
        await exchange.ask("GET", f"{place}/files")
        await exchange.ask("POST", f"{place}/search", {"query": "warm"})
        await exchange.ask("GET", place)
        await exchange.ask("DELETE", f"{place}/files/{file_id}")
        await exchange.ask("DELETE", place)
    await exchange.ask("DELETE", f"/v1/files/{file_id}")
    return exchange.record


def _id_of(answer: httpx.Response) -> str:
    """Return the id of the first object in an answer."""
    found = re.search(rb'"id":\s?"((?:resp_|chatcmpl-)\w+)"', answer.content)
    assert found, answer
    return found[1].decode()


GROUPS: Mapping[str, Group] = {
    "json": whole,
    "sse": streamed,
    "websocket": sockets,
    "chat": chats,
    "replay": replays,
    "dialects": dialects,
    "resources": resources,
}
