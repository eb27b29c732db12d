"""`ToolRunner`: runs the tools of this server for one response, and plans anew where a server has listed its tools."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from engine.contents.sharing import SharedBudgetSpent, shared_budget
from engine.errors import GrammarRefused, PromptTooLong
from engine.formats.base import ToolNamespace
from engine.grammar import CallRule, Content, TurnRules
from responses_app.protocol.errors import ApiError
from responses_app.protocol.items.offers import Offer
from responses_app.protocol.requests.turn_rules import RulesOfTurns, rules_of_turns
from responses_app.protocol.response.commands import CallTool, Command, ListTools
from responses_app.protocol.response.inputs import Failed, Input, ToolReturned, ToolsListed
from responses_app.runs.driving.effects import Effects, NotPermitted
from responses_app.runs.driving.fitting import fitted, room_behind, surely_fits
from responses_app.runs.driving.tool_calls import call_tool, cut_call, list_tools, unmade_call
from responses_app.runs.plan.compaction import bounded
from responses_app.runs.plan.plan import RunPlan
from responses_app.tools.base import nothing_to_confirm


class ToolRunner:
    """Of one run. `tell` gives its machine an input, `use` has it go on with another plan.

    `effects` lets calls go out that must not be made twice.
    `said` counts the tokens of what the model has said and read since its prompt.
    """

    def __init__(
        self,
        *,
        effects: Effects,
        tell: Callable[[Input], Command | None],
        use: Callable[[RunPlan], None],
        said: Callable[[], int],
    ) -> None:
        self._effects = effects
        self._tell = tell
        self._use = use
        self._said = said

    async def do(self, plan: RunPlan, wanted: ListTools | CallTool) -> Command | None:
        """Do what the machine wants of a tool, and return what is to be done next.

        Raises `PromptTooLong`, and `ClaimLost` where another worker has the response: then nothing was called.
        """
        if isinstance(wanted, ListTools):
            return await self._list(plan, wanted.server)
        returned = await self._called(plan, wanted)
        room = room_behind(len(plan.generation.prompt_token_ids) + self._said(), plan.writer.max_model_len)
        if not surely_fits(returned.text, wanted, room=room):
            text = await asyncio.to_thread(fitted, returned.text, wanted, plan.format, room=room)
            returned = replace(returned, text=text)
        return self._tell(returned)

    async def _called(self, plan: RunPlan, wanted: CallTool) -> ToolReturned:
        tools, entry = plan.tools, plan.tools.entry_of(wanted.name)
        span, most, confirm = plan.origin.span, tools.max_output_bytes, nothing_to_confirm
        try:
            if entry is not None and not wanted.repeatable:
                await self._effects.permit()
                confirm = self._effects.confirm
            return await call_tool(entry, wanted, tell=self._tell, confirm=confirm, max_output_bytes=most, span=span)
        except NotPermitted as why:
            return unmade_call(wanted, str(why))

    def go_on(self, wanted: ListTools | CallTool) -> Command | None:
        """Return what is to be done of what another worker had under way: a call is not made twice unless it may be."""
        if isinstance(wanted, CallTool) and not wanted.repeatable:
            return self._tell(cut_call(wanted))
        return wanted

    async def _list(self, plan: RunPlan, server: str) -> Command | None:
        listed, offer = await list_tools(plan.tools.server(server))
        plan = await asyncio.to_thread(with_tools, plan, server, offer)
        self._use(plan)
        next_command = self._tell(listed)
        if plan.request.tool_choice.demands and not plan.tools.is_pending and not _can_call(plan):
            return self._tell(Failed({"code": "server_error", "message": _nothing_to_call(listed)}))
        return next_command


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


def _can_call(plan: RunPlan) -> bool:
    rules = rules_of_turns(plan.request, plan.client_tools, hosted=plan.tools.rules())
    return rules is not None and bool(rules.first.calls)


def _nothing_to_call(listed: ToolsListed) -> str:
    return f"A call is demanded by tool_choice, and there is no tool to call. {listed.error or ''}".strip()
