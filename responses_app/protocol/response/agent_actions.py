"""What agents do to each other: the actions of `multi_agent_call`, carried out.

Whatever is wrong with one is something for the model to read: no action ends a response. Nothing here goes outside; a
message lies in its recipient's box, and what it means there is done behind the step (`AgentTree.later`).
"""

from collections.abc import Callable, Mapping
from functools import partial

from engine import orjson
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.multi_agent import ACTIONS, FOLLOW_UP, INTERRUPT, LIST, SEND, SPAWN, TASK_NAME, WAIT
from responses_app.protocol.response.agents import AgentMachine
from responses_app.protocol.response.letters import Done, Letter


class _Wrong(Exception):
    """The action cannot be carried out; the text says why, for the model."""


def perform(agent: AgentMachine, name: str, arguments: str) -> Done:
    """Carry out an action of an agent; `name` is what it has called."""
    try:
        return _PERFORMED[ACTIONS[name]](agent, name, _object(arguments))
    except _Wrong as problem:
        return Done(f"Error: {problem}")


def _spawn(agent: AgentMachine, called: str, arguments: JsonObject) -> Done:
    tree, limits = agent.tree, agent.tree.limits
    task_name, task = _text(arguments, "task_name"), _text(arguments, "message")
    name = f"{agent.name}/{task_name}"
    if not TASK_NAME.fullmatch(task_name):
        raise _Wrong("'task_name' takes lowercase letters, digits and '_', 64 at most.")
    if tree.named(name) is not None:
        raise _Wrong(f"there is an agent {name} already. Choose another 'task_name', or use followup_task.")
    if agent.depth >= limits.depth:
        raise _Wrong(f"agents may be {limits.depth} levels deep (MULTI_AGENT_MAX_DEPTH). Do the task yourself.")
    if len(tree.agents) > limits.total:
        raise _Wrong(
            f"a response may have {limits.total} agents (MULTI_AGENT_MAX_AGENTS). Give the task to one that has ended "
            "its own, by followup_task."
        )
    _check_room(agent)
    tree.spawn(agent, name, task, called)
    return Done(_json({"task_name": name}))


def _check_room(agent: AgentMachine) -> None:
    most = agent.tree.limits.concurrent
    if len(agent.tree.working) >= most:
        raise _Wrong(f"{most} agents are working already (max_concurrent_subagents). Wait for one of them.")


def _send(agent: AgentMachine, called: str, arguments: JsonObject) -> Done:
    target, text = _target(agent, arguments), _text(arguments, "message")
    target.box.append(Letter(agent.name, text))
    agent.tree.later.append((target, target.wake))
    return Done(f"The message was sent to {target.name}.")


def _follow_up(agent: AgentMachine, called: str, arguments: JsonObject) -> Done:
    target, text = _target(agent, arguments), _text(arguments, "message")
    if target.rests:
        _check_room(agent)
    target.box.append(Letter(agent.name, text))
    agent.tree.later.append((target, partial(target.wake, task=text)))
    return Done(f"{target.name} has the task.")


def _wait(agent: AgentMachine, called: str, arguments: JsonObject) -> Done:
    most, wanted = agent.tree.limits.wait_seconds, arguments.get("timeout_ms")
    seconds = wanted / 1000 if isinstance(wanted, int | float) and not isinstance(wanted, bool) else most
    return Done("A message has come.", waits=min(max(seconds, 0.0), most))


def _interrupt(agent: AgentMachine, called: str, arguments: JsonObject) -> Done:
    target = _target(agent, arguments)
    if not target.name.startswith(f"{agent.name}/"):
        raise _Wrong("only the agent that has started another one, or its parents, can interrupt it.")
    before = _status(target)
    # Those below it work for it.
    for each in agent.tree.working:
        if each is target or each.name.startswith(f"{target.name}/"):
            agent.tree.later.append((each, partial(each.interrupt, "interrupted")))
    return Done(_json({"previous_status": before}))


def _list(agent: AgentMachine, called: str, arguments: JsonObject) -> Done:
    return Done(
        _json(
            {
                "agents": [
                    {"agent_name": each.name, "agent_status": _status(each), "last_task_message": each.task}
                    for each in agent.tree.agents
                ]
            }
        )
    )


def _status(agent: AgentMachine) -> str:
    return agent.how if agent.rests else "running"


def _target(agent: AgentMachine, arguments: JsonObject) -> AgentMachine:
    name = _text(arguments, "target")
    target = agent.tree.named(name) or agent.tree.named(f"{agent.name}/{name}")
    if target is None or target is agent:
        others = ", ".join(each.name for each in agent.tree.agents if each is not agent) or "none"
        raise _Wrong(f"there is no other agent {name[:80]!r}. There are: {others[:1000]}.")
    return target


def _object(arguments: str) -> JsonObject:
    try:
        value = orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError:
        raise _Wrong("the arguments are not JSON.") from None
    if not isinstance(value, dict):
        raise _Wrong("the arguments are not a JSON object.")
    return value


def _text(arguments: JsonObject, name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str) or not value:
        raise _Wrong(f"'{name}' must be a text that says something.")
    return value


def _json(value: JsonObject) -> str:
    return orjson.dumps(value).decode()


_PERFORMED: Mapping[str, Callable[[AgentMachine, str, JsonObject], Done]] = {
    SPAWN: _spawn,
    SEND: _send,
    FOLLOW_UP: _follow_up,
    WAIT: _wait,
    INTERRUPT: _interrupt,
    LIST: _list,
}
