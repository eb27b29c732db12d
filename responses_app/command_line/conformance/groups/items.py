"""Items of input: what a client that keeps the conversation itself sends back."""

from typing import Any

from responses_app.command_line.conformance.asking import sources
from responses_app.command_line.conformance.asking.checks import Group
from responses_app.command_line.conformance.asking.facts import (
    ASK_WEATHER,
    FEW_TOKENS,
    HARMONY_TEXT,
    HELLO,
    PIXEL,
    WEATHER,
    called,
    output_of,
    said,
    user,
)
from responses_app.command_line.conformance.asking.shapes import Json, finished, items_of
from responses_app.command_line.conformance.asking.talk import Talk, good
from responses_app.command_line.conformance.asking.verdicts import Absent, Failed, Skipped, expect

GROUP = Group("items", "Responses: items of input")
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


@GROUP.check("messages", sources.CREATE)
async def _messages(talk: Talk) -> None:
    """A list of messages is taken as input."""
    await talk.create(input=[user("Hi"), user(HELLO)], store=False)


@GROUP.check("replayed", sources.STATE)
async def _replayed(talk: Talk) -> None:
    """Output items are taken as input as they came, with their ids."""
    first = await talk.once(said)
    finished(await talk.create(input=[user(HELLO), *first["output"], user(HELLO)], store=False))


@GROUP.check("replayed_call", sources.FUNCTIONS, pain="second-turn")
async def _replayed_call(talk: Talk) -> None:
    """A turn with a call is taken as input as it came, with the call's output."""
    first = await talk.once(called)
    outputs = [output_of(call) for call in first["output"] if call["type"] == "function_call"]
    items = [user(ASK_WEATHER), *first["output"], *outputs]
    finished(await talk.create(input=items, tools=[WEATHER], tool_choice="none", store=False))


@GROUP.check("foreign_ids", sources.CODEX, pain="second-turn")
async def _foreign_ids(talk: Talk) -> None:
    """Items may have ids that the server has not made, as coding agents send them."""
    await _taken(
        talk,
        {**CALL, "id": "fc_11111111-2222-4333-8444-555555555555"},
        {**OUTPUT, "id": "fco_11111111-2222-4333-8444-555555555555"},
        {"type": "message", "id": "msg_foreign", "role": "developer", "content": "Be brief."},
    )


@GROUP.check("parts", sources.INPUT_TYPE)
async def _parts(talk: Talk) -> None:
    """A message of the assistant is taken with parts `output_text` and `refusal`, with and without annotations."""
    for part in (
        {"type": "output_text", "text": "Hello!", "annotations": []},
        {"type": "output_text", "text": "Hello!"},
        {"type": "refusal", "refusal": "No."},
    ):
        await _taken(talk, {"type": "message", "role": "assistant", "content": [part]})


@GROUP.check("phase", sources.INPUT_TYPE)
async def _phase(talk: Talk) -> None:
    """A message of the assistant may say its `phase`: `commentary` or `final_answer`."""
    for phase in ("commentary", "final_answer"):
        part = {"type": "output_text", "text": "Hello!", "annotations": []}
        await _taken(talk, {"type": "message", "role": "assistant", "phase": phase, "content": [part]})


@GROUP.check("calls", sources.INPUT_TYPE, pain="second-turn")
async def _calls(talk: Talk) -> None:
    """A call and its output are taken without ids and status, and without the tool being declared again."""
    await _taken(talk, CALL, OUTPUT)


@GROUP.check("output_parts", sources.INPUT_TYPE)
async def _output_parts(talk: Talk) -> None:
    """The output of a call may be a list of parts `input_text`."""
    await _taken(talk, CALL, {**OUTPUT, "output": [{"type": "input_text", "text": "rain"}]})


@GROUP.check("custom_calls", sources.INPUT_TYPE, pain="other-tools")
async def _custom_calls(talk: Talk) -> None:
    """A `custom_tool_call` and its output are taken."""
    call = {"type": "custom_tool_call", "call_id": "call_c", "name": "run", "input": "ls"}
    await _taken(talk, call, {"type": "custom_tool_call_output", "call_id": "call_c", "output": "a.txt"})


@GROUP.check("shell_calls", sources.INPUT_TYPE, pain="other-tools")
async def _shell_calls(talk: Talk) -> None:
    """A `shell_call` and its output are taken."""
    call = {"type": "shell_call", "call_id": "call_s", "action": {"commands": ["ls"]}, "status": "completed"}
    outcome = {"stdout": "a.txt", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
    await _taken(talk, call, {"type": "shell_call_output", "call_id": "call_s", "output": [outcome]})


@GROUP.check("patch_calls", sources.PATCH_CALL_TYPE, pain="apply-patch")
async def _patch_calls(talk: Talk) -> None:
    """An `apply_patch_call` and its output are taken."""
    call = {"type": "apply_patch_call", "call_id": "call_p", "operation": PATCH, "status": "completed"}
    done = {"type": "apply_patch_call_output", "call_id": "call_p", "status": "completed", "output": "done"}
    await _taken(talk, call, done)


@GROUP.check("namespaced_calls", sources.NAMESPACE_TYPE, pain="namespaces")
async def _namespaced_calls(talk: Talk) -> None:
    """A call with a `namespace` and its output are taken."""
    await _taken(talk, {**CALL, "namespace": "weather"}, OUTPUT)


@GROUP.check("encrypted", sources.REASONING)
async def _encrypted(talk: Talk) -> None:
    """With `include: ["reasoning.encrypted_content"]` reasoning has it, and is taken back with `store: false`."""
    first = finished(await talk.create(input=HELLO, store=False, include=["reasoning.encrypted_content"]))
    found = items_of(first, "reasoning")
    if not found:
        raise Skipped("the answer has no reasoning")
    expect(all(item.get("encrypted_content") for item in found), "a reasoning item has no encrypted_content")
    await _taken(talk, *first["output"])


@GROUP.check("reasoning_text", sources.REASONING_TYPE)
async def _reasoning_text(talk: Talk) -> None:
    """A reasoning item with `content`, which an open model shows, is taken back before a call."""
    thought = {"type": "reasoning_text", "text": "I need the weather."}
    await _taken(talk, {"type": "reasoning", "id": "rs_1", "summary": [], "content": [thought]}, CALL, OUTPUT)


@GROUP.check("references", sources.INPUT_TYPE)
async def _references(talk: Talk) -> None:
    """An `item_reference` stands for an item of a stored response."""
    first = await talk.once(said)
    message = items_of(first, "message")[0]
    finished(await talk.create(input=[user(HELLO), {"type": "item_reference", "id": message["id"]}, user(HELLO)]))


@GROUP.check("images", sources.CREATE)
async def _images(talk: Talk) -> None:
    """An image is taken, or refused with a 400 that says so."""
    content = [{"type": "input_image", "image_url": PIXEL, "detail": "low"}, {"type": "input_text", "text": HELLO}]
    await _survived(talk, [user(content)])


@GROUP.check("files", sources.CREATE)
async def _files(talk: Talk) -> None:
    """A text file as a data URL is taken, or refused with a 400 that says so."""
    data = "data:text/plain;base64,SGVsbG8="
    content = [{"type": "input_file", "filename": "a.txt", "file_data": data}, {"type": "input_text", "text": HELLO}]
    await _survived(talk, [user(content)])


@GROUP.check("harmony_text", sources.HARMONY, pain="harmony-parser")
async def _harmony_text(talk: Talk) -> None:
    """Text that looks like the format of gpt-oss is text, wherever it stands: no answer is a 500."""
    await _survived(talk, [user(f"{HELLO} {HARMONY_TEXT}")])
    await _survived(talk, [user("Hi"), {"role": "assistant", "content": HARMONY_TEXT}, user(HELLO)])
    await _survived(talk, [user("Hi"), user(HELLO)], instructions=HARMONY_TEXT)


@GROUP.check("harmony_output", sources.HARMONY, pain="harmony-parser")
async def _harmony_output(talk: Talk) -> None:
    """The output of a call that looks like that format is text, too."""
    await _survived(talk, [user("Hi"), CALL, {**OUTPUT, "output": HARMONY_TEXT}, user(HELLO)])


@GROUP.check("header_tokens", sources.HARMONY, pain="header-tokens")
async def _header_tokens(talk: Talk) -> None:
    """A call whose name a model garbled is taken back, or refused with a 400: no answer is a 500."""
    for name in ("get_weather<|channel|>commentary", "functions.get_weather", "assistant<|constrain|>json", "a to=b c"):
        await _survived(talk, [user("Hi"), {**CALL, "name": name}, OUTPUT, user(HELLO)])


@GROUP.check("garbled_arguments", sources.FUNCTIONS, pain="malformed-calls")
async def _garbled_arguments(talk: Talk) -> None:
    """A call whose arguments are no JSON is taken back, or refused with a 400: no answer is a 500."""
    for arguments in ('{"city": "Par', "", "null", '{"a": 1}{"b": 2}'):
        await _survived(talk, [user("Hi"), {**CALL, "arguments": arguments}, OUTPUT, user(HELLO)])


@GROUP.check("unknown", sources.INPUT_TYPE)
async def _unknown(talk: Talk) -> None:
    """An item of an unknown type is a 400."""
    answer = await talk.there("POST", "/responses", talk.body({"input": [{"type": "no_such_item", "text": "x"}]}))
    if answer.status not in (400, 422):
        raise Failed(f"answered {answer.status}: {answer.told[:300]}")
    expect(answer.error["message"], "the error has no message")


@GROUP.check("empty", sources.CREATE)
async def _empty(talk: Talk) -> None:
    """An empty message is taken, or refused with a 400."""
    answer = await talk.there("POST", "/responses", talk.body({"input": [user("")], "max_output_tokens": FEW_TOKENS}))
    if answer.status == 400:
        raise Absent(f"refused: {answer.error['message']}")
    good(answer)
