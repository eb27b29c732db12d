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
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

from engine.formats.base import (
    ItemEnded,
    ItemKind,
    ItemStarted,
    ModelFormat,
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
from responses_app.protocol.response.steps import Generate, Sampled, StopReason, TurnBegan
from responses_app.protocol.response.summaries import Budget, Compacting, SummaryTurns
from responses_app.protocol.stop_strings import StopStrings
from responses_app.protocol.usage import TurnUsage

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
        return not summing_up and self._sums_up(turn, started, ended)

    def _sums_up(self, turn: Turn, started: ItemStarted, ended: ItemEnded) -> bool:
        """Whether the model is to sum up what it has just said, and goes on then."""
        # Behind a stop token the model says nothing more, so there is nothing that a summary would come before.
        if not self.asides.by_model or self.asides.running or turn.tokens[-1] in self.format.stop_tokens:
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
