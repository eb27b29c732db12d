"""Tinker's `Datum`: a row for each sequence that has something to train on.

Targets are the tokens one place to the left, as its cookbook makes them. `advantages` are not in it: they are of a
group, and the trainer adds them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from responses_app.protocol.rollouts.exports.rows import Row, head_of, parts_of, total_of, trained, weights_of
from responses_app.protocol.rollouts.tree import RolloutTree


def rows(tree: RolloutTree) -> Iterator[Row]:
    """Return the rows of a roll-out."""
    for sequence in tree.sequences:
        mask, logprobs = trained(sequence)
        # What stands first has nothing before it that it could be predicted from.
        if any(mask[1:]):
            yield {
                **head_of(tree.head),
                "sequence": sequence.id,
                "branch": sequence.branch,
                "reward": total_of(sequence.reward),
                "rewards": parts_of(sequence.reward),
                "weights": weights_of(sequence.weights),
                "datum": _datum(sequence.token_ids.tolist(), mask, logprobs),
            }


def _datum(tokens: list[int], mask: Sequence[int], logprobs: Sequence[float]) -> Row:
    return {
        "model_input": {"chunks": [{"type": "encoded_text", "tokens": tokens[:-1]}]},
        "loss_fn_inputs": {
            "target_tokens": _tensor(tokens[1:], "int64"),
            "logprobs": _tensor(logprobs[1:], "float32"),
            "mask": _tensor([float(on) for on in mask[1:]], "float32"),
        },
    }


def _tensor(values: Sequence[Any], dtype: str) -> Row:
    return {"data": values, "dtype": dtype, "shape": [len(values)]}
