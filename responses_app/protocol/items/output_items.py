"""What items are as clients read them: those of a response's output, and those that are kept, of whatever type."""

from typing import Annotated, Literal, NotRequired

from typing_extensions import TypedDict

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.client_kinds import CallType
from responses_app.protocol.shown import shown_as

ItemStatus = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(TypedDict):
    """Text that the model wrote."""

    type: Literal["output_text"]
    text: str
    annotations: list[JsonObject]
    logprobs: list[JsonObject]


class OutputMessage(TypedDict):
    """What the model says: its answer, or a word before it calls a tool."""

    id: str
    type: Literal["message"]
    status: ItemStatus
    role: Literal["assistant"]
    phase: Literal["commentary", "final_answer"]
    content: list[OutputText]


class ReasoningText(TypedDict):
    """Text of what the model thinks, or of a summary of it."""

    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(TypedDict):
    """What the model thinks. `encrypted_content` is the same, sealed, where `include` asks for it."""

    id: str
    type: Literal["reasoning"]
    status: ItemStatus
    summary: list[ReasoningText]
    content: NotRequired[list[ReasoningText]]
    encrypted_content: NotRequired[str]


class FunctionCallItem(TypedDict):
    """A call of a function; `arguments` are JSON, as text."""

    id: str
    type: Literal["function_call"]
    status: ItemStatus
    call_id: str
    name: str
    arguments: str
    namespace: NotRequired[str]


class CustomCallItem(TypedDict):
    """A call of a custom tool."""

    id: str
    type: Literal["custom_tool_call"]
    status: ItemStatus
    call_id: str
    name: str
    input: str
    namespace: NotRequired[str]


class ClientCallItem(TypedDict):
    """A call of a shell, a patch or a search for tools; each has fields of its own."""

    id: str
    type: CallType
    status: ItemStatus
    call_id: str


class CompactionItem(TypedDict):
    """A sealed summary of what came before."""

    id: str
    type: Literal["compaction"]
    encrypted_content: str


class ServerCallItem(TypedDict):
    """A call of a tool that the server ran, with fields of its own."""

    id: str
    type: Literal["mcp_call", "code_interpreter_call", "web_search_call", "image_generation_call", "file_search_call"]
    status: ItemStatus


class McpListItem(TypedDict):
    """The tools of an MCP server, or with `error` why they could not be listed."""

    id: str
    type: Literal["mcp_list_tools"]
    server_label: str
    tools: list[JsonObject]
    error: NotRequired[str]


class McpApprovalItem(TypedDict):
    """A call of an MCP server's tool that the user is to approve, or not."""

    id: str
    type: Literal["mcp_approval_request"]
    server_label: str
    name: str
    arguments: str


OutputItem = (
    OutputMessage
    | ReasoningItem
    | FunctionCallItem
    | CustomCallItem
    | ClientCallItem
    | CompactionItem
    | ServerCallItem
    | McpListItem
    | McpApprovalItem
)


class Item(TypedDict):
    """An item as it is kept: of whatever type, with the fields that it came with."""

    type: str
    id: str


OutputJson = Annotated[JsonObject, shown_as(OutputItem)]
ItemJson = Annotated[JsonObject, shown_as(Item)]
