"""The inputs of a response: everything that comes to it from outside. Whoever has them has the whole response.

A run is its response object as it began and the list of these, in order: the same list gives the same events, with the
same ids and numbers, wherever it is read. So they are what is logged (see `input_codec`). They hold no time but the one
that clients see, and the one until which a response waits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from engine.types import FinishReason, TokenLogprob
from responses_app.protocol.errors import JsonObject, ResponseError
from responses_app.protocol.items.offers import ApprovedCall, OfferedTool
from responses_app.protocol.response.summaries import Summaries


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
