"""The items that calls of this server's own tools become, as they are written. The order of their events is OpenAI's.

    mcp_call                added, in_progress, arguments.delta…, arguments.done, completed or failed, done
    code_interpreter_call   added, in_progress, code.delta…, code.done, interpreting, completed, done
    web_search_call         added, in_progress, searching, completed, done
    image_generation_call   added, in_progress, generating, partial_image…, completed, done
    file_search_call        added, in_progress, searching, completed, done
    shell_call              added, command.added, command.delta…, command.done, …, done; and then, as its tool works:
    shell_call_output       added, output_content.delta…, output_content.done, …, done
    tool_search_call        added, done; behind it stands the item `tool_search_output`
    program                 added, done; then its calls, and `program_output`
    multi_agent_call        added, done
    mcp_list_tools          added, in_progress, completed or failed, done
    mcp_approval_request    added, done

An item is open while its tool works. One that is cut (its response is cancelled) says what of its input has come, is
`incomplete`, and neither completed nor failed.

`Called` knows which item each call becomes, and what later turns ask about them. A tool is the client's, or this server
runs it (hosted), or it is not there; then what the model wrote is kept as a thought.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import ClassVar

from engine import orjson
from engine.formats.base import ItemKind, ItemStarted
from responses_app.protocol import ids
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events.events import EventType
from responses_app.protocol.items.client_tools import NO_CLIENT_TOOLS, ClientTools, read_tools
from responses_app.protocol.items.offers import OfferedTool
from responses_app.protocol.items.resources import (
    ItemStatus,
    McpApprovalItem,
    McpListItem,
    MultiAgentCallItem,
    ProgramItem,
    ServerCallItem,
    ToolSearchItem,
)
from responses_app.protocol.items.tool_search import read_arguments
from responses_app.protocol.output.builders import (
    HostedBuilder,
    ItemBuilder,
    NewId,
    PendingEvents,
    ReasoningBuilder,
    SilentInput,
    with_fields,
)
from responses_app.protocol.output.calls import CallBuilder, call_builder
from responses_app.protocol.output.shell_items import ShellCallBuilder

_NOT_LISTED = "The response ended before the server had listed its tools."  # the error of a list that was cut


class McpCallBuilder(HostedBuilder):
    """A call of an MCP server's tool."""

    prefix = ids.MCP_CALL
    delta_type = EventType.MCP_ARGUMENTS_DELTA
    first_event = EventType.MCP_CALL_IN_PROGRESS
    done_event = EventType.MCP_CALL_COMPLETED
    failed_event = EventType.MCP_CALL_FAILED

    def __init__(self, new_id: NewId, offered: OfferedTool, request_id: str | None = None) -> None:
        super().__init__(new_id, offered)
        self._request_id = request_id  # of the request by which the user approved it; None: it needed no approval

    def input_done(self) -> PendingEvents:
        return [(EventType.MCP_ARGUMENTS_DONE, {"arguments": self.text})]

    def item(self, status: ItemStatus) -> ServerCallItem:
        item: ServerCallItem = {"id": self.id, "type": "mcp_call", "status": status}
        call = {
            "approval_request_id": self._request_id,
            # The item that is added has none yet: they come in deltas.
            "arguments": "" if status == "in_progress" else self.text,
            "error": self.shown.get("error"),
            "name": self._offered.tool,
            "output": self.shown.get("output"),
            "server_label": self._offered.server,
            **self._offered.fields,
        }
        return with_fields(item, call)


class CodeInterpreterBuilder(HostedBuilder):
    """Code that the interpreter runs. The offer's `fields` name its `container_id`; the tool shows its `outputs`."""

    prefix = ids.CODE_INTERPRETER_CALL
    delta_type = EventType.CODE_DELTA
    first_event = EventType.CODE_IN_PROGRESS
    working_event = EventType.CODE_INTERPRETING

    def input_done(self) -> PendingEvents:
        return [(EventType.CODE_DONE, {"code": self.text})]

    def ended(self) -> PendingEvents:
        outputs = self.shown.get("outputs")  # only where an `include` asks for them
        shown = {} if outputs is None else {"outputs": outputs}
        return [(EventType.CODE_COMPLETED, shown)]  # OpenAI has none for a failure: the item's status says it

    def item(self, status: ItemStatus) -> ServerCallItem:
        item: ServerCallItem = {"id": self.id, "type": "code_interpreter_call", "status": status}
        call = {"code": "" if status == "in_progress" else self.text, "container_id": "", "outputs": None}
        return with_fields(item, {**call, **self._offered.fields, **self.shown})


class WebSearchBuilder(SilentInput, HostedBuilder):
    """Something done in the web. `action` is what the model asked for; the tool may show it more exactly."""

    prefix = ids.WEB_SEARCH_CALL
    first_event = EventType.WEB_SEARCH_IN_PROGRESS
    working_event = EventType.WEB_SEARCH_SEARCHING
    done_event = failed_event = EventType.WEB_SEARCH_COMPLETED

    def item(self, status: ItemStatus) -> ServerCallItem:
        arguments = {} if status == "in_progress" else _object(self.text)
        action = _action(_ACTIONS.get(self._offered.name.rpartition(".")[2], "search"), arguments)
        item: ServerCallItem = {"id": self.id, "type": "web_search_call", "status": status}
        return with_fields(item, {"action": action, **self.shown})


class ImageGenerationBuilder(SilentInput, HostedBuilder):
    """An image that is made or edited. The tool shows the `result`, and partial images as its progress."""

    prefix = ids.IMAGE_GENERATION_CALL
    first_event = EventType.IMAGE_IN_PROGRESS
    working_event = EventType.IMAGE_GENERATING
    done_event = EventType.IMAGE_COMPLETED

    def progressed(self, fields: JsonObject) -> PendingEvents:
        return [(EventType.IMAGE_PARTIAL, fields)]

    def item(self, status: ItemStatus) -> ServerCallItem:
        """Return the item; one that was cut has failed, since OpenAI's cannot be incomplete."""
        arguments = {} if status == "in_progress" else _object(self.text)
        prompt = arguments.get("prompt")
        item: ServerCallItem = {
            "id": self.id,
            "type": "image_generation_call",
            "status": "failed" if status == "incomplete" else status,
        }
        call = {
            "result": None,
            "action": self._offered.name.rpartition(".")[2],
            "revised_prompt": prompt if isinstance(prompt, str) else None,
        }
        return with_fields(item, {**call, **self.shown})


class FileSearchBuilder(SilentInput, HostedBuilder):
    """A search in files. The tool shows its `queries`, and its `results` where they are included."""

    prefix = ids.FILE_SEARCH_CALL
    first_event = EventType.FILE_SEARCH_IN_PROGRESS
    working_event = EventType.FILE_SEARCH_SEARCHING
    done_event = failed_event = EventType.FILE_SEARCH_COMPLETED  # OpenAI has none for a failure: the status says it

    def item(self, status: ItemStatus) -> ServerCallItem:
        arguments = {} if status == "in_progress" else _object(self.text)
        queries = arguments.get("queries")
        texts = [query for query in queries if isinstance(query, str)] if isinstance(queries, list) else []
        item: ServerCallItem = {"id": self.id, "type": "file_search_call", "status": status}
        return with_fields(item, {"queries": texts, "results": None, **self.shown})


class ToolSearchBuilder(SilentInput, HostedBuilder):
    """A search for tools; it is there at once, when it has ended."""

    prefix = ids.TOOL_SEARCH_CALL
    at_once: ClassVar[bool] = True

    def item(self, status: ItemStatus) -> ToolSearchItem:
        return {
            "id": self.id,
            "type": "tool_search_call",
            "status": status,
            "execution": "server",
            "call_id": None,
            "arguments": read_arguments(self.text),
        }


class ProgramBuilder(SilentInput, HostedBuilder):
    """A program that calls tools; it is there at once, before it runs."""

    prefix = ids.PROGRAM
    at_once: ClassVar[bool] = True

    def __init__(self, new_id: NewId, offered: OfferedTool) -> None:
        super().__init__(new_id, offered)
        self.call_id = new_id(ids.CALL)

    def item(self, status: ItemStatus) -> ProgramItem:
        return {
            "id": self.id,
            "type": "program",
            "call_id": self.call_id,
            "code": self.text,
            "fingerprint": blake2b(self.text.encode(errors="replace"), digest_size=16).hexdigest(),
        }


class MultiAgentCallBuilder(SilentInput, HostedBuilder):
    """An action of an agent; what came of it is an item of its own."""

    prefix = ids.MULTI_AGENT_CALL

    def __init__(self, new_id: NewId, offered: OfferedTool) -> None:
        super().__init__(new_id, offered)
        self._call_id = new_id(ids.CALL)

    def item(self, status: ItemStatus) -> MultiAgentCallItem:
        return {
            "id": self.id,
            "type": "multi_agent_call",
            "call_id": self._call_id,
            "action": self._offered.tool,
            "arguments": "" if status == "in_progress" else self.text,
        }


class ListToolsBuilder(ItemBuilder):
    """The tools of an MCP server, as it lists them. It has ended once `tools` are there, or an `error`."""

    prefix = ids.MCP_LIST_TOOLS

    def __init__(self, new_id: NewId, server: str) -> None:
        super().__init__(new_id)
        self._server = server
        self.tools: Sequence[JsonObject] | None = None
        self.error: str | None = None

    def opened(self) -> PendingEvents:
        return [(EventType.MCP_LIST_IN_PROGRESS, {})]

    def closed(self) -> PendingEvents:
        # Also where the response was cut: then there are neither tools nor an error.
        has_failed = self.tools is None or (self.error is not None and not self.tools)
        return [(EventType.MCP_LIST_FAILED if has_failed else EventType.MCP_LIST_COMPLETED, {})]

    def item(self, status: ItemStatus) -> McpListItem:
        item: McpListItem = {
            "id": self.id,
            "type": "mcp_list_tools",
            "server_label": self._server,
            "tools": list(self.tools or ()),
        }
        if status != "in_progress" and (self.error is not None or self.tools is None):
            item["error"] = self.error or _NOT_LISTED
        return item


class ApprovalRequestBuilder(SilentInput):
    """A call of an MCP server's tool that the user is to approve; it is there at once, when it is whole."""

    prefix = ids.MCP_APPROVAL_REQUEST
    at_once: ClassVar[bool] = True

    def __init__(self, new_id: NewId, offered: OfferedTool) -> None:
        super().__init__(new_id)
        self._new_id = new_id
        self._offered = offered

    def closed(self) -> PendingEvents:
        return []

    def settled(self, status: ItemStatus) -> ItemBuilder:
        return self if status == "completed" else _CutRequestBuilder(self._new_id, self.text)

    def item(self, status: ItemStatus) -> McpApprovalItem:
        return {
            "id": self.id,
            "type": "mcp_approval_request",
            "arguments": self.text,
            "name": self._offered.tool,
            "server_label": self._offered.server,
        }


class _CutRequestBuilder(ReasoningBuilder):
    """A request for approval that was cut: half a call cannot be approved, so it is kept as a thought."""

    def __init__(self, new_id: NewId, text: str) -> None:
        super().__init__(new_id)
        self._held = text

    def rest(self) -> str:
        return self._held


def builder_of(offered: OfferedTool, new_id: NewId) -> ItemBuilder:
    """Return what writes the item of a call."""
    if offered.asks:
        return ApprovalRequestBuilder(new_id, offered)
    return _BUILDERS[offered.item](new_id, offered)


_BUILDERS: Mapping[str, Callable[[NewId, OfferedTool], HostedBuilder]] = {
    "mcp_call": McpCallBuilder,
    "code_interpreter_call": CodeInterpreterBuilder,
    "web_search_call": WebSearchBuilder,
    "image_generation_call": ImageGenerationBuilder,
    "file_search_call": FileSearchBuilder,
    "shell_call": ShellCallBuilder,
    "tool_search_call": ToolSearchBuilder,
    "program": ProgramBuilder,
    "multi_agent_call": MultiAgentCallBuilder,
}
# By the function of the tool `browser`: the type of OpenAI's action.
_ACTIONS = {"search": "search", "open": "open_page", "find": "find_in_page"}


def _action(kind: str, arguments: JsonObject) -> JsonObject:
    match kind:
        case "open_page":
            target = arguments.get("id")
            return {"type": kind, **({"url": target} if isinstance(target, str) else {})}
        case "find_in_page":
            return {"type": kind, "pattern": str(arguments.get("pattern") or ""), "url": ""}
    query = str(arguments.get("query") or "")
    return {"type": kind, "query": query, "queries": [query] if query else []}


def _object(text: str) -> JsonObject:
    """Return the arguments of a call; empty where they are not a JSON object."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


HostedTools = Mapping[str, Callable[[NewId], ItemBuilder]]  # by the names of the tools
SEARCH_NAMES = "browser."  # how the names begin by which models know the web search
NO_SEARCH = "Nothing searches the web here: the operator has set neither SEARCH_URL nor SEARCH_MCP."


class Called:
    """What one response calls, and which item each call becomes."""

    def __init__(
        self, new_id: NewId, tools: ClientTools | None, hosted: HostedTools | None, *, searches: bool = False
    ) -> None:
        self._new_id = new_id
        self._tools = NO_CLIENT_TOOLS if tools is None else tools  # they make the items of calls that clients answer
        self._hosted = dict(hosted or {})  # what makes the items of calls, by the names of the tools
        self.hosts = bool(self._hosted)  # the server runs any tools for this response
        self._searches = searches  # the request declares a web search, perhaps one that nothing runs here
        self.offered: dict[str, OfferedTool] = {}  # this server's tools that the response may use, by name
        self.max_hosted: int | None = None  # how many calls of them it may make
        self.made = 0  # and how many it has made
        self.asks = False  # the user is asked to approve one
        self.anything = False  # that is there was called
        self.background: list[str] = []  # names that the model has called and goes on without
        self.unknown: list[str] = []  # names that it has called and that are not there
        self.last_unknown: str | None = None  # what the last item called, where that is not there
        self.waits_for_client = False  # a call wants an output
        self.misfits = 0  # calls that do not fit: see `CallBuilder.fits`

    @property
    def may_host(self) -> bool:
        """Whether one more of this server's tools may be called."""
        return self.max_hosted is None or self.made < self.max_hosted

    def offer(self, tools: Iterable[OfferedTool]) -> None:
        """Take tools of this server that the model may call."""
        for tool in tools:
            self.offered[tool.name] = tool
            self._hosted[tool.name] = partial(builder_of, tool)
        self.hosts = bool(self._hosted)

    def share(self, other: "Called") -> None:
        """Take the tools of another agent of the same response."""
        self._tools, self.max_hosted, self._searches = other._tools, other.max_hosted, other._searches
        self.offer(other.offered.values())

    def learn(self, tools: Sequence[JsonObject], offered: Iterable[OfferedTool]) -> None:
        """Take what a search has found: tools of the client's, and of this server."""
        self.declare(tools)
        self.offer(offered)

    def knows(self, name: str) -> bool:
        """Whether there is a tool of this server of this name, whether it may be called or not."""
        return name in self._hosted

    def is_hosted(self, name: str) -> bool:
        """Whether the server runs the tool of this name when it is called now."""
        return name in self._hosted and self.may_host

    def shown(self, functions: Collection[str]) -> list[str]:
        """Return those of the client's tools that the model is shown, among the names of all that it can call."""
        hidden = set(self._tools.names).difference(tool.called for tool in self._tools.shown())
        return [name for name in functions if name not in hidden]

    def declare(self, tools: Sequence[JsonObject]) -> Collection[str]:
        """Take further tools of the client's; return the names of all that the model can call."""
        self._tools = self._tools.joined(read_tools(list(tools)))
        return self._tools.names

    def builder(self, call: ItemStarted) -> ItemBuilder:
        """Return what writes the item of a call that begins."""
        name = call.name or ""
        if call.kind is ItemKind.CALL:
            self.anything = True
            return call_builder(self._tools, name, self._new_id)
        if self.is_hosted(name):
            self.anything = True
            offered = self.offered.get(name)
            # A call that asks for approval is not made in this response.
            self.made += not (offered and offered.asks)
            return self._hosted[name](self._new_id)
        self.unknown.append(name)
        self.last_unknown = name
        if self._searches and name.startswith(SEARCH_NAMES) and name not in self._hosted:
            unserved = builder_of(OfferedTool(name=name, item="web_search_call"), self._new_id)
            assert isinstance(unserved, HostedBuilder), "nobody is asked to approve it"
            unserved.unserved = {"type": "web_search_error", "message": NO_SEARCH}
            return unserved
        return ReasoningBuilder(self._new_id)

    def note(self, name: str, call: CallBuilder, status: ItemStatus) -> None:
        """Take a call of the client's that has ended."""
        self.misfits += not call.fits
        if call.is_async:
            self.background.append(name)
        # A call that was cut is not run by anybody.
        elif status == "completed":
            self.waits_for_client = True
