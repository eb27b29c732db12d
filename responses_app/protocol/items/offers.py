"""What of this server's own tools a response may use: what the model is told, and which item each call becomes.

    request's `tools` ──> a tool's `Offer` ──> the prompt (namespaces), the grammar (contents)
                                          └──> the machine (`OfferedTool`, as an input: it is logged)

The machine does not know the tools, only what was offered of them. So a response that is made again from its log gets
the same items, whether its tools are still there or not. `ApprovedCall`: a call of an MCP server's tool that was asked
for in one response and approved in the input of a later one.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b

from engine.formats.base import ToolNamespace
from engine.types import AnyText, CallRule, Content
from responses_app.protocol.errors import ApiError, JsonObject, conflict, invalid_request
from responses_app.protocol.fields import missing
from responses_app.protocol.items.calls import MAX_NAME

_NO_NAME = re.compile(r"[^A-Za-z0-9_.\-]+")  # runs of characters that a name must not have; `a b!c` becomes `a_b_c`
# Tools that share what they keep of a chain, by the types of their items: one container, and its files.
_SHARED_STATES = {"shell_call": "code_interpreter_call"}
MAX_MCP_NAME = 128  # characters of what the model calls a tool of an MCP server, the server's label not counted
UNKNOWN = "unknown"  # stands for the name of a tool that is not known
SHELL, SEARCH, PROGRAM = "shell.exec", "tool_search.search", "program"  # what the model calls for tools of this server


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
