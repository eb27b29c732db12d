"""Tools of the client, whose calls are forced."""

import json
import re
from typing import Any

from responses_app.command_line.conformance.asking import sources
from responses_app.command_line.conformance.asking.checks import Group
from responses_app.command_line.conformance.asking.facts import (
    ASK_TIME,
    ASK_WEATHER,
    CLOCK,
    FORCED,
    HELLO,
    NO_CALL,
    WEATHER,
    WEATHER_SCHEMA,
    call_of,
    called,
    misfit,
)
from responses_app.command_line.conformance.asking.shapes import (
    CUSTOM_CALL,
    FUNCTION_CALL,
    PATCH_CALL,
    Json,
    finished,
    items_of,
    require,
    response_of,
)
from responses_app.command_line.conformance.asking.talk import Talk, good
from responses_app.command_line.conformance.asking.verdicts import Absent, expect

GROUP = Group("tools", "Responses: tools")
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


@GROUP.check("declared", sources.FUNCTIONS)
async def _declared(talk: Talk) -> None:
    """A request that declares a function is answered."""
    await talk.create(input=HELLO, tools=[WEATHER])


@GROUP.check("forced", sources.FUNCTIONS)
async def _forced(talk: Talk) -> None:
    """`tool_choice` with a function has it called: an item `function_call` with `call_id`, `name`, `arguments`."""
    call = require(call_of(await talk.once(called)), FUNCTION_CALL, "the call")
    expect(call.get("status") == "completed" and call.get("id"), f"id, status: {call}")


@GROUP.check("arguments", sources.FUNCTIONS, pain="malformed-calls")
async def _arguments(talk: Talk) -> None:
    """A call has the name that was declared, and nothing else in it, and arguments that fit its strict schema."""
    for call in items_of(await talk.once(called), "function_call"):
        expect(call["name"] == "get_weather", f"the name is {call['name']!r}")
        problem = misfit(call["arguments"], WEATHER_SCHEMA)
        expect(not problem, problem)


@GROUP.check("required", sources.FUNCTIONS)
async def _required(talk: Talk) -> None:
    """With `tool_choice: required` some function is called."""
    call = await _called(talk, tools=[WEATHER, CLOCK], tool_choice="required")
    expect(call["name"] in ("get_weather", "get_time"), f"the name is {call['name']!r}")


@GROUP.check("none", sources.FUNCTIONS)
async def _none(talk: Talk) -> None:
    """With `tool_choice: none` nothing is called."""
    response = finished(await talk.create(input=NO_CALL, tools=[WEATHER], tool_choice="none"))
    kinds = [item["type"] for item in response["output"]]
    expect("function_call" not in kinds, f"the output has {kinds}")


@GROUP.check("allowed", sources.FUNCTIONS)
async def _allowed(talk: Talk) -> None:
    """With `allowed_tools` only those are called that it names."""
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_time"}]}
    call = await _called(talk, text=f"Use get_weather first. {ASK_TIME}", tools=[WEATHER, CLOCK], tool_choice=allowed)
    expect(call["name"] == "get_time", f"the name is {call['name']!r}")


@GROUP.check("one_at_a_time", sources.FUNCTIONS)
async def _one_at_a_time(talk: Talk) -> None:
    """With `parallel_tool_calls: false` there is one call at most."""
    asked = {"tools": [WEATHER, CLOCK], "tool_choice": "required", "parallel_tool_calls": False}
    response = finished(await talk.create(input=f"{ASK_WEATHER} And what time is it there? Use get_time.", **asked))
    found = items_of(response, "function_call")
    expect(len(found) == 1, f"there are {len(found)} calls")


@GROUP.check("undeclared", sources.FUNCTIONS)
async def _undeclared(talk: Talk) -> None:
    """`tool_choice` with a function that is not declared is a 400."""
    choice = {"type": "function", "name": "nobody"}
    error = await talk.refused(talk.body({"input": HELLO, "tools": [WEATHER], "tool_choice": choice}))
    expect(error["message"], "the error has no message")


@GROUP.check("no_strict", sources.FUNCTIONS)
async def _no_strict(talk: Talk) -> None:
    """A function without `strict`, `description` and `parameters` can be called."""
    choice = {"type": "function", "name": "ping"}
    call = await _called(talk, text=ASK_PING, tools=[{"type": "function", "name": "ping"}], tool_choice=choice)
    expect(isinstance(json.loads(call["arguments"] or "{}"), dict), f"the arguments are {call['arguments']!r}")


@GROUP.check("bad_schema", sources.FUNCTIONS)
async def _bad_schema(talk: Talk) -> None:
    """`parameters` that are no schema are a 400."""
    tool = {**WEATHER, "parameters": {"type": "nonsense"}}
    error = await talk.refused(talk.body({"input": HELLO, "tools": [tool]}))
    expect(error["message"], "the error has no message")


@GROUP.check("many", sources.FUNCTIONS)
async def _many(talk: Talk) -> None:
    """128 functions can be declared."""
    tools = [{**WEATHER, "name": f"get_weather_{number}"} for number in range(MANY)]
    response = await talk.create(input=HELLO, tools=tools, tool_choice="none")
    expect(len(response["tools"]) == MANY, f"the response has {len(response['tools'])} tools")


@GROUP.check("custom", sources.CUSTOM_CALL_TYPE, pain="other-tools")
async def _custom(talk: Talk) -> None:
    """A custom tool can be forced: an item `custom_tool_call` with a text as `input`."""
    choice = {"type": "custom", "name": "run"}
    call = await _called(talk, "custom_tool_call", text=LIST_FILES, tools=[RUN], tool_choice=choice)
    require(call, CUSTOM_CALL, "the call")
    expect(call["name"] == "run", f"the name is {call['name']!r}")


@GROUP.check("grammar", sources.FUNCTIONS, pain="other-tools")
async def _grammar(talk: Talk) -> None:
    """The input of a custom tool with a grammar matches it."""
    choice = {"type": "custom", "name": "run"}
    pattern = "(ls|pwd) -[a-c]"
    tool = {**RUN, "format": {"type": "grammar", "syntax": "regex", "definition": pattern}}
    call = await _called(talk, "custom_tool_call", text=LIST_FILES, tools=[tool], tool_choice=choice)
    expect(re.fullmatch(pattern, call["input"]), f"the input is {call['input']!r}")


@GROUP.check("namespace", sources.NAMESPACE_TYPE, pain="namespaces")
async def _namespace(talk: Talk) -> None:
    """A function in a `namespace` is called by its own name, and its call has the `namespace`."""
    call = await _called(talk, text=ASK_NAMESPACE, tools=[NAMESPACE], tool_choice="required")
    given = (call.get("namespace"), call["name"])
    expect(given == ("weather", "get_weather"), f"namespace, name: {given}")


@GROUP.check("apply_patch", sources.APPLY_PATCH, pain="apply-patch")
async def _apply_patch(talk: Talk) -> None:
    """The tool `apply_patch` can be forced: an item `apply_patch_call` with an operation on a file."""
    asked = {"tools": [{"type": "apply_patch"}], "tool_choice": {"type": "apply_patch"}}
    call = call_of(finished(await talk.create(input=ASK_PATCH, **asked)), "apply_patch_call")
    operation = require(call, PATCH_CALL, "the call")["operation"]
    expect(operation["type"] in ("create_file", "update_file", "delete_file"), f"the operation is {operation}")
    expect(isinstance(operation["path"], str), f"the operation is {operation}")


@GROUP.check("shell", sources.SHELL, pain="other-tools")
async def _shell(talk: Talk) -> None:
    """The tool `shell` of the client can be forced: an item `shell_call` with commands."""
    call = call_of(
        finished(await talk.create(input=ASK_SHELL, tools=[SHELL], tool_choice={"type": "shell"})),
        "shell_call",
    )
    expect(isinstance(call["action"]["commands"], list), f"the action is {call['action']}")


@GROUP.check("others_declared", sources.TOOL_TYPE, pain="other-tools")
async def _others_declared(talk: Talk) -> None:
    """Tools that are not functions can be declared beside functions."""
    for tool in (RUN, NAMESPACE, WEB_SEARCH, {"type": "local_shell"}, SHELL, {"type": "apply_patch"}):
        response = await talk.create(input=HELLO, tools=[WEATHER, tool])
        expect(response["status"] in ("completed", "incomplete"), f"with {tool['type']}: {response.get('error')}")


@GROUP.check("of_codex", sources.CODEX, pain="other-tools")
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


@GROUP.check("call_ids", sources.CALL_TYPE)
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


@GROUP.check("code_interpreter", sources.TOOL_TYPE)
async def _code_interpreter(talk: Talk) -> None:
    """`code_interpreter` is run by the server: an item `code_interpreter_call`."""
    await _hosted(talk, {"type": "code_interpreter", "container": {"type": "auto"}}, "code_interpreter_call")


@GROUP.check("web_search", sources.TOOL_TYPE)
async def _web_search(talk: Talk) -> None:
    """`web_search` is run by the server: an item `web_search_call`."""
    await _hosted(talk, {"type": "web_search"}, "web_search_call")


@GROUP.check("image_generation", sources.TOOL_TYPE)
async def _image_generation(talk: Talk) -> None:
    """`image_generation` is run by the server: an item `image_generation_call`."""
    await _hosted(talk, {"type": "image_generation"}, "image_generation_call")
