"""`Cuts`: where a turn ends before the model ends it.

Behind the first call, where the client takes one at a time; behind a call of a tool that this server runs; behind a
thought that is summed up now; and behind any item, once somebody wants the response to end.
"""

from functools import partial

from engine.formats.base import ItemEnded, ItemKind, ItemStarted, ModelFormat
from responses_app.protocol.output.stream import ResponseStream
from responses_app.protocol.response.inputs import StopReason
from responses_app.protocol.response.summaries import SummaryTurns
from responses_app.protocol.response.turns import Budget, Ends, Turn


class Cuts:
    """Of one response. `one_call`: a turn ends with its first call. `stop` is why the response is to end, if it is."""

    def __init__(
        self,
        stream: ResponseStream,
        model_format: ModelFormat,
        asides: SummaryTurns,
        budget: Budget,
        *,
        one_call: bool,
    ) -> None:
        self._stream = stream
        self._format = model_format
        self._asides = asides
        self._budget = budget
        self._one_call = one_call
        self.stop: StopReason | None = None

    def reader_of(self, turn: Turn, *, summing_up: bool) -> Ends | None:
        """Return what says whether an item of a turn is its last; None where nothing but the model ends it.

        `summing_up`: the turn's text is itself a summary.
        """
        if self._one_call or self._stream.called.hosts or self._asides.by_model or self.stop is not None:
            return partial(self._ends, turn, summing_up)
        return None

    def _ends(self, turn: Turn, summing_up: bool, started: ItemStarted, ended: ItemEnded) -> bool:
        hosted = started.kind is ItemKind.HOSTED_CALL and self._stream.called.is_hosted(started.name or "")
        turn.holds = hosted and ended.called
        if ended.called:
            return False  # a turn that waits for a call ends by itself
        one_call = self._one_call and started.kind is ItemKind.CALL
        # A turn with calls of the client's goes to its end: what continues the response needs their outputs.
        stopped = self.stop is not None and not turn.has_called
        if one_call or (hosted and not ended.truncated) or stopped:
            return True
        return not summing_up and self._sums_up(turn, started, ended)

    def _sums_up(self, turn: Turn, started: ItemStarted, ended: ItemEnded) -> bool:
        """Whether the model is to sum up what it has just said, and goes on then."""
        if self._asides.running or turn.tokens[-1] in self._format.stop_tokens:
            return False
        turn.sums_up = self._asides.is_due(started.kind, ended, left=self._budget.left)
        return turn.sums_up
