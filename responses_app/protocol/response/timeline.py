"""`Timeline`: what a response did, and when: its phases, turn by turn, made of the inputs that its log has.

    created                                                                                    ended
       │ queue │ prefill │ reasoning │ call │ tool │ queue │ prefill │ answer          │ saving │
       └────────────── turn 1 ──────────────────────┴────────────── turn 2 ─────────────────────┘

Each phase begins where the one before it ends, so they do not overlap, and together they are the whole time. A phase
begins with an input, and its end is the next one's beginning: so the log up to any point gives the beginning of the
same timeline. Times are Unix milliseconds by the clock of the store, which all workers share; one that lies before
another that came earlier counts as that one.

A turn is one generation. What it waits for before, and the tools that it calls, belong to it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from responses_app.protocol.events.events import EventType
from responses_app.protocol.response.response import ResponseMachine
from responses_app.protocol.response.steps import (
    Await,
    AwaitAgents,
    CallTool,
    Command,
    Ended,
    Finish,
    Generate,
    Input,
    ListTools,
    OfAgent,
    Prefill,
    Sampled,
    Seal,
    Step,
    TurnBegan,
)


class PhaseKind(StrEnum):
    """What a response does."""

    QUEUE = "queue"  # it is got ready, and waits for the engine
    PREFILL = "prefill"  # the engine has the prompt, and no item of its answer has begun
    REASONING = "reasoning"
    ANSWER = "answer"
    CALL = "call"  # the model writes a call
    TOOL = "tool"  # a tool of this server works, or a server lists its tools
    CLIENT = "client"  # it waits for what the client says of its calls
    SUMMARY = "summary"  # the model sums up: a thought, or all that came before
    SAVING = "saving"  # its end is decided, and is kept before anybody hears it
    UNKNOWN = "unknown"  # nothing is known of this time but that it belongs to the response


_OF_ITEMS = {"reasoning": PhaseKind.REASONING, "message": PhaseKind.ANSWER}  # by their types; all others are calls


@dataclass(slots=True)
class Phase:
    """A stretch of one turn. Times are Unix milliseconds."""

    kind: PhaseKind
    turn: int  # from 1 on
    began: int
    ended: int | None = None  # None: it lasts
    name: str = ""  # the tool's, where it is about one


@dataclass(slots=True)
class TurnTokens:
    """The tokens of one turn, and when the first one came."""

    input: int = 0  # of its prompt
    cached: int = 0  # of these, what the engine had already
    output: int = 0
    first_token: int | None = None  # Unix milliseconds; None: it did not come, or nobody knows when


@dataclass(slots=True)
class Timeline:
    """The timeline of one response. Times are Unix milliseconds."""

    created: int
    phases: list[Phase] = field(default_factory=list)  # in their order, without gaps
    turns: list[TurnTokens] = field(default_factory=list)  # those that have begun
    ended: int | None = None  # None: it runs
    is_timed: bool = True  # its log says when what came; else its phases are only guessed by its ends

    def milliseconds(self, now: int) -> int:
        """Return how long it has taken so far, or did."""
        return max(0, (now if self.ended is None else self.ended) - self.created)


class TimelineReader:
    """Reads the inputs of one response, in their order, and what its machine made of them; `timeline` is the result."""

    def __init__(self, created: int) -> None:
        self.timeline = Timeline(created)
        self._now = created  # the latest time that an input had
        self._turn = 1  # the number of the turn that phases belong to now
        self._begun = 0  # turns
        self._standing: Command | None = None  # what the machine wanted last
        self._enter(PhaseKind.QUEUE)

    def take(self, input: Input, step: Step, at: int | None) -> None:
        """Take the next input, what came of it, and when (None: not known, and so no later than the next one)."""
        if self.timeline.ended is not None:
            return
        if at is not None:
            self._now = max(self._now, at)
        # Agents work beside the root, whose phases these are: only what it is to do then is about it.
        if not isinstance(input, OfAgent):
            self._take_own(input, step)
        # Behind the events: they are of what ran until now, the command is of what follows.
        if step.command is not None:
            self._want(step.command)
        if isinstance(input, Ended) and isinstance(self._standing, Finish):
            self.end(self._now)

    def _take_own(self, input: Input, step: Step) -> None:
        match input:
            case TurnBegan():
                self._begin_turn(input)
            case Sampled():
                self._sample(input)
        # Items of asides and summaries say what the model writes for this server; they are one phase, whatever is in
        # them.
        if isinstance(self._standing, Generate) and not (self._standing.aside or self._standing.summary):
            for event in step.events:
                if event.type is EventType.ITEM_ADDED:
                    item: dict[str, object] = event.fields["item"]  # type: ignore[assignment]
                    kind = _OF_ITEMS.get(str(item["type"]), PhaseKind.CALL)
                    self._enter(kind, str(item.get("name") or item["type"]) if kind is PhaseKind.CALL else "")

    def end(self, at: int) -> None:
        """The response ended then."""
        if self.timeline.ended is None:
            self._now = max(self._now, at)
            self.timeline.ended = self._now
            self.timeline.phases[-1].ended = self._now

    def _begin_turn(self, input: TurnBegan) -> None:
        command = self._standing
        if not isinstance(command, Generate):  # the end was decided before
            return
        self._begun += 1
        self.timeline.turns.append(TurnTokens(input=input.prompt_tokens))
        sums_up = command.aside or command.summary
        self._enter(PhaseKind.SUMMARY if sums_up else PhaseKind.PREFILL)

    def _sample(self, chunk: Sampled) -> None:
        if not self.timeline.turns:
            return
        turn = self.timeline.turns[-1]
        turn.output += len(chunk.token_ids)
        turn.input = turn.input if chunk.prompt_tokens is None else chunk.prompt_tokens
        # The first chunk says it. A turn that goes on on another worker has a cache of its own, which is not meant.
        turn.cached = turn.cached or min(chunk.cached_tokens or 0, turn.input)
        if chunk.token_ids and turn.first_token is None:
            turn.first_token = self._now

    def _want(self, command: Command) -> None:
        self._standing = command
        match command:
            # The turn is counted once it is asked for: waiting for the engine belongs to it.
            case Generate():
                self._turn = self._begun + 1
                self._enter(PhaseKind.QUEUE)
            case Prefill():
                self._enter(PhaseKind.PREFILL)
            case ListTools(server=name):
                self._enter(PhaseKind.TOOL, name)
            case CallTool(name=name):
                self._enter(PhaseKind.TOOL, name)
            case Await():
                self._enter(PhaseKind.CLIENT)
            case AwaitAgents():
                self._enter(PhaseKind.TOOL, "agents")
            case Seal():
                self._enter(PhaseKind.SUMMARY)
            case Finish():
                self._enter(PhaseKind.SAVING)

    def _enter(self, kind: PhaseKind, name: str = "") -> None:
        """Begin a phase, unless it goes on: two items of a kind, one behind the other, are one phase."""
        phases = self.timeline.phases
        last = phases[-1] if phases else None
        if last is not None:
            if (last.kind, last.turn, last.name) == (kind, self._turn, name):
                return
            last.ended = self._now
        phases.append(Phase(kind, self._turn, self._now, name=name))


def timeline_of(inputs: Iterable[tuple[Input, int | None]], machine: ResponseMachine, *, created: int) -> Timeline:
    """Return the timeline that these inputs give; `machine` is that of the response as it began.

    Without any time among them it has no phases but one of unknown kind. Raises `LocalProtocolError`, or whatever the
    inputs raise, for what is not its log.
    """
    reader, is_timed = TimelineReader(created), False
    for input, at in inputs:
        is_timed = is_timed or at is not None
        reader.take(input, machine.receive(input), at)
    timeline = reader.timeline
    # The machine counts as usage does: without tokens behind the end of a turn.
    for tokens, used in zip(timeline.turns, machine.turns, strict=True):
        tokens.cached, tokens.output = used.cached_tokens, used.output_tokens
    # A log of an older version: the phases are right in their order, and all at one time.
    if not is_timed:
        timeline.is_timed = False
        timeline.phases = [Phase(PhaseKind.UNKNOWN, 1, created)]
        timeline.ended = None
        for tokens in timeline.turns:
            tokens.first_token = None
    return timeline


def untimed(created: int, usage: object) -> Timeline:
    """Return what is known of a response without a log: `usage` is its object's, as it is stored."""
    timeline = Timeline(created, [Phase(PhaseKind.UNKNOWN, 1, created)], is_timed=False)
    timeline.turns = _turns_of(usage if isinstance(usage, dict) else {})
    return timeline


def guess(timeline: Timeline, *, first_token: int | None, ended: int | None) -> None:
    """Put into a timeline without times when the first token came, and when the response ended, as far as known."""
    if timeline.is_timed:
        return
    created = timeline.created
    end = None if ended is None else max(created, ended)
    phases = [Phase(PhaseKind.UNKNOWN, 1, created, end)]
    # Times come from several places, and may contradict each other: what does not fit is left out.
    if first_token is not None and created <= first_token <= (first_token if end is None else end):
        before = Phase(PhaseKind.UNKNOWN, 1, created, first_token, "before the first token")
        phases = [before, Phase(PhaseKind.UNKNOWN, 1, first_token, end, "from the first token on")]
        for tokens in timeline.turns[:1]:
            tokens.first_token = first_token
    timeline.phases, timeline.ended = phases, end


def _turns_of(usage: dict[str, object]) -> list[TurnTokens]:
    """Return the turns as a stored `usage` has them; one of its sums, where it has no lists."""
    inputs, outputs = _details(usage, "input_tokens_details"), _details(usage, "output_tokens_details")
    lists = [inputs.get("input_tokens_per_turn"), inputs.get("cached_tokens_per_turn")]
    lists.append(outputs.get("output_tokens_per_turn"))
    known = [each for each in lists if isinstance(each, list)]
    if len(known) == len(lists):
        return [TurnTokens(*map(_count, counts)) for counts in zip(*known, strict=False)]
    if "input_tokens" not in usage:
        return []
    cached = inputs.get("cached_tokens")
    return [TurnTokens(_count(usage["input_tokens"]), _count(cached), _count(usage.get("output_tokens")))]


def _details(usage: dict[str, object], name: str) -> dict[str, object]:
    details = usage.get(name)
    return details if isinstance(details, dict) else {}


def _count(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0
