"""Responses with agents over a real server, with OpenAI's SDK and the model of the Agents SDK that is made for them."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from agents import Agent, ModelSettings, Runner, function_tool
from agents.extensions.experimental.hosted_multi_agent import OpenAIHostedMultiAgentModel, get_hosted_agent_metadata
from agents.tool_context import ToolContext
from openai import OpenAI
from openai.types.beta import BetaResponse, BetaResponsesServerEvent, BetaResponseStreamEvent
from pydantic import TypeAdapter

from tests.kit.batches import batch_of, ended, line, output_of
from tests.kit.fixtures import module_server
from tests.kit.sdk import async_sdk_of, sdk_of
from tests.kit.server import Server
from tests.kit.waiting import looks

BETAS: Any = ["responses_multi_agent=v1"]
HEADERS = {"OpenAI-Beta": BETAS[0]}
WITH_AGENTS: Any = {"enabled": True}
TREE = "agent berlin: count to 5\nagent rome: agent sub: count to 3"
ANSWER = "The agents said: /root/berlin: 1 2 3 4 5 /root/rome: The agents said: /root/rome/sub: 1 2 3"
TOOL: Any = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
STREAM_EVENT: TypeAdapter[Any] = TypeAdapter(BetaResponseStreamEvent)
SOCKET_EVENT: TypeAdapter[Any] = TypeAdapter(BetaResponsesServerEvent)

server = module_server("agents")


@pytest.fixture
def sdk(server: Server) -> Iterator[OpenAI]:
    with sdk_of(server) as client:
        yield client


def final_text(response: BetaResponse) -> str:
    """Return what the root has answered."""
    messages = [item for item in response.output if item.type == "message" and item.agent.agent_name == "/root"]
    return messages[-1].content[0].text  # type: ignore[union-attr, return-value]


def said_by(response: BetaResponse) -> set[str]:
    return {item.agent.agent_name for item in response.output}  # type: ignore[union-attr]


def ask(sdk: OpenAI, text: str = TREE, **fields: Any) -> Any:
    return sdk.beta.responses.create(model="demo", input=text, multi_agent=WITH_AGENTS, betas=BETAS, **fields)


def raw_events(server: Server, response_id: str) -> list[dict[str, Any]]:
    """Read a stored response's stream again."""
    with httpx.stream("GET", f"{server.base_url}/responses/{response_id}?stream=true", timeout=30) as answer:
        return [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]


@pytest.mark.each_database
def test_a_stream_has_all_agents_and_can_be_read_again(server: Server, sdk: OpenAI) -> None:
    with ask(sdk, stream=True) as stream:
        events = list(stream)
    for event in events:
        STREAM_EVENT.validate_python(event.to_dict())
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert {event.agent.agent_name for event in events} == {"/root", "/root/berlin", "/root/rome", "/root/rome/sub"}
    last = events[-1].response
    assert sorted(final_text(last).split()) == sorted(ANSWER.split())  # whichever came first
    assert raw_events(server, last.id) == [event.to_dict() for event in events]
    stored = sdk.beta.responses.retrieve(last.id, betas=BETAS)
    assert stored.to_dict() == last.to_dict()


def test_without_a_stream_the_response_is_whole(sdk: OpenAI) -> None:
    response = ask(sdk)
    TypeAdapter(BetaResponse).validate_python(response.to_dict())
    assert said_by(response) == {"/root", "/root/berlin", "/root/rome", "/root/rome/sub"}
    kinds = [item.type for item in response.output]
    assert kinds.count("multi_agent_call") == kinds.count("multi_agent_call_output")
    assert kinds.count("agent_message") == 6  # three tasks, and three answers


def test_its_page_shows_the_tree_of_agents(server: Server, sdk: OpenAI) -> None:
    response = ask(sdk)
    page = httpx.get(f"{server.url}/watch/responses/{response.id}", timeout=30).text
    assert re.findall(r'<bdi class="id">(/root[^<]*)</bdi>\s*<bdi class="wt-asked">([^<]*)', page) == [
        ("/root/berlin", "count to 5"),
        ("/root/rome", "agent sub: count to 3"),
        ("/root/rome/sub", "count to 3"),
    ]


def test_what_is_continued_is_what_the_root_has_read(sdk: OpenAI) -> None:
    first = ask(sdk, "agent berlin: count to 3")
    then = sdk.responses.create(model="demo", input="count to 2", previous_response_id=first.id)
    assert then.output_text == "1 2"
    # The same conversation by its items, as a client keeps them.
    items: Any = [item.to_dict() for item in first.output]
    user = {"type": "message", "role": "user", "content": "agent berlin: count to 3"}
    again = sdk.responses.create(model="demo", input=[user, *items, {"role": "user", "content": "count to 2"}])
    assert again.output_text == "1 2"
    assert again.usage.input_tokens == then.usage.input_tokens  # type: ignore[union-attr]


def test_a_conversation_goes_on_behind_agents(sdk: OpenAI) -> None:
    conversation = sdk.conversations.create()
    ask(sdk, "agent berlin: count to 3", conversation=conversation.id)
    then = sdk.responses.create(model="demo", input="count to 2", conversation=conversation.id)
    assert then.output_text == "1 2"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tool_calls": 3}, "max_tool_calls"),
        ({"reasoning": {"summary": "auto"}}, "reasoning.summary"),
        ({"tools": [{"type": "namespace", "name": "agents", "tools": [TOOL]}]}, "tools[0].name"),
        ({"multi_agent": {"enabled": True, "max_concurrent_subagents": 17}}, "multi_agent.max_concurrent_subagents"),
        ({"multi_agent": {"enabled": True, "max_concurrent_subagents": 0}}, "multi_agent.max_concurrent_subagents"),
    ],
)
def test_what_is_not_carried_out_is_refused(server: Server, fields: dict[str, Any], param: str) -> None:
    body = {"input": "hi", "multi_agent": WITH_AGENTS, **fields}
    answer = httpx.post(f"{server.base_url}/responses", json=body, headers=HEADERS)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_without_the_header_the_error_names_it(server: Server, sdk: OpenAI) -> None:
    error = server.post("/responses", input="hi", multi_agent={"enabled": True}).json()["error"]
    assert (error["code"], error["param"]) == ("missing_beta_header", "multi_agent")
    assert "OpenAI-Beta: responses_multi_agent=v1" in error["message"]
    with sdk.beta.responses.connect() as plain:
        plain.send({"type": "response.create", "model": "demo", "input": "hi", "multi_agent": WITH_AGENTS})
        assert plain.recv().error.code == "missing_beta_header"  # type: ignore[union-attr]


def test_a_line_of_a_batch_has_agents_without_a_header(sdk: OpenAI) -> None:
    body = {"model": "demo", "input": "agent berlin: count to 3", "multi_agent": WITH_AGENTS}
    batch = ended(sdk, batch_of(sdk, [line("a", "/v1/responses", **body)], "/v1/responses"))
    answer = output_of(sdk, batch.output_file_id)["a"]["response"]["body"]
    assert "/root/berlin: 1 2 3" in final_text(BetaResponse.model_validate(answer))


def test_outputs_of_tools_are_injected(sdk: OpenAI) -> None:
    with sdk.beta.responses.connect(extra_headers=HEADERS) as socket:
        asked: Any = {"model": "demo", "input": "agent berlin: call get_weather", "multi_agent": WITH_AGENTS}
        socket.send({"type": "response.create", **asked, "tools": [TOOL]})
        response_id, injected = "", 0
        for event in socket:
            SOCKET_EVENT.validate_python(event.to_dict())
            if event.type == "response.created":
                response_id = event.response.id
            elif event.type == "response.output_item.done" and event.item.type == "function_call":
                assert event.item.agent.agent_name == "/root/berlin"  # type: ignore[union-attr]
                output: Any = {"type": "function_call_output", "call_id": event.item.call_id, "output": "sunny"}
                nobody: Any = {**output, "call_id": "call_nobody"}
                socket.response.inject(response_id=response_id, input=[output, nobody])  # one is wrong: none is taken
                assert next(each for each in socket if each.type == "error").error.param == "input[1].call_id"
                socket.response.inject(response_id=response_id, input=[output])
            elif event.type == "response.inject.created":
                injected += 1
                assert event.response_id == response_id
            elif event.type == "response.completed":
                assert "it returned: sunny." in final_text(event.response)
                break
        assert injected == 1
        late: Any = {"type": "function_call_output", "call_id": "call_1", "output": "late"}
        for name, code in ((response_id, "response_already_completed"), ("resp_no", "response_not_found")):
            socket.response.inject(response_id=name, input=[late])
            failed = socket.recv()
            assert failed.type == "response.inject.failed"
            assert (failed.error.code, [item.to_dict() for item in failed.input]) == (code, [late])


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_the_agents_sdk_runs_its_tools_for_agents(server: Server, *, streamed: bool) -> None:
    """As its example `hosted_multi_agent_beta.py`: each call says which agent has made it."""
    callers: list[str | None] = []

    @function_tool
    def get_weather(context: ToolContext[Any], city: str) -> str:
        """Tell the weather."""
        of = get_hosted_agent_metadata(context)
        callers.append(of and of.agent_name)
        return "sunny"

    question = "agent berlin: call get_weather\nagent rome: call get_weather"
    spoke: set[str | None] = set()
    async with async_sdk_of(server) as client:
        model = OpenAIHostedMultiAgentModel("demo", client, config={"max_concurrent_subagents": 2})
        agent = Agent("Root", tools=[get_weather], model=model, model_settings=ModelSettings(store=True))
        if streamed:
            result: Any = Runner.run_streamed(agent, question)
            async for event in result.stream_events():
                if event.type == "raw_response_event" and event.data.type == "response.output_item.done":
                    of = get_hosted_agent_metadata(event.data.item)
                    spoke.add(of and of.agent_name)
            assert {"/root", "/root/berlin", "/root/rome"} <= spoke
        else:
            result = await Runner.run(agent, question)
    assert sorted(map(str, callers)) == ["/root/berlin", "/root/rome"]
    assert result.final_output.count("it returned: sunny.") == 2


slow_server = module_server("slow-agents", engine_options={"tokens_per_second": 40}, worker_lease_seconds=1)


def test_who_cancels_the_response_cancels_its_agents(slow_server: Server) -> None:
    asked = "agent a: count to 900\nagent b: count to 900"
    with sdk_of(slow_server) as sdk, ask(sdk, asked, stream=True, background=True) as stream:
        response_id = next(iter(stream)).response.id
        for event in stream:
            if event.type == "response.output_text.delta":
                break
        cancelled = sdk.beta.responses.cancel(response_id, betas=BETAS)
    assert cancelled.status == "cancelled"
    assert any(not httpx.get(f"{slow_server.url}/ready").json()["responses_in_flight"] for _ in looks(30))
