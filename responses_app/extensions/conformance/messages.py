"""Anthropic's Messages API."""

import uuid
from typing import Any

from responses_app.extensions.conformance import sources
from responses_app.extensions.conformance.checks import CheckGroup
from responses_app.extensions.conformance.facts import (
    ASK_WEATHER,
    CLOCK,
    FEW_TOKENS,
    HARMONY_TEXT,
    HELLO,
    LONG,
    NO_CALL,
    TOO_LONG,
    WEATHER,
    WEATHER_SCHEMA,
    misfit,
    user,
)
from responses_app.extensions.conformance.shapes import (
    MESSAGE,
    MESSAGE_EVENTS,
    MESSAGE_USAGE,
    Absent,
    Json,
    RuleBroken,
    Skipped,
    expect,
    require,
)
from responses_app.extensions.conformance.talk import MOST_TOKENS, NOT_THERE, HttpAnswer, Stream, Talk, good

COUNT = "Count from 1 to 9, in digits, separated by spaces."
MESSAGES = CheckGroup("messages", "Anthropic's Messages")
PATH, COUNT = "/messages", "/messages/count_tokens"
VERSION = {"anthropic-version": "2023-06-01"}
REASONS = (
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
    "pause_turn",
    "refusal",
    "model_context_window_exceeded",
)
BUDGET = 1024  # tokens to think with: the fewest that Anthropic takes


def _tool(function: Json) -> Json:
    return {
        "name": function["name"],
        "description": function["description"],
        "input_schema": function["parameters"],
    }


TOOL = _tool(WEATHER)
FORCED = {"type": "tool", "name": "get_weather"}


def _headers(talk: Talk) -> dict[str, str]:
    key = talk.server.endpoint.key
    return {**VERSION, **({"x-api-key": key} if key else {})}


def _body(talk: Talk, content: object = HELLO, **fields: Any) -> Json:
    return {"model": talk.model, "max_tokens": MOST_TOKENS, "messages": [user(content)], **fields}


async def _sent(talk: Talk, body: object, path: str = PATH) -> HttpAnswer:
    return await talk.there("POST", path, body, headers=_headers(talk))


async def _message(talk: Talk, content: object = HELLO, **fields: Any) -> Json:
    message = require(good(await _sent(talk, _body(talk, content, **fields))), MESSAGE, "the message")
    require(message["usage"], MESSAGE_USAGE, "usage")
    return message


async def _events(talk: Talk, content: object = HELLO, **fields: Any) -> Stream:
    body = _body(talk, content, stream=True, **fields)
    return await talk.stream(PATH, body, headers=_headers(talk))


async def _refused(talk: Talk, body: Json, *, kind: str = "invalid_request_error", status: int = 400) -> None:
    """Have a request refused with an error in Anthropic's shape."""
    answer = await talk.ask("POST", PATH, body, headers=_headers(talk))
    expect(answer.status == status, f"answered {answer.status}: {answer.told[:300]}")
    told = answer.json
    given = (told.get("type"), told["error"]["type"], isinstance(told["error"]["message"], str))
    expect(given == ("error", kind, True), f"the error is {answer.told[:300]}")


async def asked(talk: Talk) -> Json:
    """A message that is complete."""
    message = await _message(talk)
    if message["stop_reason"] != "end_turn":
        raise Skipped(f"the message ended with {message['stop_reason']!r}")
    return message


async def streamed(talk: Talk) -> Stream:
    """A stream."""
    return await _events(talk)


async def called(talk: Talk) -> Json:
    """A message that calls `get_weather`."""
    message = await _message(talk, ASK_WEATHER, tools=[TOOL], tool_choice=FORCED)
    if not _blocks(message, "tool_use"):
        raise RuleBroken(f"the content is {message['content']}")
    return message


def _blocks(message: Json, kind: str) -> list[Json]:
    return [block for block in message["content"] if block["type"] == kind]


@MESSAGES.check("answer", sources.MESSAGES)
async def _answer(talk: Talk) -> None:
    """`POST /messages` is answered with 200 and a `message`."""
    message = await _message(talk)
    expect((message["type"], message["role"]) == ("message", "assistant"), f"{message}")
    expect(message["stop_reason"] in REASONS, f"stop_reason is {message['stop_reason']!r}")


@MESSAGES.check("blocks", sources.MESSAGE_BLOCKS)
async def _text_blocks(talk: Talk) -> None:
    """A complete message ends with `end_turn`, has a null `stop_sequence`, and a block `text`."""
    message = await talk.once(asked)
    expect(message.get("stop_sequence", "") is None, f"stop_sequence is {message.get('stop_sequence', 'missing')!r}")
    found = _blocks(message, "text")
    expect(found and isinstance(found[0]["text"], str), "there is no text")


@MESSAGES.check("events", sources.MESSAGE_EVENTS)
async def _shapes(talk: Talk) -> None:
    """Every event of a stream is one of Anthropic's, with its fields, and with a line `event:` that says its type."""
    stream = await talk.once(streamed)
    for event, told in zip(stream.events, stream.objects, strict=True):
        expect(told["type"] in MESSAGE_EVENTS, f"an unknown event {told['type']!r}")
        require(told, MESSAGE_EVENTS[told["type"]], told["type"])
        expect(event.name == told["type"], f"event: {event.name!r} with the type {told['type']!r}")


@MESSAGES.check("order", sources.MESSAGES_STREAMING)
async def _order(talk: Talk) -> None:
    """`message_start`, then each block begun, told and stopped in its turn, then `message_delta`, `message_stop`."""
    events = [event for event in (await talk.once(streamed)).objects if event["type"] != "ping"]
    kinds = [event["type"] for event in events]
    expect(kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"], f"{kinds}")
    begun, is_open = -1, False
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            expect(not is_open and event["index"] == begun + 1, f"block {event['index']} began behind {begun}")
            begun, is_open = event["index"], True
        else:
            expect(is_open and event["index"] == begun, f"{event['type']} of block {event['index']} in {begun}")
            is_open = event["type"] != "content_block_stop"
    expect(begun >= 0 and not is_open, "a block was not stopped, or none began")


@MESSAGES.check("start", sources.MESSAGES_STREAMING)
async def _start(talk: Talk) -> None:
    """`message_start` has an empty message without a `stop_reason`; `message_delta` has it, and the output's tokens."""
    events = (await talk.once(streamed)).objects
    message = require(events[0]["message"], MESSAGE, "the message")
    expect(message["content"] == [] and message["stop_reason"] is None, f"message_start has {message}")
    [delta] = [event for event in events if event["type"] == "message_delta"]
    expect(delta["delta"]["stop_reason"] in REASONS, f"{delta}")
    expect(isinstance(delta["usage"]["output_tokens"], int), f"{delta['usage']}")


@MESSAGES.check("text", sources.MESSAGES_STREAMING)
async def _text(talk: Talk) -> None:
    """The text of a stream comes as `text_delta`s."""
    events = (await talk.once(streamed)).objects
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    text = "".join(delta["text"] for delta in deltas if delta["type"] == "text_delta")
    expect(text, f"the deltas are of {sorted({delta['type'] for delta in deltas})}")


@MESSAGES.check("call", sources.MESSAGES_TOOLS, pain="malformed-calls")
async def _call(talk: Talk) -> None:
    """A tool that `tool_choice` names is called: `tool_use` with an id, its name, and an input that fits its schema."""
    message = await talk.once(called)
    expect(message["stop_reason"] == "tool_use", f"stop_reason is {message['stop_reason']!r}")
    for call in _blocks(message, "tool_use"):
        expect(call["name"] == "get_weather" and call["id"], f"{call}")
        expect(call["input"].get("city") in ("Paris", "London"), f"the input is {call['input']}")


@MESSAGES.check("call_in_stream", sources.MESSAGES_STREAMING)
async def _call_in_stream(talk: Talk) -> None:
    """The input of a call comes as `input_json_delta`s, behind a block that begins with an empty `input`."""
    events = (await _events(talk, ASK_WEATHER, tools=[TOOL], tool_choice=FORCED)).objects
    starts = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    [block] = [block for block in starts if block["type"] == "tool_use"]
    expect((block["name"], block["input"]) == ("get_weather", {}), f"the block begins as {block}")
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    said = "".join(delta["partial_json"] for delta in deltas if delta["type"] == "input_json_delta")
    problem = misfit(said, WEATHER_SCHEMA)
    expect(not problem, problem)


@MESSAGES.check("any", sources.MESSAGES_TOOLS)
async def _any(talk: Talk) -> None:
    """`tool_choice: any` has some tool called."""
    tools = [TOOL, _tool(CLOCK)]
    message = await _message(talk, ASK_WEATHER, tools=tools, tool_choice={"type": "any"})
    expect(_blocks(message, "tool_use"), f"the content is {message['content']}")


@MESSAGES.check("none", sources.MESSAGES_TOOLS)
async def _none(talk: Talk) -> None:
    """`tool_choice: none` has no tool called."""
    message = await _message(talk, NO_CALL, tools=[TOOL], tool_choice={"type": "none"})
    expect(not _blocks(message, "tool_use"), f"the content is {message['content']}")


@MESSAGES.check("second_turn", sources.MESSAGES_TOOLS, pain="second-turn")
async def _second_turn(talk: Talk) -> None:
    """A message with a call is taken back as it came, with the `tool_result` that answers it, as text or blocks."""
    message = await talk.once(called)
    said = {"role": "assistant", "content": message["content"]}
    for content in ("rain", [{"type": "text", "text": "rain"}]):
        calls = _blocks(message, "tool_use")
        results = [{"type": "tool_result", "tool_use_id": call["id"], "content": content} for call in calls]
        answer = await _message(talk, messages=[user(ASK_WEATHER), said, user(results)], tools=[TOOL])
        expect(answer["content"] or answer["stop_reason"] == "max_tokens", "the answer is empty")


@MESSAGES.check("orphan", sources.MESSAGES_TOOLS)
async def _orphan(talk: Talk) -> None:
    """A `tool_result` for a call that nobody made is a 400."""
    orphan = {"type": "tool_result", "tool_use_id": "toolu_nobody", "content": "x"}
    await _refused(talk, _body(talk, [orphan]))


@MESSAGES.check("cut", sources.MESSAGES)
async def _cut(talk: Talk) -> None:
    """At `max_tokens` a message ends with `max_tokens`."""
    message = await _message(talk, LONG, max_tokens=FEW_TOKENS)
    expect(message["usage"]["output_tokens"] <= FEW_TOKENS, f"{message['usage']}")
    if message["stop_reason"] == "end_turn":
        raise Skipped("the answer was shorter than the bound")
    expect(message["stop_reason"] == "max_tokens", f"stop_reason is {message['stop_reason']!r}")


@MESSAGES.check("stop_sequences", sources.MESSAGES)
async def _stop_sequences(talk: Talk) -> None:
    """A stop sequence ends a message before it, and is named in `stop_sequence`."""
    message = await _message(talk, COUNT, stop_sequences=["5"])
    said = "".join(block["text"] for block in _blocks(message, "text"))
    expect("5" not in said, f"the text is {said[:200]!r}")
    if message["stop_reason"] == "stop_sequence":
        expect(message["stop_sequence"] == "5", f"stop_sequence is {message['stop_sequence']!r}")


@MESSAGES.check("system", sources.MESSAGES_CACHING)
async def _system(talk: Talk) -> None:
    """`system` is a text, or blocks, which may have `cache_control`, as messages and tools may."""
    cached = {"cache_control": {"type": "ephemeral"}}
    await _message(talk, system="Be brief.")
    await _message(
        talk,
        [{"type": "text", "text": HELLO, **cached}],
        system=[{"type": "text", "text": "Be brief.", **cached}],
        tools=[{**TOOL, **cached}],
    )


@MESSAGES.check("count", sources.MESSAGES_COUNT)
async def _count(talk: Talk) -> None:
    """`POST /messages/count_tokens` counts a prompt as `usage` of the message does."""
    body = {"model": talk.model, "messages": [user(HELLO)]}
    counted = good(await _sent(talk, body, COUNT))["input_tokens"]
    usage = (await talk.once(asked))["usage"]
    kinds = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    used = sum(usage.get(kind) or 0 for kind in kinds)
    expect(counted == used, f"{counted} counted, {used} in usage")


@MESSAGES.check("version", sources.MESSAGES_VERSIONS)
async def _version(talk: Talk) -> None:
    """A request without `anthropic-version` is a 400."""
    key = talk.server.endpoint.key
    answer = await talk.ask("POST", PATH, _body(talk), headers={"x-api-key": key} if key else {})
    if answer.status in NOT_THERE:
        raise Absent(f"answered {answer.status}")
    expect(answer.status == 400, f"answered {answer.status}")


@MESSAGES.check("errors", sources.MESSAGES_ERRORS)
async def _errors(talk: Talk) -> None:
    """What is wrong is a 400 `{"type": "error", "error": {"type": "invalid_request_error", "message"}}`."""
    body = _body(talk)
    await _refused(talk, {**body, "messages": 7})
    await _refused(talk, {**body, "max_tokens": -1})
    await _refused(talk, {name: value for name, value in body.items() if name != "max_tokens"})
    await _refused(talk, {**body, "messages": [user([{"type": "no_such_block"}])]})
    await _refused(talk, {**body, "stream": True, "messages": []})


@MESSAGES.check("model", sources.MESSAGES_ERRORS)
async def _model(talk: Talk) -> None:
    """A model that does not exist is a 404 with a `not_found_error`."""
    await _refused(talk, {**_body(talk), "model": "no-such-model"}, kind="not_found_error", status=404)


@MESSAGES.check("too_long", sources.MESSAGES_ERRORS, pain="swallowed-errors")
async def _too_long(talk: Talk) -> None:
    """A stream whose prompt fits no model is refused with a 4xx, or ends with an event `error`."""
    stream = await _events(talk, "word " * TOO_LONG)
    if not 400 <= stream.answer.status < 500:
        expect(stream.objects[-1].get("type") == "error", f"the stream ends with {stream.objects[-1]}")


@MESSAGES.check("request_id", sources.MESSAGES_ERRORS)
async def _request_id(talk: Talk) -> None:
    """Every answer has a header `request-id`."""
    answer = await _sent(talk, _body(talk))
    expect(answer.headers.get("request-id"), "the header is missing")


@MESSAGES.check("thinking", sources.MESSAGES_THINKING)
async def _thinking(talk: Talk) -> None:
    """With `thinking` the message shows it in blocks with a `signature`, and takes them back."""
    asked_for = {"thinking": {"type": "enabled", "budget_tokens": BUDGET}, "max_tokens": MOST_TOKENS + BUDGET}
    answer = await _sent(talk, _body(talk, **asked_for))
    if answer.status == 400:
        raise Absent(f"refused: {answer.json['error']['message']}")
    message = require(good(answer), MESSAGE, "the message")
    found = _blocks(message, "thinking")
    if not found:
        raise Skipped("the model did not think")
    expect(all(block["thinking"] and block["signature"] for block in found), f"{found}")
    messages = [user(HELLO), {"role": "assistant", "content": message["content"]}, user(HELLO)]
    await _message(talk, messages=messages, **asked_for)


@MESSAGES.check("harmony_text", sources.HARMONY, pain="harmony-parser")
async def _harmony_text(talk: Talk) -> None:
    """Text that looks like the format of gpt-oss is text: no answer is a 500."""
    said = {"role": "assistant", "content": HARMONY_TEXT}
    for messages in ([user(f"{HELLO} {HARMONY_TEXT}")], [user("Hi"), said, user(HELLO)]):
        answer = await _sent(talk, _body(talk, messages=messages))
        expect(answer.status in (200, 400), f"answered {answer.status}: {answer.told[:300]}")


@MESSAGES.check("of_claude_code", sources.MESSAGES)
async def _of_claude_code(talk: Talk) -> None:
    """A request as Claude Code sends it is taken: `?beta=true`, beta headers, metadata, and fields of betas."""
    body = _body(
        talk,
        [{"type": "text", "text": HELLO, "cache_control": {"type": "ephemeral"}}],
        system=[{"type": "text", "text": "You are Claude Code."}],
        tools=[TOOL],
        metadata={"user_id": "user_1_account__session_2"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        stream=True,
    )
    headers = {**_headers(talk), "anthropic-beta": "claude-code-20250219,context-management-2025-06-27"}
    events = (await talk.stream(f"{PATH}?beta=true", body, headers=headers)).objects
    expect(events[-1]["type"] == "message_stop", f"the stream ends with {events[-1]}")


@MESSAGES.check("changing_header", sources.BILLING, pain="changing-header")
async def _changing_header(talk: Talk) -> None:
    """Two requests that differ only in Claude Code's billing header share what the server has cached."""
    cached = {"cache_control": {"type": "ephemeral"}}
    own = f"{uuid.uuid4()} {' '.join(['The weather report is long today.'] * 400)}"

    async def found(header: str) -> int:
        blocks = [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={header};"}] * bool(header)
        message = await _message(talk, system=[*blocks, {"type": "text", "text": own, **cached}])
        return int(message["usage"].get("cache_read_input_tokens") or 0)

    await found("")
    usual = await found("")
    if not usual:
        raise Skipped("the same request again has no cached tokens: the server reports none")
    await found("00000")
    shared = await found("fffff")
    expect(shared >= usual, f"the same request again has {usual} cached tokens, with another header {shared}")


@MESSAGES.check("web_search", sources.MESSAGES_TOOLS)
async def _web_search(talk: Talk) -> None:
    """Anthropic's own `web_search` is run by the server."""
    tool = {"type": "web_search_20250305", "name": "web_search", "max_uses": 1}
    answer = await _sent(talk, _body(talk, "Search the web for vLLM.", tools=[tool], tool_choice={"type": "any"}))
    if answer.status == 400:
        raise Absent(f"refused: {answer.json['error']['message']}")
    message = require(good(answer), MESSAGE, "the message")
    expect(_blocks(message, "server_tool_use"), f"the content is {message['content']}")


@MESSAGES.check("models", sources.MESSAGES_MODELS)
async def _models(talk: Talk) -> None:
    """`GET /models` lists models in Anthropic's shape for a client that sends `anthropic-version`."""
    body = good(await talk.there("GET", "/models", headers=_headers(talk)))
    shape = {"type": str, "id": str, "display_name": str, "created_at": str}
    for model in body["data"]:
        require(model, shape, "a model")
