"""The figures of a task: requests, failures, bytes, and the tokens that an engine would have computed twice."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from tests.kit.scripts import Entry, as_history
from tests.kit.server import Server
from tests.kit.wiretap import Wiretap
from tests.system.agents.playing import place_of

GENERATES = ("/v1/responses", "/v1/messages", "/v1/chat/completions")
BLOCK = 16  # tokens; what vLLM's prefix cache keeps
ENDED = re.compile(r"response resp_\w+ \w+ (\w+) input=(\d+) ")
ERROR, FAILED = '{"type":"error"', '"type":"response.failed"'  # in a stream, or on a WebSocket


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Those of one run."""

    requests: int  # for a response, a message or a chat; a WebSocket's warm-up is one
    cut: int  # which ended with the worker that was killed
    failed: int  # which were answered with an error
    turns: int  # generations of the task that ended
    twice: int  # tokens in full blocks of a turn, that the next turn's prompt has not as they were
    bytes_per_turn: int  # that the agent sent


def measured(tap: Wiretap, workers: Sequence[Server], generations: Sequence[Entry], turns: int) -> Figures:
    """Return a run's figures. `generations` are what the engines wrote down, in their order."""
    task = {place: each for each in generations if (place := place_of(each)) is not None}
    ended = [status for worker in workers for status, _ in ENDED.findall(worker.output)]
    frames = [frame for frame in tap.frames() if frame["type"] == "response.create"]
    asked = len(frames) + sum(path in GENERATES for path in tap.posts)
    refused = _refused(tap)
    return Figures(
        requests=asked,
        cut=asked - len(ended) - refused,
        failed=failures(tap),
        turns=len(task),
        twice=sum(computed_twice(task[place], task[place + 1]) for place in range(turns - 1)),
        bytes_per_turn=tap.bytes_sent // turns,
    )


def failures(tap: Wiretap) -> int:
    """Return how many requests were answered with an error, or with one within their stream."""
    within = tap.times_answered(FAILED) + tap.times_answered(ERROR) - tap.times_answered(f"\r\n\r\n{ERROR}")
    return _refused(tap) + within


def computed_twice(earlier: Entry, later: Entry) -> int:
    """Return how many tokens of a turn's full blocks its next turn has not in the same places."""
    history = as_history(earlier)
    # The last token that was sampled is in no cache: vLLM has not computed it.
    return max(0, (len(history) - 1) // BLOCK - common_prefix(history, later["prompt_tokens"]) // BLOCK) * BLOCK


def common_prefix(history: Sequence[int], prompt: Sequence[int]) -> int:
    """Return how many tokens both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(history, prompt, strict=False)))


def _refused(tap: Wiretap) -> int:
    return sum(status >= 400 for status in tap.statuses)
