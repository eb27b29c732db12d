"""How long a run takes, and the line that the server's log has of it."""

import logging
import time

from responses_app.observing.logs import FACTS
from responses_app.observing.metrics import Measured, ModelMeter, Outcome
from responses_app.protocol.rate_limits import Amount
from responses_app.protocol.response.response import ResponseMachine
from responses_app.resources.usage.fields import UsedTokens
from responses_app.runs.plan.plan import RunPlan

logger = logging.getLogger("respsite.runs")


class RunMeasure:
    """The times of one run, by a monotonic clock, for the log and the model's `meter`."""

    def __init__(self, plan: RunPlan, machine: ResponseMachine, meter: ModelMeter) -> None:
        self._response_id = plan.response_id
        self._transport = plan.origin.transport
        self._machine = machine
        self._meter = meter
        self._started = time.monotonic()  # so the time in queues counts, too
        self._first_token: float | None = None  # None until the model has said something

    def note_first_token(self) -> None:
        """The model has begun to speak."""
        self._first_token = time.monotonic()

    def measured(self) -> Measured:
        """Return what is kept of it, in milliseconds."""
        first = self._first_token
        return Measured(
            first_token_ms=None if first is None else round((first - self._started) * 1000),
            duration_ms=round((time.monotonic() - self._started) * 1000),
        )

    def report(self, journal_bytes: int, remark: str) -> None:
        """Count the response, which has ended; write its line. `remark` says why, where its readers did not hear it."""
        measured, machine, called = self.measured(), self._machine, self._machine.stream.called
        used = self.tokens()
        error, first = machine.stream.snapshot()["error"], measured.first_token_ms
        # Calls by their kinds: "function_call", "web_search_call", and so on.
        kinds = (str(item["type"]) for item in machine.all_output)
        self._meter.ended(
            Outcome(
                transport=self._transport,
                status=machine.status.value,
                error=None if error is None else str(error["code"]),
                input_tokens=used.input,
                cached_tokens=used.cached,
                output_tokens=used.output,
                reasoning_tokens=sum(turn.reasoning_tokens for turn in machine.all_turns),
                first_token=None if first is None else first / 1000,
                duration=measured.duration_ms / 1000,
                calls=[kind for kind in kinds if kind.endswith("_call")],
                repairs=machine.reader.repairs,
                unknown_tools=len(called.unknown),
                misfits=called.misfits,
                journal_bytes=journal_bytes,
            )
        )
        facts = {
            "transport": self._transport,
            "status": machine.status.value,
            "input_tokens": used.input,
            "cached_tokens": used.cached,
            "output_tokens": used.output,
            "first_token_ms": first,
            "duration_ms": measured.duration_ms,
        }
        logger.info(
            "response %s %s %s input=%d cached=%d output=%d ttft=%s duration=%dms%s",
            self._response_id,
            *(facts[name] for name in ("transport", "status", "input_tokens", "cached_tokens", "output_tokens")),
            "-" if first is None else f"{first}ms",
            measured.duration_ms,
            self._remarks(remark),
            extra={FACTS: facts},
        )

    def _remarks(self, remark: str) -> str:
        machine, called = self._machine, self._machine.stream.called
        remarks = {
            f"repaired={machine.reader.repairs}": machine.reader.repairs,
            "compacted": machine.compacted,
            f"unknown_tools={len(called.unknown)}": called.unknown,
            f"misfit_calls={called.misfits}": called.misfits,
            f"({remark})": remark,
        }
        return "".join(f" {each}" for each, is_there in remarks.items() if is_there)

    def tokens(self) -> UsedTokens:
        """Return what the response has used, for the bill."""
        used = self.used()
        cached = sum(turn.cached_tokens for turn in self._machine.all_turns)
        return UsedTokens(input=used.input_tokens, cached=cached, output=used.output_tokens)

    def used(self) -> Amount:
        """Return what the response has used of limits."""
        turns = self._machine.all_turns
        return Amount(1, sum(turn.input_tokens for turn in turns), sum(turn.output_tokens for turn in turns))
