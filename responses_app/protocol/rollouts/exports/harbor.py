"""Harbor's `AgentContext` with a `RolloutDetail` for each conversation: a row for each roll-out.

The first one is the main agent's, as Harbor has it; each other agent or branch has one of its own, and so has each
call that makes a summary. Prompts are whole, every time: that is the format, and it grows with the square of the turns.
"""

from collections.abc import Iterator, Sequence

from responses_app.protocol.rollouts.exports.nemo_gym import is_whole, tokens_of
from responses_app.protocol.rollouts.exports.rows import (
    Row,
    head_of,
    known,
    parts_of,
    total_of,
    weights_of,
    whole_reward,
)
from responses_app.protocol.rollouts.tree import Path, RolloutTree

MAX_TOKENS = 1 << 24  # of a row's prompts together; some 120 MB of JSON


def rows(tree: RolloutTree) -> Iterator[Row]:
    """Return the one row of a roll-out; it has no `rollout_details` where these would be too long."""
    whole = [path for path in tree.paths if is_whole(path.generation)]
    read = sum(path.generation.prompt_tokens for path in tree.paths)
    fits = sum(path.generation.prompt_tokens for path in whole) <= MAX_TOKENS
    reward, error = whole_reward(tree.head), None if fits else f"its prompts have more than {MAX_TOKENS} tokens"
    yield {
        "rollout_id": tree.head["id"],
        "n_input_tokens": read,
        "n_output_tokens": tree.head["usage"]["sampled_tokens"],
        "rollout_details": [_detail(tree, paths) for paths in _conversations(whole)] if fits else None,
        "metadata": {
            **head_of(tree.head),
            "reward": total_of(reward),
            "rewards": parts_of(reward),
            "error": error,
        },
    }


def _conversations(paths: Sequence[Path]) -> list[list[Path]]:
    """Return the calls of each agent; the main one is first."""
    found: dict[tuple[str, str | None, int], list[Path]] = {}
    for path in paths:
        call = path.generation.call
        summary = path.generation.number if call.summary else -1
        found.setdefault((call.branch, call.agent, summary), []).append(path)
    # A sort keeps the order of what is alike: the first branch that came is the main one.
    return [found[key] for key in sorted(found, key=lambda key: (key[1] is not None, key[2] >= 0))]


def _detail(tree: RolloutTree, paths: Sequence[Path]) -> Row:
    calls = [path.generation.call for path in paths]
    return {
        "prompt_token_ids": [tokens_of(tree, path)[: path.generation.prompt_tokens].tolist() for path in paths],
        "completion_token_ids": [call.sampled.tolist() for call in calls],
        "logprobs": [[known(value) for value in call.logprobs or ()] for call in calls],
        "extra": {
            "response_id": [call.response_id for call in calls],
            "branch": [call.branch for call in calls],
            "agent": [call.agent for call in calls],
            "finish_reason": [call.finish for call in calls],
            "weights": [weights_of(call.weights) for call in calls],
            "routed_experts": [call.experts for call in calls],
        },
    }
