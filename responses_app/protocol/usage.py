"""Tokens per turn and in sum. A turn is one generation inside a response; stop tokens count."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NotRequired

from typing_extensions import TypedDict

_PER_TURN = "_per_turn"  # how the names of the lists end


@dataclass(slots=True)
class TurnUsage:
    """The tokens of one generation."""

    input_tokens: int = 0  # of its whole prompt
    cached_tokens: int = 0  # of these, what the engine had already
    output_tokens: int = 0  # sampled, with stop tokens
    reasoning_tokens: int = 0  # of these, on analysis and commentary, as vLLM counts
    after_tools: bool = True  # what its prompt has beside the turn before is what tools gave back, if it is anything


class InputDetails(TypedDict):
    """What the input tokens were."""

    cached_tokens: int
    cache_write_tokens: int
    input_tokens_per_turn: NotRequired[list[int]]  # these are stored, and shown where they are asked for
    cached_tokens_per_turn: NotRequired[list[int]]


class OutputDetails(TypedDict):
    """What the output tokens were."""

    reasoning_tokens: int
    tool_output_tokens: int
    output_tokens_per_turn: NotRequired[list[int]]  # as above
    tool_output_tokens_per_turn: NotRequired[list[int]]


class Usage(TypedDict):
    """Tokens of all turns of a response."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


def usage(turns: Sequence[TurnUsage]) -> Usage:
    """Return the `usage` object of a response as it is stored: per-turn lists lie beside OpenAI's details."""
    input_tokens = sum(turn.input_tokens for turn in turns)
    output_tokens = sum(turn.output_tokens for turn in turns)
    tool_outputs = _tool_outputs(turns)
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {
            "cached_tokens": sum(turn.cached_tokens for turn in turns),
            "cache_write_tokens": 0,
            "input_tokens_per_turn": [turn.input_tokens for turn in turns],
            "cached_tokens_per_turn": [turn.cached_tokens for turn in turns],
        },
        "output_tokens": output_tokens,
        "output_tokens_details": {
            "reasoning_tokens": sum(turn.reasoning_tokens for turn in turns),
            "tool_output_tokens": sum(tool_outputs),
            "output_tokens_per_turn": [turn.output_tokens for turn in turns],
            "tool_output_tokens_per_turn": tool_outputs,
        },
        "total_tokens": input_tokens + output_tokens,
    }


def as_read(response: Mapping[str, object], *, usage_per_turn: bool) -> Mapping[str, object]:
    """Return a response object as clients read it: the lists are left out of its usage where nobody asked for them.

    Clients that check types take nothing but numbers there: OpenAI's Agents SDK for JavaScript ends its run.
    """
    used = response.get("usage")
    if usage_per_turn or not isinstance(used, dict):
        return response
    read = {
        name: {each: count for each, count in value.items() if not each.endswith(_PER_TURN)}
        if isinstance(value, dict)
        else value
        for name, value in used.items()
    }
    return {**response, "usage": read}


def _tool_outputs(turns: Sequence[TurnUsage]) -> list[int]:
    """Return, for turn n, prompt(n) - prompt(n-1) - output(n-1), never below 0; of the first turn 0."""
    if not turns:
        return []
    return [
        0,
        *(
            max(0, later.input_tokens - earlier.input_tokens - earlier.output_tokens) if later.after_tools else 0
            for earlier, later in pairwise(turns)
        ),
    ]
