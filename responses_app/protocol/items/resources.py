"""What items are as clients read them: those of a response's output, and those that are kept, of whatever type.

The types are what the OpenAPI document shows; some are more exact there than mypy can follow how they are built. Kept
items are given back with the fields that OpenAI's types require and clients leave out.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, NotRequired

from pydantic import GetPydanticSchema
from typing_extensions import TypedDict

from responses_app.protocol.errors import JsonObject


def shown_as(shown: Any) -> GetPydanticSchema:
    """Return what stands in an `Annotated` behind a type, for the document to show this one in its place."""
    return GetPydanticSchema(lambda _, schema_of: schema_of(shown))


CallType = Literal["local_shell_call", "shell_call", "apply_patch_call", "tool_search_call"]
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
    content: list[OutputText]  # empty in the item that is added; one part from then on


class ReasoningText(TypedDict):
    """Text of what the model thinks, or of a summary of it."""

    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(TypedDict):
    """What the model thinks. `encrypted_content` is the same, sealed, where `include` asks for it."""

    id: str
    type: Literal["reasoning"]
    status: ItemStatus
    summary: list[ReasoningText]  # at most one text
    content: NotRequired[list[ReasoningText]]  # not in the item that is added
    encrypted_content: NotRequired[str]


class FunctionCallItem(TypedDict):
    """A call of a function; `arguments` are JSON, as text."""

    id: str
    type: Literal["function_call"]
    status: ItemStatus
    call_id: str  # the id by which its output names it
    name: str
    arguments: str
    namespace: NotRequired[str]  # of the tool, where it is in one


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


class ToolSearchItem(TypedDict):
    """A search for tools that the server ran."""

    id: str
    type: Literal["tool_search_call"]
    status: ItemStatus
    execution: Literal["server"]
    call_id: None
    arguments: JsonObject


class ToolsFoundItem(TypedDict):
    """What a search for tools has found: as the request declares it."""

    id: str
    type: Literal["tool_search_output"]
    status: ItemStatus
    execution: Literal["server"]
    call_id: None
    tools: list[JsonObject]


class ProgramItem(TypedDict):
    """A program that calls tools."""

    id: str
    type: Literal["program"]
    call_id: str  # by which its calls and its output name it
    code: str  # Python
    fingerprint: str  # opaque


class ProgramOutputItem(TypedDict):
    """What a program has printed."""

    id: str
    type: Literal["program_output"]
    status: Literal["completed", "incomplete"]
    call_id: str
    result: str


class CompactionItem(TypedDict):
    """A sealed summary of what came before."""

    id: str
    type: Literal["compaction"]
    encrypted_content: str


class ServerCallItem(TypedDict):
    """A call of a tool that the server ran, with fields of its own."""

    id: str
    type: Literal[
        "mcp_call",
        "code_interpreter_call",
        "web_search_call",
        "image_generation_call",
        "file_search_call",
        "shell_call",
        "shell_call_output",
    ]
    status: ItemStatus


class MultiAgentCallItem(TypedDict):
    """An action of an agent: `spawn_agent` and others."""

    id: str
    type: Literal["multi_agent_call"]
    call_id: str  # the id by which its output names it
    action: str
    arguments: str  # JSON, as the model wrote it


class McpListItem(TypedDict):
    """The tools of an MCP server; `error` says why they could not be listed, or which are left out."""

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
    arguments: str  # JSON, as the model wrote it


OutputItem = (
    OutputMessage
    | ReasoningItem
    | FunctionCallItem
    | CustomCallItem
    | ClientCallItem
    | CompactionItem
    | ServerCallItem
    | ToolSearchItem
    | ToolsFoundItem
    | ProgramItem
    | ProgramOutputItem
    | MultiAgentCallItem
    | McpListItem
    | McpApprovalItem
)


class Item(TypedDict):
    """An item as it is kept: of whatever type, with the fields that it came with."""

    type: str
    id: str


OutputJson = Annotated[JsonObject, shown_as(OutputItem)]
ItemJson = Annotated[JsonObject, shown_as(Item)]


SCREENSHOTS = "computer_call_output.output.image_url"  # what `include` calls them
INPUT_IMAGES = "message.input_image.image_url"
_WITH_STATUS = (  # types of items whose status OpenAI's types require
    "message function_call function_call_output file_search_call web_search_call image_generation_call computer_call "
    "computer_call_output program_output code_interpreter_call local_shell_call shell_call shell_call_output "
    "apply_patch_call apply_patch_call_output".split()
)
# By the type of an item: fields that OpenAI's types require, where a client has left them out.
_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    **{kind: {"status": "completed"} for kind in _WITH_STATUS},
    **{kind: {"status": "completed", "execution": "client"} for kind in ("tool_search_call", "tool_search_output")},
    "reasoning": {"summary": []},
}
# Only in the list of a response's input.
_INPUT_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    kind: {"status": "completed"} for kind in ("custom_tool_call", "custom_tool_call_output")
}
_PART_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "output_text": {"annotations": [], "logprobs": []},
    "input_image": {"detail": "auto"},
    "computer_screenshot": {"detail": "auto"},
}


def input_item_resource(item: JsonObject) -> JsonObject:
    """Return an item as OpenAI's types have it in the list of a response's input: more of them have a status there."""
    return _completed(item_resource(item), _INPUT_DEFAULTS.get(str(item.get("type")), {}))


def item_resource(item: JsonObject) -> JsonObject:
    """Return an item, whose id it has already, as OpenAI's types have it; what they have stays as it came."""
    whole = _completed(item, _DEFAULTS.get(str(item.get("type")), {}))
    if whole.get("type") == "function_call":
        whole.pop("output", None)  # some clients put a call's output into the call; OpenAI's types have none there
    for name in ("content", "output"):
        parts = whole.get(name)
        if isinstance(parts, list):
            whole[name] = [part_resource(part) if isinstance(part, dict) else part for part in parts]
    return whole


def image_urls(items: Iterable[JsonObject]) -> list[str]:
    """Return the URLs of the images in messages, in their order; one that is a file has none."""
    contents = (item.get("content") for item in items if item.get("type", "message") == "message")
    parts = (part for content in contents if isinstance(content, list) for part in content if isinstance(part, dict))
    urls = (part.get("image_url") for part in parts if part.get("type") == "input_image")
    return [url for url in urls if isinstance(url, str)]


def with_included(item: JsonObject, include: Collection[str]) -> JsonObject:
    """Return an item of a list without what only an `include` gives: large or private, and not for everybody's list."""
    trim = _EXTRAS.get(str(item.get("type")))
    return item if trim is None else trim(item, include)


def _trimmed_message(item: JsonObject, include: Collection[str]) -> JsonObject:
    parts = item.get("content")
    if not isinstance(parts, list):
        return item
    left_out = {kind: gone for kind, (name, gone) in _EXTRAS_OF_PARTS.items() if name not in include}
    return {**item, "content": [_changed(part, left_out) for part in parts]}


def _changed(part: object, left_out: Mapping[str, Mapping[str, object]]) -> object:
    gone = left_out.get(str(part.get("type"))) if isinstance(part, dict) else None
    return {**part, **gone} if isinstance(part, dict) and gone and gone.keys() <= part.keys() else part


def _without(item: JsonObject, include: Collection[str], *, field: str, unless: str) -> JsonObject:
    """Return an item without a field, unless `include` names it."""
    return item if unless in include else {name: value for name, value in item.items() if name != field}


def _trimmed_search(item: JsonObject, include: Collection[str]) -> JsonObject:
    item = _without(item, include, field="results", unless="web_search_call.results")
    action = item.get("action")
    if "web_search_call.action.sources" in include or not isinstance(action, dict):
        return item
    return {**item, "action": {name: value for name, value in action.items() if name != "sources"}}


def _trimmed_screenshot(item: JsonObject, include: Collection[str]) -> JsonObject:
    shown = item.get("output")
    if SCREENSHOTS in include or not isinstance(shown, dict) or "image_url" not in shown:
        return item
    return {**item, "output": {**shown, "image_url": None}}


def _trimmed_outputs(item: JsonObject, include: Collection[str]) -> JsonObject:
    # OpenAI's type always has them, unlike the results of a search.
    return item if "code_interpreter_call.outputs" in include or "outputs" not in item else {**item, "outputs": None}


# By the type of an item: what leaves out of it what its `include` does not name.
_EXTRAS: Mapping[str, Callable[[JsonObject, Collection[str]], JsonObject]] = {
    "message": _trimmed_message,
    "reasoning": partial(_without, field="encrypted_content", unless="reasoning.encrypted_content"),
    "web_search_call": _trimmed_search,
    "computer_call_output": _trimmed_screenshot,
    "code_interpreter_call": _trimmed_outputs,
    "file_search_call": partial(_without, field="results", unless="file_search_call.results"),
}
_EXTRAS_OF_PARTS: Mapping[str, tuple[str, Mapping[str, object]]] = {  # part → its `include`, and what stands without
    "input_image": (INPUT_IMAGES, {"image_url": None}),
    "output_text": ("message.output_text.logprobs", {"logprobs": []}),
}


def part_resource(part: JsonObject) -> JsonObject:
    """Return a part of an item as OpenAI's types have it."""
    return _completed(part, _PART_DEFAULTS.get(str(part.get("type")), {}))


def _completed(value: JsonObject, defaults: Mapping[str, object]) -> JsonObject:
    lacking = {name: default for name, default in defaults.items() if value.get(name) in (None, "")}
    return {**value, **lacking}
