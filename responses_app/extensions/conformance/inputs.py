"""Requests: items of a client that keeps the conversation itself, and requests that have to be refused."""

import asyncio
from typing import Any

from responses_app.extensions.conformance import sources
from responses_app.extensions.conformance.checks import CheckGroup
from responses_app.extensions.conformance.facts import (
    ASK_WEATHER,
    FEW_TOKENS,
    HARMONY_TEXT,
    HELLO,
    PIXEL,
    TOO_LONG,
    WEATHER,
    called,
    output_of,
    said,
    user,
)
from responses_app.extensions.conformance.shapes import Absent, Json, RuleBroken, Skipped, expect, finished, items_of
from responses_app.extensions.conformance.talk import Talk, good

ITEMS = CheckGroup("items", "Responses: items of input")
CALL = {
    "type": "function_call",
    "call_id": "call_a",
    "name": "get_weather",
    "arguments": '{"city": "Paris", "days": 1}',
}
OUTPUT = {"type": "function_call_output", "call_id": "call_a", "output": "rain"}
PATCH = {"type": "update_file", "path": "a.txt", "diff": "@@\n-a\n+b\n"}


async def _taken(talk: Talk, *items: Json, **fields: Any) -> Json:
    """Have items read, behind a message of the user and before another one."""
    return finished(await talk.create(input=[user("Hi"), *items, user(HELLO)], store=False, **fields))


async def _survived(talk: Talk, items: list[Json], **fields: Any) -> None:
    """Have items read that a server may refuse with a 400: it must not break over them."""
    answer = await talk.there("POST", "/responses", talk.body({"input": items, "store": False, **fields}))
    if answer.status == 400:
        expect(answer.error["message"], "the error has no message")
        return
    status = good(answer)["status"]
    expect(status in ("completed", "incomplete"), f"the status is {status!r}: {answer.told[:300]}")


@ITEMS.check("messages", sources.CREATE)
async def _messages(talk: Talk) -> None:
    """A list of messages is taken as input."""
    await talk.create(input=[user("Hi"), user(HELLO)], store=False)


@ITEMS.check("replayed", sources.STATE)
async def _replayed(talk: Talk) -> None:
    """Output items are taken as input as they came, with their ids."""
    first = await talk.once(said)
    finished(await talk.create(input=[user(HELLO), *first["output"], user(HELLO)], store=False))


@ITEMS.check("replayed_call", sources.FUNCTIONS, pain="second-turn")
async def _replayed_call(talk: Talk) -> None:
    """A turn with a call is taken as input as it came, with the call's output."""
    first = await talk.once(called)
    outputs = [output_of(call) for call in first["output"] if call["type"] == "function_call"]
    items = [user(ASK_WEATHER), *first["output"], *outputs]
    finished(await talk.create(input=items, tools=[WEATHER], tool_choice="none", store=False))


@ITEMS.check("foreign_ids", sources.CODEX, pain="second-turn")
async def _foreign_ids(talk: Talk) -> None:
    """Items may have ids that the server has not made, as coding agents send them."""
    await _taken(
        talk,
        {**CALL, "id": "fc_11111111-2222-4333-8444-555555555555"},
        {**OUTPUT, "id": "fco_11111111-2222-4333-8444-555555555555"},
        {"type": "message", "id": "msg_foreign", "role": "developer", "content": "Be brief."},
    )


@ITEMS.check("parts", sources.INPUT_TYPE)
async def _parts(talk: Talk) -> None:
    """A message of the assistant is taken with parts `output_text` and `refusal`, with and without annotations."""
    for part in (
        {"type": "output_text", "text": "Hello!", "annotations": []},
        {"type": "output_text", "text": "Hello!"},
        {"type": "refusal", "refusal": "No."},
    ):
        await _taken(talk, {"type": "message", "role": "assistant", "content": [part]})


@ITEMS.check("phase", sources.INPUT_TYPE)
async def _phase(talk: Talk) -> None:
    """A message of the assistant may say its `phase`: `commentary` or `final_answer`."""
    for phase in ("commentary", "final_answer"):
        part = {"type": "output_text", "text": "Hello!", "annotations": []}
        await _taken(talk, {"type": "message", "role": "assistant", "phase": phase, "content": [part]})


@ITEMS.check("calls", sources.INPUT_TYPE, pain="second-turn")
async def _calls(talk: Talk) -> None:
    """A call and its output are taken without ids and status, and without the tool being declared again."""
    await _taken(talk, CALL, OUTPUT)


@ITEMS.check("output_parts", sources.INPUT_TYPE)
async def _output_parts(talk: Talk) -> None:
    """The output of a call may be a list of parts `input_text`."""
    await _taken(talk, CALL, {**OUTPUT, "output": [{"type": "input_text", "text": "rain"}]})


@ITEMS.check("custom_calls", sources.INPUT_TYPE, pain="other-tools")
async def _custom_calls(talk: Talk) -> None:
    """A `custom_tool_call` and its output are taken."""
    call = {"type": "custom_tool_call", "call_id": "call_c", "name": "run", "input": "ls"}
    await _taken(talk, call, {"type": "custom_tool_call_output", "call_id": "call_c", "output": "a.txt"})


@ITEMS.check("shell_calls", sources.INPUT_TYPE, pain="other-tools")
async def _shell_calls(talk: Talk) -> None:
    """A `shell_call` and its output are taken."""
    call = {"type": "shell_call", "call_id": "call_s", "action": {"commands": ["ls"]}, "status": "completed"}
    outcome = {"stdout": "a.txt", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
    await _taken(talk, call, {"type": "shell_call_output", "call_id": "call_s", "output": [outcome]})


@ITEMS.check("patch_calls", sources.PATCH_CALL_TYPE, pain="apply-patch")
async def _patch_calls(talk: Talk) -> None:
    """An `apply_patch_call` and its output are taken."""
    call = {"type": "apply_patch_call", "call_id": "call_p", "operation": PATCH, "status": "completed"}
    done = {"type": "apply_patch_call_output", "call_id": "call_p", "status": "completed", "output": "done"}
    await _taken(talk, call, done)


@ITEMS.check("namespaced_calls", sources.NAMESPACE_TYPE, pain="namespaces")
async def _namespaced_calls(talk: Talk) -> None:
    """A call with a `namespace` and its output are taken."""
    await _taken(talk, {**CALL, "namespace": "weather"}, OUTPUT)


@ITEMS.check("encrypted", sources.REASONING)
async def _encrypted(talk: Talk) -> None:
    """With `include: ["reasoning.encrypted_content"]` reasoning has it, and is taken back with `store: false`."""
    first = finished(await talk.create(input=HELLO, store=False, include=["reasoning.encrypted_content"]))
    found = items_of(first, "reasoning")
    if not found:
        raise Skipped("the answer has no reasoning")
    expect(all(item.get("encrypted_content") for item in found), "a reasoning item has no encrypted_content")
    await _taken(talk, *first["output"])


@ITEMS.check("reasoning_text", sources.REASONING_TYPE)
async def _reasoning_text(talk: Talk) -> None:
    """A reasoning item with `content`, which an open model shows, is taken back before a call."""
    thought = {"type": "reasoning_text", "text": "I need the weather."}
    await _taken(talk, {"type": "reasoning", "id": "rs_1", "summary": [], "content": [thought]}, CALL, OUTPUT)


@ITEMS.check("references", sources.INPUT_TYPE)
async def _references(talk: Talk) -> None:
    """An `item_reference` stands for an item of a stored response."""
    first = await talk.once(said)
    message = items_of(first, "message")[0]
    finished(await talk.create(input=[user(HELLO), {"type": "item_reference", "id": message["id"]}, user(HELLO)]))


@ITEMS.check("images", sources.CREATE)
async def _images(talk: Talk) -> None:
    """An image is taken, or refused with a 400 that says so."""
    content = [{"type": "input_image", "image_url": PIXEL, "detail": "low"}, {"type": "input_text", "text": HELLO}]
    await _survived(talk, [user(content)])


@ITEMS.check("files", sources.CREATE)
async def _files(talk: Talk) -> None:
    """A text file as a data URL is taken, or refused with a 400 that says so."""
    data = "data:text/plain;base64,SGVsbG8="
    content = [{"type": "input_file", "filename": "a.txt", "file_data": data}, {"type": "input_text", "text": HELLO}]
    await _survived(talk, [user(content)])


@ITEMS.check("harmony_text", sources.HARMONY, pain="harmony-parser")
async def _harmony_text(talk: Talk) -> None:
    """Text that looks like the format of gpt-oss is text, wherever it stands: no answer is a 500."""
    await _survived(talk, [user(f"{HELLO} {HARMONY_TEXT}")])
    await _survived(talk, [user("Hi"), {"role": "assistant", "content": HARMONY_TEXT}, user(HELLO)])
    await _survived(talk, [user("Hi"), user(HELLO)], instructions=HARMONY_TEXT)


@ITEMS.check("harmony_output", sources.HARMONY, pain="harmony-parser")
async def _harmony_output(talk: Talk) -> None:
    """The output of a call that looks like that format is text, too."""
    await _survived(talk, [user("Hi"), CALL, {**OUTPUT, "output": HARMONY_TEXT}, user(HELLO)])


@ITEMS.check("header_tokens", sources.HARMONY, pain="header-tokens")
async def _header_tokens(talk: Talk) -> None:
    """A call whose name a model garbled is taken back, or refused with a 400: no answer is a 500."""
    for name in ("get_weather<|channel|>commentary", "functions.get_weather", "assistant<|constrain|>json", "a to=b c"):
        await _survived(talk, [user("Hi"), {**CALL, "name": name}, OUTPUT, user(HELLO)])


@ITEMS.check("garbled_arguments", sources.FUNCTIONS, pain="malformed-calls")
async def _garbled_arguments(talk: Talk) -> None:
    """A call whose arguments are no JSON is taken back, or refused with a 400: no answer is a 500."""
    for arguments in ('{"city": "Par', "", "null", '{"a": 1}{"b": 2}'):
        await _survived(talk, [user("Hi"), {**CALL, "arguments": arguments}, OUTPUT, user(HELLO)])


@ITEMS.check("unknown", sources.INPUT_TYPE)
async def _unknown(talk: Talk) -> None:
    """An item of an unknown type is a 400."""
    answer = await talk.there("POST", "/responses", talk.body({"input": [{"type": "no_such_item", "text": "x"}]}))
    if answer.status not in (400, 422):
        raise RuleBroken(f"answered {answer.status}: {answer.told[:300]}")
    expect(answer.error["message"], "the error has no message")


@ITEMS.check("empty", sources.CREATE)
async def _empty(talk: Talk) -> None:
    """An empty message is taken, or refused with a 400."""
    answer = await talk.there("POST", "/responses", talk.body({"input": [user("")], "max_output_tokens": FEW_TOKENS}))
    if answer.status == 400:
        raise Absent(f"refused: {answer.error['message']}")
    good(answer)


ERRORS = CheckGroup("errors", "Responses: errors")
DEEP = 5000  # arrays in arrays


@ERRORS.check("refused", sources.ERRORS)
async def _wrong(talk: Talk) -> None:
    """A request whose `input` is a number is refused with a 400."""
    answer = await talk.there("POST", "/responses", {"model": talk.model, "input": 7})
    expect(answer.status in (400, 422), f"answered {answer.status}: {answer.told[:300]}")


@ERRORS.check("shape", sources.ERROR_TYPE)
async def _shape(talk: Talk) -> None:
    """An error is `{"error": {"message", "type", "param", "code"}}`, as JSON, with a status of 400 and more."""
    answer = await talk.there("POST", "/responses", {"model": talk.model, "input": 7})
    missing = [name for name in ("message", "type", "param", "code") if name not in answer.error]
    expect(not missing, f"the error lacks {missing}: {answer.error}")
    expect(answer.kind == "application/json", f"the content type is {answer.kind!r}")


async def _refused(talk: Talk, param: str = "", **fields: object) -> Json:
    error = await talk.refused({"model": talk.model, "input": HELLO, **fields})
    where = str(error.get("param") or "") + error["message"]
    expect(param in where, f"the error does not name {param!r}: {error}")
    return error


@ERRORS.check("no_json", sources.ERRORS)
async def _no_json(talk: Talk) -> None:
    """A body that is no JSON is a 400."""
    for body in (b"{", b"", b"\xff\xfe", b"[1]", b'"text"'):
        await talk.refused(body)


@ERRORS.check("model", sources.ERRORS)
async def _model(talk: Talk) -> None:
    """A model that does not exist is a 404 or 400 that names it."""
    error = await talk.refused({"model": "no-such-model", "input": HELLO}, statuses=(400, 404))
    expect("no-such-model" in error["message"], f"the error does not name it: {error}")


@ERRORS.check("no_input", sources.CREATE)
async def _no_input(talk: Talk) -> None:
    """A request without anything to answer is a 400."""
    await talk.refused({"model": talk.model})


@ERRORS.check("type", sources.CREATE)
async def _type(talk: Talk) -> None:
    """A field of another type is a 400 that names it."""
    await _refused(talk, "temperature", temperature="hot")
    await _refused(talk, "tools", tools="all")


@ERRORS.check("range", sources.CREATE)
async def _range(talk: Talk) -> None:
    """A number outside of its range is a 400 that names its field."""
    await _refused(talk, "temperature", temperature=5)
    await _refused(talk, "top_p", top_p=2)
    await _refused(talk, "tokens", max_output_tokens=0)  # which gateways call by another name


@ERRORS.check("include", sources.CREATE)
async def _include(talk: Talk) -> None:
    """A value of `include` that is none is a 400."""
    await _refused(talk, "include", include=["no.such.thing"])


@ERRORS.check("metadata", sources.CREATE)
async def _metadata(talk: Talk) -> None:
    """More than 16 pairs of metadata are a 400."""
    await _refused(talk, "metadata", metadata={f"key{number}": "value" for number in range(17)})


@ERRORS.check("truncation", sources.CREATE)
async def _truncation(talk: Talk) -> None:
    """A value that an enumeration does not have is a 400 that names its field."""
    await _refused(talk, "truncation", truncation="sometimes")


@ERRORS.check("part", sources.INPUT_TYPE)
async def _part(talk: Talk) -> None:
    """A part of an unknown type is a 400 that names where it stands."""
    await _refused(talk, "content", input=[{"role": "user", "content": [{"type": "no_such_part"}]}])


@ERRORS.check("role", sources.EASY_INPUT_TYPE)
async def _role(talk: Talk) -> None:
    """A message of an unknown role is a 400."""
    await _refused(talk, "role", input=[{"role": "nobody", "content": HELLO}])


@ERRORS.check("tool", sources.TOOL_TYPE)
async def _tool(talk: Talk) -> None:
    """A tool of an unknown type is a 400."""
    await _refused(talk, "tools", tools=[{"type": "no_such_tool"}])


@ERRORS.check("too_long", sources.ERRORS)
async def _too_long(talk: Talk) -> None:
    """An input that fits no model is refused with a 4xx and an error."""
    answer = await talk.ask("POST", "/responses", talk.body({"input": "word " * TOO_LONG}))
    expect(400 <= answer.status < 500, f"answered {answer.status}: {answer.told[:300]}")
    expect(answer.error["message"], "the error has no message")


@ERRORS.check("nested", sources.ERRORS)
async def _nested(talk: Talk) -> None:
    """A body that is nested too deeply is a 4xx, and no 500."""
    body = b'{"model": "x", "input": ' + b"[" * DEEP + b"]" * DEEP + b"}"
    answer = await talk.ask("POST", "/responses", body)
    expect(400 <= answer.status < 500, f"answered {answer.status}: {answer.told[:300]}")


@ERRORS.check("surrogate", sources.CREATE)
async def _surrogate(talk: Talk) -> None:
    """Half of a surrogate pair, which cutting a text leaves, is taken or a 400, and no 500."""
    body = b'{"model": "%s", "input": "cut \\ud83d", "max_output_tokens": 64}' % talk.model.encode()
    answer = await talk.ask("POST", "/responses", body)
    if answer.status != 200:
        expect(answer.status in (400, 422) and answer.error, f"answered {answer.status}: {answer.told[:300]}")


@ERRORS.check("method", sources.CREATE)
async def _method(talk: Talk) -> None:
    """A method that a path does not have is a 405 or 404."""
    answer = await talk.ask("PUT", "/responses", {})
    expect(answer.status in (404, 405), f"answered {answer.status}: {answer.told[:300]}")


@ERRORS.check("key", sources.ERRORS)
async def _key(talk: Talk) -> None:
    """A wrong key is a 401 with an error, where the server asks for one."""
    wrong = {"authorization": "Bearer sk-conformance-is-no-key"}
    answer = await talk.ask("POST", "/responses", talk.body({"input": HELLO}), headers=wrong)
    if answer.status == 200:
        raise Skipped("the server asks for no key")
    expect(answer.status == 401, f"answered {answer.status}: {answer.told[:300]}")
    expect(answer.error["message"], "the error has no message")


@ERRORS.check("beside_others", sources.ERRORS)
async def _beside_others(talk: Talk) -> None:
    """Requests that are refused do not disturb those beside them."""
    bad = (talk.ask("POST", "/responses", {"model": talk.model, "input": 7}) for _ in range(4))
    made, answers = await asyncio.gather(talk.create(input=HELLO), asyncio.gather(*bad))
    if made["status"] not in ("completed", "incomplete"):
        raise RuleBroken(f"the status is {made['status']!r}")
    expect({answer.status for answer in answers} <= {400, 422}, f"{[answer.status for answer in answers]}")
