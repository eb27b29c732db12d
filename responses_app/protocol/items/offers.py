"""This server's own tools: what a response may use of them, programs that call tools, and agents.

    request's `tools` ──> a tool's `Offer` ──> the prompt (namespaces), the grammar (contents)
                                          └──> the machine (`OfferedTool`, as an input: it is logged)

The machine does not know the tools, only what was offered of them. So a response that is made again from its log gets
the same items, whether its tools are still there or not. `ApprovedCall`: a call of an MCP server's tool that was asked
for in one response and approved in the input of a later one.

A program is Python, and calls a tool with `call_tool(NAME, ARGUMENTS)`. One that calls a function of the client's
pauses: the response ends with those calls, and the next one brings their outputs. Nothing of a paused program is kept
but its items, so it can go on anywhere and at any time:

    response 1   program P, function_call a (caller P)                  P needs what came of a: it pauses
    response 2   function_call_output a ─> P runs from its beginning, `a` is answered at once
                 function_call b (caller P)                             it pauses again
    response 3   function_call_output b ─> P runs from its beginning, `a` and `b` are answered at once
                 program_output P, message                              it has ended, and the model reads its output

`paused_programs` finds them among items, and `MadeCall` is a call that a program has made, with what came of it.

A request's `multi_agent` gives the model tools with which it starts agents and talks to them:

    /root                   the model that answers the request
    /root/berlin            an agent that it has started, by `spawn_agent` with the `task_name` "berlin"
    /root/berlin/weather    an agent which that one has started

OpenAI's types name the actions, and the items that they become (`multi_agent_call`, `multi_agent_call_output`,
`agent_message`). What an action takes is not in them: it is as in OpenAI's Codex.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b

from engine import orjson
from engine.formats.base import FunctionTool, ToolNamespace, without_pictures
from engine.types import AnyText, CallRule, Content, JsonSchema
from responses_app.protocol.errors import ApiError, JsonObject, conflict, invalid_request
from responses_app.protocol.fields import missing
from responses_app.protocol.items.calls import MAX_NAME, body_and_omissions, called_name

_NO_NAME = re.compile(r"[^A-Za-z0-9_.\-]+")  # runs of characters that a name must not have; `a b!c` becomes `a_b_c`
# Tools that share what they keep of a chain, by the types of their items: one container, and its files.
_SHARED_STATES = {"shell_call": "code_interpreter_call"}
MAX_MCP_NAME = 128  # characters of what the model calls a tool of an MCP server, the server's label not counted
UNKNOWN = "unknown"  # stands for the name of a tool that is not known
# What the model calls for tools of this server. A call of a program becomes an item of that type.
SHELL, SEARCH, PROGRAM = "shell.exec", "tool_search.search", "program"
SEARCH_NAMESPACE = "tool_search"
SEARCH_CALL, SEARCH_OUTPUT = "tool_search_call", "tool_search_output"  # types of items


def state_of_item(item: str) -> str:
    """Return by which type of items the state of a tool is kept whose calls become items of this type."""
    return _SHARED_STATES.get(item, item)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTool:
    """A tool that the server runs when the model calls it."""

    name: str  # what the model calls
    item: str  # the type of the item that a call becomes
    server: str = ""  # the label of an MCP server; "" for other tools
    tool: str = ""  # the name that the MCP server has for it
    asks: bool = False  # the user is to approve each call
    repeatable: bool = False  # a call that was under way when its worker died may be made again
    # A call changes nothing, so one may begin that is not asked for in the end. Not logged: only who makes calls asks.
    reads: bool = field(default=False, compare=False)
    fields: JsonObject = field(default_factory=dict)  # that the item has from its beginning

    @property
    def may_begin_early(self) -> bool:
        """Whether a call may begin before it is asked for: it changes nothing, and nobody has to approve it."""
        return self.reads and not self.asks

    def as_json(self) -> JsonObject:
        """Return it as it is logged: without `reads`, and without the fields that are empty or false."""
        return {name: value for name, value in asdict(self).items() if value and name != "reads"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovedCall:
    """A call of an MCP server's tool that the model asked for in an earlier response, and that the user approves."""

    request_id: str  # the id of the item `mcp_approval_request`
    server: str  # a label
    tool: str
    arguments: str  # JSON, as the model wrote it

    @property
    def name(self) -> str:
        """What the model calls."""
        return mcp_name(self.server, self.tool)


@dataclass(frozen=True, slots=True)
class Offer:
    """What one of a request's `tools` gives the model."""

    namespace: ToolNamespace  # what the prompt says of the tools
    tools: Sequence[OfferedTool]
    # What may stand in calls, by names of tools; others take any text.
    contents: Mapping[str, Content] = field(default_factory=dict)
    problem: str = ""  # why a server's tools, or some of them, are not there

    def rules(self) -> Iterator[CallRule]:
        """Yield what the grammar of a turn knows of the calls."""
        for tool in self.tools:
            yield CallRule(tool.name, self.contents.get(tool.name, AnyText()), hosted=True)


def not_listed(server: str, problem: str) -> Offer:
    """Return what a server offers whose tools could not be listed: nothing."""
    return Offer(ToolNamespace(server), (), problem=problem)


def mcp_name(server: str, tool: str) -> str:
    """Return what the model calls for a tool of an MCP server."""
    return f"{cleaned_name(server or 'mcp', most=64)}.{name_on_server(tool)}"


def name_on_server(tool: str) -> str:
    """Return what the model calls a tool of an MCP server, behind that server's label."""
    return cleaned_name(tool or UNKNOWN, most=MAX_MCP_NAME)


def cleaned_name(name: str, *, most: int = MAX_NAME) -> str:
    """Return the name of a tool without what a model's format may read as something else, and not too long.

    A name that is changed for that ends with its digest: so different tools keep different names, and an item of a
    history has the name that the tool is offered by, whatever else is offered.
    """
    cleaned = _NO_NAME.sub("_", name[:most])
    if cleaned == name:
        return name or UNKNOWN
    digest = blake2b(name.encode(errors="surrogatepass"), digest_size=4).hexdigest()
    return f"{cleaned[: most - len(digest) - 1].rstrip('_')}_{digest}"


def found_on_servers(tools: Iterable[object]) -> dict[str, JsonObject]:
    """Return the tools of MCP servers that searches have found, by what the model calls; `tools` are of their items."""
    found: dict[str, JsonObject] = {}
    for server in tools:
        if not isinstance(server, dict) or server.get("type") != "mcp":
            continue
        members, label = server.get("tools"), server.get("server_label")
        for tool in members if isinstance(members, list) and isinstance(label, str) else ():
            if isinstance(tool, dict) and isinstance(name := tool.get("name"), str):
                found[mcp_name(str(label), name)] = tool
    return found


def approved_calls(own: Sequence[JsonObject], earlier: Iterable[JsonObject]) -> list[ApprovedCall]:
    """Return the calls that a request's own items approve, and that were not made yet.

    `earlier` are the items of the chain and of the conversation, the request's own among them. Raises `ApiError` for an
    answer to a request that is not there.
    """
    answers = [(index, item) for index, item in enumerate(own) if item.get("type") == "mcp_approval_response"]
    if not answers:
        return []
    requests: dict[str, JsonObject] = {}
    made: set[object] = set()
    for item in earlier:
        if item.get("type") == "mcp_approval_request":
            requests[str(item.get("id"))] = item
        elif item.get("type") == "mcp_call":
            made.add(item.get("approval_request_id"))
    calls: dict[str, ApprovedCall] = {}
    for index, answer in answers:
        request_id = str(answer.get("approval_request_id"))
        if request_id not in requests:
            param = f"input[{index}].approval_request_id"
            if answer.get("approval_request_id") is None:
                raise missing(param)
            raise invalid_request(
                f"No approval request found with id '{request_id[:256]}' ('{param}'). Continue the response that asked "
                "with 'previous_response_id', or send its items before the answer.",
                param=param,
            )
        if answer.get("approve") is True and request_id not in made:
            request = requests[request_id]
            calls[request_id] = ApprovedCall(
                request_id=request_id,
                server=str(request.get("server_label") or ""),
                tool=str(request.get("name") or ""),
                arguments=str(request.get("arguments") or ""),
            )
        else:
            # The last answer to a request counts.
            calls.pop(request_id, None)
    return list(calls.values())


def approval_in_use(request_id: str, response_id: str) -> ApiError:
    """Another response, which runs, makes the call that a request for approval is about (409)."""
    message = (
        f"The approval request '{request_id[:80]}' is answered already: response '{response_id[:80]}' makes its call "
        "now. Wait for that response, and continue it."
    )
    return conflict(message, param="input", code="approval_in_use")


def unanswered(chain: Iterable[JsonObject], own: Iterable[JsonObject]) -> list[JsonObject]:
    """Return the requests for approval of a chain that its user has gone on without answering.

    `chain` are the items that it keeps, `own` those of the request that continues it.
    """
    requests: dict[object, JsonObject] = {}
    answered: set[object] = set()
    for item in (*chain, *own):
        if item.get("type") == "mcp_approval_request":
            requests[item.get("id")] = item
        elif item.get("type") in ("mcp_approval_response", "mcp_call"):
            answered.add(item.get("approval_request_id"))
    return [item for request_id, item in requests.items() if request_id not in answered]


def taken_as_refused(request: JsonObject) -> JsonObject:
    """Return what a chain keeps of a request that was not answered: so the model is told of it once."""
    return {"type": "mcp_approval_response", "approval_request_id": request.get("id"), "approve": False}


PROGRAMS = "programmatic_tool_calling"  # the tool of a request
PROGRAM_OUTPUT = "program_output"
MAX_PROGRAM_CALLS = 1000  # of tools, by one program

_ABOUT = (
    "Runs a Python program that calls tools, and gives back what it prints. Use it for many calls, and for calls whose "
    "results you only need in part: you read nothing but what the program prints. Call a tool with "
    'call_tool("NAME", {"ARGUMENT": VALUE}): it returns what the tool gives, parsed where that is JSON, else as text, '
    "and raises ToolError where it fails. Calls that do not need each other's results are made together: "
    'call_tools([("NAME", {...}), ...]) returns a list of results, and "await call_tool_async(...)" is for '
    "asyncio.gather. A program may be run again from its beginning, with the same results: what it calls must not "
    "depend on time or chance. Each program begins anew, without variables, files or network. Tools that it can call:"
)


def about_programs(tools: Iterable[tuple[str, FunctionTool]]) -> str:
    """Return what the model is told of programs that may call these tools, by the names that they call."""
    lines = [f"- {name}: {' '.join(tool.description.split())} Arguments: {tool.schema}" for name, tool in tools]
    return "\n".join([_ABOUT, *(lines or ["- none"])])


@dataclass(frozen=True, slots=True)
class MadeCall:
    """A call that a program has made."""

    name: str  # what the program calls
    arguments: str  # JSON, as it was sent
    # `{"output"}` or `{"error"}`; None: not known yet, or never. An output is as the tool gave it, of any length.
    outcome: JsonObject | None = None
    call_id: str = ""  # by which its client answers it; "" where this server has made it


@dataclass(frozen=True, slots=True)
class PausedProgram:
    """A program that goes on once its client has said what came of its calls."""

    call_id: str  # of the item `program`
    code: str
    made: Sequence[MadeCall] = field(default=(), repr=False)  # in the order in which they were made


def program_of(item: JsonObject) -> str | None:
    """Return the `call_id` of the program that has made a call, or whose call an output answers; None for no program.

    Not every client sends `caller` back with an output.
    """
    caller = item.get("caller")
    if not isinstance(caller, dict) or caller.get("type") != "program":
        return None
    return str(caller.get("caller_id"))


def paused_programs(items: Iterable[JsonObject]) -> list[PausedProgram]:
    """Return the programs among items that have called the client and not ended."""
    programs: dict[str, PausedProgram] = {}
    calls: dict[str, dict[str, MadeCall]] = {}  # by programs, and by their ids: doubles count once
    outputs: dict[str, JsonObject] = {}
    for item in items:
        kind, call_id = item.get("type"), str(item.get("call_id"))
        if kind == PROGRAM:
            programs[call_id] = PausedProgram(call_id, str(item.get("code")))
        elif kind == PROGRAM_OUTPUT:
            programs.pop(call_id, None)
        elif kind == "function_call_output":
            outputs[call_id] = {"output": _plain(item.get("output"))}
        elif (program := program_of(item)) is not None and (call := _made(item)) is not None:
            calls.setdefault(program, {})[str(item.get("call_id") or item.get("id"))] = call
    paused: list[PausedProgram] = []
    for each in programs.values():
        made = calls.get(each.call_id, {}).values()
        if any(call.call_id for call in made):
            answered = tuple(
                replace(call, outcome=outputs[call.call_id]) if call.call_id and call.call_id in outputs else call
                for call in made
            )
            paused.append(PausedProgram(each.call_id, each.code, answered))
    return paused


def kept_of_programs(items: Sequence[JsonObject], known: Collection[str]) -> list[JsonObject]:
    """Return what later responses need of items to go on with paused programs.

    `known` are the ids of calls that programs before the items have made.
    """
    ended = {str(item.get("call_id")) for item in items if item.get("type") == PROGRAM_OUTPUT}
    begun = {str(item.get("call_id")) for item in items if item.get("type") == PROGRAM}
    kept: list[JsonObject] = []
    for item in items:
        kind, call_id, program = item.get("type"), str(item.get("call_id")), program_of(item)
        if kind == PROGRAM_OUTPUT and call_id not in begun:  # all that was kept of it is over
            kept.append({"type": kind, "call_id": call_id})
        elif kind == PROGRAM and call_id not in ended:
            kept.append(_only(item, "type", "call_id", "code"))
        elif kind == "function_call_output":
            if program not in ended and (program is not None or call_id in known):
                kept.append(_only(item, "type", "call_id", "output"))
        elif program is not None and program not in ended and _made(item) is not None:
            kept.append(_only(item, *_OF_CALL))
    return kept


_OF_CALL = ("type", "id", "call_id", "name", "namespace", "server_label", "arguments", "output", "error", "caller")


def is_of_program(item: JsonObject) -> bool:
    """Whether an item is one that `kept_of_programs` keeps."""
    return item.get("type") in (PROGRAM, PROGRAM_OUTPUT, "function_call_output") or program_of(item) is not None


def calls_of_programs(items: Iterable[JsonObject]) -> set[str]:
    """Return the ids of the calls among items that programs have made, and their client answers."""
    return {
        str(item["call_id"])
        for item in items
        if item.get("type") == "function_call" and "call_id" in item and program_of(item) is not None
    }


def _only(item: JsonObject, *names: str) -> JsonObject:
    return {name: item[name] for name in names if item.get(name) is not None}


def _made(item: JsonObject) -> MadeCall | None:
    arguments = str(item.get("arguments"))
    match item.get("type"):
        case "function_call":
            namespace = item.get("namespace")
            called = called_name(str(item.get("name")), namespace if isinstance(namespace, str) else None)
            return MadeCall(called, arguments, call_id=str(item.get("call_id")))
        case "mcp_call":
            name = mcp_name(str(item.get("server_label") or ""), str(item.get("name") or ""))
            return MadeCall(name, arguments, outcome_of(item))
    return None


def outcome_of(shown: JsonObject, *, text: str | None = None, failed: bool = False) -> JsonObject:
    """Return what a program reads of a call of this server's, by what the call's item shows; now, and in later legs.

    `text` is what came of the call where its item shows nothing.
    """
    error = shown.get("error")
    if error is not None:
        return {"error": _plain((error.get("content") or error.get("message")) if isinstance(error, dict) else error)}
    if shown.get("output") is not None:
        return {"error" if failed else "output": _plain(shown["output"])}
    return _CUT if text is None else {"error" if failed else "output": text}


_CUT: JsonObject = {"error": "the call was cut: what came of it is not known"}


def _plain(output: object) -> str:
    return without_pictures(body_and_omissions(output)[0])


ROOT = "/root"
AGENTS = "agents"  # `agents.spawn_agent`, as the model calls it
# The types of items.
AGENT_CALL, AGENT_OUTPUT, AGENT_MESSAGE = "multi_agent_call", "multi_agent_call_output", "agent_message"
BETA_HEADER, BETA = "OpenAI-Beta", "responses_multi_agent=v1"
SPAWN, SEND, FOLLOW_UP = "spawn_agent", "send_message", "followup_task"
WAIT, INTERRUPT, LIST = "wait_agent", "interrupt_agent", "list_agents"
TASK_NAME = re.compile(r"[a-z0-9_]{1,64}")

_TARGET = {"target": {"type": "string", "description": "The agent's name, such as /root/berlin."}}
_TEXT = {"message": {"type": "string"}}
_ACTIONS: Mapping[str, tuple[str, JsonObject, Collection[str]]] = {  # what it does, what it takes, what it needs
    SPAWN: (
        "Start an agent that works on a task beside you. It knows all that you know. Its answer comes to you as a "
        "message: call wait_agent for it.",
        {"task_name": {"type": "string", "pattern": "^[a-z0-9_]{1,64}$"}, **_TEXT},
        ("task_name", "message"),
    ),
    SEND: ("Tell an agent something. It does not begin a task with that.", {**_TARGET, **_TEXT}, ("target", "message")),
    FOLLOW_UP: ("Give an agent that has ended its task another one.", {**_TARGET, **_TEXT}, ("target", "message")),
    WAIT: ("Wait for the next message of an agent.", {"timeout_ms": {"type": "integer", "minimum": 0}}, ()),
    INTERRUPT: ("End what an agent does now.", dict(_TARGET), ("target",)),
    LIST: ("List all agents, and what they do.", {}, ()),
}
ACTIONS = {f"{AGENTS}.{action}": action for action in _ACTIONS}  # by the names that the model calls


@dataclass(frozen=True, slots=True)
class AgentLimits:
    """How far the agents of one response may go."""

    concurrent: int = 3  # agents that work at once, without the root
    total: int = 64  # agents of the response, without the root
    depth: int = 4  # of an agent below the root
    calls: int = 1000  # actions of all agents together
    wait_seconds: float = 600.0  # that one `wait_agent` lasts at most


def agents_offer() -> Offer:
    """Return what the model is told of the tools."""
    functions, tools, contents = [], [], {}
    for action, (description, properties, required) in _ACTIONS.items():
        schema = {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}
        text, name = orjson.dumps(schema).decode(), f"{AGENTS}.{action}"
        functions.append(FunctionTool(action, description, text))
        tools.append(OfferedTool(name=name, item=AGENT_CALL, tool=action))
        contents[name] = JsonSchema(text)
    description = "Tools for starting other agents and for talking to them. They all work at the same time as you."
    return Offer(ToolNamespace(AGENTS, description, tuple(functions)), tools, contents)


def has_beta(header: str | None) -> bool:
    """Whether a request's `OpenAI-Beta` names the beta, perhaps among others."""
    return BETA in [each.strip() for each in (header or "").split(",")]


def beta_missing(name: str = "multi_agent") -> ApiError:
    """The request has `multi_agent`, or is one of its events, and not the header of its beta (400)."""
    return invalid_request(
        f"'{name}' is a beta: send the header '{BETA_HEADER}: {BETA}' with the request, or with the handshake of "
        "the WebSocket.",
        param=name,
        code="missing_beta_header",
    )


def agent_of(item: Mapping[str, object]) -> str:
    """Return the name of the agent whose item this is; the root's where it does not say."""
    agent = item.get("agent")
    name = agent.get("agent_name") if isinstance(agent, dict) else None
    return name if isinstance(name, str) and name else ROOT


def is_of_root(item: Mapping[str, object]) -> bool:
    """Whether the root has said or read an item; agents below it have not, or by messages only."""
    if item.get("type") != AGENT_MESSAGE:
        return agent_of(item) == ROOT
    recipient = item.get("recipient")
    return recipient == ROOT or not isinstance(recipient, str)


def task_of(name: str, task: str, *, parent: str) -> str:
    """Return what an agent reads as its first message: the output of the call that has started it."""
    return (
        f"You are the agent {name} now; {parent} has started you by this call, and goes on beside you. Do this task, "
        f"and nothing else. Your answer goes to {parent}, not to the user.\nTask: {task}"
    )


def letter(author: str, text: str) -> str:
    """Return a message as its recipient reads it."""
    return f"Message from the agent {author}:\n{text}"
