"""Requests: what is wrong is named and explained; what real clients send is taken."""

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.fields import noting
from responses_app.protocol.items.items import PASSED_THROUGH, FunctionCall
from responses_app.protocol.output.calls import call_builder
from responses_app.protocol.requests.create_fields import ENGINE_FIELDS, KNOWN_INCLUDES, Fields
from responses_app.protocol.requests.requests import CreateRequest, new_response, parse_create

CODEX_INPUT = [
    {
        "type": "message",
        "id": "msg_fedd08d0-3a7a-4b1e-a9cf-5e2a2f4d9a11",
        "role": "developer",
        "content": [{"type": "input_text", "text": "You are a coding agent running in the Codex CLI."}],
    },
]
CODEX_TOOLS = [
    {
        "type": "function",
        "name": "exec_command",
        "description": "Runs a command.",
        "strict": False,
        "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}, "additionalProperties": False},
    },
    {
        "type": "namespace",
        "name": "multi_agent_v1",
        "description": "Tools for spawning and managing sub-agents.",
        "tools": [{"type": "function", "name": "close_agent", "parameters": {"type": "object"}}],
    },
    {"type": "web_search", "external_web_access": False},
]
CODEX_FRAME = {  # as Codex 0.169 sends it
    "type": "response.create",
    "model": "gpt-oss-20b",
    "stream": True,
    "input": CODEX_INPUT,
    "tools": CODEX_TOOLS,
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a1fab4-0000-7000-8000-000000000000",
    "generate": False,
    "client_metadata": {"turn_id": "", "x-codex-turn-metadata": "{}"},
}
DEEP = orjson.loads("[" * 1010 + "]" * 1010)


def refusal(**fields: object) -> ApiError:
    with pytest.raises(ApiError) as refused:
        parse_create(fields)
    assert refused.value.status == 400
    assert refused.value.type == "invalid_request_error"
    assert len(refused.value.message) < 900
    return refused.value


def user(content: object, **fields: object) -> dict[str, object]:
    return {"input": [{"type": "message", "role": "user", "content": content, **fields}]}


def call(**fields: object) -> dict[str, object]:
    return {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", **fields}]}


FUNCTION: JsonObject = {"type": "function", "name": "f"}


def server(**fields: object) -> JsonObject:
    return {"type": "mcp", "server_label": "wiki", "server_url": "https://mcp.example/", **fields}


WRONG_TYPES: list[tuple[dict[str, object], str, str]] = [
    ({"input": 5}, "input", "a string or an array of items"),
    ({"input": [5]}, "input[0]", "an object"),
    ({"input": [{"type": 7}]}, "input[0].type", "a string"),
    (user(5), "input[0].content", "a string or an array of content parts"),
    (user(None), "input[0].content", "a string or an array of content parts"),
    (user([5]), "input[0].content[0]", "an object"),
    (user([{"type": "input_text", "text": 5}]), "input[0].content[0].text", "a string"),
    (user("x", id=5), "input[0].id", "a string"),
    (call(arguments={}), "input[0].arguments", "a string"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": 5}]}, "input[0].output", "a string"),
    ({"input": [{"type": "reasoning", "summary": "x"}]}, "input[0].summary", "an array"),
    ({"input": [{"type": "local_shell_call", "id": 5}]}, "input[0].id", "a string"),
    ({"tools": 5}, "tools", "an array of tools"),
    ({"tools": [5]}, "tools[0]", "an object"),
    ({"tools": [{"type": "function", "name": 5}]}, "tools[0].name", "a string"),
    ({"tools": [{"type": "function", "name": "f", "parameters": "x"}]}, "tools[0].parameters", "an object"),
    ({"model": 5}, "model", "a string"),
    ({"instructions": ["x"]}, "instructions", "a string"),
    ({"previous_response_id": 5}, "previous_response_id", "a string"),
    ({"temperature": "hot"}, "temperature", "a number"),
    ({"temperature": True}, "temperature", "a number"),
    ({"max_output_tokens": 1.5}, "max_output_tokens", "an integer"),
    ({"max_output_tokens": "5"}, "max_output_tokens", "an integer"),
    ({"max_output_tokens": True}, "max_output_tokens", "an integer"),
    ({"store": "yes"}, "store", "a boolean"),
    ({"stream": 1}, "stream", "a boolean"),
    ({"generate": "no"}, "generate", "a boolean"),
    ({"parallel_tool_calls": 1}, "parallel_tool_calls", "a boolean"),
    ({"metadata": 5}, "metadata", "an object"),
    ({"metadata": {"a": 5}}, "metadata.a", "a string"),
    ({"include": "x"}, "include", "an array"),
    ({"include": [5]}, "include[0]", "a string"),
    ({"reasoning": "high"}, "reasoning", "an object"),
    ({"text": "x"}, "text", "an object"),
    ({"stream_options": 5}, "stream_options", "an object"),
    ({"user": 5}, "user", "a string"),
    ({"prompt_cache_options": {"prewarm": 5}}, "prompt_cache_options.prewarm", "a boolean"),
    # Members of a union: the one whose form the value has says what is wrong inside.
    ({"tools": [server(allowed_tools="x")]}, "tools[0].allowed_tools", "an array or an object, but got a string"),
    ({"tools": [server(allowed_tools=["x", 5])]}, "tools[0].allowed_tools[1]", "a string"),
    ({"tools": [server(allowed_tools={"tool_names": "x"})]}, "tools[0].allowed_tools.tool_names", "an array"),
    ({"tools": [server(require_approval={"always": 5})]}, "tools[0].require_approval.always", "an object"),
    ({"tools": [{"type": "code_interpreter", "container": 5}]}, "tools[0].container", "a string or an object"),
]


@pytest.mark.parametrize(("fields", "param", "expected"), WRONG_TYPES)
def test_a_wrong_type_is_named_with_the_right_one(fields: dict[str, object], param: str, expected: str) -> None:
    error = refusal(**fields)
    assert (error.code, error.param) == ("invalid_type", param)
    assert error.message.startswith(f"Invalid type for '{param}': expected {expected}")
    assert "instead" in error.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": [{}]}, "input[0].type"),
        ({"input": ["x", {"role": "user"}][1:]}, "input[0].content"),
        (user([{}]), "input[0].content[0].type"),
        (user([{"type": "input_text"}]), "input[0].content[0].text"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
        ({"input": [{"type": "item_reference"}]}, "input[0].id"),
        ({"tools": [{}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "function": {"description": "x"}}]}, "tools[0].function.name"),
        ({"multi_agent": {}}, "multi_agent.enabled"),
    ],
)
def test_what_is_missing_is_named(fields: dict[str, object], param: str) -> None:
    error = refusal(**fields)
    assert (error.code, error.param) == ("missing_required_parameter", param)
    assert error.message == f"Missing required parameter: '{param}'."


@pytest.mark.parametrize(
    ("fields", "param", "hint"),
    [
        ({"input": [{"type": "nope"}]}, "input[0].type", "function_call_output"),
        (user("x", role="wizard"), "input[0].role", "'developer'"),
        (user([{"type": "video"}]), "input[0].content[0].type", "'input_text'"),
        (call(name="bad name"), "input[0].name", "A-Za-z0-9"),
        (call(name="f<|end|>"), "input[0].name", "A-Za-z0-9"),
        (call(call_id=""), "input[0].call_id", "1 character"),
        ({"tools": [{"type": "function", "name": "<|call|>"}]}, "tools[0].name", "A-Za-z0-9"),
        ({"tools": [{"type": "function", "name": "f"}] * 2}, "tools[1].name", "declared twice"),
        ({"tools": [server(), {**FUNCTION, "name": "wiki.f"}]}, "tools[0].server_label", "begins the name of a"),
        (
            {"tools": [{"type": "namespace", "name": "wiki", "description": "W.", "tools": [FUNCTION]}, server()]},
            *("tools[1].server_label", "'wiki' is a namespace"),
        ),
        ({"tools": [{"type": "web_search"}, {"type": "bogus"}]}, "tools[1].type", "'function', 'custom', "),
        ({"model": ""}, "model", "1 character"),
        ({"temperature": 2.1}, "temperature", "2"),
        ({"temperature": -1}, "temperature", "0"),
        ({"top_p": -0.1}, "top_p", "0"),
        ({"presence_penalty": 3}, "presence_penalty", "2"),
        ({"max_output_tokens": 0}, "max_output_tokens", "1"),
        ({"max_tool_calls": 0}, "max_tool_calls", "1"),
        ({"metadata": {"a": "x" * 513}}, "metadata.a", "512"),
        ({"metadata": {"a" * 65: "x"}}, "metadata", "64"),
        ({"metadata": {str(number): "x" for number in range(17)}}, "metadata", "16"),
        ({"include": ["reasoning.encrypted_content", "nope"]}, "include[1]", "reasoning.encrypted_content"),
        ({"reasoning": {"effort": "ultra"}}, "reasoning.effort", "'high'"),
        ({"reasoning": {"summary": "x"}}, "reasoning.summary", "'auto'"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "'text'"),
        ({"text": {"verbosity": "x"}}, "text.verbosity", "'low'"),
        ({"truncation": "x"}, "truncation", "'auto'"),
        ({"text": {"verbosity": DEEP}}, "text.verbosity", ""),  # too deep to be shown
        ({"service_tier": DEEP}, "service_tier", ""),
        ({"reasoning": {"effort": DEEP}}, "reasoning.effort", ""),
        ({"service_tier": "gold"}, "service_tier", "'priority', 'fast' or 'ultrafast'"),
        ({"prompt_cache_key": "x" * 1025}, "prompt_cache_key", "1024"),
        ({"conversation": {"id": ""}}, "conversation.id", "1 character"),
        ({"conversation": "c" * 257}, "conversation", "256"),
        ({"background_options": {"continuation_id": "x" * 257}}, "background_options.continuation_id", "256"),
        ({"tools": [server(require_approval="nver")]}, "tools[0].require_approval", "'always' or 'never'"),
        ({"tools": [{**FUNCTION, "allowed_callers": []}]}, "tools[0].allowed_callers", "at least 1 item, not 0"),
        ({"tools": [{"type": "shell", "environment": {"type": "x"}}]}, "tools[0].environment.type", "container_auto"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_taken(fields: dict[str, object], param: str, hint: str) -> None:
    error = refusal(**fields)
    assert (error.code, error.param) == ("invalid_value", param)
    assert param in error.message
    assert hint in error.message


UNBUILT: list[tuple[dict[str, object], str]] = [
    ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    ({"moderation": {"type": "auto"}}, "moderation"),
    ({"image": {"size": "auto"}}, "image"),
    ({"access_programs": ["x"]}, "access_programs"),
    *(({name: 0}, name) for name in ENGINE_FIELDS),
]


@pytest.mark.parametrize(("fields", "param"), UNBUILT)
def test_what_is_not_built_yet_is_refused_by_name(fields: dict[str, object], param: str) -> None:
    error = refusal(input="hi", **fields)
    assert (error.code, error.param) == ("unsupported_parameter", param)
    assert error.message.startswith(f"Unsupported parameter: '{param}'. ")
    named = "RESPONSES_COMPATIBILITY_MODE=false" in error.message
    assert named is (param in ENGINE_FIELDS and param != "mm_processor_kwargs")


@pytest.mark.parametrize(
    "fields",
    [
        {"background": False, "conversation": None, "prompt": None, "top_logprobs": 0, "context_management": []},
        {"text": {"format": {"type": "text"}}, "tool_choice": "none"},
        dict.fromkeys(ENGINE_FIELDS),
        dict.fromkeys(CreateRequest.model_fields),
        {"include": sorted(KNOWN_INCLUDES), "reasoning": {"summary": "detailed", "effort": None}},
        {"prompt_cache_retention": "24h", "prompt_cache_options": {"mode": "x"}, "service_tier": "priority"},
        {"stream_options": {"include_obfuscation": False}, "safety_identifier": "x", "max_tool_calls": 3},
        {"something_new": {"a": 1}, "client_metadata": {"a": "b"}},
        {"metadata": {"a" * 64: "x" * 512}},
        {"temperature": 0, "top_p": 1, "presence_penalty": -2},
    ],
)
def test_defaults_and_hints_are_taken(fields: dict[str, object]) -> None:
    parse_create({**fields, "input": "hi"})


def test_the_frame_of_codex_is_taken_and_echoed() -> None:
    request = parse_create(CODEX_FRAME)
    assert request.warm_up
    assert [tool.name for tool in request.offered_functions] == ["exec_command", "multi_agent_v1.close_agent"]
    response = new_response(request, response_id="resp_1", created_at=1, model="gpt-oss-20b", store=False)
    assert response["tools"][0] == CODEX_TOOLS[0]
    member = {**CODEX_TOOLS[1]["tools"][0], "description": None, "strict": True}  # type: ignore[index]
    assert response["tools"][1:] == [{**CODEX_TOOLS[1], "tools": [member]}, CODEX_TOOLS[2]]
    assert request.input_json == CODEX_INPUT


def test_the_second_and_third_frame_of_codex_are_taken() -> None:
    items = [
        {"type": "message", "id": "msg_x", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA", "content": None},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "exec_command", "arguments": "{}"},
        {"type": "function_call_output", "id": "fco_1", "call_id": "call_1", "output": "Chunk ID: 1"},
        {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_2", "name": "apply_patch", "input": "x"},
        {"type": "local_shell_call", "call_id": "call_3", "status": "completed", "action": {}},
    ]
    request = parse_create({**CODEX_FRAME, "input": items, "generate": None, "previous_response_id": "resp_1"})
    assert not request.warm_up
    assert len(request.input) == len(items)
    assert request.input_json == items


@pytest.mark.parametrize("kind", sorted(PASSED_THROUGH))
def test_items_that_only_clients_execute_pass_through(kind: str) -> None:
    item = {"type": kind, "anything": [1, {"a": None}]}
    assert parse_create({"input": [item]}).input_json == [item]


def test_an_unknown_item_is_told_every_type_there_is() -> None:
    said = refusal(input=[{"type": "telepathy"}]).message
    read = {"message", "reasoning", "function_call", "function_call_output", "item_reference", "compaction"}
    assert {kind for kind in read | PASSED_THROUGH if f" {kind}," not in said and f" {kind}." not in said} == set()
    for kind in said.partition("Supported values are: ")[2].rstrip(".").split(", "):
        error = refusal(input=[{"type": kind, "id": 1}]).message  # each is a type whose fields are looked at
        assert "Supported values are" not in error, kind


def test_easy_messages_are_kept_in_their_full_form() -> None:
    request = parse_create({"input": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]})
    assert request.input_json == [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ho"}]},
    ]
    assert parse_create({"input": "hi"}).input_json == request.input_json[:1]


@pytest.mark.parametrize("fields", [{}, {"input": None}, {"input": []}])
def test_no_input_is_not_an_error(fields: dict[str, object]) -> None:
    assert parse_create(fields).input == []


def test_tools_in_chat_completions_form_are_flattened() -> None:
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    request = parse_create({"tools": [{"type": "function", "function": function}]})
    assert request.tools_json == [{"type": "function", **function, "strict": True}]
    assert request.offered_functions[0].name == "f"


@pytest.mark.parametrize(
    ("asked", "effort"),
    [
        *((None, "medium"), ("none", "none"), ("minimal", "low"), ("low", "low")),
        *(("medium", "medium"), ("high", "high"), ("xhigh", "high"), ("max", "high")),
    ],
)
def test_efforts_are_mapped_to_the_nearest(asked: str | None, effort: str) -> None:
    assert parse_create({"reasoning": {"effort": asked}}).effort == effort


def test_prewarm_makes_a_warm_up() -> None:
    assert parse_create({"prompt_cache_options": {"prewarm": True}}).warm_up
    assert parse_create({"generate": False}).warm_up
    assert not parse_create({"generate": True, "prompt_cache_options": {"prewarm": False}}).warm_up


@pytest.mark.parametrize("place", ["input", "tools"])
def test_what_could_not_be_written_again_is_refused(place: str) -> None:
    """orjson reads deeper than it writes; it would break the run, and the reader would wait for ever."""
    deep: dict[str, object] = {}
    for _ in range(300):
        deep = {"a": deep}
    item = {"type": "web_search_call" if place == "input" else "web_search", "deep": deep}
    error = refusal(**{place: [item]})
    assert (error.code, error.param) == ("invalid_value", f"{place}[0].deep")
    assert "too deeply" in error.message


@pytest.mark.parametrize("depth", [50, 230])
def test_what_is_nested_but_can_be_written_is_taken(depth: int) -> None:
    deep: dict[str, object] = {}
    for _ in range(depth):
        deep = {"a": deep}
    request = parse_create({"tools": [{"type": "function", "name": "f", "parameters": deep}]})
    response = new_response(request, response_id="resp_1", created_at=1, model="m", store=True)
    orjson.dumps({"type": "response.created", "response": response})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**40) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "text", "role", "id"]), inner, max_size=3)
    ),
    max_leaves=6,
)
kinds = st.sampled_from(["message", "function_call", "function_call_output", "reasoning", "item_reference", "function"])
objects = st.fixed_dictionaries(
    {},
    optional={
        "type": kinds | json_values,
        "role": st.sampled_from(["user", "assistant"]) | json_values,
        "content": st.lists(st.fixed_dictionaries({"type": st.just("input_text"), "text": json_values})) | json_values,
        "call_id": json_values,
        "name": json_values,
        "arguments": json_values,
        "output": json_values,
        "parameters": json_values,
    },
)


@settings(deadline=None, max_examples=150)
@given(
    st.dictionaries(
        st.sampled_from([*CreateRequest.model_fields, *ENGINE_FIELDS, "conversation"]), json_values, max_size=4
    ),
    st.lists(objects, max_size=2) | json_values,
    st.lists(objects, max_size=2) | json_values,
)
def test_any_json_is_a_request_or_a_400(fields: dict[str, object], items: object, tools: object) -> None:
    refused: ApiError | None = None
    try:
        request = parse_create({**fields, "input": items, "tools": tools})
    except ApiError as error:
        refused = error
    if refused is None:
        orjson.dumps(new_response(request, response_id="resp_1", created_at=1, model="m", store=True))
    else:
        assert (refused.status, refused.type) == (400, "invalid_request_error")
        assert refused.param
        assert refused.message


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"json": {"type": "object"}}},
        {"structured_outputs": {"choice": ["a", "b"]}, "stop": "x", "stop_token_ids": [1], "logit_bias": {"5": 1.5}},
        {"background": True, "background_options": {"completion_window": "2h", "continuation_id": "c"}},
        {"reasoning": {"generate_summary": "concise"}, "seed": 3, "top_k": 2, "min_p": 0.5, "ignore_eos": True},
        {
            "input": [{"role": "user", "content": "hi"}, {"type": "local_shell_call", "x": 1}],
            "tools": [FUNCTION, {"type": "web_search"}],
            **{"tool_choice": "none", "conversation": "conv_1", "background": True, "max_output_tokens": 7},
            "include": ["message.output_text.logprobs"],
        },
    ],
)
def test_a_request_that_is_kept_is_read_as_the_same_one(fields: JsonObject) -> None:
    request = parse_create({"input": "hi", **fields})
    again = parse_create(request.as_json())
    assert again.as_json() == request.as_json()
    assert {name: getattr(again, name) for name in Fields.model_fields} == {
        name: getattr(request, name) for name in Fields.model_fields
    }
    assert again.answer.content == request.answer.content
    assert again.reasoning is None or again.reasoning.wanted_summary == "concise"
    assert (again.tools_json, again.conversation_id) == (request.tools_json, fields.get("conversation"))


def test_what_was_kept_is_read_as_it_is_and_only_a_clients_slips_are_told() -> None:
    kept: JsonObject = {"input": [{"type": "configuration_update"}], "temprature": 1, "colour": 2}
    parse_create(kept)
    with noting() as ignored:
        parse_create({"input": "hi", "colour": 2})
        assert str(ignored) == "colour"
        for wrong in (kept, {"input": kept["input"]}):
            with pytest.raises(ApiError):
                parse_create(wrong)


def test_a_function_that_a_search_of_the_server_has_found_is_called_as_openai_marks_it() -> None:
    """OpenAI's Agents SDK looks for a deferred function under its own name as a namespace."""
    function = {"type": "function", "name": "f", "defer_loading": True}
    tools = parse_create({"input": "hi", "tools": [function, {"type": "tool_search"}]}).tools
    assert [tool.called for tool in tools.shown()] == []
    item = call_builder(tools, "f", lambda prefix: f"{prefix}1").item("completed")
    assert (item["name"], item["namespace"]) == ("f", "f")
    given = {"type": "function_call", "call_id": "c", "name": "f", "namespace": "f", "arguments": "{}"}
    (call,) = parse_create({"input": [given]}).input
    assert isinstance(call, FunctionCall)
    assert call.called == "f"
    plain = parse_create({"input": "hi", "tools": [function]}).tools
    assert "namespace" not in call_builder(plain, "f", lambda prefix: f"{prefix}1").item("completed")


def test_the_skills_of_a_shell_are_told_to_the_model() -> None:
    skill = {"name": "pdf", "description": "Reads PDFs.", "path": "/skills/pdf"}
    tool = {"type": "shell", "environment": {"type": "local", "skills": [skill]}}
    (shell,) = parse_create({"input": "hi", "tools": [tool]}).offered_functions
    assert "- pdf (/skills/pdf): Reads PDFs." in shell.description


def test_an_error_does_not_give_a_long_name_back_whole() -> None:
    error = refusal(input="hi", logit_bias={"9" * 100_000: 1})
    assert len(str(error)) + len(error.param or "") < 500
