"""No field of a body is dropped silently: it is carried out, refused, named, or without effect by design."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from openai.types.chat import ParsedChatCompletionMessage, ParsedFunction, ParsedFunctionToolCall
from openai.types.responses import FunctionTool, ResponseFunctionToolCall

from responses_app.protocol.api_keys import Area
from responses_app.web.endpoint import Endpoint, routes
from tests.kit.clients import Frame, Socket, http_client, read_error_answer, read_error_frame, server_sent, text_of
from tests.kit.fixtures import module_server
from tests.kit.inprocess import Server
from tests.kit.laws import assert_laws

IGNORED = "respsite-ignored"


@pytest.fixture
async def http(demo_server: Server) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the demo engine."""
    async with http_client(demo_server) as client:
        yield client


# As strict as OpenAI's.
refusing = module_server(
    "refusing",
    Server,
    unknown_fields="refuse",
    unserved_tools="refuse",
    foreign_seals="note",
    chat_reasoning="reasoning_content",
)


async def created(http: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    """Create a response."""
    answer = await http.post("/responses", json={"input": "Hello", **fields})
    assert answer.status_code == 200, answer.text
    return answer


async def test_an_unknown_field_is_named(http: httpx.AsyncClient) -> None:
    content = [{"type": "input_text", "text": "Hello", "mood": "good"}]
    message = {"role": "user", "content": content, "weather": "fine"}
    answer = await created(http, favourite_colour="red", text={"shade": 1}, input=[message])
    assert answer.headers[IGNORED] == "favourite_colour, text.shade, input[0].weather, input[0].content[0].mood"
    assert IGNORED not in (await created(http)).headers


async def test_a_hostile_name_stays_in_its_header(http: httpx.AsyncClient) -> None:
    names = ["a, b\r\nset-cookie: c", "\u00fc" * 9000, *(f"name_{index}" for index in range(500))]
    answer = await created(http, **dict.fromkeys(names, 1))
    told = answer.headers[IGNORED].split(", ")
    assert told[0] == "a%2C%20b%0D%0Aset-cookie%3A%20c"
    assert (len(told), told[-1]) == (21, "+482")
    assert len(answer.headers[IGNORED]) < 1600
    assert "set-cookie" not in answer.headers


LOOKED_AT = [
    each for route in routes() for each in route.endpoints if not each.is_open and each.scope is not Area.MANAGEMENT
]


OF_CLIENTS = {"api-version": "2025-04-01-preview", "beta": "true"}  # of Azure's clients, and of both SDKs' beta APIs


def path_of(endpoint: Endpoint) -> str:
    """Return a path of an endpoint, with ids of nothing."""
    return re.sub(r"{\w+}", "x", endpoint.shown_path)


def test_every_query_has_its_unknown_names_told(demo_server: Server) -> None:
    slips = {"befor": "before", "purpos": "purpose", "ordr": "order", "aftr": "after", "includ": "include"}
    with httpx.Client(base_url=demo_server.url, verify=False, timeout=30) as client:
        for endpoint in LOOKED_AT:
            name = {"item_id": "x"} if "item_id" in endpoint.query else {}
            asked = {**name, **OF_CLIENTS, "colour[x]": "1", "mood": "2"}
            answer = client.request(endpoint.method, path_of(endpoint), params=asked)
            assert answer.headers[IGNORED] == "colour[x], mood", endpoint
            # A list where one value is taken, and a place in one where several are.
            wrong = {f"{name}[0]" if kind == "array" else f"{name}[]": name for name, kind in endpoint.query.items()}
            wrong |= {slip: name for slip, name in slips.items() if name in endpoint.query}
            for slip, meant in wrong.items():
                if endpoint.query[meant] != "object":
                    answer = client.request(endpoint.method, path_of(endpoint), params={slip: "1"})
                    assert answer.status_code == 400
                    message = answer.json()["error"]["message"]
                    assert message.startswith(f"Unknown parameter: '{slip}'. Did you mean '{meant}"), endpoint


def test_a_strict_server_refuses_them(refusing: Server) -> None:
    with httpx.Client(base_url=refusing.url, verify=False, timeout=30) as client:
        for endpoint in LOOKED_AT:
            answer = client.request(endpoint.method, path_of(endpoint), params={**OF_CLIENTS, "colour": "1"})
            assert answer.status_code == 400, endpoint
            assert answer.json()["error"]["message"] == "Unknown parameter: 'colour'.", endpoint


async def test_queries_and_bodies_are_told_together(demo_server: Server, refusing: Server) -> None:
    async with http_client(demo_server) as http:
        answer = await http.post("/responses", params={**OF_CLIENTS, "a,b": 1}, json={"input": "Hi", "colour": 1})
        assert (answer.status_code, answer.headers[IGNORED]) == (200, "a%2Cb, colour")
        answer = await http.post("/messages", params=OF_CLIENTS, json={**MESSAGES, "model": "demo"}, headers=ANTHROPICS)
        assert answer.headers.get(IGNORED) is None
    for query, named in (("?api-version=1&beta=true", None), ("?model=demo&mood=2", "model, mood")):
        async with await Socket.open(f"{demo_server.ws_url}{query}") as socket:
            assert socket.raw.response.headers.get(IGNORED) == named
            await socket.create()
            assert (await socket.answer())[-1]["type"] == "response.completed"
    for server, name in ((demo_server, "betas"), (refusing, "colour")):
        async with await Socket.open(f"{server.ws_url}?{name}=1") as socket:
            read_error_frame(await socket.error(), status=400, code="unknown_parameter", param=name)


SLIPS: dict[str, tuple[str, Frame, str, str]] = {
    "response": ("/responses", {"input": "Hi", "temprature": 1}, "temprature", "temperature"),
    "options": ("/responses", {"input": "Hi", "reasoning": {"efort": "low"}}, "reasoning.efort", "effort"),
    "tool": (
        "/responses",
        {"input": "Hi", "tools": [{"type": "function", "name": "f", "paramters": {}}]},
        "tools[0].paramters",
        "parameters",
    ),
    "part": (
        "/responses",
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_ulr": "https://a/b.png"}]}]},
        "input[0].content[0].image_ulr",
        "image_url",
    ),
    "counting tokens": ("/responses/input_tokens", {"input": "Hi", "instruction": "x"}, "instruction", "instructions"),
    "compaction": ("/responses/compact", {"model": "demo", "inputs": "Hi"}, "inputs", "input"),
    "outputs": ("/responses/resp_1/tool_outputs", {"tool_call_id": "c", "outputs": "x"}, "outputs", "output"),
    "chat": (
        "/chat/completions",
        {"messages": [{"role": "user", "content": "Hi"}], "frequency_penality": 1},
        "frequency_penality",
        "frequency_penalty",
    ),
    "completion": ("/completions", {"prompt": "Hi", "max_token": 4}, "max_token", "max_tokens"),
    "embeddings": ("/embeddings", {"input": "Hi", "dimension": 4}, "dimension", "dimensions"),
    "decisions": ("/decisions", {"input": "Hi", "question": []}, "question", "questions"),
    "conversation": ("/conversations", {"metdata": {}}, "metdata", "metadata"),
    "vector store": ("/vector_stores", {"names": "n"}, "names", "name"),
    "container": ("/containers", {"name": "n", "memory_limits": "1g"}, "memory_limits", "memory_limit"),
    "JavaScript": ("/responses", {"input": "Hi", "maxOutputTokens": 5}, "maxOutputTokens", "max_output_tokens"),
    "a short one": ("/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "topP": 1}, "topP", "top_p"),
}


@pytest.mark.parametrize("case", SLIPS)
async def test_a_slip_is_told_the_right_name(http: httpx.AsyncClient, case: str) -> None:
    path, body, param, meant = SLIPS[case]
    message = read_error_answer(await http.post(path, json=body), status=400, code="unknown_parameter", param=param)
    assert message == f"Unknown parameter: '{param}'. Did you mean '{meant}'?"


async def test_a_slip_of_a_name_that_is_refused_is_told_what_to_do(http: httpx.AsyncClient) -> None:
    answer = await http.post("/responses", json={"input": "Hi", "max_token": 5})
    message = read_error_answer(answer, status=400, code="unknown_parameter", param="max_token")
    told = "Did you mean 'max_tokens'? In the Responses API it is 'max_output_tokens'."
    assert message == f"Unknown parameter: 'max_token'. {told}"


OF_OTHERS = {  # what clients send to other servers, with values that those take
    "OpenRouter": {"models": ["a", "b"], "provider": {"order": ["c"]}, "route": "fallback", "top_a": 0.1},
    "Ollama": {"num_ctx": 8192, "images": ["aW1hZ2U="], "keep_alive": "5m"},
    "llama.cpp": {"parse_tool_calls": True, "reasoning_format": "auto", "cache_prompt": True},
    "others": {"speed": "fast", "enable_thinking": False, "thinking": {"type": "disabled"}, "random_seed": 1},
}


@pytest.mark.parametrize("server", OF_OTHERS)
@pytest.mark.parametrize("path", ["/responses", "/chat/completions"])
async def test_fields_of_other_servers_are_named_and_taken_for_no_slips(
    http: httpx.AsyncClient, path: str, server: str
) -> None:
    asked: Frame = {"input": "Hi"} if path == "/responses" else {"messages": [{"role": "user", "content": "Hi"}]}
    answer = await http.post(path, json={**asked, **OF_OTHERS[server]})
    assert (answer.status_code, answer.headers.get(IGNORED)) == (200, ", ".join(OF_OTHERS[server])), answer.text


async def test_what_an_sdk_dumps_of_a_response_comes_back_as_it_is(http: httpx.AsyncClient) -> None:
    """`model_dump` writes each field that has no value as null, under the SDK's own name: `async_`."""
    tool = FunctionTool(type="function", name="f", parameters={"type": "object", "properties": {}})
    call = ResponseFunctionToolCall(type="function_call", call_id="call_1", name="f", arguments="{}")
    done = {"type": "function_call_output", "call_id": "call_1", "output": "x"}
    items = [{"role": "user", "content": "Hi"}, call.model_dump(), done]
    assert "async_" in items[1]
    answer = await created(http, input=items, tools=[tool.model_dump()])
    assert IGNORED not in answer.headers
    function = ParsedFunction(name="f", arguments="{}", parsed_arguments={"city": "Paris"})
    calls = ParsedFunctionToolCall(id="call_1", type="function", function=function)
    said = ParsedChatCompletionMessage[object](role="assistant", tool_calls=[calls])
    chat = [items[0], said.model_dump(), {"role": "tool", "tool_call_id": "call_1", "content": "x"}]
    answer = await http.post("/chat/completions", json={"messages": chat})
    assert (answer.status_code, answer.headers.get(IGNORED)) == (200, None), answer.text


async def test_a_search_with_another_name_for_its_filters_is_refused(http: httpx.AsyncClient) -> None:
    store = (await http.post("/vector_stores", json={"name": "n"})).json()["id"]
    wanted = {"query": "q", "filter": {"type": "eq", "key": "a", "value": "b"}}
    answer = await http.post(f"/vector_stores/{store}/search", json=wanted)
    assert "'filters'" in read_error_answer(answer, status=400, code="unknown_parameter", param="filter")


async def test_every_body_has_its_unknown_fields_named(http: httpx.AsyncClient) -> None:
    file = {"file": ("a.txt", b"a")}
    for path, content in (
        ("/conversations", {"json": {"colour": 1}}),
        ("/vector_stores", {"json": {"colour": 1}}),
        ("/chat/completions", {"json": {"messages": [{"role": "user", "content": "Hi"}], "colour": 1}}),
        ("/completions", {"json": {"prompt": "Hi", "colour": 1}}),
        ("/responses/input_tokens", {"json": {"input": "Hi", "colour": 1}}),
        ("/files", {"data": {"purpose": "user_data", "colour": "red"}, "files": file}),
    ):
        answer = await http.post(path, **content)  # type: ignore[arg-type]
        assert (answer.status_code, answer.headers.get(IGNORED)) == (200, "colour"), path
    answer = await http.post("/files", data={"purpos": "user_data"}, files=file)
    read_error_answer(answer, status=400, code="unknown_parameter", param="purpos")


UNSUPPORTED: dict[str, tuple[Frame, str]] = {  # by the parameter; and what the answer says to use, where it does
    # Fields of other APIs.
    "response_format": ({"response_format": {"type": "json_object"}}, "'text.format'"),
    "messages": ({"messages": [{"role": "user", "content": "Hi"}]}, "'input'"),
    "max_tokens": ({"max_tokens": 5}, "'max_output_tokens'"),
    "max_completion_tokens": ({"max_completion_tokens": 5}, "'max_output_tokens'"),
    "reasoning_effort": ({"reasoning_effort": "low"}, "'reasoning.effort'"),
    "guided_json": ({"guided_json": {"type": "object"}}, "'structured_outputs'"),
    "n": ({"n": 2}, "/v1/chat/completions"),
    "bad_words": ({"bad_words": ["no"]}, "leave it out"),
    "allowed_token_ids": ({"allowed_token_ids": [1]}, "leave it out"),
    "documents": ({"documents": [{"text": "a"}]}, "a message"),
    # What would change the answer.
    "reasoning.context": ({"reasoning": {"context": "all_turns"}}, ""),
    "reasoning.mode": ({"reasoning": {"mode": "pro"}}, ""),
    "tools[0].allowed_callers": ({"tools": [{"type": "apply_patch", "allowed_callers": ["programmatic"]}]}, ""),
    "input[0]": ({"input": [{"type": "configuration_update", "reasoning": {"effort": "low"}}]}, ""),
}


@pytest.mark.parametrize("param", UNSUPPORTED)
async def test_what_is_not_carried_out_is_refused_by_its_name(http: httpx.AsyncClient, param: str) -> None:
    fields, hint = UNSUPPORTED[param]
    answer = await http.post("/responses", json={"input": "Hi", **fields})
    assert hint in read_error_answer(answer, status=400, code="unsupported_parameter", param=param)


async def test_values_that_ask_for_nothing_are_fine(http: httpx.AsyncClient) -> None:
    fields: Frame = {
        "reasoning": {"context": "auto", "mode": "standard"},
        "n": 1,
        "multi_agent": {"enabled": False},
        "response_format": None,
        "prompt_cache_options": {"ttl": "30m", "mode": "implicit"},
        "client_metadata": {"a": "b"},
        "tools": [{"type": "function", "name": "f", "allowed_callers": ["direct"], "output_schema": {}}],
    }
    assert IGNORED not in (await created(http, **fields)).headers


CALLABLE: Frame = {"type": "function", "function": {"name": "f"}}
KNOWN_TO_ANTHROPIC = [
    {"name": "f", "input_schema": {"type": "object"}},
    {"type": "web_search_20250305", "name": "web_search"},
    {"type": "web_fetch_20250910", "name": "web_fetch"},
    {"type": "computer_20251124", "name": "computer", "display_width_px": 1, "display_height_px": 1},
]
DECLARED_UNASKED: list[Frame] = [
    CALLABLE,
    {"type": "web_search"},
    {"type": "image_generation", "output_format": "png"},
    {"type": "computer"},
]
ANTHROPICS = {"anthropic-version": "2023-06-01"}
SAID = [{"role": "user", "content": "Hello"}]
# For each API: a request that declares such tools, and its choice of one of them.
UNSERVED: list[tuple[str, Frame, Frame]] = [
    ("/responses", {"input": "Hello", "tools": DECLARED_UNASKED}, {"type": "image_generation"}),
    ("/responses/input_tokens", {"input": "Hello", "tools": DECLARED_UNASKED}, {"type": "web_search"}),
    ("/chat/completions", {"messages": SAID, "tools": DECLARED_UNASKED}, {"type": "image_generation"}),
    (
        "/messages",
        {"model": "demo", "max_tokens": 99, "messages": SAID, "tools": KNOWN_TO_ANTHROPIC},
        {"type": "tool", "name": "computer"},
    ),
]


@pytest.mark.parametrize(("path", "body", "demand"), UNSERVED, ids=[path for path, *_ in UNSERVED])
async def test_what_agents_declare_unasked_is_left_out_unless_it_is_demanded(
    http: httpx.AsyncClient, refusing: Server, path: str, body: Frame, demand: Frame
) -> None:
    named = "tools[1], tools[3]" if path == "/messages" else "tools[1], tools[2], tools[3]"
    for choice in ({}, {"tool_choice": {"type": "none"} if path == "/messages" else "none"}):
        answer = await http.post(path, json=body | choice, headers=ANTHROPICS)
        assert (answer.status_code, answer.headers.get(IGNORED)) == (200, named), answer.text
    demanded = await http.post(path, json=body | {"tool_choice": demand}, headers=ANTHROPICS)
    async with http_client(refusing) as strict:
        refused = await strict.post(path, json=body, headers=ANTHROPICS)
    for answer, param in ((demanded, "tool_choice"), (refused, "tools[1].type")):
        assert answer.status_code == 400
        assert f"Unsupported parameter: '{param}'." in answer.json()["error"]["message"]


async def test_a_websocket_names_what_is_left_out(demo_server: Server) -> None:
    async with await Socket.open(demo_server.ws_url) as socket:
        await socket.send({"type": "response.create", "input": "Hello", "tools": DECLARED_UNASKED})
        created, *_ = await socket.answer()
        assert created["headers"] == {IGNORED: "tools[1], tools[2], tools[3]"}


CUSTOM = {"type": "custom", "name": "c", "format": {}}
BROWSES = {"type": "web_search_20250305", "name": "web_search", "allowed_domains": []}
EMPTY: list[tuple[str, Frame, int, str]] = [  # what is refused, or what the header names
    *(("/chat/completions", {name: {}}, 400, name) for name in ("web_search_options", "audio", "kv_transfer_params")),
    *(("/responses", {name: {}}, 400, name) for name in ("prompt", "moderation", "guided_json", "audio")),
    ("/responses", {"documents": [], "guided_regex": "", "mm_processor_kwargs": {}}, 200, "documents, guided_regex"),
    ("/responses", {"text": {"format": {}}}, 400, "text.format.type"),
    ("/responses", {"structured_outputs": {"json": {}}}, 200, ""),  # any JSON
    ("/responses", {"structured_outputs": {"json": ""}}, 400, "structured_outputs.json"),
    ("/responses", {"tools": [CUSTOM]}, 400, "tools[0].format.type"),
    ("/responses", {"tools": [{"type": "shell", "environment": {}}]}, 400, "tools[0].environment.type"),
    # Nobody's pages are no reason to open everybody's.
    (*("/responses", {"tools": [{"type": "web_search", "filters": {"allowed_domains": []}}]}, 400),
     "tools[0].filters.allowed_domains"),
    ("/messages", {"tools": [BROWSES]}, 400, "tools[0].allowed_domains"),
    ("/messages", {"thread": {}}, 400, "thread"),
    ("/completions", {"suffix": "", "structured_outputs": {}}, 400, "structured_outputs"),
    ("/completions", {"suffix": "", "tools": []}, 200, "suffix, tools"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "fields", "status", "told"), EMPTY, ids=lambda each: str(each)[:60])
async def test_what_is_empty_is_there(
    http: httpx.AsyncClient, path: str, fields: Frame, status: int, told: str
) -> None:
    """An empty object asks for what holds without options; an empty list or text is not dropped silently."""
    bodies: dict[str, Frame] = {"/responses": {"input": "Hi"}, "/completions": {"prompt": "Hi"}}
    body = bodies.get(path, {"model": "demo", "messages": SAID}) | ({"max_tokens": 9} if path == "/messages" else {})
    answer = await http.post(path, json={**body, **fields}, headers=ANTHROPICS if path == "/messages" else {})
    assert answer.status_code == status, answer.text
    if status == 200:
        assert answer.headers.get(IGNORED, "") == told
    else:
        assert f"'{told}'" in answer.json()["error"]["message"]


async def test_it_is_named_behind_other_fields(http: httpx.AsyncClient) -> None:
    answer = await created(http, tools=[CALLABLE, {"type": "web_search"}], text={"verbosity": "low"})
    assert answer.headers[IGNORED] == "text.verbosity, tools[1]"


FOREIGN = "gAAAAABpJ3" + "x" * 90  # as OpenAI's begin
SEALED = [
    {"role": "user", "content": "Hello"},
    {"type": "compaction", "encrypted_content": FOREIGN},
    {"type": "reasoning", "summary": [], "encrypted_content": FOREIGN},
    {"role": "user", "content": "Go on."},
]
THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": FOREIGN}
MESSAGES: Frame = {
    "max_tokens": 20,
    "messages": [*SAID, {"role": "assistant", "content": [THOUGHT, {"type": "text", "text": "Yes."}]}, *SAID],
}
OTHER_NAMES = [  # as Codex has them in its history
    {**SEALED[1], "type": "context_compaction"},
    {**SEALED[1], "type": "compaction_summary"},
]
OF_ITEMS = "input[1].encrypted_content, input[2].encrypted_content"
SEALS: dict[str, tuple[str, Frame, str]] = {
    "response": ("/responses", {"input": SEALED}, OF_ITEMS),
    "other names": ("/responses", {"input": [SEALED[0], *OTHER_NAMES, SEALED[-1]]}, OF_ITEMS),
    "unstored": ("/responses", {"input": SEALED, "store": False}, OF_ITEMS),
    "stream": ("/responses", {"input": SEALED, "stream": True}, OF_ITEMS),
    "background": ("/responses", {"input": SEALED, "background": True}, OF_ITEMS),
    "compact": ("/responses/compact", {"input": SEALED, "model": "demo"}, OF_ITEMS),
    "tokens": ("/responses/input_tokens", {"input": SEALED}, OF_ITEMS),
    "message": ("/messages", {**MESSAGES, "model": "demo"}, "messages[1].content[0].signature"),
    "count": (
        "/messages/count_tokens",
        {**MESSAGES, "model": "demo", "max_tokens": None},
        "messages[1].content[0].signature",
    ),
}


@pytest.mark.parametrize(("path", "body", "named"), SEALS.values(), ids=SEALS)
async def test_what_was_sealed_elsewhere_is_refused_or_a_note(
    path: str, body: Frame, named: str, demo_server: Server, refusing: Server
) -> None:
    body = {name: value for name, value in body.items() if value is not None}
    for server, wish, is_taken in (
        (demo_server, {}, False),
        (demo_server, {"respsite-foreign-seals": "note"}, True),
        (refusing, {}, True),
        (refusing, {"respsite-foreign-seals": "refuse"}, False),
    ):
        async with http_client(server) as http:
            answer = await http.post(path, json=body, headers={**ANTHROPICS, **wish})
        assert (answer.status_code, answer.headers.get(IGNORED)) == ((200, named) if is_taken else (400, None))
        assert is_taken or "FOREIGN_SEALS=note" in answer.text


async def test_over_the_websocket_too(demo_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    async with await Socket.open(demo_server.ws_url, additional_headers={"respsite-foreign-seals": "note"}) as socket:
        await socket.create(SEALED)
        created, *_ = await socket.answer()
        assert created["headers"] == {IGNORED: OF_ITEMS}
        assert f"these fields have no effect: {OF_ITEMS}" in caplog.text
        await socket.create("Go on.", previous_response_id=created["response"]["id"])
        assert (await socket.answer())[-1]["type"] == "response.completed"
    async with await Socket.open(demo_server.ws_url) as socket:
        await socket.create(SEALED)
        read_error_frame(
            await socket.error(), status=400, code="invalid_encrypted_content", param="input[1].encrypted_content"
        )


async def test_an_unknown_wish_for_seals_is_refused(http: httpx.AsyncClient) -> None:
    answer = await http.post("/responses", json={"input": "Hi"}, headers={"respsite-foreign-seals": "drop"})
    read_error_answer(answer, status=400, code="invalid_value", param="Respsite-Foreign-Seals")


async def test_a_stream_names_them_in_its_head(http: httpx.AsyncClient) -> None:
    body = {"input": "Hello", "stream": True, "colour": 1}
    async with http.stream("POST", "/responses", json=body) as answer:
        assert answer.headers[IGNORED] == "colour"
        await answer.aread()


async def test_a_websocket_names_them_beside_the_created_response(demo_server: Server) -> None:
    async with await Socket.open(demo_server.ws_url) as socket:
        await socket.send({"type": "response.create", "input": "Hello", "colour": 1, "shade": None, "stream_id": "a"})
        events = await socket.answer("a")
        assert [event.get("headers") for event in events] == [{IGNORED: "colour"}] + [None] * (len(events) - 1)
        assert {event["stream_id"] for event in events} == {"a"}
        await socket.send({"type": "response.create", "input": "Hello", "temprature": 1})
        frame = await socket.error()
        read_error_frame(frame, status=400, code="unknown_parameter", param="temprature")


async def test_as_strict_as_openai(refusing: Server) -> None:
    async with http_client(refusing) as http:
        for path, body in (("/responses", {"input": "Hi", "colour": 1}), ("/conversations", {"colour": 1})):
            answer = await http.post(path, json=body)
            message = read_error_answer(answer, status=400, code="unknown_parameter", param="colour")
            assert message == "Unknown parameter: 'colour'."
        await created(http, client_metadata={"a": "b"})
    async with await Socket.open(refusing.ws_url) as socket:
        await socket.send({"type": "response.create", "input": "Hello", "colour": 1})
        read_error_frame(await socket.error(), status=400, code="unknown_parameter", param="colour")


async def test_the_thought_has_one_name_where_the_operator_says_which(
    http: httpx.AsyncClient, refusing: Server
) -> None:
    body = {"messages": SAID}
    async with http_client(refusing) as one_name:
        for client, gone in ((http, set()), (one_name, {"reasoning"})):
            message = (await client.post("/chat/completions", json=body)).json()["choices"][0]["message"]
            text = (await client.post("/chat/completions", json={**body, "stream": True})).text
            for name in ("reasoning", "reasoning_content"):
                assert (bool(message.get(name)), f'"{name}":"' in text) == (name not in gone, name not in gone)


async def test_what_clients_only_give_back_is_no_news(http: httpx.AsyncClient) -> None:
    """A whole answer comes back as it went out; of a stream, clients keep the numbers of its calls."""
    tool = {"name": "f", "parameters": {"type": "object"}}
    said = [{"role": "user", "content": "call f"}]
    chat: Frame = {"tools": [{"type": "function", "function": tool}], "messages": said}
    message = (await http.post("/chat/completions", json=chat)).json()["choices"][0]["message"]
    (call,) = message["tool_calls"]
    more = {"provider_specific_fields": {"refusal": None}}
    message = {**message, **more, "tool_calls": [{**call, **more, "index": 0}]}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "5"}
    told = await http.post("/chat/completions", json={**chat, "messages": [*said, message, result]})
    assert (told.status_code, told.headers.get(IGNORED)) == (200, None), told.text

    first = await created(http, input=said, tools=[{"type": "function", **tool}], store=False)
    output = first.json()["output"]
    called = next(item for item in output if item["type"] == "function_call")
    answer = {"type": "function_call_output", "call_id": called["call_id"], "output": "5"}
    again = await created(http, input=[*said, *output, answer], tools=first.json()["tools"], store=False)
    assert again.headers.get(IGNORED) is None

    known = [{"name": "f", "input_schema": {"type": "object"}}]
    asked: Frame = {"model": "demo", "max_tokens": 999, "messages": said, "tools": known}
    content = (await http.post("/messages", json=asked, headers=ANTHROPICS)).json()["content"]
    use = next(block for block in content if block["type"] == "tool_use")
    given = [{"type": "tool_result", "tool_use_id": use["id"], "content": "5"}]
    asked["messages"] = [*said, {"role": "assistant", "content": content}, {"role": "user", "content": given}]
    told = await http.post("/messages", json=asked, headers=ANTHROPICS)
    assert (told.status_code, told.headers.get(IGNORED)) == (200, None), told.text


async def test_a_stop_string_ends_the_answer(http: httpx.AsyncClient) -> None:
    whole = text_of((await created(http, input="count to 20")).json())
    assert " 9" in whole
    body = {"input": "count to 20", "stop": [" 9"], "stream": True, "store": True}
    async with http.stream("POST", "/responses", json=body) as answer:
        events = [event async for _, event in server_sent(answer) if event != "[DONE]"]
    assert_laws(events)
    response = events[-1]["response"]
    assert text_of(response) == whole[: whole.index(" 9")]
    assert (response["status"], response["output"][-1]["status"]) == ("completed", "completed")
    again = await http.get(f"/responses/{response['id']}", params={"stream": "true"})
    replayed = [json.loads(line[6:]) for line in again.text.splitlines() if line.startswith("data: {")]
    assert replayed == events


async def test_structured_outputs_hold_the_answer(http: httpx.AsyncClient) -> None:
    assert text_of((await created(http, structured_outputs={"choice": ["red", "green"]})).json()) in ("red", "green")
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert "a" in json.loads(text_of((await created(http, structured_outputs={"json": schema})).json()))
    for wrong in ({}, {"choice": ["a"], "regex": "b"}, {"regex": "(?=a)b"}, {"json": "no"}):
        answer = await http.post("/responses", json={"input": "Hi", "structured_outputs": wrong})
        assert answer.status_code == 400, wrong


async def test_a_data_url_that_is_no_image_is_named(http: httpx.AsyncClient) -> None:
    part = {"type": "input_image", "image_url": "data:image/png;base64,!!!"}
    answer = await http.post("/responses", json={"input": [{"role": "user", "content": [part]}]})
    read_error_answer(answer, status=400, code="invalid_value", param="input[0].content[0].image_url")
    chat = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": part["image_url"]}}]}]
    answer = await http.post("/chat/completions", json={"messages": chat})
    assert answer.status_code == 400


async def test_a_malformed_id_of_a_conversation_is_told(http: httpx.AsyncClient) -> None:
    answer = await http.get("/conversations/abc")
    read_error_answer(answer, status=400, code="invalid_value", param="conversation_id")
    answer = await http.post("/responses", json={"input": "Hi", "conversation": "abc"})
    assert "begins with 'conv'" in read_error_answer(answer, status=400, code="invalid_value", param="conversation")


async def test_an_empty_list_of_models_is_not_read_out(http: httpx.AsyncClient) -> None:
    answer = await http.post("/embeddings", json={"input": "Hi", "model": "none"})
    assert "serves: ." not in answer.json()["error"]["message"]


CHATS: dict[str, Frame] = {
    "/chat/completions": {"messages": [{"role": "user", "content": "count to 9"}]},
    "/completions": {"prompt": "count to 9", "max_tokens": 30},
}


@pytest.mark.parametrize("path", CHATS)
async def test_each_part_says_what_was_used_so_far(http: httpx.AsyncClient, path: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**CHATS[path], "stream": True, "stream_options": options}
    async with http.stream("POST", path, json=body) as answer:
        lines = [line[6:] async for line in answer.aiter_lines() if line.startswith("data: {")]
    chunks = [json.loads(line) for line in lines]
    used = [chunk["usage"] for chunk in chunks]
    counts = [each["completion_tokens"] for each in used]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
    assert {each["prompt_tokens"] for each in used} == {used[-1]["prompt_tokens"]}
    assert all(each["total_tokens"] == each["prompt_tokens"] + each["completion_tokens"] for each in used)


async def test_an_input_that_is_read_twice_has_its_fields_named_once(http: httpx.AsyncClient) -> None:
    message = {"role": "user", "content": "Hello", "weather": "fine"}
    answer = await http.post("/responses/compact", json={"model": "demo", "input": [message], "temperature": 1})
    assert (answer.status_code, answer.headers[IGNORED]) == (200, "input[0].weather")
