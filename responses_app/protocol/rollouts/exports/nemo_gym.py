"""NeMo Gym's `TokenEntry`, a row for each call of the engine.

Prompts are written as NeMo Gym's own sink writes them: behind the tokens of the parent where there is one
(`prompt_is_delta`), so a conversation's tokens are in the file once. `digest` and `cum_len` are of all its tokens.

A parent is the last call of which the prompt has every token, read and sampled. Calls whose log probabilities are not
known whole have no row, and neither have those that sampled nothing: their tokens are in the prompts of later rows.
"""

import sys
from array import array
from collections.abc import Iterator, Mapping
from hashlib import sha256

from engine.formats.base import Tokens, as_tokens
from responses_app.protocol.rollouts.exports.rows import (
    Row,
    head_of,
    known,
    total_of,
    weights_of,
    whole_reward,
)
from responses_app.protocol.rollouts.generations import Generation
from responses_app.protocol.rollouts.tree import Path, RolloutTree

SCHEMA_VERSION = 1
_DOMAIN = b"nemo-gym-tokens"
_DIGEST_VERSION = b"\x01"


def rows(tree: RolloutTree) -> Iterator[Row]:
    """Return the rows of a roll-out."""
    by_number = {path.generation.number: path.generation for path in tree.paths}
    final = _final_of_response(tree)
    for path in tree.paths:
        if is_whole(path.generation):
            yield _row(tree, path, _parent(path.generation, by_number), final)


def is_whole(generation: Generation) -> bool:
    """Whether tokens were sampled, and all their log probabilities are known."""
    logprobs = generation.call.logprobs
    return logprobs is not None and len(logprobs) > 0 and all(value == value for value in logprobs)


def tokens_of(tree: RolloutTree, path: Path) -> "Tokens[int]":
    """Return what a call has read and sampled."""
    tokens = as_tokens()
    for place in path.nodes:
        tokens.extend(tree.nodes[place].token_ids)
    return tokens


def digest_of(tokens: "Tokens[int]") -> str:
    """Return NeMo Gym's digest of tokens; they are not empty."""
    wide = array("Q", tokens)
    if sys.byteorder == "little":
        wide.byteswap()
    return sha256(_DOMAIN + _DIGEST_VERSION + len(tokens).to_bytes(8, "big") + wide.tobytes()).hexdigest()


def _parent(generation: Generation, by_number: Mapping[int, Generation]) -> Generation | None:
    number, shared = generation.parent, generation.shared
    while number is not None:
        before = by_number[number]
        if before.whole <= shared and is_whole(before):
            return before
        number, shared = before.parent, min(shared, before.shared)
    return None


def _final_of_response(tree: RolloutTree) -> dict[str, int]:
    """Return the number of the call that ended each response: the one that its client has read the end of."""
    return {
        path.generation.call.response_id: path.generation.number
        for path in tree.paths
        if path.generation.call.agent is None and not path.generation.call.summary
    }


def _row(tree: RolloutTree, path: Path, parent: Generation | None, final: Mapping[str, int]) -> Row:
    generation, call, name = path.generation, path.generation.call, tree.head["id"]
    tokens, ended = tokens_of(tree, path), call.times.ended
    return {
        **head_of(tree.head),
        "schema_version": SCHEMA_VERSION,
        "model_call_id": f"{name}.g{generation.number}",
        "model": tree.head["model"] or "",
        "prompt_token_ids": tokens[parent.whole if parent else 0 : generation.prompt_tokens].tolist(),
        "prompt_is_delta": parent is not None,
        "generation_token_ids": call.sampled.tolist(),
        "generation_log_probs": [known(value) for value in call.logprobs or ()],
        "routed_experts": call.experts,
        "output_items": [],
        # NeMo Gym looks for the one call that ended a response: an earlier turn of the same response would hide it.
        "response_id": call.response_id if final.get(call.response_id) == generation.number else None,
        "created_at": 0.0 if ended is None else ended / 1000,
        "parent_call_id": None if parent is None else f"{name}.g{parent.number}",
        "parent_resolution": "root" if parent is None else "resolved",
        "cum_len": len(tokens),
        "digest": digest_of(tokens),
        # NeMo Gym keeps what it does not know of.
        "branch": call.branch,
        "agent": call.agent,
        "finish_reason": call.finish,
        "weights": weights_of(call.weights),
        "reward": total_of(whole_reward(tree.head)),
    }
