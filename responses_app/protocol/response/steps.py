"""The inputs and commands of a `ResponseMachine`: what comes to it from outside, and what it wants done.

Whoever has the inputs has the whole response.

A run is its response object as it began and the list of these, in order: the same list gives the same events, with the
same ids and numbers, wherever it is read. So they are what is logged (see `input_codec`). They hold no time but the one
that clients see, and the one until which a response waits. Of commands there is one at a time, which stands until an
input answers it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from engine.formats.base import RenderedMessage, Tokens, as_tokens
from engine.types import FinishReason, TokenLogprob
from responses_app.protocol.errors import JsonObject, ResponseError
from responses_app.protocol.events.events import Event
from responses_app.protocol.items.offers import ApprovedCall, OfferedTool
from responses_app.protocol.requests.resources import Ending


class Summaries(Enum):
    """Who writes summaries."""

    MODEL = "model"
    TEXT = "text"  # its own first sentences are the summary


class Mode(Enum):
    """What a response does when it starts."""

    ANSWER = "answer"
    WARM_UP = "warm_up"  # generate nothing
    COMPACT = "compact"  # sum up what came before, and nothing else
    COMPACT_AND_ANSWER = "compact_and_answer"


class StopReason(Enum):
    """Why a response is to end before the model does."""

    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"  # at once; what was being said is kept as far as it came
    DISCARDED = "discarded"  # interrupted, and the item that is being said is dropped
    STEERED = "steered"  # at the end of the item that is being said
    SERVER_STOPPED = "server_stopped"


@dataclass(frozen=True, slots=True)
class Enqueued:
    """It waits for its turn."""


@dataclass(frozen=True, slots=True)
class Declared:
    """The conversation declares tools of the client's, beside those of the request; before all other inputs."""

    tools: Sequence[JsonObject]


@dataclass(frozen=True, slots=True)
class Asked:
    """What its request wants of reasoning items, and where an answer ends; comes before it starts, if it says anything.

    `sealed`: they carry their tokens. `summaries`: who writes summaries of them; None: there are none. `stops` are the
    strings, and `stop_tokens` the tokens, that end an answer and are not part of it.
    """

    sealed: bool = False
    summaries: Summaries | None = None
    stops: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Started:
    """It starts. `budget` is how many tokens it may sample in all its turns; None: as many as the model gives.

    `waits`: it does not end with calls of the client's tools, but goes on once it has what came of them.
    """

    mode: Mode = Mode.ANSWER
    budget: int | None = None
    waits: bool = False


@dataclass(frozen=True, slots=True)
class TurnBegan:
    """A generation was asked for; its prompt has `prompt_tokens` tokens."""

    prompt_tokens: int


@dataclass(slots=True)  # not frozen: there is one a token, and a frozen one takes four times as long to make
class Sampled:
    """What the model sampled since the last chunk. `finish` comes with the last one of a turn."""

    token_ids: Sequence[int]
    finish: FinishReason | None = None
    cached_tokens: int | None = None
    logprobs: Sequence[TokenLogprob] | None = None


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The prompt of a warm-up lies in the engine's prefix cache, or does not: it is done either way."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """The summary is sealed. `budget` is what the answer behind it may sample."""

    text: str
    budget: int | None = None


@dataclass(frozen=True, slots=True)
class Offered:
    """The tools of this server that it may use; before it starts. `servers` are those that are to list theirs first.

    `approved` are calls that its user has approved: they are made before the model goes on. `states` is what the tools
    want to know of their calls in the chain before it, by the type of their items.
    """

    tools: Sequence[OfferedTool] = ()
    servers: Sequence[str] = ()
    approved: Sequence[ApprovedCall] = ()
    states: Mapping[str, JsonObject] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolsListed:
    """A server has listed its `tools`, as their item shows them, of which `offered` can be called; or there was an
    `error`.
    """

    server: str
    tools: Sequence[JsonObject] = ()
    offered: Sequence[OfferedTool] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ToolProgressed:
    """A tool of this server works on; `fields` say how far it is."""

    fields: JsonObject


@dataclass(frozen=True, slots=True)
class ToolReturned:
    """A tool of this server gave something back, or failed; `text` is what the model reads of it.

    `shown` are fields of the call's item. `state` is what later calls of the chain want to know; None: as before.
    """

    text: str
    failed: bool = False
    shown: JsonObject = field(default_factory=dict)
    state: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class WaitBegan:
    """It waits for its client, until then (Unix seconds): a worker that goes on with it waits no longer."""

    until: float


@dataclass(frozen=True, slots=True)
class OutputGiven:
    """The client says what came of a call: `output` as it was sent, and `text`, which is what the model reads of it."""

    call_id: str
    output: str | list[JsonObject]
    text: str


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The client did not answer within these seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Failed:
    """Something broke; `error` is what clients see, `{code, message}`."""

    error: ResponseError


@dataclass(frozen=True, slots=True)
class Stopped:
    """Somebody ends it."""

    reason: StopReason


@dataclass(frozen=True, slots=True)
class Ended:
    """Its end is kept, at `at` (Unix seconds). With `error` it could not be kept, and so has failed."""

    at: int
    error: ResponseError | None = None


Input = (
    Declared
    | Offered
    | Enqueued
    | Asked
    | Started
    | TurnBegan
    | Sampled
    | Prefilled
    | Sealed
    | ToolsListed
    | ToolProgressed
    | ToolReturned
    | WaitBegan
    | OutputGiven
    | TimedOut
    | Failed
    | Stopped
    | Ended
)  # in the order of a response's life


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
