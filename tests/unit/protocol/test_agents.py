"""The agents of one response, as machines: one stream that a replay makes again, and bounds that hold."""

import json

import pytest

from engine.backends.demo.replies import render_reply
from engine.backends.demo.tools import DemoAnswer, DemoCall
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events.events import Event
from responses_app.protocol.items.offers import AgentLimits, agent_of
from responses_app.protocol.response.input_codec import decode, encode
from responses_app.protocol.response.steps import Finish, Idle, Stopped, StopReason
from tests.unit.protocol.agents import Play, agents_machine

TREE = "agent berlin: count to 5\nagent rome: agent sub: count to 3\nagent oslo: count to 2"


def written(events: list[Event]) -> list[bytes]:
    return [event.as_json() for event in events]


def output_of(play: Play) -> list[JsonObject]:
    return play.events[-1].fields["response"]["output"]  # type: ignore[index, return-value]


def texts(play: Play, name: str) -> list[str]:
    items = [item for item in output_of(play) if item["type"] == "message" and agent_of(item) == name]
    return [item["content"][0]["text"] for item in items]  # type: ignore[index]


def assert_whole(play: Play) -> None:
    """What every stream holds to: numbers without gaps, a `done` for each `added`, and the output is the done items."""
    assert [event.sequence_number for event in play.events] == list(range(len(play.events)))
    added = [event.fields["output_index"] for event in play.events if event.type == "response.output_item.added"]
    done = {
        event.fields["output_index"]: event.fields["item"]
        for event in play.events
        if event.type == "response.output_item.done"
    }
    assert added == list(range(len(added)))
    assert sorted(done) == added
    assert [done[place] for place in sorted(done)] == output_of(play)
    calls = {item["call_id"] for item in output_of(play) if item["type"] == "multi_agent_call"}
    outputs = [item["call_id"] for item in output_of(play) if item["type"] == "multi_agent_call_output"]
    assert sorted(outputs) == sorted(calls)


@pytest.mark.parametrize("seed", range(12))
def test_agents_work_in_any_order_and_a_replay_is_the_same(seed: int) -> None:
    play = Play(TREE, seed=seed, limits=AgentLimits(concurrent=4)).begin().run()
    assert_whole(play)
    (answer,) = texts(play, "/root")
    assert all(part in answer for part in ("/root/berlin: 1 2 3 4 5", "/root/rome/sub: 1 2 3", "/root/oslo: 1 2"))
    again = agents_machine()
    events = [event for input_ in decode(encode(play.inputs)) for event in again.receive(input_).events]
    assert written(events) == written(play.events)


def test_whoever_takes_over_finds_what_is_due_of_each_agent() -> None:
    play = Play(TREE, seed=3, limits=AgentLimits(concurrent=4)).begin()
    for _ in range(150):
        play.run(steps=1)
        again = agents_machine()
        for input_ in decode(encode(play.inputs)):
            again.receive(input_)
        assert again.due == play.machine.due
        assert again.dues() == play.machine.dues()
    again.take_orders()  # of another worker
    rest = Play(TREE, seed=8, machine=again, events=list(play.events))
    rest.dues = again.dues() | {0: again.due}  # type: ignore[dict-item]
    assert_whole(rest.run())
    assert "/root/rome/sub: 1 2 3" in texts(rest, "/root")[0]


def test_an_agents_prompt_begins_with_its_parents_tokens() -> None:
    play = Play("agent berlin: count to 3", seed=1).begin().run()
    root, berlin = (agent.stream.messages for agent in play.machine.tree.agents)
    assert berlin[:2] == root[:2]  # the thought, and the call that has started it
    assert berlin[2] != root[2]  # what came of that


def test_usage_is_the_sum_of_all_agents() -> None:
    play = Play(TREE, seed=2).begin().run()
    usage = play.events[-1].fields["response"]["usage"]  # type: ignore[index]
    turns = [turn for agent in play.machine.tree.agents for turn in agent.turns]
    assert usage["output_tokens"] == sum(turn.output_tokens for turn in turns)  # type: ignore[index]
    assert usage["input_tokens"] == sum(turn.input_tokens for turn in turns)  # type: ignore[index]


def test_the_budget_is_that_of_all_agents_together() -> None:
    play = Play("agent a: count to 900\nagent b: count to 900", seed=5, budget=400).begin().run()
    response = play.events[-1].fields["response"]
    assert response["status"] == "incomplete"  # type: ignore[index]
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}  # type: ignore[index]
    assert response["usage"]["output_tokens"] == 400  # type: ignore[index]
    assert_whole(play)


def test_depth_is_bounded() -> None:
    play = (
        Play("agent a: agent b: agent c: agent d: count to 2", limits=AgentLimits(depth=3, concurrent=9), chunks=(40,))
        .begin()
        .run()
    )
    names = [agent.name for agent in play.machine.tree.agents]
    assert names == ["/root", "/root/a", "/root/a/b", "/root/a/b/c"]
    assert "MULTI_AGENT_MAX_DEPTH" in texts(play, "/root")[0]


def test_a_thousand_starts_are_bounded_in_number_and_at_once() -> None:
    text = "\n".join(f"agent a{number}: count to 1" for number in range(1000))
    play = Play(text, limits=AgentLimits(total=20, concurrent=2, calls=60), seed=4, chunks=(400,)).begin().run()
    assert len(play.machine.tree.agents) <= 21
    assert play.machine.tree.calls <= 60
    assert_whole(play)


@pytest.mark.parametrize("reason", [StopReason.CANCELLED, StopReason.INTERRUPTED, StopReason.DISCARDED])
@pytest.mark.parametrize("steps", [3, 17, 40, 90])
def test_who_stops_the_response_stops_all_agents(reason: StopReason, steps: int) -> None:
    play = Play(TREE, seed=6).begin().run(steps)
    play.tell(0, Stopped(reason))
    assert isinstance(play.dues[0], Finish)
    assert all(isinstance(due, Idle) for number, due in play.dues.items() if number)
    assert_whole(play.run())


def call(action: str, **arguments: str) -> list[int]:
    return render_reply(DemoCall("I talk.", f"agents.{action}", json.dumps(arguments), hosted=True))


def outputs_of(play: Play) -> list[str]:
    items = [item for item in output_of(play) if item["type"] == "multi_agent_call_output"]
    return [item["output"][0]["text"] for item in items]  # type: ignore[index]


def test_agents_that_message_each_other_for_ever_come_to_an_end() -> None:
    def talk(number: int, prompt: list[int]) -> list[int]:
        if number == 0 and not play.machine.tree.agents[1:]:
            return call("spawn_agent", task_name="a", message="Talk to me.")
        if number and len(prompt) % 2:
            return call("wait_agent")
        return call("send_message", target="/root" if number else "a", message="And you?")

    play = Play("Talk.", limits=AgentLimits(calls=50), chunks=(400,))
    play.reply = talk
    play.begin().run()
    assert play.machine.tree.calls == 50
    assert play.events[-1].type == "response.completed"
    assert_whole(play)


def test_wrong_actions_are_told_to_the_model() -> None:
    wrong = [
        call("spawn_agent", task_name="No Name", message="x"),
        call("spawn_agent", task_name="a"),
        call("send_message", target="/root/nobody", message="x"),
        call("interrupt_agent", target="/root"),
        render_reply(DemoCall("", "agents.wait_agent", "[1", hosted=True)),
    ]
    said = iter([*wrong, render_reply(DemoAnswer("", "Well."))])
    play = Play("Go.", chunks=(400,))
    play.reply = lambda number, prompt: next(said)
    play.begin().run()
    assert len(outputs_of(play)) == len(wrong)
    assert all(text.startswith("Error: ") for text in outputs_of(play))


def test_who_interrupts_an_agent_hears_how_it_was_and_goes_on() -> None:
    said = iter(
        [
            call("spawn_agent", task_name="a", message="Write."),
            call("interrupt_agent", target="a"),
            call("list_agents"),
            call("followup_task", target="a", message="Write less."),
            call("wait_agent"),
            render_reply(DemoAnswer("", "Done.")),
        ]
    )
    play = Play("Go.", chunks=(4000,)).begin()
    play.reply = lambda number, prompt: render_reply(DemoAnswer("", "word " * 50)) if number else next(said)
    play.speak(0, 4000)
    play.speak(1, 20)  # a part of its answer
    play.speak(0, 4000)
    assert isinstance(play.dues[1], Idle)
    play.run()
    outputs = outputs_of(play)
    assert outputs[1] == '{"previous_status":"running"}'
    assert '"agent_status":"interrupted"' in outputs[2]
    assert [text.startswith("word ") for text in texts(play, "/root/a")] == [True, True]
    assert texts(play, "/root") == ["Done."]
    assert_whole(play)
