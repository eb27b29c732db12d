"""A run as a span: what response it is, for whom, and what became of it. Its turns and tool calls are below it."""

from collections.abc import Mapping
from dataclasses import replace

from responses_app.observing.traces import NO_SPAN, Value
from responses_app.protocol.requests.resources import Status
from responses_app.runs.driving.run import Run
from responses_app.runs.plan.plan import RunPlan


async def execute_in_span(run: Run) -> None:
    """Run to the terminal event, as `execute` does."""
    plan = run.plan
    if plan.origin.span is NO_SPAN:
        await run.execute()
        return
    with plan.origin.span.child("response", _asked(plan)) as span:
        run.plan = replace(plan, origin=replace(plan.origin, span=span))  # its turns and calls are below
        await run.execute()
        span.note(_became(run))
        if run.status is Status.FAILED:
            error = run.response()["error"]
            span.fail("server_error" if error is None else error["code"])


def _asked(plan: RunPlan) -> Mapping[str, Value]:
    return {
        "gen_ai.operation.name": "generate_content",
        "gen_ai.request.model": plan.request.model or "",
        "gen_ai.response.id": plan.response_id,
        "respsite.project": plan.origin.project,
        "respsite.transport": plan.origin.transport,
        "respsite.request_id": plan.origin.request_id,
    }


def _became(run: Run) -> Mapping[str, Value]:
    response = run.response()
    usage = response["usage"]
    return {
        "gen_ai.response.model": response["model"],
        "respsite.status": run.status.value,
        "gen_ai.usage.input_tokens": 0 if usage is None else usage["input_tokens"],
        "gen_ai.usage.output_tokens": 0 if usage is None else usage["output_tokens"],
    }
