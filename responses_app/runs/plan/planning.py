"""A request and what it continues → the plan of its run. Pure computation, off the event loop where it is long.

`plan_rules`: what a response's turns are held to: rules and grammar of a request, and whether its engine can do that.

A request that cannot be served as it asks is refused before anything is accepted, and told which of its fields is why.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from engine import orjson
from engine.backends.base import BaseEngine
from engine.contents.budget import SharedBudgetSpent, shared_budget
from engine.errors import GrammarRefused
from engine.formats.base import MessageKind, ModelFormat, RenderedMessage, UnreadableMessage
from engine.types import AnyText, CallRule, EngineInfo, GenerationRequest, SamplingOptions, TurnGrammar, TurnRules
from responses_app.protocol.api_keys import DEFAULT_PROJECT
from responses_app.protocol.errors import ApiError, JsonObject, invalid_request, unsupported_parameter
from responses_app.protocol.ids import PublicId
from responses_app.protocol.items.calls import check_outputs, no_call
from responses_app.protocol.items.client_tools import ClientTools
from responses_app.protocol.items.compaction import digest
from responses_app.protocol.items.items import ItemReference, OpenedCompaction
from responses_app.protocol.items.offers import mcp_name, taken_as_refused, unanswered
from responses_app.protocol.items.resources import input_item_resource
from responses_app.protocol.prompt.chain import ChainLink, new_link
from responses_app.protocol.prompt.prompt import PromptWriter, check_request_can_fit, text_size
from responses_app.protocol.prompt.rendering import count_omitted, is_of_user, render_items, text_of
from responses_app.protocol.requests.create_fields import GenerationFields
from responses_app.protocol.requests.requests import (
    CreateRequest,
    RulesOfTurns,
    enforced_field,
    rules_of_turns,
    with_choice,
)
from responses_app.protocol.requests.tools import content_of
from responses_app.protocol.response.steps import AgentsAllowed, OutputOptions
from responses_app.protocol.tiers import BEHIND_ALL, PRIORITIES, ServiceTier
from responses_app.runs.plan.history import LONG_INPUT, Context, in_format, is_foreign
from responses_app.runs.plan.plan import Origin, RequestTools, RunPlan, session_of
from responses_app.runs.plan.replanning import bounded, none_to_call, plan_compaction, summary_sampling, with_late_tools
from responses_app.runs.plan.served import Tell


def plan_rules(
    request: CreateRequest,
    tools: ClientTools,
    *,
    hosted: RequestTools,
    model_format: ModelFormat,
    engine: BaseEngine,
) -> tuple[RulesOfTurns | None, TurnGrammar | None]:
    """Return what the turns of a request are held to, and the grammar of the first; None where they are free.

    `tools` are those that the model can call, `hosted` those that this server runs. Raises `ApiError` for what cannot
    be enforced.
    """
    if request.warm_up or request.only_compacts:
        return None, None
    with shared_budget():
        try:
            return _planned(request, tools, hosted, model_format, engine)
        except SharedBudgetSpent as spent:
            raise _refused(spent, None) from spent


def _planned(
    request: CreateRequest, tools: ClientTools, hosted: RequestTools, model_format: ModelFormat, engine: BaseEngine
) -> tuple[RulesOfTurns | None, TurnGrammar | None]:
    if hosted.is_pending:
        _check_alone(request, tools, model_format, engine)
        return None, None  # they are made when all tools are known
    rules = rules_of_turns(request, tools, hosted=hosted.rules())
    if rules is None:
        return None, None
    if rules.first.must_call and not rules.first.calls:
        raise none_to_call(request.tool_choice, hosted)
    grammar = _first_grammar(rules, request, tools, model_format) if engine.supports_grammar else None
    if grammar is not None:
        return rules, grammar
    field = enforced_field(request, tools)  # here the engine, or the model's format, can hold the model to nothing
    if field is not None:
        raise _cannot_enforce(field)
    return None, None


def _check_alone(request: CreateRequest, tools: ClientTools, model_format: ModelFormat, engine: BaseEngine) -> None:
    """Raise `ApiError` for what cannot be enforced, whatever tools there will be besides."""
    if not engine.supports_grammar:
        field = enforced_field(request, tools)
        if field is not None:
            raise _cannot_enforce(field)
        return
    rules = rules_of_turns(request, tools)
    if rules is not None and (rules.first.calls or not rules.first.must_call):
        _first_grammar(rules, request, tools, model_format)


def _first_grammar(
    rules: RulesOfTurns, request: CreateRequest, tools: ClientTools, model_format: ModelFormat
) -> TurnGrammar | None:
    """Return the grammar of the first turn, None where the format has none. Raises `ApiError` naming what is wrong."""
    try:
        return model_format.grammar(rules.first)
    except SharedBudgetSpent:
        raise
    except GrammarRefused as refused:
        # The whole grammar says not which part is refused, so each is tried alone.
        for field, part in _parts(request, tools):
            try:
                model_format.grammar(part)
            except GrammarRefused as its:
                raise _refused(its, field) from its
        raise _refused(refused, None) from refused


async def check_grammar(plan: RunPlan, grammar: TurnGrammar, engine: BaseEngine) -> None:
    """Raise `ApiError` where the engine cannot hold the model to the grammar of a plan's first turn."""
    try:
        await engine.check_grammar(grammar)
    except GrammarRefused as refused:
        # As in `_first_grammar`: each part alone, to name the field.
        for field, part in _parts(plan.request, plan.client_tools):
            try:
                alone = plan.format.grammar(part)
                if alone is not None:
                    await engine.check_grammar(alone)
            except GrammarRefused as its:
                raise _refused(its, field) from its
        raise _refused(refused, None) from refused


def _parts(request: CreateRequest, tools: ClientTools) -> Iterator[tuple[str, TurnRules]]:
    """Yield each field that says what the model may write, with the rules that it alone makes."""
    if not isinstance(request.answer.content, AnyText):
        yield request.answer.schema_at, TurnRules(answer=request.answer.content)
    for tool in tools:
        if not isinstance(content_of(tool), AnyText):
            yield tool.field, TurnRules(calls=(CallRule(tool.called, content_of(tool)),), must_call=True)


def _refused(refused: GrammarRefused, field: str | None) -> ApiError:
    at = f"Invalid value for '{field}': " if field else ""
    return invalid_request(f"{at}{refused.reason}", param=field or "tools", code="invalid_value")


def _cannot_enforce(field: str) -> ApiError:
    return unsupported_parameter(
        field, "The engine here cannot hold the model to a format or to a call. Leave it out, or use another model."
    )


def sampling_of(
    fields: GenerationFields,
    model_format: ModelFormat,
    *,
    top_logprobs: int | None,
    prompt_logprobs: int | None = None,
    max_output_tokens: int | None = None,
) -> SamplingOptions:
    """Return how to sample. Raises `ApiError` for tokens that the model does not have."""
    stop_tokens = fields.stop_token_ids or ()
    if fields.logit_bias:
        check_tokens(map(int, fields.logit_bias), model_format, "logit_bias")
    if stop_tokens:
        check_tokens(stop_tokens, model_format, "stop_token_ids")
    wishes = fields.wishes()
    if fields.top_p == 0:  # only the likeliest token, which engines know by another name: vLLM takes no 0 here
        del wishes["top_p"]
        wishes["temperature"] = 0.0
    return SamplingOptions(
        **wishes,
        max_output_tokens=max_output_tokens,
        top_logprobs=top_logprobs,
        prompt_logprobs=prompt_logprobs,
        # `dict.fromkeys` drops doubles and keeps the order.
        stop_token_ids=tuple(dict.fromkeys((*model_format.stop_tokens, *stop_tokens))),
    )


def check_tokens(tokens: Iterable[int], model_format: ModelFormat, param: str) -> None:
    """Refuse tokens that the model does not have."""
    strange = next((token for token in tokens if not model_format.is_token(token)), None)
    if strange is not None:
        raise invalid_request(
            f"Invalid value for '{param}': the model has no token {strange}.", param=param, code="invalid_value"
        )


_USER = MessageKind.USER.value
NOT_APPROVED = "[the user has not approved this call, and went on]"


@dataclass(slots=True, kw_only=True)  # not frozen: that takes four times as long to make, and there is one a request
class Draft:
    """What a plan is made of. Fields without a comment are as in `RunPlan`."""

    response_id: str
    created_at: float  # Unix seconds
    request: CreateRequest
    origin: Origin
    format: ModelFormat  # how the model is written to, at the request's effort
    told: Tell  # tells what was written in another format
    context: Context  # what the request continues
    input_items: list[JsonObject]  # the request's own, each with an id
    tier: ServiceTier
    stored: bool
    unkept: bool
    tools: RequestTools  # those that this server runs
    seal: Callable[[bytes], str]  # for the request's project
    late_tools: Sequence[JsonObject]  # that the conversation declares
    asked: OutputOptions
    public: PublicId | None = None  # what clients are to call the response; None: its own id
    agents: AgentsAllowed | None = None  # how far its agents may go

    @property
    def size(self) -> int:
        """How much there is to render, in bytes, about: the request, its conversation's items and its files."""
        context = self.context
        return self.request.size + text_size(context.before) + (text_size(context.own) if context.shows_files else 0)

    @property
    def is_held(self) -> bool:
        """Whether there is a rule for what the model may write: a call, or a format."""
        request, tools = self.request, self.tools
        calls = request.tools.by_name or self.late_tools or tools.entries or tools.search or tools.agents
        demands = request.tool_choice.mode == "required"
        return bool(calls) or demands or not isinstance((request.held or request.text_format).content, AnyText)

    @property
    def is_long(self) -> bool:
        """Whether planning it may hold up the event loop.

        It is large, or has items from the store, of any size; or the model is held to something: a grammar that is not
        remembered takes 10 ms a schema. Or its prompt is rendered elsewhere, or its conversation is in another format.
        """
        request = self.request
        named = any(isinstance(item, ItemReference) for item in request.input)
        shown = bool(request.enable_response_messages)
        reads = self.context.shows_files
        parent = self.context.parent
        if self.format.renders_elsewhere or (parent is not None and is_foreign(parent, self.format)):
            return True
        return request.size > LONG_INPUT or bool(self.context.before.parsed) or self.is_held or named or shown or reads


def make_plan(draft: Draft, engine: BaseEngine, info: EngineInfo) -> RunPlan:
    """Render what is new, and decide how to generate. Raises `ApiError` for what the model cannot take."""
    context = draft.context = in_format(draft.context, draft.format, draft.told)
    request, tools, rules, grammar = _held(draft, engine)
    link, messages, ignored = _rendered(draft, info)
    priority = _priority(draft)
    if not (request.warm_up or request.only_compacts):
        _check_outputs(context, tools)
    sampling = sampling_of(
        request,
        draft.format,
        top_logprobs=request.logprobs if engine.supports_logprobs else None,
        max_output_tokens=request.max_output_tokens,
    )
    writer = PromptWriter(draft.format, info.max_model_len, draft.tools.namespaces)
    compaction = None
    if not draft.tools.programs:  # else what waits for outputs would be summed up
        compaction = plan_compaction(request, link, messages, writer=writer, sampling=sampling, seal=draft.seal)
    if compaction is None:
        plan, prompt = None, writer.prompt(request, link)
        sampling = bounded(sampling, room=info.max_model_len - len(prompt.tokens))
    else:
        plan, prompt = compaction
        sampling = summary_sampling(writer)
    return RunPlan(
        response_id=draft.response_id,
        created_at=draft.created_at,
        request=request,
        origin=draft.origin,
        format=draft.format,
        link=link,
        parent=context.parent,
        conversation=context.conversation,
        input_messages=messages,
        context_items=[*map(taken_as_refused, ignored), *context.raw],
        input_items=draft.input_items,
        generation=GenerationRequest(
            request_id=draft.response_id,
            prompt_token_ids=prompt.tokens,
            sampling=sampling,
            priority=priority if engine.supports_priority else 0,
            cache_salt=_cache_salt(request, draft.origin) if engine.supports_cache_salt else None,
            session=session_of(
                draft.origin, root=link.root_id, key=request.session_key, conversation=request.conversation_id
            ),
            kin=draft.origin.kin,
        ),
        pictures=context.pictures,
        draft=prompt.draft,
        stored=draft.stored,
        unkept=draft.unkept,
        writer=writer,
        is_held=engine.supports_grammar,
        omitted=count_omitted(context.own.parsed, context.own.raw),
        tools=draft.tools,
        client_tools=tools,
        late_tools=draft.late_tools,
        rules=rules,
        grammar=grammar,
        compaction=plan,
        asked=draft.asked,
        public=draft.public,
        agents=draft.agents,
        shown=draft.format.messages_of(prompt.tokens) if request.enable_response_messages else None,
        tier=draft.tier,
        priority=priority,
    )


def _held(
    draft: Draft, engine: BaseEngine
) -> tuple[CreateRequest, ClientTools, RulesOfTurns | None, TurnGrammar | None]:
    """Return the request with its choice, the tools of its client, what its turns are held to. Raises `ApiError`."""
    tools = draft.request.tools
    if draft.late_tools:
        tools = with_late_tools(tools, draft.late_tools, draft.format)
    request = with_choice(draft.request, tools) if draft.request.tool_choice.pending else draft.request
    if not draft.is_held:
        return request, tools, None, None
    return (
        request,
        tools,
        *plan_rules(request, tools, hosted=draft.tools, model_format=draft.format, engine=engine),
    )


def _check_outputs(context: Context, tools: ClientTools) -> None:
    """Raise `ApiError` where a call has no output, or an output no call."""
    parent = context.parent
    check_outputs(
        context.own.raw,
        before=context.before.raw,
        known=parent.awaited if parent else {},
        made=parent.has_call if parent else no_call,
        in_background=tools.in_background,
    )


def plan_to_compact(
    draft: Draft, engine: BaseEngine, info: EngineInfo, *, before: Sequence[tuple[str, JsonObject]]
) -> tuple[RunPlan, list[JsonObject]]:
    """Plan what only compacts; return the plan, and the user's messages so far, for which its summary will stand.

    `before` are those, as text and as items, that the chain it continues has in a summary only. Raises `ApiError` as
    `make_plan` does.
    """
    plan = make_plan(draft, engine, info)
    assert plan.compaction is not None, "the request only compacts"
    messages = [*before, *_said_by_user(draft)]
    compaction = replace(plan.compaction, stands_for=frozenset(digest(text) for text, _ in messages))
    return replace(plan, compaction=compaction), [item for _, item in messages]


def _said_by_user(draft: Draft) -> list[tuple[str, JsonObject]]:
    """Return the user's messages, oldest first, as text and as items.

    Those of the request are as they were sent; of what it continues, and of compactions, the text is known.
    """
    items, text_of_message = draft.context.own.parsed, draft.format.text_of
    own = {digest(text_of(item.content)) for item in items if is_of_user(item)}
    lineage = reversed(list(draft.context.parent.lineage())) if draft.context.parent else ()
    before = [text_of_message(tokens) for link in lineage for kind, tokens in link.own.messages() if kind == _USER]
    messages = [(text, _user_item(text)) for text in before]
    for item, raw in zip(items, draft.input_items, strict=True):
        if is_of_user(item):
            messages.append((text_of(item.content), input_item_resource(raw)))
        elif isinstance(item, OpenedCompaction):
            kept = [text_of_message(message.tokens) for message in item.compacted.kept if message.kind.value == _USER]
            messages += [(text, _user_item(text)) for text in kept if digest(text) not in own]
    return messages


def _user_item(text: str) -> JsonObject:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def count_prompt(draft: Draft, engine: BaseEngine, info: EngineInfo) -> int:
    """Return how many tokens the prompt has; also of one that is longer than the model takes, but not of any length.

    Raises `ApiError` as `make_plan` does for what cannot be enforced, and where not even the longest tokens could make
    it fit.
    """
    draft.context = in_format(draft.context, draft.format, draft.told)
    _held(draft, engine)
    link, *_ = _rendered(draft, info)
    writer = PromptWriter(draft.format, info.max_model_len, draft.tools.namespaces)
    try:
        return len(writer.prompt(draft.request, link).tokens)
    except ApiError:
        return writer.frame_tokens(draft.request, link.started_on) + len(link.prompt_tokens())


def _rendered(draft: Draft, info: EngineInfo) -> tuple[ChainLink, list[RenderedMessage], Sequence[JsonObject]]:
    """Return the chain with what is new at its end, that alone, and the requests for approval that nobody answered.

    The user goes on without answering those: the model waits for their outputs. Raises `ApiError`.
    """
    context = draft.context
    ignored = unanswered(context.parent.all_tool_items(), context.raw) if context.parent else ()
    # A token has at least one byte.
    if draft.size >= info.max_model_len:  # else it fits, whatever its tokens are
        check_request_can_fit(draft.request, context.before, context.own, draft.format, info.max_model_len)
    messages = render_items(
        draft.format,
        context.own.parsed,
        context.own.raw,
        parent=context.parent,
        sampled=context.sampled,
        before=context.before,
    )
    refused = [
        draft.format.output(mcp_name(str(each["server_label"]), str(each["name"])), NOT_APPROVED, hosted=True)
        for each in ignored
    ]
    if draft.request.previous_input_messages:
        messages = [*_previous_messages(draft.format, draft.request.previous_input_messages), *messages]
    messages = [*refused, *messages]
    today = datetime.fromtimestamp(draft.created_at, UTC).date().isoformat()
    link = new_link(context.parent, response_id=draft.response_id, started_on=today, messages=messages)
    return link, messages, ignored


def _previous_messages(model_format: ModelFormat, previous: Sequence[JsonObject]) -> list[RenderedMessage]:
    """Return what the request says came before it, in the model's own words. Raises `ApiError`."""
    try:
        return model_format.render_messages(previous)
    except UnreadableMessage as problem:
        param = f"previous_input_messages[{problem.index}]"
        raise invalid_request(f"Invalid value for '{param}': {problem}", param=param, code="invalid_value") from None


def _priority(draft: Draft) -> int:
    """Return how soon the engine is to begin: what the request says itself, else what its tier says; less is sooner."""
    options = draft.request.background_options
    if draft.origin.behind_all:
        return BEHIND_ALL
    if draft.request.priority is not None:
        return draft.request.priority
    has_window = options is not None and options.window_seconds is not None
    return BEHIND_ALL if has_window else PRIORITIES[draft.tier]


def _cache_salt(request: CreateRequest, origin: Origin) -> str | None:
    """Return what separates the engine's prefix cache: one salt for each project, and in it for each cache key.

    A salt of the client's own counts before the key. It is not sent as it is: so nobody shares blocks with another
    project, whose salt it may have guessed, or with a key that reads the same. What a prompt costs tells who has asked
    it before: so projects share nothing, instructions either. The default project has no salt: it is
    the only one where nobody is asked for a key. Attempts at one task share their prompt whatever key each has.
    """
    if request.cache_salt is not None:
        # As JSON, so that no two lists of texts read the same; "salt" keeps it apart from a cache key of the same
        # text.
        return hashlib.sha256(orjson.dumps([origin.project, "salt", request.cache_salt])).hexdigest()
    if request.prompt_cache_key is not None and not origin.kin:
        return hashlib.sha256(orjson.dumps([origin.project, request.prompt_cache_key])).hexdigest()
    return project_salt(origin)


def project_salt(origin: Origin) -> str | None:
    """Return what separates a project's part of the engine's prefix cache."""
    if origin.project == DEFAULT_PROJECT:
        return None
    return hashlib.sha256(orjson.dumps([origin.project])).hexdigest()
