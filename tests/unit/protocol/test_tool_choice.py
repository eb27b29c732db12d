"""`tool_choice`: every form of OpenAI's, how each is echoed, and what is wrong with the others."""

import time

import pytest

from engine.types import AnyObject, AnyText, CallRule, JsonSchema, Lark, Regex, TurnRules
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.items.client_tools import read_tools
from responses_app.protocol.items.offers import OfferedTool
from responses_app.protocol.requests.requests import (
    CreateRequest,
    enforced_field,
    new_response,
    parse_create,
    rules_of_turns,
)
from tests.kit.oracle import validate_response
from tests.unit.protocol.refusals import refusal

CITY: JsonObject = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
NO_ARGUMENTS = JsonSchema('{"type":"object","properties":{},"additionalProperties":false}')
WEATHER: JsonObject = {"type": "function", "name": "weather", "parameters": CITY}
LOOSE: JsonObject = {"type": "function", "name": "loose", "parameters": CITY, "strict": False}
BARE: JsonObject = {"type": "function", "name": "bare"}
SQL: JsonObject = {"type": "custom", "name": "sql"}
DAYS: JsonObject = {
    "type": "custom",
    "name": "days",
    "format": {"type": "grammar", "syntax": "regex", "definition": "mon|tue"},
}
SUM: JsonObject = {
    "type": "custom",
    "name": "sum",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "1+1"'},
}
CRM: JsonObject = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers.",
    "tools": [{"type": "function", "name": "find", "parameters": CITY}, {"type": "custom", "name": "note"}],
}
TOOLS = [WEATHER, LOOSE, BARE, SQL, DAYS, SUM, CRM, {"type": "shell"}, {"type": "web_search"}]
HOSTED = {
    tool.name: (tool, CallRule(tool.name, hosted=True))
    for tool in (
        OfferedTool(name="python", item="code_interpreter_call"),
        OfferedTool(name="wiki.ask", item="mcp_call", server="wiki", tool="ask"),
        OfferedTool(name="wiki.read", item="mcp_call", server="wiki", tool="read"),
        OfferedTool(name="other.ask", item="mcp_call", server="other", tool="ask"),
    )
}
NAMES = ["weather", "loose", "bare", "sql", "days", "sum", "crm.find", "crm.note", "shell"]
FUNCTION = {"type": "function", "name": "weather"}
SHELL = {"type": "shell"}
CHOSEN_SQL = {"type": "custom", "name": "sql"}
NAMESPACE = {"type": "namespace", "name": "crm"}


def allowed(mode: str, *tools: object) -> JsonObject:
    return {"type": "allowed_tools", "mode": mode, "tools": list(tools)}


def request_with(choice: object = None, tools: object = TOOLS, **fields: object) -> CreateRequest:
    return parse_create({"input": "hi", "tools": tools, "tool_choice": choice, **fields})


def rules_of(request: CreateRequest, **options: object) -> TurnRules | None:
    rules = rules_of_turns(request, request.tools, **options)  # type: ignore[arg-type]
    return rules.first if rules else None


def echo_of(request: CreateRequest) -> JsonObject:
    response = new_response(request, response_id="resp_1", created_at=1, model="m", store=True)
    validate_response(response)
    return response  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("choice", "echo", "names", "must"),
    [
        (None, "auto", NAMES, False),
        ("auto", "auto", NAMES, False),
        ("none", "none", [], False),
        ("required", "required", NAMES, True),
        (FUNCTION, FUNCTION, ["weather"], True),
        ({"type": "function", "function": {"name": "weather"}}, FUNCTION, ["weather"], True),
        ({"type": "function", "name": "crm.find"}, {"type": "function", "name": "crm.find"}, ["crm.find"], True),
        (CHOSEN_SQL, CHOSEN_SQL, ["sql"], True),
        (SHELL, SHELL, ["shell"], True),
        (allowed("auto", FUNCTION, SHELL), allowed("auto", FUNCTION, SHELL), ["weather", "shell"], False),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [CHOSEN_SQL]}},
            *(allowed("required", CHOSEN_SQL), ["sql"], True),
        ),
        (allowed("auto", NAMESPACE), allowed("auto", NAMESPACE), ["crm.find", "crm.note"], False),
        (allowed("auto", {"type": "web_search"}), allowed("auto", {"type": "web_search"}), [], False),
    ],
)
def test_a_choice_is_which_tools_can_be_called_and_whether_one_must(
    choice: object, echo: object, names: list[str], must: bool
) -> None:
    request = request_with(choice)
    rules = rules_of(request)
    assert ([rule.name for rule in rules.calls], rules.must_call) == (names, must)
    assert echo_of(request)["tool_choice"] == echo
    assert parse_create(request.as_json()).tool_choice == request.tool_choice
    shown = [function.name for function in request.offered_functions]
    assert shown == ([] if choice == "none" else NAMES), "the prompt stays, and with it the engine's prefix cache"


def test_what_is_demanded_is_demanded_once() -> None:
    request = request_with("required")
    rules = rules_of_turns(request, request.tools)
    assert (rules.first.must_call, rules.after_call.must_call) == (True, False)
    assert rules.first.calls == rules.after_call.calls


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"type": "function", "name": "nope"}, "'nope' is not in 'tools'"),
        ({"type": "function", "name": "sql"}, "'sql' is not in 'tools'"),
        ({"type": "function", "name": "find"}, "'find' is not in 'tools'"),
        ({"type": "custom", "name": "weather"}, "'weather' is not in 'tools'"),
        ({"type": "apply_patch"}, "'apply_patch' is not in 'tools'"),
        ({"type": "function", "name": 5}, "tool_choice.name"),
        ({"type": "telepathy"}, "'telepathy'"),
        ({"name": "weather"}, "tool_choice.type"),
        ({"type": "mcp", "server_label": "x"}, "'x' is not in 'tools'"),
        ({"type": "code_interpreter"}, "'code_interpreter' is not in 'tools'"),
        ({"type": "computer_use_preview"}, "cannot see a screen"),
        (allowed("none"), "'mode'"),
        ({"type": "allowed_tools", "mode": "auto"}, "an array of tools"),
        (allowed("auto", "weather"), "expected an object, but got a string"),
        (allowed("auto", {"type": "function", "name": "nope"}), "'nope'"),
        (allowed("required", {"type": "file_search"}), "none of the allowed"),
        ("always", "Supported values"),
        (5, "an integer"),
    ],
)
def test_a_wrong_choice_is_named(choice: object, said: str) -> None:
    with pytest.raises(ApiError, match=said.replace("'", ".")) as refused:
        request_with(choice)
    assert refused.value.status == 400
    assert str(refused.value.param).partition(".")[0] == "tool_choice"


def test_nothing_can_be_required_where_there_is_nothing() -> None:
    for tools in ([], [{"type": "computer"}], None):
        assert refusal(request_with, "required", tools=tools).param == "tool_choice"


def test_what_may_stand_in_a_call() -> None:
    rules = rules_of(request_with())
    contents = {rule.name: rule.content for rule in rules.calls}
    city = JsonSchema('{"type":"object","properties":{"city":{"type":"string"}},"required":["city"],'
                      '"additionalProperties":false}')  # fmt: skip
    expected = {
        **{"weather": city, "loose": AnyText(), "bare": NO_ARGUMENTS, "sql": AnyText(), "days": Regex("mon|tue")},
        **{"sum": Lark('start: "1+1"'), "crm.find": city, "crm.note": AnyText()},
    }
    assert contents.items() >= expected.items()
    (empty,) = rules_of(request_with(tools=[{"type": "function", "name": "f", "parameters": {}}])).calls  # type: ignore[union-attr]
    assert empty.content == AnyObject()


def test_without_tools_and_format_there_is_no_rule() -> None:
    assert rules_of(request_with(tools=None)) is None
    assert rules_of(request_with(tools=[{"type": "web_search"}])) is None
    served = rules_of(request_with(tools=None), hosted=[HOSTED["python"]])
    assert served == TurnRules(calls=(CallRule("python", hosted=True),))


def test_a_choice_may_name_tools_of_the_server() -> None:
    server: JsonObject = {"type": "mcp", "server_label": "wiki", "server_url": "https://wiki.example/mcp"}
    tools = [WEATHER, {"type": "code_interpreter", "container": {"type": "auto"}}, server]

    def called(choice: object) -> tuple[list[str], bool]:
        rules = rules_of(request_with(choice, tools=tools), hosted=HOSTED.values())
        return [rule.name for rule in rules.calls], rules.must_call

    everything = ["weather", "python", "wiki.ask", "wiki.read", "other.ask"]
    assert called("auto") == (everything, False)
    assert called("required") == (everything, True)
    assert called({"type": "code_interpreter"}) == (["python"], True)
    assert called({"type": "mcp", "server_label": "wiki"}) == (["wiki.ask", "wiki.read"], True)
    assert called({"type": "mcp", "server_label": "wiki", "name": "read"}) == (["wiki.read"], True)
    allowed = [FUNCTION, {"type": "mcp", "server_label": "wiki"}, {"type": "file_search"}]
    some = called({"type": "allowed_tools", "mode": "auto", "tools": allowed})
    assert some == (["weather", "wiki.ask", "wiki.read"], False)


SCHEMA: JsonObject = {"type": "json_schema", "name": "answer", "schema": CITY}


@pytest.mark.parametrize(
    ("form", "echo", "content"),
    [
        ({"type": "text"}, {"type": "text"}, AnyText()),
        ({"type": "json_object"}, {"type": "json_object"}, AnyObject()),
        (SCHEMA, {**SCHEMA, "description": None, "strict": False}, rules_of(request_with()).calls[0].content),  # type: ignore[union-attr]
        (
            {**SCHEMA, "description": "d", "strict": True},
            {**SCHEMA, "description": "d", "strict": True},
            rules_of(request_with()).calls[0].content,  # type: ignore[union-attr]
        ),
    ],
)
def test_a_format_is_what_the_answer_is(form: JsonObject, echo: JsonObject, content: object) -> None:
    request = request_with(text={"format": form})
    rules = rules_of(request)
    assert rules.answer == content
    assert len(rules.calls) == len(NAMES), "it may call before it answers"
    assert echo_of(request)["text"] == {"format": echo, "verbosity": "medium"}
    assert parse_create(request.as_json()).text_format == request.text_format


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"type": "json_schema"}, "text.format.name"),
        ({"type": "json_schema", "name": "x"}, "text.format.schema"),
        ({"type": "json_schema", "name": "a b", "schema": {}}, "text.format.name"),
        ({"type": "json_schema", "name": "x" * 65, "schema": {}}, "text.format.name"),
        ({"type": "json_schema", "name": "x", "schema": []}, "text.format.schema"),
        ({"type": "yaml"}, "text.format.type"),
        ({"type": 5}, "text.format.type"),
        ("json_object", "text.format"),
    ],
)
def test_a_wrong_format_is_named(form: object, param: str) -> None:
    error = refusal(request_with, text={"format": form})
    assert (error.status, error.param) == (400, param)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "tools[4].format.definition"),
        ({"tools": [WEATHER, {**WEATHER, "name": "g", "strict": True}]}, None),
        ({"choice": "none"}, None),
        ({"choice": "required"}, "tool_choice"),
        ({"choice": FUNCTION}, "tool_choice"),
        ({"choice": allowed("required", FUNCTION)}, "tool_choice"),
        ({"choice": allowed("auto", FUNCTION)}, "tool_choice"),
        ({"tools": [], "text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"tools": [], "text": {"format": {"type": "text"}}}, None),
    ],
)
def test_what_an_engine_must_be_able_to_enforce(fields: dict[str, object], field: str | None) -> None:
    request = request_with(**fields)  # type: ignore[arg-type]
    assert enforced_field(request, request.tools) == field


def test_what_an_engine_must_enforce_of_a_late_tool_is_in_the_input() -> None:
    tool: JsonObject = {"type": "custom", "name": "late", "format": {"syntax": "regex", "definition": "a"}}
    late = read_tools([tool], at="input")
    request = request_with(tools=[])
    assert enforced_field(request, request.tools.joined(late)) == "input"


def test_a_tool_that_is_not_found_yet_cannot_be_demanded() -> None:
    search: JsonObject = {"type": "tool_search"}
    for choice, said in ((FUNCTION, "'weather' has 'defer_loading'"), (search, "may always search")):
        with pytest.raises(ApiError, match=said.replace("'", ".")) as refused:
            request_with(choice, tools=[{**WEATHER, "defer_loading": True}, search])
        assert (refused.value.code, refused.value.param) == ("invalid_value", "tool_choice")


def test_a_function_that_only_programs_call_cannot_be_demanded() -> None:
    programs: JsonObject = {"type": "programmatic_tool_calling"}
    with pytest.raises(ApiError, match=r"only programs call .weather."):
        request_with(FUNCTION, tools=[{**WEATHER, "allowed_callers": ["programmatic"]}, programs])
    both = [{**WEATHER, "allowed_callers": ["direct", "programmatic"]}, programs]
    assert request_with(FUNCTION, tools=both).tool_choice.allowed == {"weather"}


def test_what_can_be_looked_for_is_not_shown_until_it_is_found() -> None:
    deferred = {**WEATHER, "defer_loading": True}
    search = {"type": "tool_search", "execution": "client"}
    for tools, shown in (([deferred, search], ["tool_search"]), ([deferred, {"type": "tool_search"}], [])):
        request = request_with(tools=tools)
        assert [function.name for function in request.offered_functions] == shown
        rules = rules_of(request)
        assert [rule.name for rule in rules.calls] == shown
    request = request_with(tools=[deferred, search])
    found = request.tools.joined(read_tools([deferred]))
    assert [tool.called for tool in found.shown()] == ["weather", "tool_search"]


def test_a_namespace_that_is_allowed_again_and_again_is_looked_at_once() -> None:
    members = [{"type": "function", "name": f"f{number}", "strict": False} for number in range(500)]
    entries = [{"type": "namespace", "name": "n"}] * 20_000
    began = time.thread_time()
    request = request_with(
        {"type": "allowed_tools", "mode": "auto", "tools": entries},
        tools=[{"type": "namespace", "name": "n", "tools": members}],
    )
    assert time.thread_time() - began < 4
    assert len(request.tool_choice.allowed or ()) == 500
