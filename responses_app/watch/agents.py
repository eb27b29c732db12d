"""The agents of a response as its page shows them: a tree of names, each with its task and what it has done so far."""

from dataclasses import dataclass
from typing import Any

from responses_app.protocol.items.multi_agent import MESSAGE, ROOT, agent_of
from responses_app.watch.text import visible

MAX_AGENTS = 200  # shown of a response
TEXT = 70  # characters of a task


@dataclass(slots=True)
class AgentNode:
    """An agent below the root."""

    name: str  # as people read it: `/root/berlin`
    depth: int  # below the root, which is at 0
    task: str = ""  # the beginning of the first one
    items: int = 0  # that it has said or read
    answers: int = 0  # how often it has answered


def agents_of(output: object) -> list[AgentNode]:
    """Return the agents of a response by the items of its output, each behind the one that has started it."""
    nodes: dict[str, AgentNode] = {}
    for item in output if isinstance(output, list) else ():
        if not isinstance(item, dict):
            continue
        is_letter = item.get("type") == MESSAGE
        name = str(item.get("recipient")) if is_letter else agent_of(item)
        if name == ROOT or (name not in nodes and len(nodes) == MAX_AGENTS):
            continue
        node = nodes.setdefault(name, AgentNode(visible(name)[:200], name.count("/") - 1))
        node.items += 1
        node.answers += item.get("phase") == "final_answer"
        if is_letter and not node.task:
            node.task = visible(" ".join(_text(item).split())[:TEXT])
    return [nodes[name] for name in sorted(nodes)]


def _text(item: dict[str, Any]) -> str:
    content = item.get("content")
    parts = content if isinstance(content, list) else []
    return " ".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))
