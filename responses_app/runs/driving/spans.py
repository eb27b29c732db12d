"""What is told of a request to a model: `RunMeasure`, how long a run takes, and the spans of all that it does.

There are spans of requests, of turns, of calls of tools and of agents. What all requests have stands in
`operation_attributes`; what one API has besides, beside that API's service.
`observing.gen_ai` has the names of OpenTelemetry's conventions.

Attributes are not contents: a tool's name is one that its request or its server has given, never what a model has made
up; and in a project that keeps nothing it is only the tool's type.
"""

import logging
import time
from collections.abc import Mapping

from engine.types import GenerationRequest
from responses_app.observing import contents, gen_ai
from responses_app.observing.logs import FACTS
from responses_app.observing.metrics import Measured, ModelMeter, Outcome
from responses_app.observing.traces import NO_SPAN, Span, Value
from responses_app.protocol.rate_limits import Amount
from responses_app.protocol.response.response import ResponseMachine
from responses_app.protocol.response.steps import CallTool, ToolReturned
from responses_app.resources.usage.fields import UsedTokens
from responses_app.runs.plan.plan import Origin, RunPlan, ToolEntry

logger = logging.getLogger("respsite.runs")

UNKNOWN = "unknown"  # the name of a tool that is not there


def shows_contents(plan: RunPlan) -> bool:
    """Whether its spans may have contents: never those of a project that keeps nothing."""
    return not plan.unkept and plan.origin.span.shows(plan.origin.project)


def tells_contents(plan: RunPlan) -> bool:
    """Whether its contents are sent in an event: never those of a project that keeps nothing."""
    return not plan.unkept and plan.origin.span.tells(plan.origin.project)


def operation_attributes(origin: Origin, operation: str, model: str) -> dict[str, Value]:
    """Return what the span of each request to a model has."""
    return {
        **gen_ai.operation(operation, model),
        "respsite.project": origin.project,
        "respsite.transport": origin.transport,
        "respsite.request_id": origin.request_id,
    }


def operation_span(
    origin: Origin, operation: str, model: str, more: Mapping[str, Value] | None = None, *, calls: bool = False
) -> Span:
    """Begin the span of a request to a model; `more` is what it has besides `operation_attributes`."""
    if origin.span is NO_SPAN:
        return NO_SPAN
    attributes = {**operation_attributes(origin, operation, model), **(more or {})}
    return origin.span.child(f"{operation} {model}", attributes, calls=calls)


def turn_span(request: GenerationRequest, *, below: Span, turn: int | None = None) -> Span:
    """Begin the span of a turn, in which the engine works; `turn` is its number in a response."""
    if below is NO_SPAN:
        return NO_SPAN
    attributes: dict[str, Value] = {"respsite.prompt_tokens": len(request.prompt_token_ids)}
    if turn is not None:
        attributes["respsite.turn"] = turn
    return below.child("turn", attributes, calls=True)


def tool_span(plan: RunPlan, entry: ToolEntry | None, command: CallTool) -> Span:
    """Begin the span of a call of a tool of this server."""
    span = plan.origin.span
    if span is NO_SPAN:
        return NO_SPAN
    declared = UNKNOWN if entry is None else str(entry.use.declared.get("type") or UNKNOWN)
    # A client may have chosen the label of an MCP server, which the name begins with.
    name = declared if entry is None or plan.unkept else command.name
    attributes = gen_ai.tool(name, declared, command.item_id)
    if shows_contents(plan):
        attributes["gen_ai.tool.call.arguments"] = contents.cut(command.arguments)
    return span.child(f"{gen_ai.EXECUTE_TOOL} {name}", attributes)


def end_tool(plan: RunPlan, span: Span, returned: ToolReturned) -> None:
    """Note what came of a call."""
    if returned.failed:
        span.fail("tool_failed")
    if shows_contents(plan):
        span.note({"gen_ai.tool.call.result": contents.cut(returned.text)})


def agent_span(plan: RunPlan, number: int, machine: ResponseMachine) -> Span:
    """Begin the span of an agent that works; a model has chosen its name."""
    span = plan.origin.span
    if span is NO_SPAN:
        return NO_SPAN
    shown = str(machine.stream.agent["agent_name"]) if machine.stream.agent and shows_contents(plan) else None
    attributes = gen_ai.agent(f"{plan.response_id}/{number}", shown)
    return span.child(f"{gen_ai.INVOKE_AGENT} {shown}" if shown else gen_ai.INVOKE_AGENT, attributes)


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
