"""A trace of verifiers, as `WireTrace` reads it: a row for each roll-out, a node of its graph for each span of tokens.

Messages have a role and no text: what verifiers' trainers read is the tokens. Its branches are the paths to the
leaves; a sampled token that two branches share is in both, as verifiers has it.
"""

from collections.abc import Iterator
from typing import Any, Final

from responses_app.protocol.rollouts.exports.rows import Row, head_of, known, parts_of, weights_of, whole_reward
from responses_app.protocol.rollouts.generations import Times
from responses_app.protocol.rollouts.tree import Node, Path, RolloutTree

TRACE_VERSION = 1
ENDPOINTS: Final = {
    "responses": "/responses",
    "chat": "/chat/completions",
    "messages": "/messages",
    "completions": "/completions",
}
# "prompt" is what nobody has told the role of.
_ROLES: Final = {"system": "system", "developer": "system", "tool": "tool", "assistant": "assistant"}


def rows(tree: RolloutTree) -> Iterator[Row]:
    """Return the one row of a roll-out."""
    head, places = tree.head, {node.id: place for place, node in enumerate(tree.nodes)}
    yield {
        **head_of(head),
        "version": TRACE_VERSION,
        "id": head["id"],
        "task": {"type": "rollout", "data": {"name": head["group"]}},
        "agent": {"config": {"model": head["model"]}},
        "nodes": [_node(node, None if node.parent is None else places[node.parent]) for node in tree.nodes],
        "calls": [_call(path, head["model"]) for path in tree.paths],
        "rewards": {name: {"score": score} for name, score in parts_of(whole_reward(head)).items()},
        "info": {"rewards": head["rewards"], "breaks": [_break(tree, place) for place in range(len(tree.breaks))]},
        "is_completed": head["status"] == "ended",
        "ok": True,
        "timing": {"start": head["created_at"]},
    }


def _node(node: Node, parent: int | None) -> Row:
    count = len(node.token_ids)
    values = () if node.logprobs is None else node.logprobs
    # A token whose log probability is not known cannot be trained on.
    mask = [value == value for value in values] if values else [False] * count
    return {
        "parent": parent,
        "message": _message(_ROLES.get(node.role, "user")),
        "sampled": node.kind == "sampled",
        "timestamp": (_began(node.generation.call.times) or 0) / 1000,
        "token_ids": node.token_ids.tolist(),
        "mask": mask,
        "logprobs": [known(value) for value in values if value == value],
    }


def _message(role: str) -> Row:
    message: Row = {"role": role, "content": ""}
    return {**message, "tool_call_id": ""} if role == "tool" else message


def _began(times: Times) -> int | None:
    return times.asked if times.queued is None else times.queued


def _call(path: Path, model: str | None) -> Row:
    generation, call = path.generation, path.generation.call
    finish = call.finish if call.finish in ("stop", "length") else None
    begin, end = _began(call.times), call.times.ended
    return {
        "node": path.own[-1],
        "model": model,
        "endpoint": ENDPOINTS[call.api],
        "finish_reason": finish,
        "usage": {"prompt_tokens": generation.prompt_tokens, "completion_tokens": len(call.sampled)},
        "time": {"start": (begin or 0) / 1000, "end": (end or 0) / 1000},
        "response_id": call.response_id,
        "branch": call.branch,
        "agent": call.agent,
        "weights": weights_of(call.weights),
        "asked": dict(call.sampling),
        "grammar": call.grammar,
    }


def _break(tree: RolloutTree, place: int) -> dict[str, Any]:
    found = tree.breaks[place]
    return {"generation": found.generation, "after": found.after, "position": found.position, "reason": found.reason}
