"""Output with a form: calls of the client's tools, which are forced, and answers that have to fit a schema."""

import json
import re
from typing import Any

from responses_app.extensions.conformance import sources
from responses_app.extensions.conformance.checks import CheckGroup
from responses_app.extensions.conformance.facts import (
    ASK_SURE,
    ASK_TIME,
    ASK_WEATHER,
    CLOCK,
    FORCED,
    HELLO,
    NO_CALL,
    SURE_SCHEMA,
    WEATHER,
    WEATHER_SCHEMA,
    call_of,
    called,
    misfit,
)
from responses_app.extensions.conformance.shapes import (
    CUSTOM_CALL,
    FUNCTION_CALL,
    PATCH_CALL,
    Absent,
    Json,
    expect,
    finished,
    items_of,
    require,
    response_of,
    text_of,
)
from responses_app.extensions.conformance.talk import Talk, good

TOOLS = CheckGroup("tools", "Responses: tools")
RUN: Json = {"type": "custom", "name": "run", "description": "Run a command of the shell."}
NAMESPACE: Json = {
    "type": "namespace",
    "name": "weather",
    "description": "The weather.",
    "tools": [{**WEATHER, "strict": False}],
}
# As Codex declares it where it lets nothing be fetched.
WEB_SEARCH: Json = {"type": "web_search", "external_web_access": False}
SHELL: Json = {"type": "shell", "environment": {"type": "local"}}
MANY = 128
ASK_PATCH = "Create the file a.txt with the line hello. Use apply_patch."
ASK_SHELL = "List the files of this folder. Use shell."
ASK_PING = "Ping the server. Use ping."
LIST_FILES = "List the files, all of them. Use run."
ASK_NAMESPACE = "What is the weather in London for 2 days? Use weather."


async def _called(talk: Talk, kind: str = "function_call", *, text: str = ASK_WEATHER, **fields: Any) -> Json:
    """Return the first call of a response to which a call was forced."""
    return call_of(finished(await talk.create(input=text, **fields)), kind)


@TOOLS.check("declared", sources.FUNCTIONS)
async def _declared(talk: Talk) -> None:
    """A request that declares a function is answered."""
    await talk.create(input=HELLO, tools=[WEATHER])


@TOOLS.check("forced", sources.FUNCTIONS)
async def _forced(talk: Talk) -> None:
    """`tool_choice` with a function has it called: an item `function_call` with `call_id`, `name`, `arguments`."""
    call = require(call_of(await talk.once(called)), FUNCTION_CALL, "the call")
    expect(call.get("status") == "completed" and call.get("id"), f"id, status: {call}")


@TOOLS.check("arguments", sources.FUNCTIONS, pain="malformed-calls")
async def _arguments(talk: Talk) -> None:
    """A call has the name that was declared, and nothing else in it, and arguments that fit its strict schema."""
    for call in items_of(await talk.once(called), "function_call"):
        expect(call["name"] == "get_weather", f"the name is {call['name']!r}")
        problem = misfit(call["arguments"], WEATHER_SCHEMA)
        expect(not problem, problem)


@TOOLS.check("required", sources.FUNCTIONS)
async def _required(talk: Talk) -> None:
    """With `tool_choice: required` some function is called."""
    call = await _called(talk, tools=[WEATHER, CLOCK], tool_choice="required")
    expect(call["name"] in ("get_weather", "get_time"), f"the name is {call['name']!r}")


@TOOLS.check("none", sources.FUNCTIONS)
async def _none(talk: Talk) -> None:
    """With `tool_choice: none` nothing is called."""
    response = finished(await talk.create(input=NO_CALL, tools=[WEATHER], tool_choice="none"))
    kinds = [item["type"] for item in response["output"]]
    expect("function_call" not in kinds, f"the output has {kinds}")


@TOOLS.check("allowed", sources.FUNCTIONS)
async def _allowed(talk: Talk) -> None:
    """With `allowed_tools` only those are called that it names."""
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_time"}]}
    call = await _called(talk, text=f"Use get_weather first. {ASK_TIME}", tools=[WEATHER, CLOCK], tool_choice=allowed)
    expect(call["name"] == "get_time", f"the name is {call['name']!r}")


@TOOLS.check("one_at_a_time", sources.FUNCTIONS)
async def _one_at_a_time(talk: Talk) -> None:
    """With `parallel_tool_calls: false` there is one call at most."""
    asked = {"tools": [WEATHER, CLOCK], "tool_choice": "required", "parallel_tool_calls": False}
    response = finished(await talk.create(input=f"{ASK_WEATHER} And what time is it there? Use get_time.", **asked))
    found = items_of(response, "function_call")
    expect(len(found) == 1, f"there are {len(found)} calls")


@TOOLS.check("undeclared", sources.FUNCTIONS)
async def _undeclared(talk: Talk) -> None:
    """`tool_choice` with a function that is not declared is a 400."""
    choice = {"type": "function", "name": "nobody"}
    error = await talk.refused(talk.body({"input": HELLO, "tools": [WEATHER], "tool_choice": choice}))
    expect(error["message"], "the error has no message")


@TOOLS.check("no_strict", sources.FUNCTIONS)
async def _no_strict(talk: Talk) -> None:
    """A function without `strict`, `description` and `parameters` can be called."""
    choice = {"type": "function", "name": "ping"}
    call = await _called(talk, text=ASK_PING, tools=[{"type": "function", "name": "ping"}], tool_choice=choice)
    expect(isinstance(json.loads(call["arguments"] or "{}"), dict), f"the arguments are {call['arguments']!r}")


@TOOLS.check("bad_schema", sources.FUNCTIONS)
async def _bad_schema(talk: Talk) -> None:
    """`parameters` that are no schema are a 400."""
    tool = {**WEATHER, "parameters": {"type": "nonsense"}}
    error = await talk.refused(talk.body({"input": HELLO, "tools": [tool]}))
    expect(error["message"], "the error has no message")


@TOOLS.check("many", sources.FUNCTIONS)
async def _many(talk: Talk) -> None:
    """128 functions can be declared."""
    tools = [{**WEATHER, "name": f"get_weather_{number}"} for number in range(MANY)]
    response = await talk.create(input=HELLO, tools=tools, tool_choice="none")
    expect(len(response["tools"]) == MANY, f"the response has {len(response['tools'])} tools")


@TOOLS.check("custom", sources.CUSTOM_CALL_TYPE, pain="other-tools")
async def _custom(talk: Talk) -> None:
    """A custom tool can be forced: an item `custom_tool_call` with a text as `input`."""
    choice = {"type": "custom", "name": "run"}
    call = await _called(talk, "custom_tool_call", text=LIST_FILES, tools=[RUN], tool_choice=choice)
    require(call, CUSTOM_CALL, "the call")
    expect(call["name"] == "run", f"the name is {call['name']!r}")


@TOOLS.check("grammar", sources.FUNCTIONS, pain="other-tools")
async def _grammar(talk: Talk) -> None:
    """The input of a custom tool with a grammar matches it."""
    choice = {"type": "custom", "name": "run"}
    pattern = "(ls|pwd) -[a-c]"
    tool = {**RUN, "format": {"type": "grammar", "syntax": "regex", "definition": pattern}}
    call = await _called(talk, "custom_tool_call", text=LIST_FILES, tools=[tool], tool_choice=choice)
    expect(re.fullmatch(pattern, call["input"]), f"the input is {call['input']!r}")


@TOOLS.check("namespace", sources.NAMESPACE_TYPE, pain="namespaces")
async def _namespace(talk: Talk) -> None:
    """A function in a `namespace` is called by its own name, and its call has the `namespace`."""
    call = await _called(talk, text=ASK_NAMESPACE, tools=[NAMESPACE], tool_choice="required")
    given = (call.get("namespace"), call["name"])
    expect(given == ("weather", "get_weather"), f"namespace, name: {given}")


@TOOLS.check("apply_patch", sources.APPLY_PATCH, pain="apply-patch")
async def _apply_patch(talk: Talk) -> None:
    """The tool `apply_patch` can be forced: an item `apply_patch_call` with an operation on a file."""
    asked = {"tools": [{"type": "apply_patch"}], "tool_choice": {"type": "apply_patch"}}
    call = call_of(finished(await talk.create(input=ASK_PATCH, **asked)), "apply_patch_call")
    operation = require(call, PATCH_CALL, "the call")["operation"]
    expect(operation["type"] in ("create_file", "update_file", "delete_file"), f"the operation is {operation}")
    expect(isinstance(operation["path"], str), f"the operation is {operation}")


@TOOLS.check("shell", sources.SHELL, pain="other-tools")
async def _shell(talk: Talk) -> None:
    """The tool `shell` of the client can be forced: an item `shell_call` with commands."""
    call = call_of(
        finished(await talk.create(input=ASK_SHELL, tools=[SHELL], tool_choice={"type": "shell"})),
        "shell_call",
    )
    expect(isinstance(call["action"]["commands"], list), f"the action is {call['action']}")


@TOOLS.check("others_declared", sources.TOOL_TYPE, pain="other-tools")
async def _others_declared(talk: Talk) -> None:
    """Tools that are not functions can be declared beside functions."""
    for tool in (RUN, NAMESPACE, WEB_SEARCH, {"type": "local_shell"}, SHELL, {"type": "apply_patch"}):
        response = await talk.create(input=HELLO, tools=[WEATHER, tool])
        expect(response["status"] in ("completed", "incomplete"), f"with {tool['type']}: {response.get('error')}")


@TOOLS.check("of_codex", sources.CODEX, pain="other-tools")
async def _of_codex(talk: Talk) -> None:
    """What Codex declares in one request is taken: functions, a namespace, a custom tool and a web search."""
    asked = {
        "tools": [{**WEATHER, "strict": False}, NAMESPACE, {**RUN, "name": "exec"}, WEB_SEARCH],
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "client_metadata": {"turn_id": "1"},
        "prompt_cache_key": "conformance",
        "store": False,
    }
    events = await talk.events(
        input=[{"type": "message", "role": "user", "content": [{"type": "input_text", "text": HELLO}]}], **asked
    )
    status = events[-1]["response"]["status"]
    expect(status in ("completed", "incomplete"), f"the status is {status!r}")


@TOOLS.check("call_ids", sources.CALL_TYPE)
async def _call_ids(talk: Talk) -> None:
    """Two calls have different `call_id`s."""
    one = call_of(await talk.once(called))
    other = await _called(talk, tools=[WEATHER], tool_choice=FORCED)
    expect(one["call_id"] != other["call_id"], f"both calls have {one['call_id']!r}")


async def _hosted(talk: Talk, tool: Json, kind: str) -> None:
    """Have a tool of the server called, where it has it."""
    body = talk.body({"input": f"Use {tool['type']}: what is 2 + 2?", "tools": [tool], "tool_choice": "required"})
    answer = await talk.there("POST", "/responses", body)
    if answer.status == 400:
        raise Absent(f"refused: {answer.error['message']}")
    response = finished(response_of(good(answer)))
    if tool["type"] not in [each["type"] for each in response["tools"]]:
        raise Absent("the response does not list the tool: it was left out")
    call_of(response, kind)


@TOOLS.check("code_interpreter", sources.TOOL_TYPE)
async def _code_interpreter(talk: Talk) -> None:
    """`code_interpreter` is run by the server: an item `code_interpreter_call`."""
    await _hosted(talk, {"type": "code_interpreter", "container": {"type": "auto"}}, "code_interpreter_call")


@TOOLS.check("web_search", sources.TOOL_TYPE)
async def _web_search(talk: Talk) -> None:
    """`web_search` is run by the server: an item `web_search_call`."""
    await _hosted(talk, {"type": "web_search"}, "web_search_call")


@TOOLS.check("image_generation", sources.TOOL_TYPE)
async def _image_generation(talk: Talk) -> None:
    """`image_generation` is run by the server: an item `image_generation_call`."""
    await _hosted(talk, {"type": "image_generation"}, "image_generation_call")


STRUCTURED = CheckGroup("structured", "Responses: structured output")
SURE: Json = {"format": {"type": "json_schema", "name": "sure", "schema": SURE_SCHEMA, "strict": True}}
ASK_NESTED = "List one thing, in JSON."
NESTED: Json = {
    "type": "object",
    "properties": {
        "items": {"type": "array", "items": {"$ref": "#/$defs/item"}, "minItems": 1, "maxItems": 3},
        "kind": {"anyOf": [{"type": "null"}, {"type": "string", "enum": ["a", "b"]}]},
    },
    "required": ["items", "kind"],
    "additionalProperties": False,
    "$defs": {
        "item": {
            "type": "object",
            "properties": {"size": {"type": "integer", "enum": [1, 2]}},
            "required": ["size"],
            "additionalProperties": False,
        }
    },
}


def _fits(text: str, schema: Json) -> None:
    problem = misfit(text, schema)
    expect(not problem, problem)


@STRUCTURED.check("taken", sources.STRUCTURED)
async def _taken(talk: Talk) -> None:
    """A request with `text.format` of type `json_schema` is answered."""
    await talk.create(input=ASK_SURE, text=SURE)


@STRUCTURED.check("schema", sources.STRUCTURED)
async def _schema(talk: Talk) -> None:
    """With `text.format` of type `json_schema` the answer is JSON that fits the schema."""
    _fits(text_of(finished(await talk.create(input=ASK_SURE, text=SURE))), SURE_SCHEMA)


@STRUCTURED.check("in_stream", sources.STRUCTURED)
async def _in_stream(talk: Talk) -> None:
    """The same in a stream."""
    events = await talk.events(input=ASK_SURE, text=SURE)
    finished(events[-1]["response"])
    _fits("".join(event["delta"] for event in events if event["type"] == "response.output_text.delta"), SURE_SCHEMA)


@STRUCTURED.check("nested", sources.STRUCTURED)
async def _nested(talk: Talk) -> None:
    """Schemas may have arrays, `$defs`, `anyOf`, `enum` and null."""
    shape = {"format": {"type": "json_schema", "name": "nested", "schema": NESTED, "strict": True}}
    _fits(text_of(finished(await talk.create(input=ASK_NESTED, text=shape))), NESTED)


@STRUCTURED.check("object", sources.STRUCTURED)
async def _object(talk: Talk) -> None:
    """With `json_object` the answer is a JSON object."""
    response = finished(await talk.create(input=ASK_SURE, text={"format": {"type": "json_object"}}))
    said = text_of(response)
    expect(isinstance(json.loads(said), dict), f"the answer is {said[:200]}")


@STRUCTURED.check("echo", sources.RESPONSE)
async def _echo(talk: Talk) -> None:
    """A response repeats the format with its name and its schema."""
    told = (await talk.create(input=ASK_SURE, text=SURE))["text"]["format"]
    given = {name: told.get(name) for name in SURE["format"]}
    expect(given == SURE["format"], f"the format is {told}")


@STRUCTURED.check("with_tools", sources.STRUCTURED)
async def _with_tools(talk: Talk) -> None:
    """A schema holds also where tools are declared."""
    asked = {"text": SURE, "tools": [WEATHER], "tool_choice": "none"}
    _fits(text_of(finished(await talk.create(input=f"{ASK_WEATHER} {ASK_SURE}", **asked))), SURE_SCHEMA)


@STRUCTURED.check("bad_schema", sources.STRUCTURED)
async def _bad_text_schema(talk: Talk) -> None:
    """A schema that is none is a 400."""
    shape = {"format": {"type": "json_schema", "name": "bad", "schema": {"type": "nonsense"}, "strict": True}}
    error = await talk.refused(talk.body({"input": HELLO, "text": shape}))
    expect(error["message"], "the error has no message")


@STRUCTURED.check("no_name", sources.STRUCTURED)
async def _no_name(talk: Talk) -> None:
    """A schema without a name is a 400."""
    shape = {"format": {"type": "json_schema", "schema": SURE_SCHEMA}}
    error = await talk.refused(talk.body({"input": HELLO, "text": shape}))
    expect(error["message"], "the error has no message")
