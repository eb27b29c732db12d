"""How long a run takes, and the line that the server's log has of it."""

import logging
import time

from responses_app.protocol.response import ResponseMachine
from responses_app.runs.persistence import Measured
from responses_app.runs.plan import RunPlan

logger = logging.getLogger("respsite.runs")


class RunClock:
    """Times one run; all times in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self.first_token: float | None = None

    def note_first_token(self) -> None:
        """The model has begun to speak."""
        self.first_token = time.monotonic()

    def measured(self) -> Measured:
        """Return what is kept of it, in milliseconds."""
        first = self.first_token
        return Measured(
            first_token_ms=None if first is None else round((first - self._started) * 1000),
            duration_ms=round((time.monotonic() - self._started) * 1000),
        )


def report(plan: RunPlan, machine: ResponseMachine, measured: Measured, remark: str) -> None:
    """Write a line about a response that has ended; `remark` says why, where its readers did not hear it."""
    first = "-" if measured.first_token_ms is None else f"{measured.first_token_ms}ms"
    remarks = [f"repaired={machine.repairs}"] if machine.repairs else []
    remarks += ["compacted"] if machine.compacted else []
    unknown_tools = machine.stream.unknown_tools
    remarks += [f"unknown_tools={len(unknown_tools)}"] if unknown_tools else []
    remarks += [f"misfit_calls={machine.stream.misfits}"] if machine.stream.misfits else []
    remarks += [f"({remark})"] if remark else []
    logger.info(
        "response %s %s %s input=%d cached=%d output=%d ttft=%s duration=%dms%s",
        plan.response_id,
        plan.origin.transport,
        machine.status.value,
        sum(turn.input_tokens for turn in machine.turns),
        sum(turn.cached_tokens for turn in machine.turns),
        sum(turn.output_tokens for turn in machine.turns),
        first,
        measured.duration_ms,
        "".join(f" {each}" for each in remarks),
    )
