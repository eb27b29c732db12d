"""A line of a batch as what answers it sees it, and its answer. The endpoints answer it, see `web.endpoint`."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from responses_app.protocol.api_keys import Caller
from responses_app.protocol.errors import ApiError
from responses_app.protocol.rollouts.requests import Api, RolloutRef
from responses_app.resources.batches.lines import NO_TOKENS, LineTokens
from responses_app.runs.plan.plan import Origin

TRANSPORT = "batch"  # how the responses of lines are counted and listed


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRequest:
    """A request of a batch, for which no client waits."""

    endpoint: str  # that answers it
    body: bytes  # the JSON of the request
    caller: Caller  # who created the batch
    request_id: str

    def origin_of(self, api: Api) -> Origin:
        """Return where it came from: it stands behind all else. `api` is that of its endpoint."""
        origin = Origin.of(self.caller, TRANSPORT, request_id=self.request_id, rollout=RolloutRef("", api=api))
        return replace(origin, behind_all=True)


@dataclass(frozen=True, slots=True)
class LineAnswer:
    """What a line was answered."""

    content: bytes  # JSON
    tokens: LineTokens = NO_TOKENS


class LineBroken(Exception):
    """A line failed once it had begun: a tool may have been called for it. Before that it is an `ApiError`."""

    def __init__(self, problem: ApiError) -> None:
        super().__init__(problem.message)
        self.problem = problem


AnswerLine = Callable[[LineRequest], Awaitable[LineAnswer]]  # raises `ApiError`, and `LineBroken`
_OF_CLIENTS = (None, "function", "custom")  # tools that the client runs: their calls are only said


@dataclass(frozen=True, slots=True)
class LineHandler:
    """How an endpoint answers lines of batches."""

    answer: AnswerLine
    # Fields of a body beside `tools` by which a request does more than sample tokens: it adds to a conversation, or has
    # this server call something.
    effects: Sequence[str] = ()

    def may_repeat(self, body: Mapping[str, object]) -> bool:
        """Whether a line may be run a second time where nobody knows what came of the first.

        It may where it only samples tokens. It may not where something outside may have changed. A tool that is not
        known to be the client's counts as such.
        """
        if any(body.get(name) for name in self.effects):
            return False
        tools = body.get("tools") or []
        return isinstance(tools, list) and all(
            isinstance(tool, dict) and tool.get("type") in _OF_CLIENTS for tool in tools
        )


LineOf = Callable[[str], LineHandler]  # by the path of an endpoint


@contextmanager
def begun() -> Iterator[None]:
    """Raise `LineBroken` for an error of what has begun."""
    try:
        yield
    except ApiError as problem:
        raise LineBroken(problem) from None


def tokens_of(usage: Mapping[str, Any] | None) -> LineTokens:
    """Return the tokens that a usage of any of the APIs tells."""
    if usage is None:
        return NO_TOKENS
    inputs = usage.get("input_tokens_details") or usage.get("prompt_tokens_details") or {}
    outputs = usage.get("output_tokens_details") or usage.get("completion_tokens_details") or {}
    # Anthropic's counts the tokens of the cache apart from the others.
    apart = usage.get("cache_read_input_tokens") or 0
    return LineTokens(
        input=(usage.get("input_tokens") or usage.get("prompt_tokens") or 0) + apart,
        cached=inputs.get("cached_tokens") or apart,
        output=usage.get("output_tokens") or usage.get("completion_tokens") or 0,
        reasoning=outputs.get("reasoning_tokens") or outputs.get("thinking_tokens") or 0,
    )
