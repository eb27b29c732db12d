"""Which tools of this server a request gets: those that it declares, as far as they can be had here.

Not to be had: 400, naming the setting. Those that agents declare in every request (`DECLARED_UNASKED`) are left out
instead, and named as ignored, unless `tool_choice` demands one, or the operator wants the error (UNSERVED_TOOLS).

Which versions of skills it gets is fixed when it is accepted. Whoever names the latest version, or the default one,
gets the one that it is now: so the model is told it again as it was, where another worker goes on with the response.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from responses_app.protocol.errors import ApiError, JsonObject, invalid_request, unsupported_parameter
from responses_app.protocol.files.skills import skills_in
from responses_app.protocol.items.client_tools import functions_of_programs
from responses_app.protocol.items.offers import (
    PROGRAMS,
    ApprovedCall,
    PausedProgram,
    agents_offer,
    approved_calls,
    found_on_servers,
    paused_programs,
    state_of_item,
)
from responses_app.protocol.items.tool_search import search_offer
from responses_app.protocol.requests.requests import CreateRequest
from responses_app.protocol.requests.server_tools import DECLARED_UNASKED, item_of, private_key, server_tool_missing
from responses_app.runs.plan.history import Context
from responses_app.runs.plan.plan import NO_TOOLS, RequestTools, ToolEntry
from responses_app.runs.plan.settings import RunSettings
from responses_app.tools.base import BaseTool, ToolUse

if TYPE_CHECKING:
    from responses_app.resources.skills.store import Skills

_NOT_SHOWN = "Tools that the server runs are the Responses API's: send the request to /v1/responses, or leave it out."


@dataclass(frozen=True, slots=True)
class ServedTools:
    """The tools that this server has."""

    tools: Sequence[BaseTool] = ()
    skills: "Skills | None" = None  # that requests may name; None where there are none
    settings: RunSettings | None = None  # all of the server, as errors name them; None: the usual ones

    def tool_of(self, kind: str) -> BaseTool | None:
        """Return the tool of a kind; None where there is none."""
        return next((tool for tool in self.tools if kind in tool.kinds), None)

    async def offered(
        self, request: CreateRequest, context: Context, *, project: str, response_id: str, unkept: bool = False
    ) -> RequestTools:
        """Return the tools that a request gets. Raises `ApiError` for what it may not have.

        `context` is what the request continues; `response_id` is the id of the response to it; `unkept` says that its
        project keeps nothing.
        """
        parent, forbids = context.parent, request.tool_choice.mode == "none"
        served = [] if forbids or not request.tools_json else request.served
        left_out = self._left_out(request) if request.tools_json else set()
        earlier = [*(parent.all_tool_items() if parent else ()), *context.raw]
        approved = approved_calls(context.own.raw, earlier)
        states = parent.all_states() if parent else {}  # also of tools that are not declared any more
        if approved:
            _refuse_unserved(approved, served)
        paused = () if request.warm_up else paused_programs(earlier)
        if paused and (request.only_compacts or not any(tool["type"] == PROGRAMS for tool in served)):
            raise _waiting(paused[0], request)
        search = None if forbids or not request.tools_json else search_offer(request.tools_json)
        agents = agents_offer() if request.with_agents and not forbids else None
        if not served:
            return replace(NO_TOOLS, states=states, search=search, agents=agents)
        chain_id = parent.root_id if parent else response_id
        entries: list[ToolEntry] = []
        for index, declared in enumerate(request.tools_json):
            if index in left_out:
                continue
            if (problem := self._problem(declared, request)) is not None:
                raise unsupported_parameter(f"tools[{index}].type", problem)
            tool = self.tool_of(str(declared["type"])) if item_of(declared) is not None else None
            if tool is None or _is_there(tool, declared, entries):
                continue
            use = ToolUse(
                declared=declared,
                private=request.private.get(private_key(declared), {}),
                project=project,
                response_id=response_id,
                chain_id=chain_id,
                at=f"tools[{index}]",
                container_at=f"tools[{index}].{'environment' if declared['type'] == 'shell' else 'container'}",
                include=request.include or (),
                items=earlier,
                state=states.get(state_of_item(str(item_of(declared)))),
                unkept=unkept,
            )
            entries.append(ToolEntry(tool, use, await tool.offer(use)))
        functions = functions_of_programs(request.tools_json)
        found = frozenset(found_on_servers(context.late_tools)) if search is not None else frozenset()
        return RequestTools(tuple(entries), approved, states, search, found, agents, functions, paused)

    def _left_out(self, request: CreateRequest) -> set[int]:
        """Return the places of the tools that a request goes on without; its client is told of them.

        Raises `ApiError` where it cannot: one is demanded, or the operator wants the error.
        """
        unserved: dict[int, str] = {}  # why a tool cannot be had, by its place
        for index, declared in enumerate(request.tools_json):
            problem = self._problem(declared, request) if declared["type"] in DECLARED_UNASKED else None
            if problem is not None:
                unserved[index] = problem
                request.note_ignored(f"tools[{index}]")
        if request.tool_choice.mode == "none":
            return set(unserved)
        demanded = _demanded(request, unserved)
        for index, problem in unserved.items():
            if index in demanded:
                raise unsupported_parameter("tool_choice", problem)
            if self.settings is not None and self.settings.unserved_tools == "refuse":
                raise unsupported_parameter(f"tools[{index}].type", problem)
        return set(unserved)

    def _problem(self, declared: JsonObject, request: CreateRequest) -> str | None:
        """Return why a declared tool of a server cannot be had; None for one that can, and for those of clients."""
        missing = server_tool_missing(
            declared, has_setting=lambda name: self.settings is None or hasattr(self.settings, name.lower())
        )
        if missing is None:
            return None
        if not request.shows_server_calls:
            return _NOT_SHOWN
        tool = self.tool_of(str(declared["type"]))
        return missing if tool is None else tool.problem() or tool.refusal(declared)


def _waiting(program: PausedProgram, request: CreateRequest) -> ApiError:
    """A program waits for its calls, and the request does not let it go on (400)."""
    spoken = f"The program '{program.call_id[:80]}' waits for what came of its calls"
    if request.only_compacts:
        return invalid_request(f"{spoken}: continue it first, and compact what comes of it.", param="input")
    return invalid_request(
        f"{spoken}. Declare the tool '{PROGRAMS}' again, with the functions that it calls, and do not forbid calls.",
        param="tool_choice" if request.tool_choice.mode == "none" else "tools",
        code="invalid_value",
    )


def _is_there(tool: BaseTool, declared: JsonObject, entries: Sequence[ToolEntry]) -> bool:
    """Whether a tool was declared before: the model knows each by one name, but for MCP servers."""
    return declared["type"] != "mcp" and any(entry.tool is tool for entry in entries)


def _demanded(request: CreateRequest, unserved: Collection[int]) -> Collection[int]:
    """Return the places of those that a request must have: no other that it may call can be had, and it must call one.

    A tool that is demanded by its name is the only one that it may call.
    """
    choice, tools = request.tool_choice, request.tools_json
    if choice.mode != "required":
        return ()
    there = {item_of(tool) for place, tool in enumerate(tools) if place not in unserved} - {None}
    if choice.allowed is None:
        return () if request.tools or there else unserved
    named = {each.item for each in choice.hosted}
    return () if choice.allowed or named & there else {place for place in unserved if item_of(tools[place]) in named}


def _refuse_unserved(approved: Sequence[ApprovedCall], served: Sequence[Mapping[str, object]]) -> None:
    labels = {str(tool.get("server_label")) for tool in served}
    for call in approved:
        if call.server not in labels:
            raise invalid_request(
                f"'{call.request_id}' approves a call of the MCP server '{call.server}', which is not in 'tools'. "
                "Declare it again: nothing of its access is kept.",
                param="tools",
                code="invalid_value",
            )


async def with_fixed_versions(request: CreateRequest, skills: "Skills", project: str) -> CreateRequest:
    """Return a request that names each version by its number. Raises `ApiError` for a skill that is not there."""
    tools = [await _fixed(tool, index, skills, project) for index, tool in enumerate(request.tools_json)]
    return request if tools == request.tools_json else request.model_copy(update={"tools_json": tools})


async def _fixed(tool: JsonObject, index: int, skills: "Skills", project: str) -> JsonObject:
    field, declared = skills_in(tool)
    if not declared:
        return tool
    fixed = await _numbered(declared, f"tools[{index}].{field}.skills", skills, project)
    place = tool[field]
    assert isinstance(place, dict), "it has skills"
    return {**tool, field: {**place, "skills": fixed}}


async def _numbered(declared: Sequence[JsonObject], at: str, skills: "Skills", project: str) -> list[JsonObject]:
    numbered = []
    for place, each in enumerate(declared):
        if each["type"] != "skill_reference":
            numbered.append(each)
            continue
        record = await skills.referenced(project, each, f"{at}[{place}]")
        numbered.append({**each, "version": str(record.version)})
    return numbered
