"""Requests that have to be refused, and how."""

import asyncio

from responses_app.command_line.conformance.asking import sources
from responses_app.command_line.conformance.asking.checks import Group
from responses_app.command_line.conformance.asking.facts import HELLO, TOO_LONG
from responses_app.command_line.conformance.asking.shapes import Json
from responses_app.command_line.conformance.asking.talk import Talk
from responses_app.command_line.conformance.asking.verdicts import Failed, Skipped, expect

GROUP = Group("errors", "Responses: errors")
DEEP = 5000  # arrays in arrays


@GROUP.check("refused", sources.ERRORS)
async def _wrong(talk: Talk) -> None:
    """A request whose `input` is a number is refused with a 400."""
    answer = await talk.there("POST", "/responses", {"model": talk.model, "input": 7})
    expect(answer.status in (400, 422), f"answered {answer.status}: {answer.told[:300]}")


@GROUP.check("shape", sources.ERROR_TYPE)
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


@GROUP.check("no_json", sources.ERRORS)
async def _no_json(talk: Talk) -> None:
    """A body that is no JSON is a 400."""
    for body in (b"{", b"", b"\xff\xfe", b"[1]", b'"text"'):
        await talk.refused(body)


@GROUP.check("model", sources.ERRORS)
async def _model(talk: Talk) -> None:
    """A model that does not exist is a 404 or 400 that names it."""
    error = await talk.refused({"model": "no-such-model", "input": HELLO}, statuses=(400, 404))
    expect("no-such-model" in error["message"], f"the error does not name it: {error}")


@GROUP.check("no_input", sources.CREATE)
async def _no_input(talk: Talk) -> None:
    """A request without anything to answer is a 400."""
    await talk.refused({"model": talk.model})


@GROUP.check("type", sources.CREATE)
async def _type(talk: Talk) -> None:
    """A field of another type is a 400 that names it."""
    await _refused(talk, "temperature", temperature="hot")
    await _refused(talk, "tools", tools="all")


@GROUP.check("range", sources.CREATE)
async def _range(talk: Talk) -> None:
    """A number outside of its range is a 400 that names its field."""
    await _refused(talk, "temperature", temperature=5)
    await _refused(talk, "top_p", top_p=2)
    await _refused(talk, "tokens", max_output_tokens=0)  # which gateways call by another name


@GROUP.check("include", sources.CREATE)
async def _include(talk: Talk) -> None:
    """A value of `include` that is none is a 400."""
    await _refused(talk, "include", include=["no.such.thing"])


@GROUP.check("metadata", sources.CREATE)
async def _metadata(talk: Talk) -> None:
    """More than 16 pairs of metadata are a 400."""
    await _refused(talk, "metadata", metadata={f"key{number}": "value" for number in range(17)})


@GROUP.check("truncation", sources.CREATE)
async def _truncation(talk: Talk) -> None:
    """A value that an enumeration does not have is a 400 that names its field."""
    await _refused(talk, "truncation", truncation="sometimes")


@GROUP.check("part", sources.INPUT_TYPE)
async def _part(talk: Talk) -> None:
    """A part of an unknown type is a 400 that names where it stands."""
    await _refused(talk, "content", input=[{"role": "user", "content": [{"type": "no_such_part"}]}])


@GROUP.check("role", sources.EASY_INPUT_TYPE)
async def _role(talk: Talk) -> None:
    """A message of an unknown role is a 400."""
    await _refused(talk, "role", input=[{"role": "nobody", "content": HELLO}])


@GROUP.check("tool", sources.TOOL_TYPE)
async def _tool(talk: Talk) -> None:
    """A tool of an unknown type is a 400."""
    await _refused(talk, "tools", tools=[{"type": "no_such_tool"}])


@GROUP.check("too_long", sources.ERRORS)
async def _too_long(talk: Talk) -> None:
    """An input that fits no model is refused with a 4xx and an error."""
    answer = await talk.ask("POST", "/responses", talk.body({"input": "word " * TOO_LONG}))
    expect(400 <= answer.status < 500, f"answered {answer.status}: {answer.told[:300]}")
    expect(answer.error["message"], "the error has no message")


@GROUP.check("nested", sources.ERRORS)
async def _nested(talk: Talk) -> None:
    """A body that is nested too deeply is a 4xx, and no 500."""
    body = b'{"model": "x", "input": ' + b"[" * DEEP + b"]" * DEEP + b"}"
    answer = await talk.ask("POST", "/responses", body)
    expect(400 <= answer.status < 500, f"answered {answer.status}: {answer.told[:300]}")


@GROUP.check("surrogate", sources.CREATE)
async def _surrogate(talk: Talk) -> None:
    """Half of a surrogate pair, which cutting a text leaves, is taken or a 400, and no 500."""
    body = b'{"model": "%s", "input": "cut \\ud83d", "max_output_tokens": 64}' % talk.model.encode()
    answer = await talk.ask("POST", "/responses", body)
    if answer.status != 200:
        expect(answer.status in (400, 422) and answer.error, f"answered {answer.status}: {answer.told[:300]}")


@GROUP.check("method", sources.CREATE)
async def _method(talk: Talk) -> None:
    """A method that a path does not have is a 405 or 404."""
    answer = await talk.ask("PUT", "/responses", {})
    expect(answer.status in (404, 405), f"answered {answer.status}: {answer.told[:300]}")


@GROUP.check("key", sources.ERRORS)
async def _key(talk: Talk) -> None:
    """A wrong key is a 401 with an error, where the server asks for one."""
    wrong = {"authorization": "Bearer sk-conformance-is-no-key"}
    answer = await talk.ask("POST", "/responses", talk.body({"input": HELLO}), headers=wrong)
    if answer.status == 200:
        raise Skipped("the server asks for no key")
    expect(answer.status == 401, f"answered {answer.status}: {answer.told[:300]}")
    expect(answer.error["message"], "the error has no message")


@GROUP.check("beside_others", sources.ERRORS)
async def _beside_others(talk: Talk) -> None:
    """Requests that are refused do not disturb those beside them."""
    bad = (talk.ask("POST", "/responses", {"model": talk.model, "input": 7}) for _ in range(4))
    made, answers = await asyncio.gather(talk.create(input=HELLO), asyncio.gather(*bad))
    if made["status"] not in ("completed", "incomplete"):
        raise Failed(f"the status is {made['status']!r}")
    expect({answer.status for answer in answers} <= {400, 422}, f"{[answer.status for answer in answers]}")
