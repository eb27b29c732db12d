"""Tools that the server runs, by their Anthropic names, through Anthropic's SDK: shown, streamed, and replayed exactly.

Two servers share what they seal with, and nothing else: what the second one reads of a turn of the first one is only
what the client has given back.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from anthropic import Anthropic, BadRequestError

from engine.formats.harmony.encoding import encode_harmony
from tests.kit.mcp_servers import McpServer, mcp_server
from tests.kit.messages import put_together, sent
from tests.kit.sandboxes import needs_bubblewrap
from tests.kit.scripts import as_history, generations
from tests.kit.search_servers import settings, small_web
from tests.kit.server import Server
from tests.kit.threads import in_a_thread
from tests.kit.web_server import WebServer

pytestmark = needs_bubblewrap

SEARCH: Any = {"type": "web_search_20250305", "name": "web_search"}
FETCH: Any = {"type": "web_fetch_20250910", "name": "web_fetch"}
CODE: Any = {"type": "code_execution_20250522", "name": "code_execution"}
THINKING: Any = {"type": "adaptive"}
HM = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"


def calling(to: str, text: str, kind: str = " <|constrain|>json") -> str:
    """Return a turn that calls one of the server's tools, behind a thought."""
    return f"{HM}<|channel|>commentary to={to}{kind}<|message|>{text}<|call|>"


def answer(text: str) -> str:
    """Return a turn that answers."""
    return f"<|channel|>final<|message|>{text}<|return|>"


def spelled(step: int) -> str:
    """Return a turn that calls the client's tool, behind a thought, with JSON in a spelling of its own."""
    arguments = f'{{ "b" : [ {step} ],"a":  {{"d": 1, "c": "\\u00fc"}} }}'
    return f"{HM}<|channel|>commentary to=functions.next <|constrain|>json<|message|>{arguments}<|call|>"


SCRIPT = [
    {"when": "Which?", "say": spelled(0)},
    *({"when": f"step {step}.", "say": spelled(step)} for step in range(1, 9)),
    {"when": "And then?", "say": answer("That was all.")},
    {"when": "Shells?", "say": calling("browser.search", '{ "query" : "turtles" }')},
    {"when": "Search Results", "say": calling("browser.open", '{"id": 0}')},
    {"when": "On turtles (", "say": answer("Bone【1†L0】, as one reads.")},
    {"when": "Open nothing", "say": calling("browser.open", '{"id": 7}')},
    {"when": "No pages to access", "say": answer("There is nothing.")},
    {"when": "Run it", "say": calling("python", 'print("ü", 6 * 7)\nopen("a.txt", "w").write("x");', "")},
    {"when": "ü 42", "say": answer("It says 42.")},
    {"when": "Raise it", "say": calling("python", "1 / 0", "")},
    {"when": "ZeroDivisionError", "say": answer("It raised.")},
    {"when": "Add them", "say": calling("tests.add", '{"b": 2, "a": 40}')},
    {"when": "42", "say": answer("They are 42.")},
    {"when": "Fail", "say": calling("tests.fail", "{}")},
    {"when": "bad day", "say": answer("It failed.")},
    {"say": answer("Hello.")},
]


@pytest.fixture(scope="module")
def web() -> Iterator[WebServer]:
    """The web that is searched."""
    with in_a_thread(small_web()) as web:
        yield web


@pytest.fixture(scope="module")
def mcp() -> Iterator[McpServer]:
    """A server with tools."""
    with in_a_thread(mcp_server()) as mcp:
        yield mcp


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, web: WebServer) -> Iterator[tuple[Server, Server]]:
    """Two servers with the same secrets."""
    fields = {
        "script": SCRIPT,
        "journal": True,
        "mcp_allowed_hosts": "127.0.0.1",
        "secret_key": "s" * 50,
        "sandbox_memory_bytes": 256 * 1024 * 1024,
        **settings(web),
    }
    folder = tmp_path_factory.mktemp("tools")
    with Server(folder / "a", **fields) as one, Server(folder / "b", **fields) as other:  # type: ignore[arg-type]
        yield one, other


def asked(text: str, **fields: Any) -> Any:
    return {"model": "scripted", "max_tokens": 2000, "messages": [{"role": "user", "content": text}], **fields}


def of(server: Server) -> Anthropic:
    return Anthropic(base_url=server.url, api_key="none", max_retries=0)


def shown(content: Any) -> list[dict[str, Any]]:
    return [block.model_dump(mode="json", exclude_none=True) for block in content]


def prompts(server: Server, message_id: str) -> list[Any]:
    return generations(server, "resp_" + message_id.removeprefix("msg_"))


START = 200006


def without_thoughts(tokens: list[int]) -> list[int]:
    """Return what is read behind an answer: no thoughts of the turns before it."""
    begins = [place for place, token in enumerate(tokens) if token == START]
    messages = [tokens[begin:end] for begin, end in pairwise([*begins, len(tokens)])]
    thought = encode_harmony("<|start|>assistant<|channel|>analysis")
    return [token for message in messages if message[: len(thought)] != thought for token in message]


def without_nulls(value: Any) -> Any:
    """Return what an SDK shows."""
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def replayed(servers: tuple[Server, Server], body: Any, **options: Any) -> Any:
    """Ask one server, and go on at both; hold the prompts to begin with all that was sampled and read before."""
    first, second = servers
    with of(first) as client:
        said = client.beta.messages.create(**body, **options)
    before = prompts(first, said.id)
    history = without_thoughts(as_history(before[-1]))
    question = {"role": "user", "content": "And then?"}
    again = {**body, "messages": [*body["messages"], {"role": "assistant", "content": said.content}, question]}
    for server in (second, first):
        with of(server) as client:
            more = client.beta.messages.create(**again, **options)
        [after] = prompts(server, more.id)
        assert after["prompt_tokens"][: len(history)] == history
    return said


@pytest.mark.parametrize("thinking", [THINKING, {"type": "disabled"}])
def test_the_web(servers: tuple[Server, Server], web: WebServer, thinking: Any) -> None:
    body = asked("Shells?", tools=[SEARCH, FETCH], thinking=thinking)
    said = replayed(servers, body)
    blocks = [block for block in shown(said.content) if "thinking" not in block["type"]]
    kinds = ["server_tool_use", "web_search_tool_result", "server_tool_use", "web_fetch_tool_result", "text"]
    assert [block["type"] for block in blocks] == kinds
    search, found, fetch, page, text = blocks
    url = web.url("/turtles")
    assert (search["name"], search["input"], fetch["name"], fetch["input"]) == (
        *("web_search", {"query": "turtles"}),
        *("web_fetch", {"url": url}),
    )
    assert search["id"].startswith("srvtoolu_")
    assert (found["tool_use_id"], page["tool_use_id"]) == (search["id"], fetch["id"])
    [result] = found["content"]
    assert (result["title"], result["url"], result["encrypted_content"]) == ("Turtles", url, "They have a shell.")
    assert "The shell of a turtle is bone." in page["content"]["content"]["source"]["data"]
    [citation] = text["citations"]
    assert (citation["type"], citation["url"], citation["title"]) == ("web_search_result_location", url, "On turtles")
    assert text["text"].startswith("Bone ([")
    assert said.usage.server_tool_use.model_dump() == {"web_search_requests": 1, "web_fetch_requests": 1}
    assert said.stop_reason == "end_turn"
    assert ("thinking" in {block.type for block in said.content}) is (thinking is THINKING)


def test_a_call_that_fails(servers: tuple[Server, Server]) -> None:
    said = replayed(servers, asked("Open nothing", tools=[SEARCH]))
    [result] = [block for block in shown(said.content) if block["type"] == "web_fetch_tool_result"]
    assert result["content"] == {"type": "web_fetch_tool_result_error", "error_code": "unavailable"}


def test_code(servers: tuple[Server, Server]) -> None:
    said = replayed(servers, asked("Run it", tools=[CODE], thinking=THINKING))
    [use] = [block for block in said.content if block.type == "server_tool_use"]
    [result] = [block for block in said.content if block.type == "code_execution_tool_result"]
    assert (use.name, use.input["code"].splitlines()[0]) == ("code_execution", 'print("ü", 6 * 7)')
    assert (result.content.stdout, result.content.return_code) == ("ü 42\n", 0)
    assert said.container.id.startswith("cntr_")
    [output] = result.content.content
    with of(servers[0]) as client:
        path = f"/v1/containers/{said.container.id}/files/{output.file_id}/content"
        assert client.get(path, cast_to=bytes) == b"x"  # type: ignore[type-var]
        more: Any = client.beta.messages.create(**asked("Raise it", tools=[CODE]), container=said.container.id)
        assert more.container.id == said.container.id


def test_mcp(servers: tuple[Server, Server], mcp: McpServer) -> None:
    server = {"type": "url", "name": "tests", "url": mcp.url}
    toolset = {
        "type": "mcp_toolset",
        "mcp_server_name": "tests",
        "default_config": {"enabled": False},
        "configs": {"add": {"enabled": True}, "fail": {"enabled": True}},
    }
    for beta in ("mcp-client-2025-11-20", "mcp-client-2026-09-15"):
        for text, error, given in (("Add them", False, "42"), ("Fail", True, "bad day")):
            body = asked(text, mcp_servers=[server], tools=[toolset], thinking=THINKING)
            said = replayed(servers, body, betas=[beta])
            [use] = [block for block in said.content if block.type == "mcp_tool_use"]
            [result] = [block for block in said.content if block.type == "mcp_tool_result"]
            assert (use.server_name, use.id) == ("tests", result.tool_use_id)
            assert use.input == ({} if error else {"a": 40, "b": 2})
            assert result.is_error is error
            assert given in result.content[0].text
            listed = [block for block in said.content if block.type == "mcp_tool_listing"]
            assert [[tool.name for tool in block.tools] for block in listed] == (
                [["add", "fail"]] if "2026" in beta else []
            )
    with of(servers[0]) as client:
        old = asked("Add them", mcp_servers=[{**server, "tool_configuration": {"allowed_tools": ["add"]}}])
        assert "mcp_tool_use" in {block.type for block in client.beta.messages.create(**old).content}


STEP: Any = {"name": "next", "input_schema": {"type": "object"}}


def test_arguments_come_back_in_any_spelling(servers: tuple[Server, Server]) -> None:
    """Their tokens are carried by the turn's seals: the second server has never heard of it."""
    body = asked("Which?", tools=[STEP], thinking=THINKING)
    with of(servers[0]) as client:
        said = client.messages.create(**body)
    thought, call, *rest = shown(said.content)
    assert (call["input"], [block["type"] for block in rest]) == (
        {"b": [0], "a": {"d": 1, "c": "ü"}},
        ["redacted_thinking"],
    )
    history = as_history(prompts(servers[0], said.id)[-1])
    for arguments in (call["input"], {"a": {"c": "ü", "d": 1}, "b": [0]}):
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "step 1."}
        again: list[Any] = [
            *body["messages"],
            {"role": "assistant", "content": [thought, {**call, "input": arguments}]},
        ]
        again[-1]["content"] += rest
        again.append({"role": "user", "content": [result]})
        with of(servers[1]) as client:
            more = client.messages.create(**{**body, "messages": again})
        [after] = prompts(servers[1], more.id)
        assert after["prompt_tokens"][: len(history)] == history


@pytest.mark.parametrize(("text", "tools"), [("Shells?", [SEARCH]), ("Run it", [CODE]), ("Raise it", [CODE])])
def test_a_stream_is_the_message_in_events(servers: tuple[Server, Server], text: str, tools: Any) -> None:
    body = asked(text, tools=tools, thinking=THINKING)
    with of(servers[0]) as client:
        whole = client.messages.create(**body)
        with client.messages.with_streaming_response.create(**body, stream=True) as streamed:
            together = put_together(sent(streamed.read()))
        with client.messages.stream(**body) as stream:
            final = stream.get_final_message()
    kinds = [block.type for block in whole.content]
    assert [block["type"] for block in together["content"]] == [block.type for block in final.content] == kinds
    for block, other in zip(together["content"], shown(whole.content), strict=True):
        for name in ("signature", "data", "id", "tool_use_id"):
            block.pop(name, None), other.pop(name, None)
        if block["type"] == "web_fetch_tool_result":  # each of the two requests fetched the page
            assert block["content"].pop("retrieved_at")
            assert other["content"].pop("retrieved_at")
        if block["type"] == "code_execution_tool_result":
            block["content"].pop("content"), other["content"].pop("content")
        assert without_nulls(block) == other
    assert together["usage"].get("server_tool_use") == (
        whole.usage.server_tool_use.model_dump() if whole.usage.server_tool_use else None
    )


def test_a_paused_turn_goes_on(servers: tuple[Server, Server]) -> None:
    use = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "turtles"}}
    result = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    body = asked("Shells?", tools=[SEARCH])
    body["messages"].append({"role": "assistant", "content": [use, result]})
    with of(servers[0]) as client:
        assert client.messages.create(**body).stop_reason == "end_turn"
        body["messages"][-1]["content"] = [result]
        with pytest.raises(BadRequestError, match=r"messages\[1\].content\[0\].tool_use_id"):
            client.messages.create(**body)


_MCP: Any = {"type": "url", "name": "tests", "url": "http://127.0.0.1:1/mcp"}
_SET: Any = {"type": "mcp_toolset", "mcp_server_name": "tests"}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tools": [{**SEARCH, "name": "search"}]}, "'tools[0].name'"),
        ({"tools": [{**SEARCH, "allowed_domains": ["https://a.example"]}]}, "'tools[0].allowed_domains[0]'"),
        (
            {"tools": [{**SEARCH, "allowed_domains": ["a.example"], "blocked_domains": ["b.example"]}]},
            "'tools[0].blocked_domains'",
        ),
        ({"tools": [SEARCH, {**FETCH, "blocked_domains": ["b.example"]}]}, "'tools[1]'"),
        ({"tools": [{**SEARCH, "max_uses": 0}]}, "'tools[0].max_uses'"),
        ({"tools": [{**SEARCH, "allowed_callers": ["code_execution_20260120"]}]}, "'tools[0].allowed_callers'"),
        (
            {
                "tools": [{"type": "computer_20251124", "name": "computer"}],
                "tool_choice": {"type": "tool", "name": "computer"},
            },
            "'tool_choice'",
        ),
        ({"tools": [CODE], "container": "cntr_unknown"}, "cntr_unknown"),
        ({"tools": [CODE], "container": {"skills": [{"type": "custom", "skill_id": "s"}]}}, "'container.skills'"),
        ({"tools": [_SET]}, "'tools[0].mcp_server_name'"),
        ({"tools": [_SET], "mcp_servers": [_MCP, {**_MCP, "name": "other"}]}, "'mcp_servers[1].name'"),
        ({"tools": [_SET, _SET], "mcp_servers": [_MCP]}, "'tools[1].mcp_server_name'"),
        ({"tools": [{**_SET, "configs": {"a": {"enabled": False}}}], "mcp_servers": [_MCP]}, "'tools[0].configs'"),
        ({"mcp_servers": [_MCP, _MCP]}, "'mcp_servers[1].name'"),
        ({"mcp_servers": [{**_MCP, "name": "python"}]}, "'mcp_servers[0].name'"),
        ({"mcp_servers": [{**_MCP, "url": "not one"}]}, "'mcp_servers[0].url'"),
        ({"mcp_servers": [{"type": "url", "name": "nobody"}]}, "nobody"),
        ({"mcp_servers": [_MCP] * 30}, "'mcp_servers'"),
    ],
)
def test_what_is_wrong_is_named(servers: tuple[Server, Server], fields: Any, named: str) -> None:
    with of(servers[0]) as client, pytest.raises(Exception, match="error") as refused:
        client.beta.messages.create(**asked("hi"), **fields)
    assert refused.value.status_code in (400, 404)  # type: ignore[attr-defined]
    assert named in str(refused.value)
