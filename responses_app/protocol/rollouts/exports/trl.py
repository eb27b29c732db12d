"""TRL's `RolloutSample`, of its asynchronous GRPO: a row for each sequence that has something to train on.

`advantage` is not in it, which is of a group: the trainer computes it from `reward` and `group_id`.
"""

from collections.abc import Iterator
from hashlib import sha256

from responses_app.protocol.rollouts.exports.rows import (
    Row,
    head_of,
    oldest_version,
    parts_of,
    total_of,
    trained,
    trained_weights,
    weights_of,
)
from responses_app.protocol.rollouts.tree import RolloutTree


def rows(tree: RolloutTree) -> Iterator[Row]:
    """Return the rows of a roll-out."""
    head = tree.head
    for sequence in tree.sequences:
        mask, logprobs = trained(sequence)
        if any(mask):
            yield {
                **head_of(head),
                "sequence": sequence.id,
                "branch": sequence.branch,
                "prompt": [],
                "completion": [],
                "input_ids": sequence.token_ids.tolist(),
                "completion_mask": mask,
                "old_log_probs": logprobs,
                "model_version": oldest_version(trained_weights(sequence)),
                "group_id": _number_of(head["id"] if head["group"] is None else f"group {head['group']}"),
                "metrics": parts_of(sequence.reward),
                "reward": total_of(sequence.reward),
                "weights": weights_of(sequence.weights),
            }


def _number_of(group: str) -> int:
    """Return the same number for the same group, as TRL numbers them."""
    return int.from_bytes(sha256(group.encode()).digest()[:6], "big")
