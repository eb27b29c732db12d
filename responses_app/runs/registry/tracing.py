"""A run as a span: what response it is, for whom, and what became of it. Its turns and tool calls are below it."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from responses_app.observing import contents, gen_ai
from responses_app.observing.traces import NO_SPAN, Value
from responses_app.protocol.requests.create_fields import PlainText
from responses_app.protocol.requests.resources import Status
from responses_app.protocol.rollouts.requests import NO_HARNESS
from responses_app.runs.driving.run import Run
from responses_app.runs.driving.spans import operation_attributes, operation_span, shows_contents, tells_contents
from responses_app.runs.plan.plan import RunPlan


async def execute_in_span(run: Run) -> None:
    """Run to the terminal event, as `execute` does."""
    plan = run.plan
    if plan.origin.span is NO_SPAN:
        await run.execute()
        return
    model = plan.request.model or run.response()["model"]
    asked = _asked(run)
    with operation_span(plan.origin, gen_ai.CHAT, model, asked) as span:
        if shows_contents(plan):
            span.note(_asked_contents(plan))
        run.plan = replace(plan, origin=replace(plan.origin, span=span))  # its turns and calls are below
        await run.execute()
        response = run.response()
        became, error = _became(run, response), _error(run, response)
        span.note(became)
        if shows_contents(plan):
            span.note(_became_contents(response))
        if error is not None:
            span.fail(error)
        if tells_contents(plan):
            known = operation_attributes(plan.origin, gen_ai.CHAT, model)
            texts = {**_asked_contents(plan), **_became_contents(response)}
            span.event(gen_ai.DETAILS, gen_ai.details({**known, **asked, **became}, texts, error))


def _asked(run: Run) -> dict[str, Value]:
    plan, request = run.plan, run.plan.request
    known: dict[str, Value] = {
        **gen_ai.sampling(request),
        "gen_ai.response.id": plan.response_id,
    }
    # What a coding agent calls its sessions is its client's own text.
    harness = NO_HARNESS if plan.unkept else plan.origin.harness
    conversation = harness.session if plan.conversation is None else plan.conversation.id
    if conversation:
        known["gen_ai.conversation.id"] = conversation
    if harness.agent:
        known["gen_ai.agent.id"] = harness.agent
    if request.stream or plan.origin.transport == "websocket":
        known["gen_ai.request.stream"] = True
    if not isinstance(request.text_format, PlainText):
        known["gen_ai.output.type"] = "json"
    if request.previous_response_id:
        known["gen_ai.request.previous_response.id"] = request.previous_response_id
    if request.reasoning and request.reasoning.effort:
        known["gen_ai.request.reasoning.level"] = request.reasoning.effort
    return known | _compacted(plan.input_items)


def _asked_contents(plan: RunPlan) -> dict[str, Value]:
    known: dict[str, Value] = {"gen_ai.input.messages": contents.input_messages(plan.input_items)}
    if plan.request.stop:
        known["gen_ai.request.stop_sequences"] = [contents.cut(each) for each in plan.request.stop]
    if plan.request.instructions:
        known["gen_ai.system_instructions"] = contents.instructions(plan.request.instructions)
    return known


def _error(run: Run, response: Mapping[str, Any]) -> str | None:
    if run.status is not Status.FAILED:
        return None
    return "server_error" if response["error"] is None else str(response["error"]["code"])


def _became(run: Run, response: Mapping[str, Any]) -> dict[str, Value]:
    reason = gen_ai.finish_reason(response)
    known: dict[str, Value] = {"gen_ai.response.model": response["model"], "respsite.status": run.status.value}
    known |= _compacted(response["output"][:-1])  # a summary is the last item where nothing was made of it
    used = response["usage"]
    if used is not None:
        known |= gen_ai.usage(
            input=used["input_tokens"],
            cached=used["input_tokens_details"]["cached_tokens"],
            output=used["output_tokens"],
            reasoning=used["output_tokens_details"]["reasoning_tokens"],
        )
    if reason is not None:
        known["gen_ai.response.finish_reasons"] = [reason]
    first = run.measure.measured().first_token_ms
    if first is not None and (run.plan.request.stream or run.plan.origin.transport == "websocket"):
        known["gen_ai.response.time_to_first_chunk"] = first / 1000
    return known


def _compacted(items: Iterable[Mapping[str, Any]]) -> dict[str, Value]:
    """Return that the model has read a summary of what was before, if it has; the conventions have no `false`."""
    return {"gen_ai.conversation.compacted": True} if any(item.get("type") == "compaction" for item in items) else {}


def _became_contents(response: Mapping[str, Any]) -> dict[str, Value]:
    output = contents.output_messages(response["output"], gen_ai.finish_reason(response))
    return {"gen_ai.output.messages": output}
