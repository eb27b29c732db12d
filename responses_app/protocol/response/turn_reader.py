"""`TurnReader`: reads what the model samples, turn by turn, and gives it to the part of the machine that it is for.

Nearly always that is the response's stream; while the model sums up, it is the part that makes the summary.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from engine.formats.base import ItemEnded, ModelFormat, TurnEvent
from engine.types import FinishReason
from responses_app.protocol.events.events import Event
from responses_app.protocol.output.stream import LocalProtocolError, ResponseStream
from responses_app.protocol.response.answer_stops import AnswerStops
from responses_app.protocol.response.commands import Generate
from responses_app.protocol.response.compacting import Compacting
from responses_app.protocol.response.cuts import Cuts
from responses_app.protocol.response.inputs import Sampled, TurnBegan
from responses_app.protocol.response.summaries import SummaryTurns
from responses_app.protocol.response.turns import Turn, merged
from responses_app.protocol.usage import TurnUsage


@dataclass(slots=True, kw_only=True)
class TurnReader:
    """Of one response. `functions` are the names that the model can call, None where calls are forbidden.

    `turn` is the one that is being read; `turns` count the tokens of all, `repairs` how many of their items were
    malformed.
    """

    stream: ResponseStream
    format: ModelFormat
    cuts: Cuts
    asides: SummaryTurns
    compacting: Compacting
    functions: Collection[str] | None
    turns: list[TurnUsage]
    turn: Turn | None = field(default=None, init=False)
    stops: AnswerStops | None = field(default=None, init=False)  # None: the request has none
    repairs: int = field(default=0, init=False)

    def begin(self, given: TurnBegan, wanted: Generate) -> None:
        """Begin the turn that was wanted."""
        usage = TurnUsage(input_tokens=given.prompt_tokens, after_tools=self.asides.begins_turn())
        self.turn = Turn(self.format.parser(self.functions), usage)
        self.turns.append(usage)
        if wanted.aside:
            self.asides.take(self.turn.begin_with(wanted.sampled))

    def read(self, chunk: Sampled) -> tuple[list[Event], FinishReason | None]:
        """Return what clients hear of tokens, and why the turn ends with them; None where it goes on."""
        turn = self.turn
        if turn is None:
            raise LocalProtocolError("tokens came outside of a turn")
        if chunk.cached_tokens is not None and not turn.usage.cached_tokens:  # not of a turn that goes on elsewhere
            turn.usage.cached_tokens = min(chunk.cached_tokens, turn.usage.input_tokens)
        ends = self.cuts.reader_of(turn, summing_up=self.compacting.running)
        stops = None if self.stops is None or self.compacting.running or self.asides.running else self.stops
        stopped = False
        if stops is not None:
            chunk, stopped = stops.without_stop_token(chunk)
        said = turn.read(chunk.token_ids, chunk.logprobs, ends=ends, spelled=self.format.spelled)
        if stops is not None:
            said = stops.read(turn, said)
            if stopped and not turn.is_over:
                turn.usage.output_tokens += 1
                said += stops.end(turn)
        finish = FinishReason.STOP if turn.is_over else chunk.finish
        if finish is not None:
            if not turn.is_over:  # else what the parser still holds is what follows its end
                rest = turn.close(ends=ends)
                said += rest if stops is None else stops.read(turn, rest)
            self.repairs += turn.parser.repairs
        return self._tell(turn, said), finish

    def cut(self) -> list[Event]:
        """Read no further, and return what clients hear of what was being said; of a summary that is nothing."""
        if self.turn is None or self.compacting.running:
            return []
        ends = self.cuts.reader_of(self.turn, summing_up=False)
        return self._tell(self.turn, self.turn.close(ends=ends))

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

    def _tell(self, turn: Turn, said: list[TurnEvent]) -> list[Event]:
        for each in said:
            if isinstance(each, ItemEnded):
                turn.usage.reasoning_tokens += each.reasoning_tokens
                turn.called = each.called
        said = merged(said)
        if self.compacting.running:
            return self.compacting.hear(said)
        if self.asides.running:
            return self.stream.sum_up(self.asides.take(said))
        if turn.sums_up and isinstance(said[-1], ItemEnded):
            return [*self.stream.receive_all(said[:-1]), *self.stream.hold_reasoning(said[-1])]
        return self.stream.receive_all(said)
