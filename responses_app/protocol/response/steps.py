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

from engine.formats.base import Body, PicturePart, RenderedMessage, Tokens, as_tokens
from engine.types import FinishReason, TokenLogprob, WeightsSpan
from responses_app.protocol.errors import JsonObject, ResponseError
from responses_app.protocol.events.events import Event
from responses_app.protocol.items.offers import AgentLimits, ApprovedCall, MadeCall, OfferedTool, PausedProgram
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
class OutputOptions:
    """What its request wants of reasoning items, and where an answer ends; before it starts, if it says anything."""

    sealed: bool = False  # reasoning items carry their tokens
    summaries: Summaries | None = None  # who writes summaries of them; None: there are none
    stops: tuple[str, ...] = ()  # strings that end an answer and are not part of it
    stop_tokens: tuple[int, ...] = ()  # and tokens that do
    objects: bool = False  # its client may spell the arguments of calls in any way as it gives them back


@dataclass(frozen=True, slots=True)
class RunStarted:
    """It starts."""

    mode: Mode = Mode.ANSWER
    budget: int | None = None  # how many tokens it may sample in all its turns; None: as many as the model gives
    waits: bool = False  # it does not end with calls of the client's tools, but goes on once it has what came of them


@dataclass(frozen=True, slots=True)
class TurnBegan:
    """A generation was asked for."""

    prompt_tokens: int  # how many tokens its prompt has


@dataclass(slots=True)  # not frozen: there is one a token, and a frozen one takes four times as long to make
class Sampled:
    """What the model sampled since the last chunk."""

    token_ids: Sequence[int]
    finish: FinishReason | None = None  # comes with the last chunk of a turn
    cached_tokens: int | None = None  # tokens of the prompt that the engine had already
    logprobs: Sequence[TokenLogprob] | None = None  # one for each token
    prompt_tokens: int | None = None  # of the turn's prompt, where it has pictures: as the engine has expanded them
    # What only a roll-out records: log probabilities, one for each token, that the client has not asked for
    recorded: Sequence[TokenLogprob] | None = None
    weights_version: str | None = None  # of the weights, where it is another one than that of the tokens before
    # Also: the versions of the last tokens, up to these, where the engine has told them at the end of a turn
    weights: Sequence[WeightsSpan] | None = None


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The prompt of a warm-up lies in the engine's prefix cache, or does not: it is done either way."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """The summary is sealed."""

    text: str
    budget: int | None = None  # how many tokens the answer behind it may sample


@dataclass(frozen=True, slots=True)
class Offered:
    """The tools of this server that it may use; before it starts."""

    tools: Sequence[OfferedTool] = ()
    servers: Sequence[str] = ()  # the labels of MCP servers that are to list their tools first
    approved: Sequence[ApprovedCall] = ()  # calls that its user has approved: they are made before the model goes on
    # What the tools want to know of their calls in the chain before it, by the type of their items.
    states: Mapping[str, JsonObject] = field(default_factory=dict)
    programs: Sequence[PausedProgram] = ()  # they go on before the model does


@dataclass(frozen=True, slots=True)
class ToolsListed:
    """A server has listed its tools, or could not: then it has an `error` and none."""

    server: str  # its label
    tools: Sequence[JsonObject] = ()  # as their item shows them
    offered: Sequence[OfferedTool] = ()  # those of them that can be called
    error: str | None = None  # why there is no list, or what is left out of it


@dataclass(frozen=True, slots=True)
class ToolsFound:
    """The search for tools has found some: they can be called from now on."""

    tools: Sequence[JsonObject] = ()  # as the item of the search's output shows them
    offered: Sequence[OfferedTool] = ()  # those of them that this server runs


class FunctionCalled(NamedTuple):
    """A call of a function of the client's, by a program."""

    name: str
    namespace: str | None
    arguments: str  # JSON


@dataclass(frozen=True, slots=True)
class ProgramCalled:
    """A program calls a tool of this server."""

    tool: OfferedTool
    arguments: str  # JSON


@dataclass(frozen=True, slots=True)
class ProgramPaused:
    """A program cannot go on without what comes of its calls of the client's functions."""

    calls: Sequence[FunctionCalled]  # one at least


@dataclass(frozen=True, slots=True)
class ProgramEnded:
    """A program has ended, or could not be run."""

    text: str  # what the model reads of it
    failed: bool = False


@dataclass(frozen=True, slots=True)
class ToolProgressed:
    """A tool of this server works on."""

    fields: JsonObject  # how far it is: those of its event


@dataclass(frozen=True, slots=True)
class ToolReturned:
    """A tool of this server gave something back, or failed."""

    text: str  # what the model reads of it
    failed: bool = False
    shown: JsonObject = field(default_factory=dict)  # fields of the call's item
    state: JsonObject | None = None  # what later calls of the chain want to know; None: as before
    seen: Sequence[
        str | PicturePart
    ] = ()  # what the model reads and sees in place of the text, where there are pictures

    @property
    def body(self) -> Body:
        """What the model reads and sees of it."""
        return self.seen or self.text


@dataclass(frozen=True, slots=True)
class WaitBegan:
    """It waits for its client, until then (Unix seconds): a worker that goes on with it waits no longer."""

    until: float


@dataclass(frozen=True, slots=True)
class OutputGiven:
    """The client says what came of a call."""

    call_id: str
    output: str | list[JsonObject]  # as it was sent
    text: str  # what the model reads of it
    seen: Sequence[str | PicturePart] = ()  # what it reads and sees in place of that, where there are pictures

    @property
    def body(self) -> Body:
        """What the model reads and sees of it."""
        return self.seen or self.text


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The client did not answer within these seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Failed:
    """Something broke."""

    error: ResponseError  # what clients see


@dataclass(frozen=True, slots=True)
class Stopped:
    """Somebody ends it."""

    reason: StopReason


@dataclass(frozen=True, slots=True)
class Ended:
    """Its end is kept."""

    at: int  # Unix seconds
    error: ResponseError | None = None  # why it could not be kept: then the response has failed


@dataclass(frozen=True, slots=True)
class AgentsAllowed:
    """How far its agents may go; before it starts, where it may have any."""

    limits: AgentLimits
    calls_client: bool = False  # agents below the root may call the client's tools


@dataclass(frozen=True, slots=True)
class OfAgent:
    """What came to an agent below the root, by its number."""

    agent: int  # from 1 on
    input: "Input"


# Of this server's tools
OfServer = ToolsListed | ToolsFound | ProgramCalled | ProgramPaused | ProgramEnded | ToolProgressed | ToolReturned


def input_of(input: "Input") -> "Input":
    """Return what came, to whichever agent it came."""
    return input.input if isinstance(input, OfAgent) else input


Input = (
    Declared
    | Offered
    | AgentsAllowed
    | OfAgent
    | Enqueued
    | OutputOptions
    | RunStarted
    | TurnBegan
    | Sampled
    | Prefilled
    | Sealed
    | ToolsListed
    | ToolsFound
    | ProgramCalled
    | ProgramPaused
    | ProgramEnded
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

    The prompt is the response's first one with `said` behind it, and `sampled`.
    """

    turn: int  # from 0 on
    said: Sequence[RenderedMessage] = ()
    sampled: "Tokens[int]" = field(default_factory=as_tokens)  # what this turn has given already, or begins with
    budget: int | None = None  # how many tokens it may give
    summary: bool = False  # it sums up what came before
    after_call: bool = False  # the model has called something in this response already
    has_begun: bool = False  # on another worker: `TurnBegan` is left out
    # It sums up a thought: `sampled` begins the answer. Nothing is lost where it fails: then answer with a `Sampled`
    # that only has a finish reason.
    aside: bool = False
    hosted: bool = True  # tools of this server can still be called
    agent: int = 0  # whose turn it is; 0: that of the response itself, or of its root agent


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
class SearchTools:
    """Search the tools that the model is not shown; answer with `ToolsFound`."""

    arguments: str  # as the model wrote them


@dataclass(frozen=True, slots=True)
class RunProgram:
    """Run a program from its beginning; answer with `ProgramEnded` or `ProgramPaused`, and before that with any number
    of `ProgramCalled`.

    Each of those is answered by `CallTool`, and once that has returned by this again; or at once, where the program may
    call nothing more.
    """

    code: str
    made: Sequence[MadeCall] = ()  # what it has called before: that is not made again. Grows while it runs


@dataclass(frozen=True, slots=True)
class CallTool:
    """Call a tool of this server; answer with `ToolReturned`, and before that with any number of `ToolProgressed`."""

    name: str
    arguments: str
    item_id: str = ""  # of the call's item
    tool: str = ""  # the name that an MCP server has for it
    repeatable: bool = False  # a call that was under way when its worker died may be made again
    state: JsonObject | None = None  # what the tool wants to know of its earlier calls in this chain


@dataclass(frozen=True, slots=True)
class Await:
    """Wait for the client's outputs of these calls; answer with `WaitBegan`, and `TimedOut` where they do not come."""

    call_ids: tuple[str, ...]
    until: float | None = None  # when the wait ends, in Unix seconds; None where it has not begun


@dataclass(frozen=True, slots=True)
class AwaitAgents:
    """Wait for a message of another agent; answer with `WaitBegan`, and `TimedOut` where none comes."""

    seconds: float
    until: float | None = None  # when the wait ends, in Unix seconds; None where it has not begun


@dataclass(frozen=True, slots=True)
class Idle:
    """An agent below the root has ended its task: nothing is to be done for it."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Keep how the response ended; answer with `Ended`."""

    ending: Ending


Command = (
    Generate | Prefill | Seal | ListTools | SearchTools | RunProgram | CallTool | Await | AwaitAgents | Idle | Finish
)


class Step(NamedTuple):
    """What came of an input. A command ends what the one before it asked for: a generation that runs is aborted."""

    events: list[Event]
    command: Command | None = None

    def behind(self, events: list[Event]) -> "Step":
        """Return it with these events before its own."""
        return Step([*events, *self.events], self.command)
