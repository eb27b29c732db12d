"""How long a run takes, and the line that the server's log has of it."""

import logging
import time

from responses_app.observing.logs import FACTS
from responses_app.observing.metrics import Measured, ModelMeter, Outcome
from responses_app.protocol.response.response import ResponseMachine
from responses_app.runs.plan.plan import RunPlan

logger = logging.getLogger("respsite.runs")


class RunMeasure:
    """Measures one run, by a monotonic clock, and tells the log and the model's `meter` what came of it."""

    def __init__(self, plan: RunPlan, machine: ResponseMachine, meter: ModelMeter) -> None:
        self._plan = plan  # the one it begins with, which tells what it is
        self._machine = machine
        self._meter = meter
        self._started = time.monotonic()
        self._first_token: float | None = None

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
        """Count the response, which has ended, and write its line."""
        measured = self.measured()
        self._meter.ended(outcome(self._plan, self._machine, measured, journal_bytes))
        report(self._plan, self._machine, measured, remark)


def report(plan: RunPlan, machine: ResponseMachine, measured: Measured, remark: str) -> None:
    """Write a line about a response that has ended; `remark` says why, where its readers did not hear it."""
    first = "-" if measured.first_token_ms is None else f"{measured.first_token_ms}ms"
    remarks = [f"repaired={machine.reader.repairs}"] if machine.reader.repairs else []
    remarks += ["compacted"] if machine.compacted else []
    unknown_tools = machine.stream.called.unknown
    remarks += [f"unknown_tools={len(unknown_tools)}"] if unknown_tools else []
    remarks += [f"misfit_calls={machine.stream.called.misfits}"] if machine.stream.called.misfits else []
    remarks += [f"({remark})"] if remark else []
    facts = {
        "transport": plan.origin.transport,
        "status": machine.status.value,
        "input_tokens": sum(turn.input_tokens for turn in machine.turns),
        "cached_tokens": sum(turn.cached_tokens for turn in machine.turns),
        "output_tokens": sum(turn.output_tokens for turn in machine.turns),
        "first_token_ms": measured.first_token_ms,
        "duration_ms": measured.duration_ms,
    }
    logger.info(
        "response %s %s %s input=%d cached=%d output=%d ttft=%s duration=%dms%s",
        plan.response_id,
        facts["transport"],
        facts["status"],
        facts["input_tokens"],
        facts["cached_tokens"],
        facts["output_tokens"],
        first,
        measured.duration_ms,
        "".join(f" {each}" for each in remarks),
        extra={FACTS: facts},
    )


def outcome(plan: RunPlan, machine: ResponseMachine, measured: Measured, journal_bytes: int) -> Outcome:
    """Return what is counted of a response that has ended."""
    error = machine.stream.snapshot()["error"]
    first = measured.first_token_ms
    kinds = (str(item["type"]) for item in machine.stream.output)
    return Outcome(
        transport=plan.origin.transport,
        status=machine.status.value,
        error=None if error is None else str(error["code"]),
        input_tokens=sum(turn.input_tokens for turn in machine.turns),
        cached_tokens=sum(turn.cached_tokens for turn in machine.turns),
        reasoning_tokens=sum(turn.reasoning_tokens for turn in machine.turns),
        first_token=None if first is None else first / 1000,
        duration=measured.duration_ms / 1000,
        calls=[kind for kind in kinds if kind.endswith("_call")],
        repairs=machine.reader.repairs,
        unknown_tools=len(machine.stream.called.unknown),
        misfits=machine.stream.called.misfits,
        journal_bytes=journal_bytes,
    )
