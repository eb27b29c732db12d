"""The items of responses and conversations, as types."""

from typing import Literal

from pydantic import BaseModel

from responses_app.protocol.errors import JsonObject

ItemStatus = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(BaseModel):
    """Text that the model wrote."""

    type: Literal["output_text"]
    text: str
    annotations: list[JsonObject]
    logprobs: list[JsonObject]


class OutputMessage(BaseModel):
    """What the model says: its answer, or a word before it calls a tool."""

    id: str
    type: Literal["message"]
    status: ItemStatus
    role: Literal["assistant"]
    phase: Literal["commentary", "final_answer"]
    content: list[OutputText]


class ReasoningText(BaseModel):
    """Text of what the model thinks, or of a summary of it."""

    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(BaseModel):
    """What the model thinks. `encrypted_content` is the same, sealed, where `include` asks for it."""

    id: str
    type: Literal["reasoning"]
    status: ItemStatus
    summary: list[ReasoningText]
    content: list[ReasoningText] = []
    encrypted_content: str = ""


class FunctionCallItem(BaseModel):
    """A call of a function; `arguments` are JSON, as text."""

    id: str
    type: Literal["function_call"]
    status: ItemStatus
    call_id: str
    name: str
    arguments: str
    namespace: str = ""


class CustomCallItem(BaseModel):
    """A call of a custom tool."""

    id: str
    type: Literal["custom_tool_call"]
    status: ItemStatus
    call_id: str
    name: str
    input: str
    namespace: str = ""


class ClientCallItem(BaseModel):
    """A call of a shell, a patch or a search for tools; each has fields of its own."""

    id: str
    type: Literal["local_shell_call", "shell_call", "apply_patch_call", "tool_search_call"]
    status: ItemStatus
    call_id: str


class CompactionItem(BaseModel):
    """A sealed summary of what came before."""

    id: str
    type: Literal["compaction"]
    encrypted_content: str


class ServerCallItem(BaseModel):
    """A call of a tool that the server ran: of an MCP server, the code interpreter or the web; with its own fields."""

    id: str
    type: Literal["mcp_call", "code_interpreter_call", "web_search_call"]
    status: ItemStatus


class McpListItem(BaseModel):
    """The tools of an MCP server, or with `error` why they could not be listed."""

    id: str
    type: Literal["mcp_list_tools"]
    server_label: str
    tools: list[JsonObject]
    error: str = ""


class McpApprovalItem(BaseModel):
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


class Item(BaseModel):
    """An item as it is kept: of whatever type, with the fields that it came with."""

    type: str
    id: str
