"""Compaction in a run: when it happens, what the model is asked then, and what goes on from its summary."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from engine.errors import PromptTooLong
from engine.formats.base import MessageKind, RenderedMessage
from engine.types import SamplingOptions
from responses_app.protocol.errors import ApiError, JsonObject, invalid_request
from responses_app.protocol.items.calls import call_of
from responses_app.protocol.items.compaction import MIN_SUMMARY, Compacted, split, summary_request, summary_room
from responses_app.protocol.prompt.chain import ChainLink, new_link
from responses_app.protocol.prompt.prompt import Prompt, PromptWriter
from responses_app.protocol.requests.requests import CreateRequest
from responses_app.runs.plan.plan import CompactionPlan, RunPlan

_SAID_LAST = (MessageKind.ANALYSIS, MessageKind.COMMENTARY)


def plan_compaction(
    request: CreateRequest,
    link: ChainLink,
    messages: Sequence[RenderedMessage],
    *,
    writer: PromptWriter,
    sampling: SamplingOptions,
    seal: Callable[[bytes], str],
) -> tuple[CompactionPlan, Prompt] | None:
    """Return what is to be compacted before a request is answered, and the summary's prompt; None if nothing is.

    `link` ends with `messages`, which are new. Raises `ApiError` for what cannot be summed up.
    """
    if request.warm_up or not (request.only_compacts or request.context_management):
        return None
    if request.only_compacts:
        if not messages and link.parent is None:
            raise _nothing_to_compact()
        cut, kept = len(messages), []
    else:
        before = _unanswered(link.parent)
        cut = split(messages, before)
        kept = [*before, *messages][len(before) + cut :]
        if not _is_worth_it(request, link, kept, writer):
            return None
    asked = new_link(
        link.parent,
        response_id=link.response_id,
        started_on=link.started_on,
        messages=[*messages[: max(cut, 0)], summary_request(writer.format)],
    )
    prompt = writer.summary_prompt(request, asked, room=summary_room(writer.max_model_len))
    plan = CompactionPlan(kept=kept, sampling=None if request.only_compacts else sampling, writer=writer, seal=seal)
    return plan, prompt


def summary_sampling(writer: PromptWriter) -> SamplingOptions:
    """Return how a summary is sampled."""
    room = summary_room(writer.max_model_len)
    return SamplingOptions(max_output_tokens=room, stop_token_ids=writer.format.stop_tokens)


def compacted(compaction: CompactionPlan, summary: str) -> Compacted:
    """Return what now stands for the conversation."""
    replaces_all = compaction.sampling is not None
    return Compacted(summary, compaction.kept, replaces_all=replaces_all, stands_for=compaction.stands_for)


def go_on(plan: RunPlan, compaction: CompactionPlan, now: Compacted) -> RunPlan:
    """Return the plan of what follows the summary: a chain that begins with it, and the answer, if there is to be one.

    Raises `PromptTooLong`.
    """
    writer = compaction.writer
    messages = now.messages(writer.format)
    today = datetime.fromtimestamp(plan.created_at, UTC).date().isoformat()
    link = new_link(None, response_id=plan.response_id, started_on=today, messages=messages)
    compacted_plan = replace(
        plan,
        link=link,
        parent=None,
        input_messages=messages,
        context_items=[
            *_declared(plan),
            *(plan.parent.all_tool_items() if plan.parent else ()),
            *([] if compaction.sampling is None else [*_calls(plan), *plan.context_items]),
        ],
        compaction=None,
    )
    if compaction.sampling is None:
        return compacted_plan
    try:
        prompt = writer.prompt(plan.request, link)
    except ApiError as error:
        raise PromptTooLong(prompt_tokens=len(link.own.tokens), max_model_len=writer.max_model_len) from error
    generation = replace(
        plan.generation,
        prompt_token_ids=prompt.tokens,
        sampling=bounded(compaction.sampling, room=writer.max_model_len - len(prompt.tokens)),
        affinity=plan.request.prompt_cache_key or link.root_id,
    )
    return replace(compacted_plan, generation=generation, draft=prompt.draft)


def bounded(sampling: SamplingOptions, *, room: int) -> SamplingOptions:
    """Return options that ask for no more tokens than there is room for."""
    limit = sampling.max_output_tokens
    return sampling if limit is None else replace(sampling, max_output_tokens=min(limit, room))


def _is_worth_it(
    request: CreateRequest, link: ChainLink, kept: Sequence[RenderedMessage], writer: PromptWriter
) -> bool:
    """Whether the prompt is over the request's threshold, and a summary would make it shorter."""
    max_model_len = writer.max_model_len
    threshold = request.compact_threshold(max_model_len)
    frame, chain = writer.frame_tokens(request, link.started_on), len(link.prompt_tokens())
    stays = sum(len(message.tokens) for message in kept)
    fits = frame + stays + summary_room(max_model_len) <= max_model_len * 7 // 8  # the rest is the answer's
    return threshold is not None and frame + chain > threshold and chain - stays >= MIN_SUMMARY and fits


def _unanswered(parent: ChainLink | None) -> list[RenderedMessage]:
    """Return what the model said last, if that is not an answer: a call whose output may now have come."""
    found: list[RenderedMessage] = []
    for kind, tokens in parent.own.messages() if parent else ():
        if MessageKind(kind) in _SAID_LAST:
            found.append(RenderedMessage(MessageKind(kind), tokens))
        else:
            found.clear()
    return found


def _declared(plan: RunPlan) -> list[JsonObject]:
    """Return the tools that the old chain declares and the new one does not."""
    late_tools = plan.parent.all_late_tools() if plan.parent else []
    return [{"type": "additional_tools", "tools": late_tools}] if late_tools else []


def _calls(plan: RunPlan) -> list[JsonObject]:
    """Return the calls of the old chain whose outputs the new one begins with."""
    calls: list[JsonObject] = []
    for item in plan.context_items:
        call_id = str(item.get("call_id"))
        name = plan.parent.call_name(call_id) if plan.parent and call_of(item) is None else None
        if name is not None:
            calls.append({"type": "function_call", "call_id": call_id, "name": name})
    return calls


def _nothing_to_compact() -> ApiError:
    return invalid_request(
        "There is nothing to compact. Send the conversation as 'input', or name its last response with "
        "'previous_response_id'.",
        param="input",
        code="invalid_value",
    )
