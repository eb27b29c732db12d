"""How a plan changes while its response runs: behind a summary, and where a server has listed its tools.

Compaction: when it happens, what the model is asked then, and what goes on from its summary.

Tools found by a search are called from then on (`with_found`): the prompt stays, since the model reads of them behind
everything else.

Tools: a request declares the MCP server `wiki`, say. Its plan begins without any tool of it. Once `wiki` has listed
`search` and `read`, `with_tools` makes a plan whose prompt shows both, and whose grammar lets the model call them.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from engine.contents.budget import SharedBudgetSpent, shared_budget
from engine.errors import GrammarRefused, PromptTooLong
from engine.formats.base import MessageKind, ModelFormat, RenderedMessage, ToolNamespace
from engine.types import CallRule, Content, SamplingOptions, TurnRules
from responses_app.protocol.errors import ApiError, JsonObject, ResponseError, invalid_request
from responses_app.protocol.items.calls import call_of
from responses_app.protocol.items.client_tools import ClientTools, read_tools
from responses_app.protocol.items.compaction import MIN_SUMMARY, Compacted, split, summary_request, summary_room
from responses_app.protocol.items.offers import Offer
from responses_app.protocol.items.paused_programs import is_of_program
from responses_app.protocol.items.tool_search import found_on_servers
from responses_app.protocol.prompt.chain import ChainLink, new_link
from responses_app.protocol.prompt.prompt import Prompt, PromptWriter
from responses_app.protocol.requests.requests import CreateRequest, RulesOfTurns, rules_of_turns
from responses_app.protocol.requests.tools import content_of
from responses_app.protocol.response.steps import ToolsFound, ToolsListed
from responses_app.runs.plan.plan import CompactionPlan, RunPlan
from responses_app.runs.plan.sessions import session_of_response

_SAID_LAST = (MessageKind.ANALYSIS, MessageKind.COMMENTARY)  # thoughts and calls; an answer would be FINAL


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
        # `cut`: how many of the new messages go into the summary.
        cut, kept = len(messages), []
    else:
        before = _unanswered(link.parent)
        cut = split(messages, before)
        # `cut` may be below 0: then the calls that wait for the new outputs stay, too.
        kept = [*before, *messages][len(before) + cut :]
        if not _is_worth_it(request, link, kept, writer):
            return None
    summary_link = new_link(
        link.parent,
        response_id=link.response_id,
        started_on=link.started_on,
        messages=[*messages[: max(cut, 0)], summary_request(writer.format)],
    )
    prompt = writer.summary_prompt(request, summary_link, room=summary_room(writer.max_model_len))
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
            # No program waits here: it would not be compacted.
            *(item for item in (plan.parent.all_tool_items() if plan.parent else ()) if not is_of_program(item)),
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
        session=session_of_response(plan.origin, plan.request, root=link.root_id),
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
    # `chain` counts what stays, too: less than MIN_SUMMARY to sum up is not worth a turn.
    fits = frame + stays + summary_room(max_model_len) <= max_model_len * 7 // 8  # the rest is the answer's
    return threshold is not None and frame + chain > threshold and chain - stays >= MIN_SUMMARY and fits


def _unanswered(parent: ChainLink | None) -> list[RenderedMessage]:
    """Return what the model said last, if that is not an answer: a call whose output may now have come."""
    messages: list[RenderedMessage] = []
    for kind, tokens in parent.own.messages() if parent else ():
        if MessageKind(kind) in _SAID_LAST:
            messages.append(RenderedMessage(MessageKind(kind), tokens))
        else:
            messages.clear()
    return messages


def _declared(plan: RunPlan) -> list[JsonObject]:
    """Return the tools that the old chain declares and the new one does not."""
    late_tools = plan.parent.all_late_tools() if plan.parent else []
    return [{"type": "additional_tools", "tools": late_tools}] if late_tools else []


def _calls(plan: RunPlan) -> list[JsonObject]:
    """Return the calls of the old chain whose outputs the new one begins with."""
    named = dict.fromkeys(str(item.get("call_id")) for item in plan.context_items if call_of(item) is None)
    return [
        {"type": "function_call", "call_id": call_id, "name": name}
        for call_id in named
        for name in (plan.parent.call_names(call_id) if plan.parent else ())
    ]


def _nothing_to_compact() -> ApiError:
    return invalid_request(
        "There is nothing to compact. Send the conversation as 'input', or name its last response with "
        "'previous_response_id'.",
        param="input",
        code="invalid_value",
    )


def with_tools(plan: RunPlan, server: str, offer: Offer | None) -> RunPlan:
    """Return a plan whose model knows what a server has listed; None: it has failed. Raises `PromptTooLong`."""
    known = Offer(ToolNamespace(server), ()) if offer is None else offer
    # What is deferred is looked at once it is found.
    if not plan.tools.defers(plan.tools.server(server)):
        known = _without_refused(plan.format, known, known.contents.keys())
    tools = plan.tools.with_offer(server, known)
    writer = replace(plan.writer, namespaces=tools.namespaces)
    plan = replace(plan, tools=tools, writer=writer)
    if plan.compaction is not None:  # the prompt that follows the summary is written then
        return replace(plan, compaction=replace(plan.compaction, writer=writer))
    try:
        prompt = writer.prompt(plan.request, plan.link)
    except ApiError as error:
        raise PromptTooLong(prompt_tokens=writer.max_model_len, max_model_len=writer.max_model_len) from error
    sampling = bounded(plan.generation.sampling, room=writer.max_model_len - len(prompt.tokens))
    generation = replace(plan.generation, prompt_token_ids=prompt.tokens, sampling=sampling)
    return replace(plan, generation=generation, draft=prompt.draft, rules=_rules(plan))


def learnt_elsewhere(plan: RunPlan, told: ToolsListed | ToolsFound) -> RunPlan:
    """Return a plan behind what another worker has heard of a server, or found. Raises `PromptTooLong`."""
    if isinstance(told, ToolsFound):
        return with_found(plan, told)
    entry = plan.tools.server(told.server)
    offer = None if told.error is not None else entry.tool.offer_listed(entry.use, told.tools)
    return with_tools(plan, told.server, offer)


def with_found(plan: RunPlan, found: ToolsFound) -> RunPlan:
    """Return a plan whose model can call what a search has found; it reads that behind what was said so far."""
    names = found_on_servers(found.tools).keys()
    offers = {label: _without_refused(plan.format, offer, names) for label, offer in plan.tools.deferred.items()}
    plan = replace(
        plan,
        tools=plan.tools.with_found(names, offers),
        client_tools=with_late_tools(plan.client_tools, found.tools, plan.format),
    )
    return replace(plan, rules=_rules(plan))


def with_late_tools(known: ClientTools, late: Sequence[JsonObject], model_format: ModelFormat) -> ClientTools:
    """Return a request's tools with those that came later.

    What a search of this server's has found is called without its schema, where no model can be held to that: its
    declaration was not looked at when the request came.
    """
    tools = read_tools(list(late), at="input")
    found = {tool.called for tool in known if tool.found}
    return known.joined(
        replace(tool, strict=False, format=None)
        if tool.called in found and not _can_hold(model_format, tool.called, content_of(tool))
        else tool
        for tool in tools
    )


def _rules(plan: RunPlan) -> RulesOfTurns | None:
    if not plan.is_held:
        return None
    return rules_of_turns(plan.request, plan.client_tools, hosted=plan.tools.rules())


def _without_refused(model_format: ModelFormat, offer: Offer, names: Collection[str]) -> Offer:
    """Return an offer without the schemas of `names` that no model can be held to: a server may say anything."""
    contents = {
        name: each
        for name, each in offer.contents.items()
        if name not in names or _can_hold(model_format, name, each, hosted=True)
    }
    return replace(offer, contents=contents)


def _can_hold(model_format: ModelFormat, name: str, content: Content, *, hosted: bool = False) -> bool:
    try:
        with shared_budget():
            model_format.grammar(TurnRules(calls=(CallRule(name, content, hosted=hosted),), must_call=True))
    except (GrammarRefused, SharedBudgetSpent):
        return False
    return True


def nothing_to_call(plan: RunPlan, told: ToolsListed | ToolsFound) -> ResponseError | None:
    """Return the error of a response whose model must call a tool, and has none to call behind what was listed last."""
    if isinstance(told, ToolsFound) or not plan.request.tool_choice.demands or plan.tools.is_pending:
        return None
    rules = rules_of_turns(plan.request, plan.client_tools, hosted=plan.tools.rules())
    if rules is not None and rules.first.calls:
        return None
    message = f"A call is demanded by tool_choice, and there is no tool to call. {told.error or ''}".strip()
    return {"code": "server_error", "message": message}
