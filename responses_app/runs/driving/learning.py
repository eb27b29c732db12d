"""How the model of a response comes to know tools: a server lists its own, or a search finds some.

Each makes another plan of the run's, with which it goes on. The search looks through what the request and its servers
have deferred. It is pure and changes nothing outside: so another worker that takes the response over repeats it.
"""

import asyncio
import logging
from dataclasses import replace

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.offers import Offer, found_on_servers, not_listed
from responses_app.protocol.items.tool_search import OUTPUT_ITEM, Wanted, find, groups_of, shown
from responses_app.protocol.prompt.rendering import rendered_item
from responses_app.protocol.response.steps import ListTools, SearchTools, ToolsFound, ToolsListed
from responses_app.runs.driving.tool_calls import room_behind
from responses_app.runs.plan.plan import RunPlan, ToolEntry
from responses_app.runs.plan.replanning import with_found, with_tools
from responses_app.tools.base import ToolFailed

logger = logging.getLogger("respsite.runs")


async def learn_tools(
    plan: RunPlan, command: ListTools | SearchTools, *, said: int
) -> tuple[ToolsListed | ToolsFound, RunPlan]:
    """Return what a server has listed or a search has found, and the plan to go on with. Raises `PromptTooLong`.

    `said` tokens stand behind the prompt.
    """
    if isinstance(command, SearchTools):
        return await asyncio.to_thread(_searched, plan, command.arguments, said)
    entry = plan.tools.server(command.server)
    listed, offer = await list_tools(entry)
    listed = replace(listed, offered=[tool for tool in listed.offered if plan.tools.may_call(entry, tool)])
    # The prompt is written anew, which takes long for a long conversation.
    return listed, await asyncio.to_thread(with_tools, plan, command.server, offer)


async def list_tools(entry: ToolEntry) -> tuple[ToolsListed, Offer]:
    """Ask a server which tools it has; nothing is raised but a cancellation. An offer with a `problem` has failed.

    Listing reports no progress, so it may take as long as a call without a report.
    """
    tool, use = entry.tool, entry.use
    seconds = min(tool.max_seconds, tool.idle_seconds)
    try:
        async with asyncio.timeout(seconds) as time_left:
            tools, left_out = await tool.list_tools(use)
        offer = tool.offer_listed(use, tools)
        return ToolsListed(entry.server, tools, offer.tools, left_out), replace(offer, problem=left_out or "")
    except TimeoutError:
        problem = f"it did not answer within {seconds:g} s" if time_left.expired() else "it broke"
    except ToolFailed as failed:
        problem = str(failed)
    except Exception:
        logger.exception("response %s: the server %s could not be listed", use.response_id, entry.server)
        problem = "it broke"
    error = f"The tools of '{entry.server}' could not be listed: {problem}"
    return ToolsListed(entry.server, error=error), not_listed(entry.server, error)


def _searched(plan: RunPlan, arguments: str, said: int) -> tuple[ToolsFound, RunPlan]:
    choice, deferred = plan.request.tool_choice, plan.tools.deferred
    served = {tool.name: tool for offer in deferred.values() for tool in offer.tools}
    groups = groups_of(plan.request.tools_json, deferred)
    names = [
        name
        for name in find(Wanted.of(arguments), groups)
        if (choice.allows(served[name]) if name in served else choice.allowed is None or name in choice.allowed)
    ]
    room = room_behind(len(plan.generation.prompt_token_ids) + said, plan.writer.max_model_len)
    tools = shown(names, groups)
    while tools and _tokens(plan, tools) > room:
        names = names[: len(names) // 2]  # the best come first
        tools = shown(names, groups)
    callable_ = {tool.name for tool, _ in with_found(plan, ToolsFound(tools)).tools.rules()}
    found = ToolsFound(tools, [served[name] for name in found_on_servers(tools) if name in callable_])
    return found, with_found(plan, found)


def _tokens(plan: RunPlan, tools: list[JsonObject]) -> int:
    item: JsonObject = {"type": OUTPUT_ITEM, "execution": "server", "tools": tools}
    return sum(len(message.tokens) for message in rendered_item(plan.format, item))
