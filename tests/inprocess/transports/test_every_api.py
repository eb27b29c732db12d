"""What holds for each API that has a model write: failures, heartbeats, who leaves; one conversation in all three."""

import asyncio
from typing import Any

import httpx
import orjson
import pytest

from responses_app.limits.suspects import name_of
from responses_app.wiring import reading
from responses_app.wiring.site import get_site
from tests.kit import chats, messages
from tests.kit.clients import Socket, http_client, read_error_frame, ready
from tests.kit.inprocess import Server
from tests.kit.scripts import WEATHER, aborted_prompts, as_history, gate, generations, release
from tests.kit.waiting import eventually

CHAT, MESSAGES, COMPLETIONS, RESPONSES = "/chat/completions", "/messages", "/completions", "/responses"
ROLLOUTS = "/rollouts"


async def ask(server: Server, path: str, text: str, **fields: Any) -> httpx.Response:
    """Send a request to one of the APIs, and read its answer to the end."""
    async with http_client(server) as http:
        return await http.post(path, json=asked(path, text, **fields), headers=headers_of(path))


def headers_of(path: str) -> dict[str, str]:
    """Return what says which API is spoken."""
    return {"anthropic-version": "2023-06-01"} if path == MESSAGES else {}


def asked(path: str, text: str, **fields: Any) -> dict[str, Any]:
    """Return the body of a request."""
    if path == COMPLETIONS:
        return {"prompt": f"<|start|>user<|message|>{text}<|end|><|start|>assistant", **fields}
    if path == RESPONSES:
        return {"input": text, **fields}
    needed = {"max_tokens": 2000} if path == MESSAGES else {}
    return {"model": "test-model", "messages": [{"role": "user", "content": text}], **needed, **fields}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize(
    ("path", "fields", "expected"),
    [
        (CHAT, {"n": 2}, ((503, "server_error"), (429, "rate_limit_error"), (500, "server_error"))),
        (COMPLETIONS, {}, ((503, "server_error"), (429, "rate_limit_error"), (500, "server_error"))),
        (MESSAGES, {}, ((529, "overloaded_error"), (429, "rate_limit_error"), (500, "api_error"))),
    ],
)
async def test_what_fails_before_anything_was_said_has_its_status(
    server: Server, path: str, fields: dict[str, Any], expected: tuple[tuple[int, str], ...], place: int, stream: bool
) -> None:
    answer = await ask(server, path, ("[away]", "[full]", "[no]")[place], stream=stream, **fields)
    assert (answer.status_code, answer.json()["error"]["type"]) == expected[place]
    assert answer.headers["content-type"] == "application/json"
    assert ("retry-after" in answer.headers) == (answer.status_code != 500)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("path", "fields", "count"), [(CHAT, {"n": 3}, 3), (MESSAGES, {}, 1)])
async def test_a_client_that_goes_away_ends_all_choices(
    server: Server, path: str, fields: dict[str, Any], count: int, stream: bool
) -> None:
    marker = f"{path} goes away {stream}"

    async def in_flight(count: int) -> bool:
        return int((await ready(server))["responses_in_flight"]) == count

    await eventually(lambda: in_flight(0))  # what other tests have left ends
    asking = asyncio.create_task(ask(server, path, f"[hang] {marker}", stream=stream, **fields))
    await eventually(lambda: in_flight(count))
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await eventually(lambda: sum(marker in prompt for prompt in aborted_prompts(server)) == count)


@pytest.mark.parametrize(
    ("path", "beat"), [(CHAT, [": ping"]), (MESSAGES, ["event: ping", 'data: {"type":"ping"}'])], ids=["chat", "claude"]
)
async def test_a_silent_stream_has_a_heartbeat(strict_server: Server, path: str, beat: list[str]) -> None:
    """Also before its first event: else nobody knew that it was taken."""
    async with http_client(strict_server) as http:
        model = (await http.get("/models")).json()["data"][0]["id"]
        body = asked(path, "[silence]", stream=True, model=model)
        async with http.stream("POST", path, json=body, headers=headers_of(path)) as answer:
            assert answer.status_code == 200
            pings = 0
            async for line in answer.aiter_lines():
                assert line in ("", *beat)
                pings += line == beat[0]
                if pings == 3:
                    break
    paused = await ask(strict_server, path, "[pauses]", stream=True, model=model)
    assert beat[0] in paused.text
    if path == CHAT:
        said: Any = chats.put_together([each for each in chats.sent(paused.content) if each["choices"]])
        assert said["message"]["content"] == "So."
    else:
        said = messages.put_together(messages.sent(paused.content))
        assert said["content"] == [{"type": "text", "text": "So."}]


@pytest.mark.parametrize(("path", "fields"), [(CHAT, {"stop": ["1 "], "n": 2}), (MESSAGES, {"stop_sequences": ["1 "]})])
async def test_a_stop_string_ends_an_engine_that_would_not_end(
    server: Server, path: str, fields: dict[str, Any]
) -> None:
    told = (await ask(server, path, "[hang]", **fields)).json()
    if path == CHAT:
        assert [choice["message"]["content"] for choice in told["choices"]] == ["0 ", "0 "]
    else:
        assert (told["content"], told["stop_reason"]) == ([{"type": "text", "text": "0 "}], "stop_sequence")
    response_id = "resp_" + told["id"].removeprefix("chatcmpl-").removeprefix("msg_")
    await eventually(lambda: {each["finish"] for each in generations(server, response_id)} == {"abort"})


TAKEN = {  # values at the bounds, and what becomes of them
    **{("top_p", 0): 200, ("top_p", 1): 200, ("top_p", -0.01): 400, ("top_p", 1.01): 400, ("temperature", 0): 200},
    # An integer may be a float without a fraction.
    **{("top_k", 40.0): 200, ("top_k", 40.5): 400},
}


@pytest.mark.parametrize(("field", "value"), TAKEN)
@pytest.mark.parametrize("path", [CHAT, MESSAGES, COMPLETIONS, RESPONSES, ROLLOUTS])
async def test_the_bounds_of_sampling(server: Server, path: str, field: str, value: float) -> None:
    if path == ROLLOUTS:
        async with http_client(server) as http:
            answer = await http.post(path, json={"sampling": {field: value}})
    else:
        answer = await ask(server, path, "hello", **{field: value})
    assert answer.status_code == TAKEN[field, value], answer.text


@pytest.mark.parametrize("stream", [True, False])
async def test_a_message_of_no_tokens_is_a_warm_up(server: Server, stream: bool) -> None:
    """As Anthropic's reference has it: the prompt is cached, and nothing is answered."""
    answer = await ask(server, MESSAGES, "hello", max_tokens=0, stream=stream)
    said: Any = messages.put_together(messages.sent(answer.content)) if stream else answer.json()
    usage = (await ask(server, MESSAGES, "hello")).json()["usage"]
    assert (said["content"], said["stop_reason"], said["usage"]["output_tokens"]) == ([], "max_tokens", 0)
    read = [said["usage"][name] for name in ("input_tokens", "cache_read_input_tokens")]
    assert sum(read) == usage["input_tokens"] + usage["cache_read_input_tokens"] > 0


UNLISTED = "The tools of 'wiki' could not be listed: "


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
async def test_a_demanded_call_of_a_server_that_is_away_is_refused_with_its_cause(
    server: Server, http: httpx.AsyncClient, socket: Socket, path: str
) -> None:
    """Where a status can still be given it is none that SDKs repeat; a stream says the same."""
    url = "http://127.0.0.1:9/mcp"
    tool = {"type": "mcp", "server_label": "wiki", "server_url": url}
    fields: dict[str, Any] = {"tools": [tool], "tool_choice": "required"}
    if path == MESSAGES:
        toolset = {"type": "mcp_toolset", "mcp_server_name": "wiki"}
        wiki = {"type": "url", "name": "wiki", "url": url}
        fields = {"mcp_servers": [wiki], "tools": [toolset], "tool_choice": {"type": "any"}}
    whole = await ask(server, path, "hello", **fields)
    assert (whole.status_code, UNLISTED in whole.json()["error"]["message"]) == (424, True), whole.text
    streamed = await ask(server, path, "hello", stream=True, **fields)
    assert streamed.status_code in (200, 424)
    assert UNLISTED in streamed.text
    if path == RESPONSES:
        assert (whole.json()["error"]["type"], whole.json()["error"]["code"]) == (
            "external_connector_error",
            "http_error",
        )
        await socket.create("hello", **fields)
        failed = (await socket.until("response.failed"))[-1]["response"]["error"]
        assert (failed["code"], UNLISTED in failed["message"]) == ("invalid_prompt", True)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, MESSAGES])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_counts_as_running_until_it_has_ended_and_one_that_ends_workers_is_refused(
    server: Server, path: str, stream: bool
) -> None:
    running = get_site().service.running
    body = orjson.dumps(asked(path, "Does this end you?", stream=stream))
    headers = {"content-type": "application/json", **headers_of(path)}
    async with http_client(server) as http:
        assert (await http.post(path, content=body, headers=headers)).status_code == 200
        await eventually(lambda: not running._held)
        running.condemn("default", name_of("default", body))
        refused = await http.post(path, content=body, headers=headers)
        assert refused.status_code == (529 if path == MESSAGES else 503)
        assert "it was running when two worker processes of this server died" in refused.text
        assert int(refused.headers["retry-after"]) > 3500
        other = await http.post(path, content=body.replace(b"you", b"who"), headers=headers)
        assert other.status_code == 200


async def test_a_create_over_a_websocket_that_ends_workers_is_refused(server: Server, socket: Socket) -> None:
    running = get_site().service.running
    await socket.create(gate("g1"))
    await socket.until("response.output_text.delta")
    (name,) = running._held
    release(server, "g1")
    await socket.answer()
    await eventually(lambda: not running._held)
    running.condemn("default", name)
    await socket.create(gate("g1"))
    read_error_frame(await socket.error(), status=503, code="request_ends_workers")
    await socket.ask("Hello")


async def test_a_frame_counts_as_running_while_it_is_parsed(
    server: Server, socket: Socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, loads = get_site().service.running, reading.loads_bounded
    seen: list[bytes] = []

    def spied(content: bytes, *, max_values: int) -> object:
        seen.extend(running._held)
        return loads(content, max_values=max_values)

    monkeypatch.setattr(reading, "loads_bounded", spied)
    frame = orjson.dumps({"type": "response.create", "model": "test-model", "input": "Does this end you?"})
    await socket.send(frame.decode())
    await socket.answer()
    name = name_of("default", frame)
    assert name in seen
    await eventually(lambda: not running._held)
    running.condemn("default", name)
    await socket.send(frame.decode())
    read_error_frame(await socket.error(), status=503, code="request_ends_workers")
    await socket.ask("Hello")


# The line at once, or behind the last line break; behind the break of a whole input nothing is left to have a name.
@pytest.mark.parametrize(
    ("condemned", "end", "status"), [("LINE", "", "failed"), ("LINE\n", "", "failed"), ("\n", "\n", "completed")]
)
async def test_the_input_of_a_batch_that_ends_workers_is_refused(
    server: Server, condemned: str, end: str, status: str
) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": asked(RESPONSES, f"Hi {condemned!r}")}
    written = orjson.dumps(line | {"body": {"model": "test-model", **line["body"]}}).decode()  # type: ignore[operator]
    get_site().service.running.condemn("default", name_of("default", condemned.replace("LINE", written).encode()))
    content = written + end
    async with http_client(server) as http:
        sent = await http.post("/files", data={"purpose": "batch"}, files={"file": ("input.jsonl", content)})
        made = {"input_file_id": sent.json()["id"], "endpoint": "/v1/responses", "completion_window": "24h"}
        batch = (await http.post("/batches", json=made)).json()

        async def ended() -> bool:
            batch.update((await http.get(f"/batches/{batch['id']}")).json())
            return batch["status"] in ("failed", "completed")

        await eventually(ended, timeout=30)
    assert batch["status"] == status
    if status == "completed":
        return
    (error,) = batch["errors"]["data"]
    assert (error["code"], error["line"]) == ("request_ends_workers", None)
    assert "it was running when two worker processes of this server died" in error["message"]


MODEL = "test-model"
BLOCK = 16  # tokens that an engine caches together
NAME, SCHEMA, ABOUT = WEATHER["name"], WEATHER["parameters"], "Tell the weather."
ORDERS = (
    "messages responses chat messages chat responses chain messages messages chat",
    "responses chain messages chat chat messages responses chain chain messages",
    "chat messages responses chat responses messages chain",  # the last one goes back to the response before it
)


class Conversation:
    """A loop of thoughts and calls, and how each API tells what came before."""

    def __init__(self, http: httpx.AsyncClient, server: Server, question: str) -> None:
        self._http = http
        self._server = server
        self._question = question
        self._turns: list[dict[str, Any]] = []  # what the model has thought and called, and what came of it
        self._histories: list[list[int]] = []  # what was read and said up to each turn
        self._responses: list[tuple[str, int]] = []  # those of the Responses API, with their turns
        self.computed_twice = 0  # full blocks of tokens that the engine had

    async def ask(self, api: str) -> None:
        """Go on in the words of this API."""
        continued = len(self._turns) if api != "chain" else self._responses[-1][1]
        path, body = getattr(self, f"_{api}")()
        answer = await self._http.post(path, json={"model": MODEL, **body})
        assert answer.status_code == 200, answer.text
        said = answer.json()
        response_id = "resp_" + said["id"].rpartition("_" if "_" in said["id"] else "-")[2]
        [entry] = generations(self._server, response_id)
        if continued:
            before, prompt = self._histories[continued - 1], entry["prompt_tokens"]
            same = next(
                (place for place, (a, b) in enumerate(zip(before, prompt, strict=False)) if a != b), len(before)
            )
            self.computed_twice += len(before) // BLOCK - min(same, len(prompt)) // BLOCK
        del self._turns[continued:], self._histories[continued:]
        self._turns.append({**getattr(self, f"_read_{path.split('/')[1]}")(said), "output": f"[think] {continued}"})
        self._histories.append(as_history(entry))
        if path == "/responses":
            self._responses.append((response_id, len(self._turns)))

    def _responses_items(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = [{"role": "user", "content": self._question}]
        for turn in self._turns:
            told = {"encrypted_content": turn["seal"]} if turn["seal"] else {}
            content = [{"type": "reasoning_text", "text": turn["thought"]}]
            items += [
                {"type": "reasoning", "summary": [], "content": content, **told},
                {"type": "function_call", "call_id": turn["id"], "name": NAME, "arguments": turn["arguments"]},
                self._output(turn),
            ]
        return items

    def _output(self, turn: dict[str, Any]) -> dict[str, Any]:
        return {"type": "function_call_output", "call_id": turn["id"], "output": turn["output"]}

    def _responses_fields(self, input: Any) -> dict[str, Any]:
        tool = {"type": "function", "name": NAME, "parameters": SCHEMA, "description": ABOUT}
        return {"input": input, "tools": [tool], "include": ["reasoning.encrypted_content"]}

    def _responses_(self) -> tuple[str, dict[str, Any]]:
        return "/responses", self._responses_fields(self._responses_items())

    def _chain(self) -> tuple[str, dict[str, Any]]:
        previous, turn = self._responses[-1]
        fields = self._responses_fields([self._output(self._turns[turn - 1])])
        return "/responses", {**fields, "previous_response_id": previous}

    def _chat(self) -> tuple[str, dict[str, Any]]:
        messages: list[dict[str, Any]] = [{"role": "user", "content": self._question}]
        for turn in self._turns:
            function = {"name": NAME, "arguments": turn["arguments"]}
            call = {"id": turn["id"], "type": "function", "function": function}
            messages.append({"role": "assistant", "reasoning": turn["thought"], "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": turn["id"], "content": turn["output"]})
        tool = {"type": "function", "function": {"name": NAME, "parameters": SCHEMA, "description": ABOUT}}
        return "/chat/completions", {"messages": messages, "tools": [tool]}

    def _messages(self) -> tuple[str, dict[str, Any]]:
        messages: list[dict[str, Any]] = [{"role": "user", "content": self._question}]
        for turn in self._turns:
            thought = {"type": "thinking", "thinking": turn["thought"], "signature": turn["seal"] or ""}
            call = {"type": "tool_use", "id": turn["id"], "name": NAME, "input": orjson.loads(turn["arguments"])}
            result = {"type": "tool_result", "tool_use_id": turn["id"], "content": turn["output"]}
            messages.append({"role": "assistant", "content": [thought, call]})
            messages.append({"role": "user", "content": [result]})
        tool = {"name": NAME, "input_schema": SCHEMA, "description": ABOUT}
        fields = {"max_tokens": 2000, "thinking": {"type": "adaptive"}}
        return "/messages", {"messages": messages, "tools": [tool], **fields}

    def _read_responses(self, said: Any) -> dict[str, Any]:
        thought, call = said["output"][:2]
        text = thought["content"][0]["text"]
        return _turn(text, thought["encrypted_content"], call["call_id"], call["arguments"])

    def _read_chat(self, said: Any) -> dict[str, Any]:
        message = said["choices"][0]["message"]
        [call] = message["tool_calls"]
        return _turn(message["reasoning"], None, call["id"], call["function"]["arguments"])

    def _read_messages(self, said: Any) -> dict[str, Any]:
        thought, call = said["content"][:2]
        return _turn(thought["thinking"], thought["signature"], call["id"], orjson.dumps(call["input"]).decode())


def _turn(thought: str, seal: str | None, call_id: str, arguments: str) -> dict[str, Any]:
    return {"thought": thought, "seal": seal, "id": call_id, "arguments": arguments}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.each_database
async def test_a_conversation_that_changes_its_api_is_computed_once(
    server: Server, http: httpx.AsyncClient, order: str
) -> None:
    http.headers["anthropic-version"] = "2023-06-01"
    conversation = Conversation(http, server, f"[think] {order}")
    for api in order.split():
        await conversation.ask("responses_" if api == "responses" else api)
    assert conversation.computed_twice == 0
