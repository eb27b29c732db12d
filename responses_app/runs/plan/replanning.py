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
from engine.formats.base import MessageKind, ModelFormat, RenderedMessage
from engine.types import CallRule, Content, SamplingOptions, TurnRules
from responses_app.protocol.errors import ApiError, JsonObject, invalid_request, no_tools_of_server
from responses_app.protocol.items.calls import call_of
from responses_app.protocol.items.client_tools import ClientTools, read_tools
from responses_app.protocol.items.compaction import MIN_SUMMARY, Compacted, split, summary_request, summary_room
from responses_app.protocol.items.offers import Offer, found_on_servers, is_of_program
from responses_app.protocol.prompt.chain import ChainLink, new_link
from responses_app.protocol.prompt.prompt import Prompt, PromptWriter
from responses_app.protocol.requests.requests import CreateRequest, RulesOfTurns, rules_of_turns
from responses_app.protocol.requests.tools import ToolChoice, content_of
from responses_app.protocol.response.steps import ToolsFound, ToolsListed
from responses_app.runs.plan.plan import CompactionPlan, RequestTools, RunPlan, ToolEntry, session_of

MAX_SHOWN_NAME, MAX_SHOWN_NAMES = 128, 500  # characters of a tool's name, and of those that there are, in an error
_NONE_TO_CALL = "A call is demanded, and there is no tool that can be called."
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
            raise invalid_request(
                "There is nothing to compact. Send the conversation as 'input', or name its last response with "
                "'previous_response_id'.",
                param="input",
                code="invalid_value",
            )
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
        session=session_of(
            plan.origin, root=link.root_id, key=plan.request.session_key, conversation=plan.request.conversation_id
        ),
    )
    return replace(compacted_plan, generation=generation, draft=prompt.draft)


def bounded(sampling: SamplingOptions, *, room: int) -> SamplingOptions:
    """Return options that ask for no more tokens than there is room for."""
    limit = sampling.max_output_tokens
    return sampling if limit is None else sampling.but(max_output_tokens=min(limit, room))


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


def with_tools(plan: RunPlan, server: str, offer: Offer) -> RunPlan:
    """Return a plan whose model knows what a server has listed. Raises `PromptTooLong`."""
    # What is deferred is looked at once it is found.
    if not plan.tools.defers(plan.tools.server(server)):
        offer = _without_refused(plan.format, offer, offer.contents.keys())
    tools = plan.tools.with_offer(server, offer)
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
    offer = replace(entry.tool.offer_listed(entry.use, told.tools), problem=told.error or "")
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


def none_to_call(choice: ToolChoice, tools: RequestTools) -> ApiError:
    """Return the error for a request whose model must call a tool, and has none: it names each server, and its cause.

    A server whose tools could not be listed comes before all others (424); the rest is wrong in the request (400).
    """
    servers = [entry for entry in tools.entries if entry.server and entry.offer is not None]
    if choice.hosted:
        servers = [entry for entry in servers if any(each.server == entry.server for each in choice.hosted)]
    failed = [entry.offer.problem for entry in servers if entry.offer and entry.offer.problem and not entry.offer.tools]
    if failed:
        return no_tools_of_server(f"{_NONE_TO_CALL} {' '.join(failed)}")
    causes = [_offered(each, choice) for each in servers]
    message = " ".join(["Invalid value for 'tool_choice'.", _NONE_TO_CALL, *causes])
    return invalid_request(message, param="tool_choice", code="invalid_value")


def _offered(entry: ToolEntry, choice: ToolChoice) -> str:
    """Return what a server offers in place of the tools that are wanted of it."""
    offered = [tool.tool for tool in entry.offer.tools] if entry.offer is not None else []
    wanted = {each.tool for each in choice.hosted if each.server == entry.server and each.tool}
    absent = " or ".join(sorted(repr(name[:MAX_SHOWN_NAME]) for name in wanted.difference(offered)))
    if absent:
        has = ", ".join(offered)[:MAX_SHOWN_NAMES] or "none"
        return f"The MCP server '{entry.server}' has no tool {absent} that this request allows. Its tools: {has}."
    # They are deferred, only programs call them, or the request allows none of them.
    return f"The MCP server '{entry.server}' has no tool that the model may call itself."


def check_callable(plan: RunPlan) -> None:
    """Raise `ApiError` where the model must call a tool, and has none to call behind what servers have listed."""
    choice = plan.request.tool_choice
    if choice.mode != "required":
        return
    rules = rules_of_turns(plan.request, plan.client_tools, hosted=plan.tools.rules())
    if rules is None or not rules.first.calls:
        raise none_to_call(choice, plan.tools)
