"""A roll-out in the formats of trainers: what its rows are, beside its tree as this server shows it.

    tree        the tree, a row for each roll-out
    nemo-gym    NeMo Gym's `TokenEntry`, a row for each call of the engine
    trl         TRL's `RolloutSample`, of its asynchronous GRPO: a row for each sequence that has something to train on
    tinker      Tinker's `Datum`, the same
    harbor      Harbor's `AgentContext`, a row for each roll-out
    verifiers   a trace of verifiers, as `WireTrace` reads it: a row for each roll-out

Advantages are in none of them. They are of a group, and the trainer computes them.
"""

import math
import re
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from engine.formats.base import Tokens, as_tokens
from engine.types import WeightsSpan
from responses_app.protocol.rollouts.generations import Generation, Times, spans_of
from responses_app.protocol.rollouts.requests import Reward, RolloutObject
from responses_app.protocol.rollouts.tree import Path, RolloutTree, SequenceOfNodes, TokenNode, weights_as_json

Row = dict[str, Any]
REWARD = "reward"  # the name of a reward that has none
IMPOSSIBLE = -9999.0  # minus infinity, as vLLM's servers write it
# "12", "v12", "step-12": a digest is no number, whatever it ends with
_NUMBERED = re.compile(r"(?:[A-Za-z]+[-_. ]?)?(\d{1,18})")


def head_of(head: RolloutObject) -> Row:
    """Return the columns with which every row begins; `rollout_id` is the first, by which an export is resumed."""
    return {"rollout_id": head["id"], "group": head["group"]}


def parts_of(reward: Reward | None) -> dict[str, float]:
    """Return the named parts of a reward."""
    if reward is None:
        return {}
    return dict(reward) if isinstance(reward, Mapping) else {REWARD: reward}


def total_of(reward: Reward | None) -> float | None:
    """Return a reward as one number: the sum of its parts."""
    return None if reward is None else math.fsum(parts_of(reward).values())


def whole_reward(head: RolloutObject) -> Reward | None:
    """Return the last reward of a whole roll-out."""
    return next((each["reward"] for each in reversed(head["rewards"]) if each["turn"] is None), None)


def finite(logprob: float) -> float:
    """Return a log probability as JSON can have it; it is not NaN."""
    return max(logprob, IMPOSSIBLE)


def _trees(tree: RolloutTree) -> Iterator[Row]:
    yield {**tree.in_files()}


# NeMo Gym. Prompts are written as its own sink writes them: behind the tokens of the parent where there is one
# (`prompt_is_delta`), so a conversation's tokens are in the file once. `digest` and `cum_len` are of all its tokens.
SCHEMA_VERSION = 1
_DOMAIN = b"nemo-gym-tokens"
_DIGEST_VERSION = b"\x01"


def _nemo_gym(tree: RolloutTree) -> Iterator[Row]:
    """Yield a row for each call whose log probabilities are known whole, and that sampled something.

    The tokens of the others are in the prompts of later rows.
    """
    head, by_number = tree.head, {path.generation.number: path.generation for path in tree.paths}
    # NeMo Gym looks for the one call that ended a response: an earlier turn of the same response would hide it.
    last_of = {
        path.generation.call.response_id: path.generation.number
        for path in tree.paths
        if path.generation.call.agent is None and not path.generation.call.summary
    }
    for path in tree.paths:
        generation, call = path.generation, path.generation.call
        if not _has_logprobs(generation):
            continue
        tokens, ended, parent = _tokens(tree, path), call.times.ended, _parent(generation, by_number)
        wide = array("Q", tokens)
        if sys.byteorder == "little":
            wide.byteswap()
        yield {
            **head_of(head),
            "schema_version": SCHEMA_VERSION,
            "model_call_id": f"{head['id']}.g{generation.number}",
            "model": head["model"] or "",
            "prompt_token_ids": tokens[parent.whole if parent else 0 : generation.prompt_tokens].tolist(),
            "prompt_is_delta": parent is not None,
            "generation_token_ids": call.sampled.tolist(),
            "generation_log_probs": [finite(value) for value in call.logprobs or ()],
            "routed_experts": call.experts,
            "output_items": [],
            "response_id": call.response_id if last_of.get(call.response_id) == generation.number else None,
            "created_at": 0.0 if ended is None else ended / 1000,
            "parent_call_id": None if parent is None else f"{head['id']}.g{parent.number}",
            "parent_resolution": "root" if parent is None else "resolved",
            "cum_len": len(tokens),
            "digest": sha256(_DOMAIN + _DIGEST_VERSION + len(tokens).to_bytes(8, "big") + wide.tobytes()).hexdigest(),
            # NeMo Gym keeps fields that it does not know.
            "branch": call.branch,
            "agent": call.agent,
            "finish_reason": call.finish,
            "weights": weights_as_json(call.weights),
            "reward": total_of(whole_reward(head)),
        }


def _has_logprobs(generation: Generation) -> bool:
    """Whether a call sampled tokens, and all their log probabilities are known."""
    logprobs = generation.call.logprobs
    return logprobs is not None and len(logprobs) > 0 and all(value == value for value in logprobs)


def _tokens(tree: RolloutTree, path: Path) -> "Tokens[int]":
    """Return the tokens that a call has read and sampled."""
    tokens = as_tokens()
    for place in path.nodes:
        tokens.extend(tree.nodes[place].token_ids)
    return tokens


def _parent(generation: Generation, by_number: Mapping[int, Generation]) -> Generation | None:
    """Return the last call with a row of which the prompt has every token, read and sampled."""
    number, shared = generation.parent, generation.shared
    while number is not None:
        before = by_number[number]
        if before.whole <= shared and _has_logprobs(before):
            return before
        number, shared = before.parent, min(shared, before.shared)
    return None


def _trl(tree: RolloutTree) -> Iterator[Row]:
    head = tree.head
    group = head["id"] if head["group"] is None else f"group {head['group']}"
    group_id = int.from_bytes(sha256(group.encode()).digest()[:6], "big")  # TRL numbers its groups
    for sequence in tree.sequences:
        mask, logprobs = _trained(sequence)
        if any(mask):
            # Of the tokens that this sequence is the first to have: its last ones.
            sampled = sum(span.tokens for span in sequence.weights)
            weights = spans_of(sequence.weights, sampled - sum(sequence.mask), sampled)
            yield {
                **head_of(head),
                "sequence": sequence.id,
                "branch": sequence.branch,
                "prompt": [],
                "completion": [],
                "input_ids": sequence.token_ids.tolist(),
                "completion_mask": mask,
                "old_log_probs": logprobs,
                "model_version": oldest_version(weights),
                "group_id": group_id,
                "metrics": parts_of(sequence.reward),
                "reward": total_of(sequence.reward),
                "weights": weights_as_json(sequence.weights),
            }


def oldest_version(spans: Sequence[WeightsSpan]) -> int | None:
    """Return the number of the oldest weights, None where a version is unknown or is no number."""
    matches = [_NUMBERED.fullmatch(span.version or "") for span in spans]
    numbers = [int(match[1]) for match in matches if match is not None]
    return min(numbers) if numbers and len(numbers) == len(matches) else None


def _tinker(tree: RolloutTree) -> Iterator[Row]:
    """Yield the rows; targets are the tokens one place to the left, as Tinker's cookbook makes them."""
    for sequence in tree.sequences:
        mask, logprobs = _trained(sequence)
        # The first token has nothing before it that it could be predicted from.
        if any(mask[1:]):
            tokens = sequence.token_ids.tolist()
            yield {
                **head_of(tree.head),
                "sequence": sequence.id,
                "branch": sequence.branch,
                "reward": total_of(sequence.reward),
                "rewards": parts_of(sequence.reward),
                "weights": weights_as_json(sequence.weights),
                "datum": {
                    "model_input": {"chunks": [{"type": "encoded_text", "tokens": tokens[:-1]}]},
                    "loss_fn_inputs": {
                        "target_tokens": _tensor(tokens[1:], "int64"),
                        "logprobs": _tensor(logprobs[1:], "float32"),
                        "mask": _tensor([float(on) for on in mask[1:]], "float32"),
                    },
                },
            }


def _tensor(values: Sequence[Any], dtype: str) -> Row:
    return {"data": values, "dtype": dtype, "shape": [len(values)]}


def _trained(sequence: SequenceOfNodes) -> tuple[list[int], list[float]]:
    """Return the mask of a sequence and its log probabilities, which are 0 where the mask is.

    A sampled token whose log probability the engine did not tell has the mask 0: nobody can train on it.
    """
    mask = [int(on and value == value) for on, value in zip(sequence.mask, sequence.logprobs, strict=True)]
    values = [finite(value) if on else 0.0 for on, value in zip(mask, sequence.logprobs, strict=True)]
    return mask, values


# Harbor has a `RolloutDetail` for each conversation. The first one is the main agent's; each other agent or branch has
# one of its own, and so has each call that makes a summary. Prompts are whole, every time: that is the format, and it
# grows with the square of the turns.
HARBOR_MAX_TOKENS = 1 << 24  # of a row's prompts together; some 120 MB of JSON


def _harbor(tree: RolloutTree) -> Iterator[Row]:
    """Yield the one row; it has no `rollout_details` where these would be too long."""
    whole = [path for path in tree.paths if _has_logprobs(path.generation)]
    fits = sum(path.generation.prompt_tokens for path in whole) <= HARBOR_MAX_TOKENS
    reward = whole_reward(tree.head)
    yield {
        "rollout_id": tree.head["id"],
        "n_input_tokens": sum(path.generation.prompt_tokens for path in tree.paths),
        "n_output_tokens": tree.head["usage"]["sampled_tokens"],
        "rollout_details": [_harbor_detail(tree, paths) for paths in _conversations(whole)] if fits else None,
        "metadata": {
            **head_of(tree.head),
            "reward": total_of(reward),
            "rewards": parts_of(reward),
            "error": None if fits else f"its prompts have more than {HARBOR_MAX_TOKENS} tokens",
        },
    }


def _conversations(paths: Sequence[Path]) -> list[list[Path]]:
    """Return the calls of each agent; the main one is first."""
    groups: dict[tuple[str, str | None, int], list[Path]] = {}
    for path in paths:
        call = path.generation.call
        summary = path.generation.number if call.summary else -1
        groups.setdefault((call.branch, call.agent, summary), []).append(path)
    # A sort keeps the order of what is alike: the first branch that came is the main one.
    return [groups[key] for key in sorted(groups, key=lambda key: (key[1] is not None, key[2] >= 0))]


def _harbor_detail(tree: RolloutTree, paths: Sequence[Path]) -> Row:
    calls = [path.generation.call for path in paths]
    return {
        "prompt_token_ids": [_tokens(tree, path)[: path.generation.prompt_tokens].tolist() for path in paths],
        "completion_token_ids": [call.sampled.tolist() for call in calls],
        "logprobs": [[finite(value) for value in call.logprobs or ()] for call in calls],
        "extra": {
            "response_id": [call.response_id for call in calls],
            "branch": [call.branch for call in calls],
            "agent": [call.agent for call in calls],
            "finish_reason": [call.finish for call in calls],
            "weights": [weights_as_json(call.weights) for call in calls],
            "routed_experts": [call.experts for call in calls],
        },
    }


# verifiers has a node of its graph for each span of tokens. Messages have a role and no text: its trainers read the
# tokens. Its branches are the paths to the leaves; a sampled token that two branches share is in both.
TRACE_VERSION = 1
ENDPOINTS: Final = {
    "responses": "/responses",
    "chat": "/chat/completions",
    "messages": "/messages",
    "completions": "/completions",
}
# "prompt" is text that nobody has told the role of.
_ROLES: Final = {"system": "system", "developer": "system", "tool": "tool", "assistant": "assistant"}


def _verifiers(tree: RolloutTree) -> Iterator[Row]:
    head, places = tree.head, {node.id: place for place, node in enumerate(tree.nodes)}
    yield {
        **head_of(head),
        "version": TRACE_VERSION,
        "id": head["id"],
        "task": {"type": "rollout", "data": {"name": head["group"]}},
        "agent": {"config": {"model": head["model"]}},
        "nodes": [_trace_node(node, None if node.parent is None else places[node.parent]) for node in tree.nodes],
        "calls": [_trace_call(path, head["model"]) for path in tree.paths],
        "rewards": {name: {"score": score} for name, score in parts_of(whole_reward(head)).items()},
        "info": {
            "rewards": head["rewards"],
            "breaks": [
                {"generation": each.generation, "after": each.after, "position": each.position, "reason": each.reason}
                for each in tree.breaks
            ],
        },
        "is_completed": head["status"] == "ended",
        "ok": True,
        "timing": {"start": head["created_at"]},
    }


def _trace_node(node: TokenNode, parent: int | None) -> Row:
    role, values = _ROLES.get(node.role, "user"), () if node.logprobs is None else node.logprobs
    return {
        "parent": parent,
        "message": {"role": role, "content": "", **({"tool_call_id": ""} if role == "tool" else {})},
        "sampled": node.kind == "sampled",
        "timestamp": (_began(node.generation.call.times) or 0) / 1000,
        "token_ids": node.token_ids.tolist(),
        # A token whose log probability is not known cannot be trained on.
        "mask": [value == value for value in values] if values else [False] * len(node.token_ids),
        "logprobs": [finite(value) for value in values if value == value],
    }


def _began(times: Times) -> int | None:
    return times.asked if times.queued is None else times.queued


def _trace_call(path: Path, model: str | None) -> Row:
    generation, call = path.generation, path.generation.call
    return {
        "node": path.own[-1],
        "model": model,
        "endpoint": ENDPOINTS[call.api],
        "finish_reason": call.finish if call.finish in ("stop", "length") else None,
        "usage": {"prompt_tokens": generation.prompt_tokens, "completion_tokens": len(call.sampled)},
        "time": {"start": (_began(call.times) or 0) / 1000, "end": (call.times.ended or 0) / 1000},
        "response_id": call.response_id,
        "branch": call.branch,
        "agent": call.agent,
        "weights": weights_as_json(call.weights),
        "asked": dict(call.sampling),
        "grammar": call.grammar,
    }


# Each yields the rows of a roll-out. The first key of a row is the id of its roll-out.
FORMATS: dict[str, Callable[[RolloutTree], Iterator[Row]]] = {
    "tree": _trees,
    "nemo-gym": _nemo_gym,
    "trl": _trl,
    "harbor": _harbor,
    "verifiers": _verifiers,
    "tinker": _tinker,
}
