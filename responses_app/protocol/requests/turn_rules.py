"""A request → what its turns may be, in no model format's own words: see `engine.grammar`.

    tools        each that the model is shown can be called, with arguments that fit its schema (but `strict: false`)
    tool_choice  which of them, and whether one must be
    text.format  what the answer is

Where a request has no tools and asks for plain text, there are no rules: then the model is free, and a call of a
function that nobody declared here goes to the client, which may know of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from engine.grammar import AnyText, CallRule, TurnRules
from responses_app.protocol.items.client_tools import ClientTools
from responses_app.protocol.items.offers import OfferedTool
from responses_app.protocol.requests.requests import CreateRequest


@dataclass(frozen=True, slots=True)
class RulesOfTurns:
    """The rules of a response's turns: of all until the model has called something, and of those after that."""

    first: TurnRules
    after_call: TurnRules


def rules_of_turns(
    request: CreateRequest, tools: ClientTools, *, hosted: Iterable[tuple[OfferedTool, CallRule]] = ()
) -> RulesOfTurns | None:
    """Return what the turns of a request may be; None where they may be anything.

    `tools` are those that the model can call, `hosted` those that this server runs. A call that is demanded is demanded
    once: a response goes on behind it where the server ran the tool.
    """
    choice = request.tool_choice
    served = [rule for tool, rule in hosted if choice.allows(tool)]
    answer = request.answer.content
    if not (len(tools) or served) and isinstance(answer, AnyText):
        return None
    if choice.forbids:
        rules = TurnRules(answer=answer)
        return RulesOfTurns(rules, rules)
    shown = [tool for tool in tools.shown() if choice.allowed is None or tool.called in choice.allowed]
    calls = [*(CallRule(tool.called, tool.content) for tool in shown), *served]
    free = TurnRules(calls=tuple(calls), answer=answer)
    return RulesOfTurns(replace(free, must_call=choice.demands), free)


def enforced_field(request: CreateRequest, tools: ClientTools) -> str | None:
    """Return the field of a request that an engine must be able to enforce, if there is one.

    Functions that the model calls if it likes can be had without: then their arguments may be wrong. The grammar of a
    custom tool cannot: what its client gets has to follow it.
    """
    if request.tool_choice.demands or request.tool_choice.allowed is not None:  # the model is shown all of its tools
        return "tool_choice"
    if not isinstance(request.answer.content, AnyText):
        return request.answer.at
    if request.tool_choice.forbids:
        return None
    return next((tool.field for tool in tools if tool.definition), None)
