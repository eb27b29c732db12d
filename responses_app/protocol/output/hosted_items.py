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
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, ClassVar

from engine import orjson
from responses_app.protocol import ids
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events.events import EventType, PendingEvents
from responses_app.protocol.items.calls import CLIENT_KINDS
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
from responses_app.protocol.output.builders import ItemBuilder, NewId, ReasoningBuilder, SilentInput, with_fields
from responses_app.protocol.output.shell_commands import CommandReader


class HostedBuilder(ItemBuilder):
    """A call of a tool that the server runs: its text is its input, and it stays open until the tool has returned.

    Its methods are called in this order: `opened`, `called`, `progressed` any number of times, `returned`, `closed`.
    """

    first_event: ClassVar[EventType | None] = None  # behind `added`
    working_event: ClassVar[EventType | None] = None  # when the tool begins
    done_event: ClassVar[EventType | None] = None  # when the tool has returned
    failed_event: ClassVar[EventType | None] = None  # in place of `done_event`, where the tool has failed

    def __init__(self, new_id: NewId, offered: OfferedTool) -> None:
        super().__init__(new_id)
        self._offered = offered  # the tool
        self.unserved: JsonObject | None = None  # why nothing runs it, as the error of its item
        self.shown: JsonObject = {}  # fields of the item that the tool gives: its output, or a typed error
        self.failed = False
        self._is_called = False  # the input is complete
        self._has_returned = False

    def opened(self) -> PendingEvents:
        return _without_fields(self.first_event)

    def called(self) -> PendingEvents:
        """Return what is said once the input is complete and the tool begins."""
        self._is_called = True
        return [*self.input_done(), *_without_fields(self.working_event)]

    def output_builder(self) -> "HostedBuilder | None":
        """Return what writes an item of its own for what comes of the call; None: the call's item has it, too."""
        return None

    def progressed(self, fields: JsonObject) -> PendingEvents:
        """Return what is said of the tool's progress."""
        return []

    def returned(self, shown: JsonObject, *, failed: bool) -> None:
        """Take what the tool shows of what it gave back, or of why it failed."""
        self.shown, self.failed, self._has_returned = shown, failed, True

    def closed(self) -> PendingEvents:
        """Return what comes before `output_item.done`; of a call that was cut that is neither success nor failure."""
        return [*([] if self._is_called else self.input_done()), *(self.ended() if self._has_returned else [])]

    def input_done(self) -> PendingEvents:
        """Return what is said once the input is complete."""
        return []

    def ended(self) -> PendingEvents:
        """Return what is said when the tool has returned."""
        return _without_fields(self.failed_event if self.failed else self.done_event)


def _without_fields(type: EventType | None) -> PendingEvents:
    return [] if type is None else [(type, {})]


@dataclass(frozen=True, slots=True)
class HostedCall:
    """A call of a tool that the server runs; its item is open until the tool has returned."""

    name: str  # of the tool, as the model calls it
    arguments: str  # all that the model said; JSON, for most tools
    item_id: str
    sampled: bool = True  # the model said it in this response; else it was approved, and said in an earlier one


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
            "arguments": _object(self.text),
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


_STREAMS = ("stdout", "stderr")
_KILLED: JsonObject = {"type": "exit", "exit_code": 137}  # of a command of which no end is known: it was killed
_NOT_RUN: JsonObject = {"type": "exit", "exit_code": 1}


class ShellCallBuilder(SilentInput, HostedBuilder):
    """Commands that a shell of this server runs. The offer's `fields` name its `environment`."""

    prefix = ids.SHELL_CALL
    events_name_it: ClassVar[bool] = False

    def __init__(self, new_id: NewId, offered: OfferedTool) -> None:
        super().__init__(new_id, offered)
        self.call_id = new_id(ids.CALL)
        self._new_id = new_id
        self._reader = CommandReader()
        self._unsaid: PendingEvents = []

    def told(self, text: str) -> str:
        self._unsaid += self._reader.read(text)
        return super().told(text)

    def heard(self) -> PendingEvents:
        unsaid, self._unsaid = self._unsaid, []
        return unsaid

    def input_done(self) -> PendingEvents:
        return [*self.heard(), *self._reader.rest()]

    def output_builder(self) -> HostedBuilder:
        return ShellOutputBuilder(self._new_id, self._offered, self.call_id, self._action()["max_output_length"])

    def item(self, status: ItemStatus) -> ServerCallItem:
        item: ServerCallItem = {"id": self.id, "type": "shell_call", "status": status}
        action = _NO_ACTION if status == "in_progress" else self._action()
        return with_fields(item, {"call_id": self.call_id, "action": action, **self._offered.fields})

    def _action(self) -> dict[str, Any]:
        """Return what is to be done; of arguments that are wrong the commands that could be read."""
        fields: dict[str, Any] | None = CLIENT_KINDS["shell"].read(self.text)
        return {**_NO_ACTION, "commands": self._reader.commands} if fields is None else fields["action"]


_NO_ACTION: JsonObject = {"commands": [], "timeout_ms": None, "max_output_length": None}


class ShellOutputBuilder(HostedBuilder):
    """What the commands of a call print, and how they end.

    The tool reports `command_index` with `stdout`, `stderr` or both, and shows `outcomes`, one for each command; or an
    `error`, where nothing was run.
    """

    prefix = ids.SHELL_CALL_OUTPUT

    def __init__(self, new_id: NewId, offered: OfferedTool, call_id: str, max_output_length: object) -> None:
        super().__init__(new_id, offered)
        self._call_id = call_id
        self._max_output_length = max_output_length  # as the model has written it
        self._printed: list[Mapping[str, list[str]]] = []  # by each command, into each stream

    def progressed(self, fields: dict[str, Any]) -> PendingEvents:
        place: int = fields["command_index"]
        delta = {stream: fields[stream] for stream in _STREAMS if stream in fields}
        self._have(place + 1)
        for stream, text in delta.items():
            self._printed[place][stream].append(text)
        return [(EventType.SHELL_OUTPUT_DELTA, {"command_index": place, "delta": delta})]

    def closed(self) -> PendingEvents:
        # Also of commands that were cut: what was told of each ends.
        return [
            (EventType.SHELL_OUTPUT_DONE, {"command_index": place, "output": [each]})
            for place, each in enumerate(self._output())
        ]

    def item(self, status: ItemStatus) -> ServerCallItem:
        """Return the item; one whose tool has failed is incomplete, since OpenAI's cannot fail."""
        item: ServerCallItem = {
            "id": self.id,
            "type": "shell_call_output",
            "status": "incomplete" if status == "failed" else status,
        }
        output = [] if status == "in_progress" else self._output()
        fields = {"call_id": self._call_id, "output": output, "max_output_length": self._max_output_length}
        return with_fields(item, fields)

    def _have(self, count: int) -> None:
        while len(self._printed) < count:
            self._printed.append({stream: [] for stream in _STREAMS})

    def _output(self) -> list[JsonObject]:
        shown: dict[str, Any] = self.shown
        outcomes, error = shown.get("outcomes", ()), shown.get("error")
        if error is not None and not self._printed:
            return [{"stdout": "", "stderr": error, "outcome": dict(_NOT_RUN)}]
        self._have(len(outcomes))
        ends = [*outcomes, *(_KILLED for _ in self._printed)]
        return [
            {**{stream: "".join(texts) for stream, texts in printed.items()}, "outcome": dict(end)}
            for printed, end in zip(self._printed, ends, strict=False)
        ]


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
