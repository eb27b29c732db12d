"""What a request's `multi_agent` gives the model: tools with which it starts agents and talks to them.

    /root                   the model that answers the request
    /root/berlin            an agent that it has started, by `spawn_agent` with the `task_name` "berlin"
    /root/berlin/weather    an agent which that one has started

OpenAI's types name the actions, and the items that they become (`multi_agent_call`, `multi_agent_call_output`,
`agent_message`). What an action takes is not in them: it is as in OpenAI's Codex.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from engine import orjson
from engine.formats.base import FunctionTool, ToolNamespace
from engine.types import JsonSchema
from responses_app.protocol.errors import ApiError, JsonObject, invalid_request
from responses_app.protocol.items.offers import Offer, OfferedTool

ROOT = "/root"
NAMESPACE = "agents"  # `agents.spawn_agent`, as the model calls it
CALL, OUTPUT, MESSAGE = "multi_agent_call", "multi_agent_call_output", "agent_message"  # types of items
BETA_HEADER, BETA = "OpenAI-Beta", "responses_multi_agent=v1"
SPAWN, SEND, FOLLOW_UP = "spawn_agent", "send_message", "followup_task"
WAIT, INTERRUPT, LIST = "wait_agent", "interrupt_agent", "list_agents"
TASK_NAME = re.compile(r"[a-z0-9_]{1,64}")

_TARGET = {"target": {"type": "string", "description": "The agent's name, such as /root/berlin."}}
_TEXT = {"message": {"type": "string"}}
_ACTIONS: Mapping[str, tuple[str, JsonObject, Collection[str]]] = {  # what it does, what it takes, what it needs
    SPAWN: (
        "Start an agent that works on a task beside you. It knows all that you know. Its answer comes to you as a "
        "message: call wait_agent for it.",
        {"task_name": {"type": "string", "pattern": "^[a-z0-9_]{1,64}$"}, **_TEXT},
        ("task_name", "message"),
    ),
    SEND: ("Tell an agent something. It does not begin a task with that.", {**_TARGET, **_TEXT}, ("target", "message")),
    FOLLOW_UP: ("Give an agent that has ended its task another one.", {**_TARGET, **_TEXT}, ("target", "message")),
    WAIT: ("Wait for the next message of an agent.", {"timeout_ms": {"type": "integer", "minimum": 0}}, ()),
    INTERRUPT: ("End what an agent does now.", dict(_TARGET), ("target",)),
    LIST: ("List all agents, and what they do.", {}, ()),
}
ACTIONS = {f"{NAMESPACE}.{action}": action for action in _ACTIONS}  # by the names that the model calls


@dataclass(frozen=True, slots=True)
class AgentLimits:
    """How far the agents of one response may go."""

    concurrent: int = 3  # agents that work at once, without the root
    total: int = 64  # agents of the response, without the root
    depth: int = 4  # of an agent below the root
    calls: int = 1000  # actions of all agents together
    wait_seconds: float = 600.0  # that one `wait_agent` lasts at most


def agents_offer() -> Offer:
    """Return what the model is told of the tools."""
    functions, tools, contents = [], [], {}
    for action, (description, properties, required) in _ACTIONS.items():
        schema = {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}
        text, name = orjson.dumps(schema).decode(), f"{NAMESPACE}.{action}"
        functions.append(FunctionTool(action, description, text))
        tools.append(OfferedTool(name=name, item=CALL, tool=action))
        contents[name] = JsonSchema(text)
    description = "Tools for starting other agents and for talking to them. They all work at the same time as you."
    return Offer(ToolNamespace(NAMESPACE, description, tuple(functions)), tools, contents)


def has_beta(header: str | None) -> bool:
    """Whether a request's `OpenAI-Beta` names the beta, perhaps among others."""
    return BETA in [each.strip() for each in (header or "").split(",")]


def beta_missing(name: str = "multi_agent") -> ApiError:
    """The request has `multi_agent`, or is one of its events, and not the header of its beta (400)."""
    return invalid_request(
        f"'{name}' is a beta: send the header '{BETA_HEADER}: {BETA}' with the request, or with the handshake of "
        "the WebSocket.",
        param=name,
        code="missing_beta_header",
    )


def agent_of(item: Mapping[str, object]) -> str:
    """Return the name of the agent whose item this is; the root's where it does not say."""
    agent = item.get("agent")
    name = agent.get("agent_name") if isinstance(agent, dict) else None
    return name if isinstance(name, str) and name else ROOT


def is_of_root(item: Mapping[str, object]) -> bool:
    """Whether the root has said or read an item; agents below it have not, or by messages only."""
    if item.get("type") != MESSAGE:
        return agent_of(item) == ROOT
    recipient = item.get("recipient")
    return recipient == ROOT or not isinstance(recipient, str)


def task_of(name: str, task: str, *, parent: str) -> str:
    """Return what an agent reads as its first message: the output of the call that has started it."""
    return (
        f"You are the agent {name} now; {parent} has started you by this call, and goes on beside you. Do this task, "
        f"and nothing else. Your answer goes to {parent}, not to the user.\nTask: {task}"
    )


def letter(author: str, text: str) -> str:
    """Return a message as its recipient reads it."""
    return f"Message from the agent {author}:\n{text}"
