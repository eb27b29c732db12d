"""What a response's turns are held to: rules and grammar of a request, and whether its engine can do that.

A request that cannot be served as it asks is refused before anything is accepted, and told which of its fields is why.
"""

from collections.abc import Iterator

from engine.backends.base import BaseEngine
from engine.contents.budget import SharedBudgetSpent, shared_budget
from engine.errors import GrammarRefused
from engine.formats.base import ModelFormat
from engine.types import AnyText, CallRule, TurnGrammar, TurnRules
from responses_app.protocol.errors import ApiError, invalid_request, unsupported_parameter
from responses_app.protocol.items.client_tools import ClientTools
from responses_app.protocol.requests.requests import CreateRequest, RulesOfTurns, enforced_field, rules_of_turns
from responses_app.protocol.requests.tools import content_of
from responses_app.runs.plan.plan import RequestTools, RunPlan
from responses_app.runs.plan.replanning import none_to_call


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
