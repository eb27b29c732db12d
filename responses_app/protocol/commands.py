"""What a `ResponseMachine` wants done: one command at a time, which stands until an input answers it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.formats.base import RenderedMessage, Tokens, as_tokens
from responses_app.protocol.stream import Ending


@dataclass(frozen=True, slots=True)
class Generate:
    """Generate turn number `turn`; answer with `TurnBegan`, and then `Sampled` until one has a finish reason.

    The prompt is the response's first one with `said` behind it, and `sampled`, which this turn has given already.
    `has_begun`: it has begun on another worker, and `TurnBegan` is left out. `budget` is how many tokens it may give.
    `summary`: it sums up. `after_call`: the model has called something in this response already.
    """

    turn: int
    said: Sequence[RenderedMessage] = ()
    sampled: "Tokens[int]" = field(default_factory=as_tokens)
    budget: int | None = None
    summary: bool = False
    after_call: bool = False
    has_begun: bool = False


@dataclass(frozen=True, slots=True)
class Prefill:
    """Leave the prompt in the engine's prefix cache; answer with `Prefilled`."""


@dataclass(frozen=True, slots=True)
class Seal:
    """Seal this summary for the client; answer with `Sealed`."""

    summary: str


@dataclass(frozen=True, slots=True)
class CallTool:
    """Call a tool of this server; answer with `ToolReturned`."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Keep how the response ended; answer with `Ended`."""

    ending: Ending


Command = Generate | Prefill | Seal | CallTool | Finish
