"""A plan, made anew where a server has listed its tools: the model is told of them, and held to their schemas.

Example: a request declares the MCP server `wiki`. Its plan begins without any tool of it. Once `wiki` has listed
`search` and `read`, `with_tools` makes a plan whose prompt shows both, and whose grammar lets the model call them.
"""

from dataclasses import replace

from engine.contents.sharing import SharedBudgetSpent, shared_budget
from engine.errors import GrammarRefused, PromptTooLong
from engine.formats.base import ToolNamespace
from engine.grammar import CallRule, Content, TurnRules
from responses_app.protocol.errors import ApiError, ResponseError
from responses_app.protocol.items.offers import Offer
from responses_app.protocol.requests.turn_rules import RulesOfTurns, rules_of_turns
from responses_app.protocol.response.inputs import ToolsListed
from responses_app.runs.plan.compaction import bounded
from responses_app.runs.plan.plan import RunPlan


def with_tools(plan: RunPlan, server: str, offer: Offer | None) -> RunPlan:
    """Return a plan whose model knows what a server has listed; None: it has failed. Raises `PromptTooLong`."""
    known = Offer(ToolNamespace(server), ()) if offer is None else _without_refused(plan, offer)
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


def listed_elsewhere(plan: RunPlan, given: ToolsListed) -> RunPlan:
    """Return a plan behind what a server has told another worker. Raises `PromptTooLong`."""
    entry = plan.tools.server(given.server)
    offer = None if given.error is not None else entry.tool.offer_listed(entry.use, given.tools)
    return with_tools(plan, given.server, offer)


def _rules(plan: RunPlan) -> RulesOfTurns | None:
    if not plan.is_held:
        return None
    return rules_of_turns(plan.request, plan.client_tools, hosted=plan.tools.rules())


def _without_refused(plan: RunPlan, offer: Offer) -> Offer:
    """Return an offer without the schemas that no model can be held to: a server may say anything of its tools."""
    return replace(offer, contents={name: each for name, each in offer.contents.items() if _can_hold(plan, name, each)})


def _can_hold(plan: RunPlan, name: str, content: Content) -> bool:
    try:
        with shared_budget():
            plan.format.grammar(TurnRules(calls=(CallRule(name, content, hosted=True),), must_call=True))
    except (GrammarRefused, SharedBudgetSpent):
        return False
    return True


def nothing_to_call(plan: RunPlan, listed: ToolsListed) -> ResponseError | None:
    """Return the error of a response whose model must call a tool, and has none to call behind what was listed last."""
    if not plan.request.tool_choice.demands or plan.tools.is_pending:
        return None
    rules = rules_of_turns(plan.request, plan.client_tools, hosted=plan.tools.rules())
    if rules is not None and rules.first.calls:
        return None
    message = f"A call is demanded by tool_choice, and there is no tool to call. {listed.error or ''}".strip()
    return {"code": "server_error", "message": message}
