"""The spans of a request to a model, and of what it does: turns, calls of tools, agents.

What all requests have stands in `operation_attributes`; what one API has besides, beside that API's service.
`observing.gen_ai` has the names of OpenTelemetry's conventions.

Attributes are not contents: a tool's name is one that its request or its server has given, never what a model has made
up; and in a project that keeps nothing it is only the tool's type.
"""

from collections.abc import Mapping

from engine.types import GenerationRequest
from responses_app.observing import contents, gen_ai
from responses_app.observing.traces import NO_SPAN, Span, Value
from responses_app.protocol.response.response import ResponseMachine
from responses_app.protocol.response.steps import CallTool, ToolReturned
from responses_app.runs.plan.plan import Origin, RunPlan, ToolEntry

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
