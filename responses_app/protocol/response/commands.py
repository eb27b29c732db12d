"""What a `ResponseMachine` wants done: one command at a time, which stands until an input answers it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.formats.base import RenderedMessage, Tokens, as_tokens
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events.events import Event
from responses_app.protocol.output.endings import Ending


@dataclass(frozen=True, slots=True)
class Generate:
    """Generate turn number `turn`; answer with `TurnBegan`, and then `Sampled` until one has a finish reason.

    The prompt is the response's first one with `said` behind it, and `sampled`, which this turn has given already.
    `has_begun`: it has begun on another worker, and `TurnBegan` is left out. `budget` is how many tokens it may give.
    `summary`: it sums up. `after_call`: the model has called something in this response already. `aside`: it sums up a
    thought, and nothing is lost where it fails: then answer with a `Sampled` that only has a finish reason. Its turn
    begins with `sampled`, with which an answer begins. Without `hosted` no tool of this server can be called any more.
    """

    turn: int
    said: Sequence[RenderedMessage] = ()
    sampled: "Tokens[int]" = field(default_factory=as_tokens)
    budget: int | None = None
    summary: bool = False
    after_call: bool = False
    has_begun: bool = False
    aside: bool = False
    hosted: bool = True


@dataclass(frozen=True, slots=True)
class Prefill:
    """Leave the prompt in the engine's prefix cache; answer with `Prefilled`."""


@dataclass(frozen=True, slots=True)
class Seal:
    """Seal this summary for the client; answer with `Sealed`."""

    summary: str


@dataclass(frozen=True, slots=True)
class ListTools:
    """Ask an MCP server of the request, by its label, which tools it has; answer with `ToolsListed`."""

    server: str


@dataclass(frozen=True, slots=True)
class CallTool:
    """Call a tool of this server; answer with `ToolReturned`, and before that with `ToolProgressed` as often as wanted.

    `tool` is the name that an MCP server has for it. `repeatable`: a call that was under way when its worker died may
    be made again. `state` is what the tool wants to know of its earlier calls in this chain.
    """

    name: str
    arguments: str
    item_id: str = ""
    tool: str = ""
    repeatable: bool = False
    state: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class Await:
    """Wait for the client's outputs of these calls; answer with `WaitBegan`, and `TimedOut` where they do not come.

    `until` is when it ends, in Unix seconds; None where the wait has not begun.
    """

    call_ids: tuple[str, ...]
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """Keep how the response ended; answer with `Ended`."""

    ending: Ending


Command = Generate | Prefill | Seal | ListTools | CallTool | Await | Finish


class Step(NamedTuple):
    """What came of an input. A command ends what the one before it asked for: a generation that runs is aborted."""

    events: list[Event]
    command: Command | None = None

    def behind(self, events: list[Event]) -> "Step":
        """Return it with these events before its own."""
        return Step([*events, *self.events], self.command)
