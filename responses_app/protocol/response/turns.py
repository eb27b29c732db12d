"""A turn as it is read: one generation's tokens, its usage, what it says, and where it ends.

`TurnReader` gives what the model samples to the part of the machine that it is for. Nearly always that is the
response's stream; while the model sums up, it is the part that makes the summary. It ends a turn before the model does

    - behind the first call, where the client takes one at a time
    - behind a call of a tool that this server runs
    - behind a thought that is summed up now
    - behind any item, once somebody wants the response to end

`AnswerStops`: where a request ends an answer, by strings (`stop`) and by tokens (`stop_token_ids`). They end what the
model says to the user, and with it the turn: neither its thoughts nor its calls. What has ended an answer is not part
of it, but of what the model reads of it later, as it has sampled it.

Summaries by the model itself: of what it thinks, and of all that came before.

`SummaryTurns`: a request that sets `reasoning.summary` gets one for each of its reasoning items. Where the model is to
write it, the generation is cut at the end of the thought, as for a call of a tool, and this happens before the model
goes on:

    … <thought>                     ──> the turn ends here; the item stays open
    … <thought> <request> <answer:  ──> an aside: its prompt begins the answer already, so that nothing is thought
                                        about the summary, and all but the request lies in the engine's prefix cache
    … <thought>                     ──> the next turn, which reads nothing of the aside

Nobody waits for what a summary is not worth: a thought of up to `MIN_THOUGHT` tokens is as short as a summary, one that
ended the generation has nothing behind it, and where little of the budget is left that is the answer's. Those, and all
behind the first `MAX_ASIDES` of a response, get their first sentences (see `ReasoningBuilder`), and so does a thought
whose aside fails or says nothing.

`Compacting`: the model sums up what came before; the summary, sealed, then stands for that. What the model writes
meanwhile is not an item of its own: clients see a compaction that begins with its first word.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

from engine.formats.base import (
    ItemEnded,
    ItemKind,
    ItemStarted,
    MessageKind,
    ModelFormat,
    RenderedMessage,
    Text,
    TextLogprob,
    Tokens,
    TurnEvent,
    TurnParser,
    as_tokens,
)
from engine.types import FinishReason, TokenLogprob
from responses_app.protocol.events.events import Event
from responses_app.protocol.output.stream import LocalProtocolError, ResponseStream
from responses_app.protocol.response.steps import Generate, Sampled, Seal, StopReason, TurnBegan
from responses_app.protocol.stop_strings import StopStrings
from responses_app.protocol.usage import TurnUsage


@dataclass(slots=True)
class Budget:
    """How many tokens a response may sample in all its turns."""

    turns: Sequence[TurnUsage]
    limit: int | None = None  # None: as many as the model gives
    since: int = 0  # the number of the first turn that counts: those before it are a summary

    @property
    def left(self) -> int | None:
        """How many tokens may still be sampled; None: as many as the model gives."""
        spent = sum(turn.output_tokens for turn in self.turns[self.since :])
        return None if self.limit is None else max(0, self.limit - spent)


MIN_THOUGHT = 80  # of a thought that the model sums up
MAX_ASIDES = 8  # in one response
ASIDE_SHARE = 4  # an aside gets this part of the tokens that are left, or is left out

_REQUESTS = {  # by `reasoning.summary`, with how many tokens the summary may have
    "concise": ("in one or two sentences", 120),
    "auto": ("in two to four sentences", 200),
    "detailed": ("in one or two paragraphs, with every step that led somewhere", 400),
}
SUMMARY_REQUEST = "Write a summary of the thought above, which you had just now"


class SummaryTurns:
    """The asides of one response."""

    def __init__(self, model_format: ModelFormat, style: str) -> None:
        self._format = model_format
        self._style = style  # the request's `reasoning.summary`: a key of `_REQUESTS`
        self._asides = 0  # how many were begun
        self._in_answer = self._has_begun = False  # of the aside that runs: its answer, and text of that
        self.by_model = False  # else a thought's first sentences are its summary
        self._was_last = False  # the last turn was an aside
        self.running = False  # an aside has been asked for, and has not ended

    def is_due(self, kind: ItemKind, ended: ItemEnded, *, left: int | None) -> bool:
        """Whether an item that has just ended gets an aside; `left` is how many tokens may still be sampled."""
        _, tokens = _REQUESTS[self._style]
        long_enough = kind is ItemKind.REASONING and ended.reasoning_tokens > MIN_THOUGHT and not ended.truncated
        affordable = left is None or left >= ASIDE_SHARE * tokens
        return long_enough and affordable and self._asides < MAX_ASIDES

    def begin(self, turn: int, messages: Sequence[RenderedMessage]) -> Generate:
        """Return what asks for the aside; `messages` end with the thought."""
        self._asides += 1
        self._in_answer, self._has_begun, self.running = False, False, True
        length, tokens = _REQUESTS[self._style]
        # Not a message of the user: that would settle the thought which it is about.
        words = (
            f"{SUMMARY_REQUEST}, for the person who reads along. Begin with a headline of two to five words in bold "
            f"(**…**) and an empty line; then say {length}, in the language of the conversation, what you considered "
            "and what you decided. Add nothing that you did not think, do not answer the person, and write the summary "
            "and nothing else."
        )
        request = RenderedMessage(MessageKind.OTHER, self._format.user(words).tokens)
        sampled = as_tokens(self._format.answer_start())  # with them an answer begins, behind those that ask for one
        return Generate(turn, (*messages, request), sampled=sampled, budget=tokens, aside=True)

    def begins_turn(self) -> bool:
        """Note that a turn begins; return whether what tools gave back may stand before it."""
        # An aside's prompt has its request, and the turn behind it lacks that again: tools gave nothing back.
        beside = self.running or self._was_last
        self._was_last = self.running
        return not beside

    def end(self) -> None:
        """The aside has ended, however that came."""
        self.running = False

    def take(self, turn_events: Sequence[TurnEvent]) -> str:
        """Return what of an aside is the summary's: the text of its answer."""
        texts: list[str] = []
        for each in turn_events:
            if isinstance(each, ItemStarted):
                self._in_answer = each.kind is ItemKind.ANSWER
            elif isinstance(each, Text) and self._in_answer:
                texts.append(each.text)
        text = "".join(texts)
        # White space before the summary is dropped, however it was cut into chunks.
        text = text if self._has_begun else text.lstrip()
        self._has_begun = self._has_begun or bool(text)
        return text


class Compacting:
    """The compaction of one response, which has at most one, at its beginning."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._summary: _Summary | None = None
        self.running = False  # a summary is being written, or waits for its seal

    def begin(self) -> None:
        """What the model says from now on is the summary."""
        self._summary, self.running = _Summary(), True

    def take(self, turn_events: Sequence[TurnEvent]) -> None:
        """Take what the model says of it."""
        assert self._summary is not None
        for each in turn_events:
            self._summary.take(each)

    def due(self) -> Seal | None:
        """Return what is to be sealed, once the model has said all; None where it gave no summary."""
        assert self._summary is not None
        return Seal(self._summary.text) if self._summary.text else None

    def end(self, budget: int | None) -> None:
        """The summary is sealed; `budget` is what may be sampled from here on."""
        # The summary's own tokens do not count for the answer: turns before `since` are left out.
        self._budget.limit, self._budget.since = budget, len(self._budget.turns)
        self._summary, self.running = None, False


class _Summary:
    """What a model says when it is asked for a summary: its final answer or, if it gives none, all it said."""

    def __init__(self) -> None:
        self._answer: list[str] = []  # the final answer
        self._other: list[str] = []  # all else: thoughts and preambles
        self._saying = self._answer  # the list of the item that is being said

    def take(self, turn_event: TurnEvent) -> None:
        """Read on."""
        match turn_event:
            case ItemStarted(kind=kind):
                self._saying = self._answer if kind is ItemKind.ANSWER else self._other
                self._saying.append("\n")
            case Text(text=text):
                self._saying.append(text)

    @property
    def text(self) -> str:
        """The summary; "" where there is none."""
        return "".join(self._answer).strip() or "".join(self._other).strip()


Ends = Callable[[ItemStarted, ItemEnded], bool]  # whether nothing is to follow an item
Spelled = Callable[[TokenLogprob], TextLogprob]


@dataclass(slots=True)
class Turn:
    """The generation that runs."""

    parser: TurnParser  # of the model's format
    usage: TurnUsage  # counted as tokens are read; the machine's list has the same object
    stops: "AnswerStops | None"  # that may end an answer in it
    # All that the turn has, with those that stand at the prompt's end.
    tokens: "Tokens[int]" = field(default_factory=as_tokens)
    _unsaid: list[TextLogprob] = field(default_factory=list)  # of tokens whose text has not come yet
    called: bool = False  # its last item waits for what a call gives back
    has_called: bool = False  # a tool of the client's
    holds: bool = False  # its last item is open until its tool has run: nothing can follow, even if the engine goes on
    is_over: bool = False  # what the engine still samples is dropped
    sums_up: bool = False  # it ended with a thought that gets a summary now
    _started: ItemStarted = field(default_factory=lambda: ItemStarted(ItemKind.ANSWER))  # the last item

    def begin_with(self, token_ids: "Tokens[int]") -> list[TurnEvent]:
        """Read tokens that stand at the end of the prompt as if they had been sampled, and do not count them."""
        self.tokens.extend(token_ids)
        return self.parser.feed(token_ids)

    def read_one_by_one(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob] | None, *, ends: Ends | None, spelled: Spelled
    ) -> list[TurnEvent]:
        """Return what tokens say, up to the one that ends the turn: what follows is neither read nor counted.

        `ends` is None where nothing but the model ends it.
        """
        turn_events: list[TurnEvent] = []
        for index, token in enumerate(token_ids):
            self.tokens.append(token)
            self.usage.output_tokens += 1
            events = self.parser.feed((token,))
            end = self._end_in(events, ends)
            if end is not None:  # one token may end an item and begin the next
                self.is_over, events = True, events[:end]
            turn_events += events if logprobs is None else self._with_logprob(token, spelled(logprobs[index]), events)
            if self.is_over:
                break
        return turn_events

    def close(self, *, ends: Ends | None) -> list[TurnEvent]:
        """Return what the parser still holds of the turn, up to the item that nothing is to follow."""
        turn_events = self.parser.close()
        # The last event is not looked at: nothing follows it anyway.
        return turn_events[: self._end_in(turn_events[:-1], ends)]

    def _end_in(self, turn_events: list[TurnEvent], ends: Ends | None) -> int | None:
        """Return how much of this is said up to the end of the turn; None where it does not end here."""
        for count, each in enumerate(turn_events):
            if isinstance(each, ItemStarted):
                if self.holds:
                    return count
                self.note(each)
            elif ends is not None and isinstance(each, ItemEnded) and ends(self._started, each):
                return count + 1
        return None

    def note(self, started: ItemStarted) -> None:
        """Remember the last item, as it begins."""
        self._started = started
        self.has_called = self.has_called or started.kind is ItemKind.CALL

    def _with_logprob(self, token: int, logprob: TextLogprob, events: list[TurnEvent]) -> list[TurnEvent]:
        """Give a text the log probabilities of the tokens that made it; these are a token's events."""
        # A token that ends something has no text, and so no entry.
        if not self.parser.is_end(token):
            self._unsaid.append(logprob)
        if not events:
            return events
        unsaid = tuple(self._unsaid)
        self._unsaid.clear()
        return [replace(event, logprobs=unsaid) if isinstance(event, Text) else event for event in events]


def merged(turn_events: list[TurnEvent]) -> list[TurnEvent]:
    """Make one text of those that stand behind each other; linear, however many come at once."""
    result: list[TurnEvent] = []
    texts: list[Text] = []  # that stand together
    for each in turn_events:
        if isinstance(each, Text):
            texts.append(each)
            continue
        if texts:
            result.append(_joined(texts))
            texts = []
        result.append(each)
    return [*result, _joined(texts)] if texts else result


def _joined(texts: Sequence[Text]) -> Text:
    logprobs = tuple(chain.from_iterable([each.logprobs for each in texts]))
    return Text("".join([each.text for each in texts]), logprobs)


class AnswerStops:
    """The stop strings and tokens of one response, whose turns are read one after the other; at least one of them."""

    def __init__(self, stops: Sequence[str], tokens: Collection[int]) -> None:
        self._tokens = frozenset(tokens)
        self._stops = tuple(stops)
        self._text: StopStrings | None = None  # of the answer that is being said
        self._held: tuple[TextLogprob, ...] = ()  # of its text that was not said yet
        self.has_cut = False  # a string has ended an answer: more was sampled than is said

    def without_stop_token(self, chunk: Sampled) -> tuple[Sampled, bool]:
        """Return what is to be read of tokens, and whether one of the request's own has ended them."""
        # An engine ends at a stop token, and gives it as the last one.
        if chunk.finish is not FinishReason.STOP or not chunk.token_ids or chunk.token_ids[-1] not in self._tokens:
            return chunk, False
        logprobs = None if chunk.logprobs is None else chunk.logprobs[:-1]
        return replace(chunk, token_ids=chunk.token_ids[:-1], logprobs=logprobs), True

    def read(self, turn: Turn, turn_events: Sequence[TurnEvent]) -> list[TurnEvent]:
        """Return what is said up to a stop string, which ends the turn."""
        if not self._stops:
            return list(turn_events)
        events: list[TurnEvent] = []
        for index, each in enumerate(turn_events):
            # Each answer begins anew: a stop string does not reach over two items.
            if isinstance(each, ItemStarted):
                self._text = StopStrings(self._stops) if each.kind is ItemKind.ANSWER else None
            elif self._text is not None:
                events += self._read(self._text, each)
                if self._text.matched is not None:
                    self.has_cut = True
                    return [*events, *self._end(turn, turn_events[index + 1 :])]
                if isinstance(each, Text):
                    continue
            events.append(each)
        return events

    def _read(self, answer: StopStrings, turn_events: TurnEvent) -> list[TurnEvent]:
        """Return what can be said of an answer now."""
        if isinstance(turn_events, Text):
            self._held += turn_events.logprobs
            text = answer.feed(turn_events.text)
        else:
            text = answer.rest()
        if not text:
            return []
        logprobs, self._held = self._held, ()
        return [Text(text, logprobs)]

    def _end(self, turn: Turn, turn_events: Sequence[TurnEvent]) -> list[TurnEvent]:
        """End the turn, and the answer in it, which is whole: none of the other `turn_events` is told."""
        turn.is_over, self._text, self._held = True, None, ()
        # The end may be in what came with the stop string already, or else the parser makes it.
        ended = next((each for each in (*turn_events, *turn.parser.close()) if isinstance(each, ItemEnded)), None)
        return [] if ended is None else [replace(ended, truncated=False)]


@dataclass(slots=True, kw_only=True)
class TurnReader:
    """Reads the turns of one response, and decides which of their items is the last one."""

    stream: ResponseStream  # what clients hear goes there
    format: ModelFormat
    budget: Budget  # shared with the machine, as are the next two
    asides: SummaryTurns
    compacting: Compacting
    functions: Collection[str] | None  # the names that the model can call; None where calls are forbidden
    one_call: bool  # a turn ends with its first call of the client's
    turns: list[TurnUsage]  # the tokens of all turns so far
    turn: Turn | None = field(default=None, init=False)  # the one that is being read
    stops: AnswerStops | None = field(default=None, init=False)  # None: the request has none
    stop: StopReason | None = field(default=None, init=False)  # why the response is to end, if it is
    repairs: int = field(default=0, init=False)  # how many items of all turns were malformed

    def begin(self, input: TurnBegan, command: Generate) -> None:
        """Begin the turn that was wanted."""
        usage = TurnUsage(input_tokens=input.prompt_tokens, after_tools=self.asides.begins_turn())
        # Neither a summary nor an aside is the answer that the request's stop strings are about.
        stops = None if self.compacting.running or self.asides.running else self.stops
        self.turn = Turn(self.format.parser(self.functions), usage, stops)
        self.turns.append(usage)
        if command.aside:
            self.asides.take(self.turn.begin_with(command.sampled))

    def read(self, chunk: Sampled) -> tuple[list[Event], FinishReason | None]:
        """Return what clients hear of tokens, and why the turn ends with them; None where it goes on."""
        turn = self.turn
        if turn is None:
            raise LocalProtocolError("tokens came outside of a turn")
        if chunk.prompt_tokens is not None:
            turn.usage.input_tokens = chunk.prompt_tokens
        if chunk.cached_tokens is not None and not turn.usage.cached_tokens:  # not of a turn that goes on elsewhere
            turn.usage.cached_tokens = min(chunk.cached_tokens, turn.usage.input_tokens)
        ends = None
        if self.one_call or self.stream.called.hosts or self.asides.by_model or self.stop is not None:
            ends = partial(self._ends, turn, self.compacting.running)
        stops, stopped = turn.stops, False
        if stops is not None:
            chunk, stopped = stops.without_stop_token(chunk)
        if ends is None and chunk.logprobs is None:  # nearly always: nothing but the model ends the turn
            turn.tokens.extend(chunk.token_ids)
            turn.usage.output_tokens += len(chunk.token_ids)
            turn_events = turn.parser.feed(chunk.token_ids)
        else:
            turn_events = turn.read_one_by_one(chunk.token_ids, chunk.logprobs, ends=ends, spelled=self.format.spelled)
        if stops is not None:
            turn_events = stops.read(turn, turn_events)
        if stopped and not turn.is_over:
            turn.usage.output_tokens += 1  # the stop token, which was cut off above
        finish = FinishReason.STOP if turn.is_over else chunk.finish
        if finish is not None:
            turn_events += self._rest(turn, ends, is_whole=stopped)
        return self._tell(turn, turn_events), finish

    def _rest(self, turn: Turn, ends: Ends | None, *, is_whole: bool) -> list[TurnEvent]:
        """Return what the parser still holds of a turn that ends; nothing, where that follows the end.

        `is_whole`: a stop token of the request's has ended it, so its last item is not cut.
        """
        rest = [] if turn.is_over else turn.close(ends=ends)
        if is_whole:
            rest = [replace(each, truncated=False) if isinstance(each, ItemEnded) else each for each in rest]
        self.repairs += turn.parser.repairs
        return rest if turn.stops is None or not rest else turn.stops.read(turn, rest)

    def cut(self) -> list[Event]:
        """Read no further, and return what clients hear of what was being said; of a summary that is nothing."""
        turn = self.turn
        if turn is None or self.compacting.running:
            return []
        return self._tell(turn, turn.close(ends=partial(self._ends, turn, False)))

    def end(self) -> Turn:
        """End the turn, and return it."""
        turn, self.turn = self.turn, None
        assert turn is not None
        return turn

    def only_adds(self, token_ids: Sequence[int]) -> bool:
        """Whether tokens, sampled now, are nothing but more text of an item whose text has begun to be read."""
        turn = self.turn
        return turn is not None and self.stream.is_growing and not any(map(turn.parser.is_end, token_ids))

    @property
    def is_inside(self) -> bool:
        """Whether something is being said that is to come to its end before the turn is ended."""
        return self.turn is not None and (self.stream.is_open or self.turn.has_called)

    def _ends(self, turn: Turn, summing_up: bool, started: ItemStarted, ended: ItemEnded) -> bool:
        """Whether an item of a turn is its last; `summing_up`: the turn's text is itself a summary."""
        hosted = started.kind is ItemKind.HOSTED_CALL and self.stream.called.is_hosted(started.name or "")
        turn.holds = hosted and ended.called
        if ended.called:
            return False  # a turn that waits for a call ends by itself
        one_call = self.one_call and started.kind is ItemKind.CALL
        # A turn with calls of the client's goes to its end: what continues the response needs their outputs.
        stopped = self.stop is not None and not turn.has_called
        if one_call or (hosted and not ended.truncated) or stopped:
            return True
        # The model may be to sum up what it has just said, and goes on then. Behind a stop token it says nothing more,
        # so there is nothing that a summary would come before.
        may_sum_up = not summing_up and self.asides.by_model and not self.asides.running
        if not may_sum_up or turn.tokens[-1] in self.format.stop_tokens:
            return False
        turn.sums_up = self.asides.is_due(started.kind, ended, left=self.budget.left)
        return turn.sums_up

    def _tell(self, turn: Turn, turn_events: list[TurnEvent]) -> list[Event]:
        for each in turn_events:
            if isinstance(each, ItemEnded):
                turn.usage.reasoning_tokens += each.reasoning_tokens
                turn.called = each.called
            elif isinstance(each, ItemStarted):
                turn.note(each)
        if len(turn_events) > 1:  # rarely: a token says one thing, or nothing
            turn_events = merged(turn_events)
        if self.compacting.running:
            self.compacting.take(turn_events)
            return self.stream.begin_compaction() if turn_events and not self.stream.is_compacting else []
        if self.asides.running:
            return self.stream.sum_up(self.asides.take(turn_events))
        # The item stays open for its summary: its end is told when the aside has ended.
        if turn.sums_up and isinstance(turn_events[-1], ItemEnded):
            return [*self.stream.receive_all(turn_events[:-1]), *self.stream.hold_reasoning(turn_events[-1])]
        return self.stream.receive_all(turn_events)
