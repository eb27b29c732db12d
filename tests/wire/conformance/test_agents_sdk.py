"""OpenAI's Agents SDK, as it is: an agent with a tool over JSON, over server-sent events, and over its WebSocket."""

import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from engine.formats.harmony.encoding import decode_tokens, encode_harmony
from tests.kit.agents_sdk import model_of, no_tracing, run_of  # noqa: F401 - a fixture
from tests.kit.fixtures import module_server
from tests.kit.scripts import Entry, as_history, journal
from tests.kit.server import Server
from tests.kit.waiting import eventually

if TYPE_CHECKING:  # importing it takes seconds, which all who collect tests would wait for
    from agents import OpenAIResponsesModel, Tool
    from agents.result import RunResultBase

MODEL = "test-model"
QUESTION, THANKS = "What is the [weather] in Paris?", "[Thanks], and good night."
CALL = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
ARGUMENTS = '{"city": "Paris"}'
# No encoder makes these tokens of the arguments: only who keeps what was sampled can give them back.
SPELLED_OUT = [token for letter in ARGUMENTS for token in encode_harmony(letter)]
OUTPUT = "<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>18 °C in Paris<|end|>"
ANSWER, GOOD_NIGHT = "<|channel|>final<|message|>It is 18 °C there.", "<|channel|>final<|message|>Sleep well."
SCRIPT: list[Entry] = [
    {
        "when": "[weather]",
        "tokens": [
            *encode_harmony(f"<|channel|>analysis<|message|>I have to ask.<|end|><|start|>assistant{CALL}"),
            *SPELLED_OUT,
            *encode_harmony("<|call|>"),
        ],
    },
    {"when": "18 °C in Paris", "say": f"{ANSWER}<|return|>"},
    {"when": "[Thanks]", "say": f"{GOOD_NIGHT}<|return|>"},
]
_TO = "<|channel|>commentary to="
SEARCHES = [  # of `tool_search_example`
    {"when": "Look up customer_42", "say": f'{_TO}tool_search.search json<|message|>{{ "paths": ["crm"] }}<|call|>'},
    {
        "when": '"crm.list_open_orders"',  # which was declared last
        "say": f'{_TO}functions.crm.list_open_orders json<|message|>{{"customer_id": "customer_42"}}<|call|>',
    },
    {"when": "open orders for customer_42", "say": "<|channel|>final<|message|>None is open.<|return|>"},
]
# What follows the first prompt when the second run begins: nobody reads the thoughts of a turn that is over.
SECOND_RUN = (
    f"{CALL}{ARGUMENTS}<|call|>{OUTPUT}<|start|>assistant{ANSWER}<|end|>"
    f"<|start|>user<|message|>{THANKS}<|end|><|start|>assistant"
)


class Desk:
    """One test's agent, over one transport, and what its tool was called with."""

    def __init__(self, server: Server, transport: str, model: "OpenAIResponsesModel") -> None:
        import agents

        self.cities: list[str] = []
        self.events: list[Any] = []  # of the last streamed run
        self.transport, self.model = transport, model
        self._server, self._begin = server, len(journal(server))
        self.agent = agents.Agent(
            name="Weather desk", instructions="Be brief.", model=model, tools=[weather_tool(self.cities)]
        )

    @property
    def generations(self) -> list[Entry]:
        """What the engine wrote down during this test."""
        return journal(self._server)[self._begin :]

    @property
    def logged(self) -> list[str]:
        """The transports of this test's responses, as the server's log tells them."""
        lines = dict(re.findall(r" response (resp_\w+) (\w+) completed ", self._server.output))
        ids = [generation["request_id"].partition("-")[0] for generation in self.generations]
        return [lines[id] for id in ids if id in lines]

    async def run(self, input: Any, **options: Any) -> "RunResultBase":
        """Run the agent: at once over JSON, else streamed."""
        result, self.events = await run_of(self.agent, input, streamed=self.transport != "json", **options)
        return result


def weather_tool(cities: list[str]) -> "Tool":
    """Return a tool that writes its arguments into `cities`."""

    import agents

    @agents.function_tool
    def get_weather(city: str) -> str:
        """Tell the weather of a city."""
        cities.append(city)
        return f"18 °C in {city}"

    return get_weather


server = module_server("agents", script=[*SCRIPT, *SEARCHES], model_name=MODEL, journal=True)


@pytest.fixture(params=["json", "sse", "websocket"])
async def desk(request: pytest.FixtureRequest, server: Server) -> AsyncIterator[Desk]:
    """An agent over each transport."""
    async with model_of(server, MODEL, request.param) as model:
        yield Desk(server, request.param, model)


only_streamed = pytest.mark.parametrize("desk", ["sse", "websocket"], indirect=True)


@pytest.mark.parametrize("by_id", [False, True], ids=["replayed", "by id"])
async def test_a_run_calls_the_tool_and_continues_token_by_token(desk: Desk, *, by_id: bool) -> None:
    result = await desk.run(QUESTION, auto_previous_response_id=by_id)
    assert result.final_output == "It is 18 °C there."
    assert desk.cities == ["Paris"]
    call, answer = desk.generations
    history = as_history(call)
    assert history[-1 - len(SPELLED_OUT) : -1] == SPELLED_OUT
    assert answer["prompt_tokens"][: len(history)] == history
    assert decode_tokens(answer["prompt_tokens"][len(history) :]) == f"{OUTPUT}<|start|>assistant"
    await eventually(lambda: desk.logged == [desk.transport] * 2)


@only_streamed
async def test_a_streamed_run_tells_what_happens(desk: Desk) -> None:
    await desk.run(QUESTION)
    names = [event.name for event in desk.events if event.type == "run_item_stream_event"]
    assert names == ["reasoning_item_created", "tool_called", "tool_output", "message_output_created"]
    raw = [event.data for event in desk.events if event.type == "raw_response_event"]
    said = [event.delta for event in raw if event.type == "response.output_text.delta"]
    assert len(said) > 3
    assert "".join(said) == "It is 18 °C there."


@pytest.mark.parametrize("way", ["by id", "item list", "session"])
async def test_a_second_run_continues_the_first(desk: Desk, way: str) -> None:
    """Whoever keeps the conversation, the server or the client: the engine gets the same prompt."""
    import agents

    memory = agents.SQLiteSession("conversation") if way == "session" else None
    first = await desk.run(QUESTION, session=memory)
    if way == "by id":
        second = await desk.run(THANKS, previous_response_id=first.last_response_id)
    elif way == "item list":
        second = await desk.run([*first.to_input_list(), {"role": "user", "content": THANKS}])
    else:
        second = await desk.run(THANKS, session=memory)
    if memory is not None:
        memory.close()
    assert second.final_output == "Sleep well."
    beginning, prompt = desk.generations[0]["prompt_tokens"], desk.generations[-1]["prompt_tokens"]
    assert len(desk.generations) == 3
    assert prompt[: len(beginning)] == beginning
    assert decode_tokens(prompt[len(beginning) :]) == SECOND_RUN
    arguments = len(beginning) + len(encode_harmony(CALL))
    assert prompt[arguments : arguments + len(SPELLED_OUT)] == SPELLED_OUT


@pytest.mark.parametrize("by_id", [False, True], ids=["replayed", "by id"])
async def test_the_example_of_a_search_for_tools_runs_as_it_stands(desk: Desk, *, by_id: bool) -> None:
    import agents

    from tests.wire.conformance.tool_search_example import QUESTION, agent

    desk.agent = agent
    config = agents.RunConfig(model=desk.model)
    result = await desk.run(QUESTION, auto_previous_response_id=by_id, run_config=config)
    assert result.final_output == "None is open."
    kinds = [item.type for item in result.new_items]
    assert kinds == [
        "tool_search_call_item",
        "tool_search_output_item",
        "tool_call_item",
        "tool_call_output_item",
        "message_output_item",
    ]
    # A turn reads what was sampled before it, token by token, whoever keeps the conversation.
    prompts = [generation["prompt_tokens"] for generation in desk.generations]
    assert "list_open_orders" not in decode_tokens(prompts[0])
    for generation, prompt in zip(desk.generations, prompts[1:], strict=False):
        assert prompt[: len(history := as_history(generation))] == history
