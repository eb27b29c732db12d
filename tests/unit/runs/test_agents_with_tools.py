"""Agents that search for tools and run programs: what one finds all can call, and a kill at any place loses nothing."""

import asyncio
import re
from collections.abc import Mapping, Sequence

import orjson
import pytest

from engine.types import GenerationRequest
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.offers import agent_of
from responses_app.protocol.response.input_codec import decode, encode
from responses_app.protocol.response.steps import OfAgent
from responses_app.stores.base import AcceptedResponse
from responses_app.tools.base import ToolCall
from tests.kit.fakes import ANSWER, Site
from tests.kit.waiting import eventually
from tests.unit.runs.readers import id_of
from tests.unit.runs.test_listed_tools import CALL, Servers
from tests.unit.runs.test_programs import PROGRAM, PROGRAMS, Programs, twice, wiki
from tests.unit.runs.test_takeover import TokenEngine, left_at, taken_over
from tests.unit.runs.test_tool_search import SEARCH, WIKI, said, search

Scripts = Mapping[int, Sequence[str]]  # what each agent says, turn by turn; 0 is the root
OF_AGENT = re.compile(r"-a(\d+)-(\d+)$")
WAIT = said("agents.wait_agent", "{}")


def spawn(name: str) -> str:
    return said("agents.spawn_agent", orjson.dumps({"task_name": name, "message": "Ask the wiki."}).decode())


class AgentsEngine(TokenEngine):
    """Gives each agent its own turns, a token at a time."""

    def __init__(self, scripts: Scripts) -> None:
        super().__init__(list(scripts[0]))
        self._scripts = scripts

    def _said(self, request: GenerationRequest) -> str:
        of_agent = OF_AGENT.search(request.request_id)
        if of_agent is None:
            return super()._said(request)
        turns = self._scripts[int(of_agent[1])]
        return turns[min(int(of_agent[2]), len(turns) - 1)]


SEARCHING: Scripts = {
    0: [spawn("a"), spawn("b"), WAIT, WAIT, ANSWER],
    1: [search(paths=["wiki"]), CALL, ANSWER],
    2: [search(paths=["wiki"]), CALL, ANSWER],
}
RUNNING: Scripts = {0: [spawn("a"), WAIT, ANSWER], 1: [PROGRAM, ANSWER]}
FIELDS: dict[str, dict[str, object]] = {
    "search": {"tools": [WIKI, SEARCH]},
    "program": {"tools": [wiki("programmatic"), PROGRAMS]},
}
CASES = {"search": SEARCHING, "program": RUNNING}


async def run(case: str) -> tuple[Site, AcceptedResponse, list[JsonObject]]:
    """Let a response with agents run to its end; return its site, how it was accepted, and its events."""
    site = Site(AgentsEngine(CASES[case]), tools=[Servers(), Programs(twice)])
    reading = await site.begin(input="hi", background=True, multi_agent={"enabled": True}, **FIELDS[case])
    kept = site.store._responses["default", id_of(reading)]
    assert isinstance(kept.of, AcceptedResponse)
    return site, kept.of, await reading.to_the_end()


def output_of(events: Sequence[JsonObject]) -> list[JsonObject]:
    return events[-1]["response"]["output"]  # type: ignore[index, return-value, call-overload]


def items(events: Sequence[JsonObject], agent: str) -> list[JsonObject]:
    """Return what an agent has said, but for what it thought."""
    return [item for item in output_of(events) if agent_of(item) == agent and item["type"] != "reasoning"]


def programs_of(events: Sequence[JsonObject]) -> list[JsonObject]:
    return [item for item in output_of(events) if item["type"] == "program_output"]


def kinds(events: Sequence[JsonObject], agent: str) -> list[object]:
    return [item["type"] for item in items(events, agent) if item["type"] != "agent_message"]


def assert_whole(events: Sequence[JsonObject]) -> None:
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    added, done = (
        sorted(str(event["output_index"]) for event in events if event["type"] == f"response.output_item.{what}")
        for what in ("added", "done")
    )
    assert added == done
    assert events[-1]["type"] == "response.completed", events[-1]


async def test_an_agents_first_prompt_is_all_that_the_engine_has_of_its_parent_and_more() -> None:
    site, accepted, _ = await run("search")
    requests = {
        request.request_id.removeprefix(str(accepted.response["id"])): request for request in site.engine.requests
    }
    for of_agent, of_root, name in (("-a1-0", "-0", "a"), ("-a2-0", "-1", "b")):
        parent, agent = requests[of_root], requests[of_agent]
        computed = [*parent.prompt_token_ids, *site.engine.encode(spawn(name))]
        assert list(agent.prompt_token_ids[: len(computed)]) == computed
        # Blocks are shared by those of one salt, and of one replica.
        assert agent.cache_salt == parent.cache_salt
        assert agent.session == parent.session.child(f"agent {of_agent[2]}")
        assert agent.session.parent == parent.session.id


async def test_agents_that_search_at_once_call_what_they_have_found() -> None:
    _, _, events = await run("search")
    assert_whole(events)
    for agent in ("/root/a", "/root/b"):
        assert kinds(events, agent) == ["tool_search_call", "tool_search_output", "mcp_call", "message"]


async def test_what_one_agent_has_found_another_one_can_call() -> None:
    scripts: Scripts = {0: [spawn("a"), WAIT, CALL, ANSWER], 1: [search(paths=["wiki"]), ANSWER]}
    site = Site(AgentsEngine(scripts), tools=[Servers()])
    reading = await site.begin(input="hi", multi_agent={"enabled": True}, **FIELDS["search"])
    events = await reading.to_the_end()
    assert_whole(events)
    assert kinds(events, "/root")[-2:] == ["mcp_call", "message"]


async def test_an_agent_runs_a_program() -> None:
    _, _, events = await run("program")
    assert_whole(events)
    assert kinds(events, "/root/a") == ["program", "mcp_call", "mcp_call", "program_output", "message"]
    (output,) = programs_of(events)
    assert output["result"] == "['b', 'b']"


@pytest.mark.parametrize("case", CASES)
async def test_cut_anywhere_each_agent_comes_to_its_end(case: str) -> None:
    first, accepted, events = await run(case)
    inputs = list(decode(first.store.saved[0].log))
    names = [type(each.input if isinstance(each, OfAgent) else each).__name__ for each in inputs]
    # What it is told before it is queued stands in the log at once.
    places = {0, *(place for place, name in enumerate(names) if name not in ("Sampled", "TurnBegan"))}
    for count in sorted(places.union(range(0, len(inputs), 40)).difference(range(1, names.index("Enqueued") + 1))):
        tools = [Servers(), Programs(twice)]
        site = Site(AgentsEngine(CASES[case]), await left_at(accepted, encode(inputs[:count])), tools=tools)
        told = await (await taken_over(site, str(accepted.response["id"]))).to_the_end()
        assert_whole(told)
        assert site.store.saved[0].response["output"] == output_of(told)
        # A program that has made calls does not begin anew.
        cut = any(item["status"] == "incomplete" for item in programs_of(told))
        for agent in () if cut else ("/root", "/root/a", "/root/b"):
            assert kinds(told, agent) == kinds(events, agent), f"cut behind {count} of {len(inputs)} inputs"
        await eventually(lambda: site.engine.running == 0)  # noqa: B023


async def test_an_agent_that_is_interrupted_inside_a_program_can_run_another_one() -> None:
    begun, ever = asyncio.Event(), asyncio.Event()

    async def program(call: ToolCall) -> str:
        await call.answer({"name": "wiki.ask", "arguments": {}})
        if not begun.is_set():
            begun.set()
            await ever.wait()
        return "at last"

    class Waiting(AgentsEngine):
        """Has the root wait until the program has begun, before it interrupts that."""

        async def generate(self, request: GenerationRequest):  # type: ignore[no-untyped-def]
            if request.request_id.endswith("-1") and OF_AGENT.search(request.request_id) is None:
                await begun.wait()
            async for chunk in super().generate(request):
                yield chunk

    target = '{"target":"/root/a"}'
    again = '{"target":"/root/a","message":"Run it again."}'
    scripts: Scripts = {
        0: [spawn("a"), said("agents.interrupt_agent", target), said("agents.followup_task", again), WAIT, ANSWER],
        1: [PROGRAM, PROGRAM, ANSWER],
    }
    programs = Programs(program)
    site = Site(Waiting(scripts), tools=[Servers(), programs])
    reading = await site.begin(input="hi", multi_agent={"enabled": True}, **FIELDS["program"])
    events = await reading.to_the_end()
    assert_whole(events)
    outputs = [(item["status"], item["result"]) for item in programs_of(events)]
    assert outputs == [("incomplete", "Interrupted: this came to no end."), ("completed", "at last")]
    assert kinds(events, "/root/a")[-1] == "message"
