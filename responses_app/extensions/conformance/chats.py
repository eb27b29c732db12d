"""Chat Completions."""

from typing import Any

from responses_app.extensions.conformance import sources
from responses_app.extensions.conformance.checks import CheckGroup
from responses_app.extensions.conformance.facts import (
    ASK_SURE,
    ASK_WEATHER,
    FEW_TOKENS,
    HARMONY_TEXT,
    HELLO,
    LONG,
    NO_CALL,
    SURE_SCHEMA,
    TOO_LONG,
    WEATHER,
    WEATHER_SCHEMA,
    misfit,
    user,
)
from responses_app.extensions.conformance.shapes import (
    CHAT,
    CHAT_USAGE,
    CHOICE,
    CHUNK,
    CHUNK_CHOICE,
    Absent,
    Json,
    Skipped,
    expect,
    require,
)
from responses_app.extensions.conformance.talk import MOST_TOKENS, Stream, Talk, good

COUNT = "Count from 1 to 9, in digits, separated by spaces."
CHAT_COMPLETIONS = CheckGroup("chat", "Chat Completions")
PATH = "/chat/completions"
FUNCTION = {"type": "function", "function": {name: value for name, value in WEATHER.items() if name != "type"}}
FORCED = {"type": "function", "function": {"name": "get_weather"}}
SURE = {"type": "json_schema", "json_schema": {"name": "sure", "schema": SURE_SCHEMA, "strict": True}}


def _body(talk: Talk, content: object = HELLO, **fields: Any) -> Json:
    return {"model": talk.model, "messages": [user(content)], "max_completion_tokens": MOST_TOKENS, **fields}


async def _chat(talk: Talk, content: object = HELLO, **fields: Any) -> Json:
    return require(good(await talk.there("POST", PATH, _body(talk, content, **fields))), CHAT, "the chat")


async def _optional(talk: Talk, content: object = HELLO, **fields: Any) -> Json:
    """Return a chat with a field that a server may refuse."""
    answer = await talk.there("POST", PATH, _body(talk, content, **fields))
    if answer.status == 400:
        raise Absent(f"refused: {answer.error['message']}")
    return require(good(answer), CHAT, "the chat")


async def _chunks(talk: Talk, content: object = HELLO, **fields: Any) -> list[Json]:
    return (await talk.stream(PATH, _body(talk, content, stream=True, **fields))).objects


def _choice(chat: Json) -> Json:
    return require(chat["choices"][0], CHOICE, "the choice")


def _ended(chat: Json, reason: str) -> Json:
    """Return the message of a chat that ended for this reason."""
    choice = _choice(chat)
    if choice["finish_reason"] == "length" and reason != "length":
        raise Skipped("the answer ended early")
    expect(choice["finish_reason"] == reason, f"finish_reason is {choice['finish_reason']!r}")
    message: Json = choice["message"]
    return message


async def asked(talk: Talk) -> Json:
    """A chat that is complete."""
    chat = await _chat(talk)
    _ended(chat, "stop")
    return chat


async def streamed(talk: Talk) -> Stream:
    """A stream with its usage."""
    return await talk.stream(PATH, _body(talk, stream=True, stream_options={"include_usage": True}))


async def called(talk: Talk) -> Json:
    """The message of a chat that calls `get_weather`."""
    chat = await _chat(talk, ASK_WEATHER, tools=[FUNCTION], tool_choice=FORCED)
    message: Json = _choice(chat)["message"]
    expect(message.get("tool_calls"), f"the message has no tool_calls: {message}")
    return message


@CHAT_COMPLETIONS.check("answer", sources.CHAT)
async def _answer(talk: Talk) -> None:
    """`POST /chat/completions` is answered with 200 and a `chat.completion`."""
    chat = await _chat(talk)
    expect(chat["object"] == "chat.completion", f"object is {chat['object']!r}")


@CHAT_COMPLETIONS.check("message", sources.CHAT_TYPE)
async def _message(talk: Talk) -> None:
    """A complete chat has one choice that ended with `stop`, and a message of the `assistant` with `content`."""
    chat = await talk.once(asked)
    message = _ended(chat, "stop")
    expect(len(chat["choices"]) == 1 and chat["choices"][0]["index"] == 0, f"{chat['choices']}")
    expect(message["role"] == "assistant" and isinstance(message["content"], str), f"{message}")


@CHAT_COMPLETIONS.check("usage", sources.CHAT_OBJECT)
async def _usage(talk: Talk) -> None:
    """`usage` counts the tokens of the prompt and of the completion, and their sum."""
    usage = require((await talk.once(asked))["usage"], CHAT_USAGE, "usage")
    expect(usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"], f"{usage}")
    expect(usage["prompt_tokens"] > 0 and usage["completion_tokens"] > 0, f"{usage}")


@CHAT_COMPLETIONS.check("chunks", sources.CHUNK_TYPE)
async def _shapes(talk: Talk) -> None:
    """A stream has chunks `chat.completion.chunk` of one id, and ends with `[DONE]`."""
    stream = await talk.once(streamed)
    chunks = [require(chunk, CHUNK, "a chunk") for chunk in stream.objects]
    for chunk in chunks:
        for choice in chunk["choices"]:
            require(choice, CHUNK_CHOICE, "a choice")
    expect({chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}, "a chunk is another object")
    expect(len({chunk["id"] for chunk in chunks}) == 1, "the chunks have different ids")
    expect(stream.events[-1].data == "[DONE]", f"the last line is {stream.events[-1].data[:200]}")


@CHAT_COMPLETIONS.check("deltas", sources.CHAT_STREAMING)
async def _deltas(talk: Talk) -> None:
    """The first delta has the role, and one choice, the last, has a `finish_reason`."""
    chunks = (await talk.once(streamed)).objects
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    expect(choices[0]["delta"].get("role") == "assistant", f"the first delta is {choices[0]['delta']}")
    reasons = [choice.get("finish_reason") for choice in choices]
    expect(reasons[-1] and not any(reasons[:-1]), f"the finish_reasons are {reasons[-20:]}")


@CHAT_COMPLETIONS.check("stream_usage", sources.CHAT_STREAMING)
async def _stream_usage(talk: Talk) -> None:
    """With `include_usage` the last chunk has no choices, and the usage; without it no chunk has any."""
    last = (await talk.once(streamed)).objects[-1]
    expect(last["choices"] == [], f"the last chunk has {last['choices']}")
    require(last["usage"], CHAT_USAGE, "usage")
    plain = await _chunks(talk)
    expect(not any(chunk.get("usage") for chunk in plain), "a chunk has usage that was not asked for")


@CHAT_COMPLETIONS.check("call", sources.FUNCTIONS, pain="malformed-calls")
async def _call(talk: Talk) -> None:
    """A forced function is called by its name, with an id, and with arguments that fit its schema."""
    [call] = (await talk.once(called))["tool_calls"]
    expect((call["type"], call["function"]["name"]) == ("function", "get_weather") and call["id"], f"{call}")
    problem = misfit(call["function"]["arguments"], WEATHER_SCHEMA)
    expect(not problem, problem)


@CHAT_COMPLETIONS.check("call_in_stream", sources.CHAT_STREAMING)
async def _call_in_stream(talk: Talk) -> None:
    """A call in a stream has its id and name once, and arguments whose pieces fit the schema together."""
    chunks = await _chunks(talk, ASK_WEATHER, tools=[FUNCTION], tool_choice=FORCED)
    pieces = [
        piece
        for chunk in chunks
        for choice in chunk["choices"]
        for piece in choice["delta"].get("tool_calls") or ()
        if piece["index"] == 0
    ]
    expect(pieces and pieces[0].get("id"), f"the first piece is {pieces[:1]}")
    names = [piece["function"]["name"] for piece in pieces if (piece.get("function") or {}).get("name")]
    expect(names == ["get_weather"], f"the names are {names}")
    problem = misfit("".join((piece["function"].get("arguments") or "") for piece in pieces), WEATHER_SCHEMA)
    expect(not problem, problem)


@CHAT_COMPLETIONS.check("second_turn", sources.FUNCTIONS, pain="second-turn")
async def _second_turn(talk: Talk) -> None:
    """A message with a call is taken back as it came, with a message of the `tool` that answers it."""
    message = await talk.once(called)
    outputs = [{"role": "tool", "tool_call_id": call["id"], "content": "rain"} for call in message["tool_calls"]]
    messages = [user(ASK_WEATHER), message, *outputs]
    _ended(await _chat(talk, messages=messages, tools=[FUNCTION], tool_choice="none"), "stop")


@CHAT_COMPLETIONS.check("required", sources.FUNCTIONS)
async def _required(talk: Talk) -> None:
    """With `tool_choice: required` a function is called, and the chat ends with `tool_calls`."""
    message = _ended(await _chat(talk, ASK_WEATHER, tools=[FUNCTION], tool_choice="required"), "tool_calls")
    expect(message.get("tool_calls"), "the message has no tool_calls")


@CHAT_COMPLETIONS.check("none", sources.FUNCTIONS)
async def _none(talk: Talk) -> None:
    """With `tool_choice: none` nothing is called."""
    message = _ended(await _chat(talk, NO_CALL, tools=[FUNCTION], tool_choice="none"), "stop")
    expect(not message.get("tool_calls"), f"{message.get('tool_calls')}")


@CHAT_COMPLETIONS.check("schema", sources.STRUCTURED)
async def _schema(talk: Talk) -> None:
    """With `response_format` of type `json_schema` the answer fits the schema."""
    problem = misfit(_ended(await _chat(talk, ASK_SURE, response_format=SURE), "stop")["content"], SURE_SCHEMA)
    expect(not problem, problem)


@CHAT_COMPLETIONS.check("cut", sources.CHAT)
async def _cut(talk: Talk) -> None:
    """At `max_completion_tokens` a chat ends with `length`."""
    chat = await _chat(talk, LONG, max_completion_tokens=FEW_TOKENS)
    if _choice(chat)["finish_reason"] == "stop":
        raise Skipped("the answer was shorter than the bound")
    _ended(chat, "length")


@CHAT_COMPLETIONS.check("max_tokens", sources.CHAT)
async def _max_tokens(talk: Talk) -> None:
    """`max_tokens`, the older name, is taken as well."""
    body = {"model": talk.model, "messages": [user(LONG)], "max_tokens": FEW_TOKENS}
    answer = await talk.there("POST", PATH, body)
    if answer.status == 400:
        raise Absent(f"refused: {answer.error['message']}")
    usage = require(good(answer), CHAT, "the chat")["usage"]
    expect(usage["completion_tokens"] <= FEW_TOKENS, f"{usage}")


@CHAT_COMPLETIONS.check("stop", sources.CHAT)
async def _stop(talk: Talk) -> None:
    """`stop` ends an answer before what it names."""
    chat = await _optional(talk, COUNT, stop=["5", "five"])
    content = _choice(chat)["message"].get("content") or ""
    expect("5" not in content, f"the answer is {content[:200]!r}")


@CHAT_COMPLETIONS.check("choices", sources.CHAT)
async def _choices(talk: Talk) -> None:
    """`n` gives so many choices, each with its index."""
    chat = await _optional(talk, n=2)
    expect([choice["index"] for choice in chat["choices"]] == [0, 1], f"there are {len(chat['choices'])} choices")


@CHAT_COMPLETIONS.check("logprobs", sources.CHAT)
async def _logprobs(talk: Talk) -> None:
    """`logprobs` gives every token its probability."""
    chat = await _optional(talk, logprobs=True, top_logprobs=2)
    content = (_choice(chat).get("logprobs") or {}).get("content")
    expect(content and all(isinstance(entry["token"], str) for entry in content), "the choice has no logprobs")


@CHAT_COMPLETIONS.check("roles", sources.CHAT)
async def _roles(talk: Talk) -> None:
    """Messages of `system`, `developer`, `user` and `assistant` are taken, with text or with parts."""
    part = {"type": "text", "text": "Hi"}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "text", "text": "Be polite."}]},
        user([part, part]),
        {"role": "assistant", "content": [part]},
        user(HELLO),
    ]
    _ended(await _chat(talk, messages=messages), "stop")


@CHAT_COMPLETIONS.check("harmony_text", sources.HARMONY, pain="harmony-parser")
async def _harmony_text(talk: Talk) -> None:
    """Text that looks like the format of gpt-oss is text: no answer is a 500."""
    for messages in (
        [user(f"{HELLO} {HARMONY_TEXT}")],
        [user("Hi"), {"role": "assistant", "content": HARMONY_TEXT}, user(HELLO)],
    ):
        answer = await talk.ask("POST", PATH, _body(talk, messages=messages))
        expect(answer.status in (200, 400), f"answered {answer.status}: {answer.told[:300]}")


@CHAT_COMPLETIONS.check("errors", sources.ERROR_TYPE)
async def _errors(talk: Talk) -> None:
    """What is wrong is a 400 with `message`, `type`, `param` and `code`, also where a stream is asked for."""
    wrongs: list[Json] = [{"messages": 7}, {"messages": [{"role": "nobody", "content": "x"}]}, {"messages": []}]
    for wrong in wrongs:
        for more in ({}, {"stream": True}):
            error = await talk.refused({"model": talk.model, **wrong, **more}, path=PATH)
            missing = [name for name in ("message", "type", "param", "code") if name not in error]
            expect(not missing, f"the error lacks {missing}")


@CHAT_COMPLETIONS.check("model", sources.ERRORS)
async def _model(talk: Talk) -> None:
    """A model that does not exist is a 404 or 400 that names it."""
    body = {"model": "no-such-model", "messages": [user(HELLO)]}
    error = await talk.refused(body, path=PATH, statuses=(400, 404))
    expect("no-such-model" in error["message"], f"the error does not name it: {error}")


@CHAT_COMPLETIONS.check("too_long", sources.ERRORS, pain="swallowed-errors")
async def _too_long(talk: Talk) -> None:
    """A stream whose prompt fits no model is refused with a 4xx, or ends with an error."""
    stream = await talk.stream(PATH, _body(talk, "word " * TOO_LONG, stream=True))
    if not 400 <= stream.answer.status < 500:
        expect("error" in stream.objects[-1], f"the stream ends with {stream.objects[-1]}")


@CHAT_COMPLETIONS.check("orphan", sources.FUNCTIONS)
async def _orphan(talk: Talk) -> None:
    """The output of a call that nobody made is a 400."""
    messages = [user("Hi"), {"role": "tool", "tool_call_id": "call_nobody", "content": "x"}]
    error = await talk.refused({"model": talk.model, "messages": messages}, path=PATH)
    expect(error["message"], "the error has no message")


@CHAT_COMPLETIONS.check("stored", sources.CHAT)
async def _stored(talk: Talk) -> None:
    """A chat with `store: true` can be read by its id, and deleted."""
    chat = await _chat(talk, store=True)
    path = f"{PATH}/{chat['id']}"
    read = require(good(await talk.there("GET", path)), CHAT, "the chat")
    expect(read["choices"] == chat["choices"], "the stored chat has other choices")
    good(await talk.there("DELETE", path))
    answer = await talk.ask("GET", path)
    expect(answer.status == 404, f"deleted, it is answered with {answer.status}")


@CHAT_COMPLETIONS.check("sound", sources.CHAT)
async def _sound(talk: Talk) -> None:
    """Sound, where a model cannot make it, is refused and not left out."""
    chat = await _optional(talk, modalities=["text", "audio"], audio={"voice": "alloy", "format": "wav"})
    expect(_choice(chat)["message"].get("audio"), "the message has no audio")
