"""`GET /models`, and `POST /responses` answered with JSON."""

import asyncio

from responses_app.extensions.conformance import sources
from responses_app.extensions.conformance.checks import CheckGroup
from responses_app.extensions.conformance.facts import FEW_TOKENS, HELLO, LONG, WEATHER, said, user
from responses_app.extensions.conformance.shapes import (
    MESSAGE_ITEM,
    MODEL,
    OUTPUT_TEXT,
    USAGE,
    Absent,
    RuleBroken,
    Skipped,
    expect,
    finished,
    items_of,
    require,
    response_of,
    whole_response_of,
)
from responses_app.extensions.conformance.talk import Talk, good

MODELS = CheckGroup("models", "Models")


@MODELS.check("list", sources.MODELS)
async def _list(talk: Talk) -> None:
    """`GET /models` lists models with `id`, `object`, `created`, `owned_by`."""
    body = good(await talk.there("GET", "/models"))
    expect(body["object"] == "list", f"'object' is {body['object']!r}")
    expect(body["data"], "there is no model")
    for model in body["data"]:
        require(model, MODEL, "a model")


@MODELS.check("named", sources.MODELS)
async def _named(talk: Talk) -> None:
    """`GET /models` has the model that requests name."""
    names = [model["id"] for model in good(await talk.there("GET", "/models"))["data"]]
    expect(talk.model in names, f"{talk.model!r} is not among {names[:20]}")


@MODELS.check("one", sources.MODELS)
async def _one(talk: Talk) -> None:
    """`GET /models/{model}` answers the model, also where its name has a slash."""
    model = require(good(await talk.there("GET", f"/models/{talk.model}")), MODEL, "the model")
    expect((model["id"], model["object"]) == (talk.model, "model"), f"{model}")


@MODELS.check("unknown", sources.MODELS)
async def _unknown(talk: Talk) -> None:
    """`GET /models/{model}` answers 404 with an error for a name that no model has."""
    await talk.there("GET", f"/models/{talk.model}")
    answer = await talk.ask("GET", "/models/no-such-model")
    if answer.status != 404:
        raise RuleBroken(f"answered {answer.status}: {answer.told}")
    expect(answer.error["message"], "the error has no message")


JSON_ANSWERS = CheckGroup("json", "Responses: JSON")


@JSON_ANSWERS.check("answer", sources.CREATE)
async def _answer(talk: Talk) -> None:
    """`POST /responses` with `model` and a text as `input` is answered with 200 and JSON: a response."""
    answer = await talk.there("POST", "/responses", talk.body({"input": HELLO}))
    require(good(answer), {"id": str, "output": list}, "the response")
    expect(answer.kind == "application/json", f"the content type is {answer.kind!r}")


@JSON_ANSWERS.check("shape", sources.RESPONSE)
async def _shape(talk: Talk) -> None:
    """A response has every field that OpenAI's specification requires; those without a value are null."""
    answer = await talk.there("POST", "/responses", talk.body({"input": HELLO}))
    whole_response_of(good(answer))


@JSON_ANSWERS.check("ids", sources.RESPONSE)
async def _ids(talk: Talk) -> None:
    """Responses that are made at the same time have different ids."""
    made = await asyncio.gather(*(talk.create(input=HELLO) for _ in range(4)))
    ids = {response["id"] for response in made}
    expect(len(ids) == 4, f"four responses have the ids {sorted(ids)}")


@JSON_ANSWERS.check("status", sources.RESPONSE)
async def _status(talk: Talk) -> None:
    """A complete response has the status `completed`, and neither `error` nor `incomplete_details`."""
    response = await talk.once(said)
    given = (response.get("error"), response.get("incomplete_details"))
    expect(given == (None, None), f"error, incomplete_details: {given}")


@JSON_ANSWERS.check("completed_at", sources.RESPONSE)
async def _completed_at(talk: Talk) -> None:
    """A complete response says in `completed_at` when that was, not before `created_at`."""
    response = await talk.once(said)
    when = response.get("completed_at")
    expect(isinstance(when, int | float) and when >= int(response["created_at"]), f"completed_at is {when!r}")


@JSON_ANSWERS.check("message", sources.MESSAGE_TYPE)
async def _message(talk: Talk) -> None:
    """The answer is an item `message` of the `assistant` with parts `output_text`, each with text and annotations."""
    response = await talk.once(said)
    messages = items_of(response, "message")
    expect(messages, f"the output has {[item['type'] for item in response['output']]}")
    for item in messages:
        require(item, MESSAGE_ITEM, "the message")
        expect((item["role"], item["status"]) == ("assistant", "completed"), f"role, status: {item}")
        for part in item["content"]:
            if part["type"] != "refusal":
                require(part, OUTPUT_TEXT, "a part of the message")


@JSON_ANSWERS.check("usage", sources.USAGE_TYPE)
async def _usage(talk: Talk) -> None:
    """`usage` counts the tokens of input and output, with both details, and their sum."""
    usage = require((await talk.once(said))["usage"], USAGE, "usage")
    total = usage["input_tokens"] + usage["output_tokens"]
    expect(usage["input_tokens"] > 0 and usage["output_tokens"] > 0, f"{usage}")
    expect(usage["total_tokens"] == total, f"total_tokens is {usage['total_tokens']}, and the sum {total}")
    expect(isinstance(usage["input_tokens_details"].get("cached_tokens"), int), "cached_tokens is missing")
    expect(isinstance(usage["output_tokens_details"].get("reasoning_tokens"), int), "reasoning_tokens is missing")


@JSON_ANSWERS.check("cut", sources.CREATE)
async def _cut(talk: Talk) -> None:
    """At `max_output_tokens` a response ends `incomplete`, with the reason `max_output_tokens`, and has no more."""
    response = await talk.create(input=LONG, max_output_tokens=FEW_TOKENS)
    expect(response["usage"]["output_tokens"] <= FEW_TOKENS, f"it has {response['usage']['output_tokens']} tokens")
    if response["status"] == "completed":
        raise Skipped("the answer was shorter than the bound")
    given = (response["status"], (response.get("incomplete_details") or {}).get("reason"))
    expect(given == ("incomplete", "max_output_tokens"), f"status, reason: {given}")


@JSON_ANSWERS.check("echo", sources.RESPONSE)
async def _echo(talk: Talk) -> None:
    """A response repeats `instructions`, `metadata`, `max_output_tokens` and `parallel_tool_calls` of its request."""
    asked = {
        "instructions": "Be brief.",
        "metadata": {"key": "value"},
        "max_output_tokens": 1000,
        "parallel_tool_calls": False,
    }
    response = await talk.create(input=HELLO, **asked)
    given = {name: response.get(name) for name in asked}
    expect(given == asked, f"{given}")


@JSON_ANSWERS.check("echo_tools", sources.RESPONSE)
async def _echo_tools(talk: Talk) -> None:
    """A response repeats `tools`, with `description`, `parameters` and `strict`, and `tool_choice`."""
    response = await talk.create(input=HELLO, tools=[WEATHER], tool_choice="none")
    expect(response.get("tool_choice") == "none", f"tool_choice is {response.get('tool_choice')!r}")
    [tool] = response["tools"]
    given = {name: tool.get(name) for name in WEATHER}
    expect(given == WEATHER, f"the tool is {tool}")


@JSON_ANSWERS.check("echo_sampling", sources.RESPONSE)
async def _echo_sampling(talk: Talk) -> None:
    """A response repeats `temperature` and `top_p`, where the model takes them."""
    answer = await talk.ask("POST", "/responses", talk.body({"input": HELLO, "temperature": 0.5, "top_p": 0.9}))
    if answer.status == 400:
        raise Absent(f"refused: {answer.error['message']}")
    response = response_of(good(answer))
    given = (response.get("temperature"), response.get("top_p"))
    expect(given == (0.5, 0.9), f"temperature, top_p: {given}")


@JSON_ANSWERS.check("text_format", sources.RESPONSE)
async def _text_format(talk: Talk) -> None:
    """A response to a plain request says that its text has the format `text`."""
    response = await talk.once(said)
    expect((response.get("text") or {}).get("format") == {"type": "text"}, f"text is {response.get('text')!r}")


@JSON_ANSWERS.check("nulls", sources.PARAMS_TYPE)
async def _nulls(talk: Talk) -> None:
    """Optional fields may be null: clients send them all."""
    names = ("previous_response_id", "instructions", "temperature", "top_p", "metadata", "reasoning", "store")
    others = ("include", "parallel_tool_calls", "stream", "truncation", "max_tool_calls", "background")
    await talk.create(input=HELLO, **dict.fromkeys((*names, *others)))


@JSON_ANSWERS.check("roles", sources.EASY_INPUT_TYPE)
async def _roles(talk: Talk) -> None:
    """Input messages of `system`, `developer`, `user` and `assistant` are taken, with or without `type`."""
    items = [
        {"role": "system", "content": "Be brief."},
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be polite."}]},
        user([{"type": "input_text", "text": "Hi"}]),
        {"role": "assistant", "content": "Hello!"},
        user(HELLO),
    ]
    finished(await talk.create(input=items))


@JSON_ANSWERS.check("client_metadata", sources.CODEX)
async def _client_metadata(talk: Talk) -> None:
    """The fields with which coding agents describe themselves do not get a request refused."""
    finished(await talk.create(input=HELLO, client_metadata={"session_id": "s"}, prompt_cache_key="k", store=False))


@JSON_ANSWERS.check("logprobs", sources.PARAMS_TYPE)
async def _logprobs(talk: Talk) -> None:
    """With `include: ["message.output_text.logprobs"]` and `top_logprobs` the parts of a message have `logprobs`."""
    asked = {"input": HELLO, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    answer = await talk.ask("POST", "/responses", talk.body(asked))
    if answer.status == 400:
        raise Absent(f"refused: {answer.error['message']}")
    message = items_of(finished(response_of(good(answer))), "message")[0]
    found = message["content"][0].get("logprobs")
    expect(found, "the text has no logprobs")
    for entry in found:
        known = isinstance(entry["token"], str) and isinstance(entry["logprob"], int | float)
        expect(known and isinstance(entry["top_logprobs"], list), f"{entry}")


@JSON_ANSWERS.check("unicode", sources.CREATE)
async def _unicode(talk: Talk) -> None:
    """Text of all scripts, emoji and control characters are taken as input."""
    finished(await talk.create(input="Здравствуй 你好 👩‍👩‍👧 \u202e \u0000\u0007 ok?"))


@JSON_ANSWERS.check("request_id", sources.DEBUGGING)
async def _request_id(talk: Talk) -> None:
    """Every answer has a header `x-request-id`, and each another one."""
    answers = [await talk.ask("POST", "/responses", talk.body({"input": HELLO})) for _ in range(2)]
    ids = [answer.headers.get("x-request-id") for answer in answers]
    expect(all(ids) and ids[0] != ids[1], f"x-request-id: {ids}")


@JSON_ANSWERS.check("echo_keys", sources.RESPONSE)
async def _echo_keys(talk: Talk) -> None:
    """A response repeats `safety_identifier`, `prompt_cache_key` and `max_tool_calls`."""
    asked = {"safety_identifier": "somebody", "prompt_cache_key": "conformance", "max_tool_calls": 3}
    response = await talk.create(input=HELLO, **asked)
    given = {name: response.get(name) for name in asked}
    expect(given == asked, f"{given}")


@JSON_ANSWERS.check("tier", sources.RESPONSE)
async def _tier(talk: Talk) -> None:
    """A response to `service_tier: auto` says which tier it had."""
    response = await talk.create(input=HELLO, service_tier="auto")
    tier = response.get("service_tier")
    expect(isinstance(tier, str) and tier != "auto", f"service_tier is {tier!r}")


@JSON_ANSWERS.check("summary", sources.REASONING)
async def _summary(talk: Talk) -> None:
    """With `reasoning.summary: auto` what the model reasoned has a summary, unless there was too little of it."""
    response = finished(await talk.create(input=HELLO, reasoning={"summary": "auto"}))
    for item in items_of(response, "reasoning"):
        for part in item["summary"]:
            expect(part["type"] == "summary_text" and isinstance(part["text"], str), f"{part}")
    told = response.get("reasoning") or {}
    expect(told.get("summary") in ("auto", "concise", "detailed"), f"reasoning is {told}")


@JSON_ANSWERS.check("prompts", sources.CREATE)
async def _prompts(talk: Talk) -> None:
    """A stored prompt that nobody has stored is refused, and not left out."""
    answer = await talk.ask("POST", "/responses", talk.body({"input": HELLO, "prompt": {"id": "pmpt_nobody"}}))
    expect(answer.status in (400, 404), f"answered {answer.status}: {answer.told[:300]}")
    expect(answer.error["message"], "the error has no message")


@JSON_ANSWERS.check("compaction", sources.CREATE)
async def _compaction(talk: Talk) -> None:
    """`context_management` with a threshold of compaction is taken."""
    asked = {"context_management": [{"type": "compaction", "compact_threshold": 100_000}], "store": False}
    finished(await talk.create(input=HELLO, **asked))
