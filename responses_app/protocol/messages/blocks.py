"""The messages of Anthropic's API and the blocks in them, validated, and as the items of the Responses API.

system                          a message of the developer
user: text, image, document     a message
user: tool_result               the output of a call
assistant: thinking             a thought; its `signature` is the seal of its tokens (`prompt.replaying`)
assistant: redacted_thinking    a thought that shows nothing; its `data` is such a seal
assistant: text, tool_use       a message, a call
assistant: blocks of this server's tools    their items (`server_blocks`)

Blocks that stand beside each other and are parts of one message of the Responses API become one item.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, assert_never

from pydantic import Field

from engine import orjson
from engine.formats.base import Unanswered
from responses_app.protocol.errors import ApiError, JsonObject, invalid_request, invalid_value
from responses_app.protocol.fields import ClientModel, as_text_parts, missing, or_text, validate, wrong_type
from responses_app.protocol.items.calls import MAX_NAME, NAME
from responses_app.protocol.items.spelling import canonical
from responses_app.protocol.messages.server_blocks import (
    CACHED,
    McpListingBlock,
    McpToolResultBlock,
    McpToolUseBlock,
    ResultBlock,
    ServerBlock,
    ServerResultBlock,
    ServerToolUseBlock,
    UseBlock,
    call_item,
    listing_item,
    with_result,
)
from responses_app.protocol.prompt.replaying import BETWEEN, PlacedTurn, SeenTurn

AT = "messages"
_CITES = "The model here cites what it has found itself, and not what a request has in it."


class TextBlock(ClientModel):
    """Text."""

    type: Literal["text"]
    text: str

    idle: ClassVar = {**CACHED, "citations": "They are given back as they came; the model does not read them."}


class Base64Source(ClientModel):
    """The data of an image or of a PDF."""

    type: Literal["base64"]
    media_type: str = Field(min_length=1, max_length=128, pattern=r"^[a-z]+/[a-z0-9.+-]+$")
    data: str = Field(repr=False)


class UrlSource(ClientModel):
    """Where an image or a PDF is."""

    type: Literal["url"]
    url: str = Field(min_length=1)


class FileSource(ClientModel):
    """A file that was uploaded."""

    type: Literal["file"]
    file_id: str = Field(min_length=1, max_length=256)


class TextSource(ClientModel):
    """The text of a document."""

    type: Literal["text"]
    media_type: Literal["text/plain"] = "text/plain"
    data: str


class ImageBlock(ClientModel):
    """An image."""

    type: Literal["image"]
    source: Annotated[Base64Source | UrlSource | FileSource, Field(discriminator="type")]

    idle: ClassVar = {**CACHED, "transformations": "An image that is too large is not made smaller here."}
    told: ClassVar = ("transformations",)


_Shown = Annotated[list[Annotated[TextBlock | ImageBlock, Field(discriminator="type")]], Field(fail_fast=True)]


class ContentSource(ClientModel):
    """A document that is made of blocks."""

    type: Literal["content"]
    content: Annotated[_Shown, or_text(as_text_parts, _Shown, "text_or_blocks")]


class DocumentBlock(ClientModel):
    """A document."""

    type: Literal["document"]
    source: Annotated[Base64Source | UrlSource | FileSource | TextSource | ContentSource, Field(discriminator="type")]
    title: str | None = Field(default=None, max_length=500)
    context: str | None = None

    idle: ClassVar = {**CACHED, "citations": _CITES}
    told: ClassVar = ("citations",)


class SearchResultBlock(ClientModel):
    """What a search of the client's has found."""

    type: Literal["search_result"]
    source: str
    title: str
    content: Annotated[list[TextBlock], Field(fail_fast=True)]

    idle: ClassVar = {**CACHED, "citations": _CITES}
    told: ClassVar = ("citations",)


class ThinkingBlock(ClientModel):
    """What the model thought."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class RedactedThinkingBlock(ClientModel):
    """What the model thought, or how it said something, for the model alone."""

    type: Literal["redacted_thinking"]
    data: str = Field(min_length=1)


class ToolUseBlock(ClientModel):
    """A call that the model has made."""

    type: Literal["tool_use"]
    id: str = Field(min_length=1, max_length=256)
    name: str = Field(min_length=1, max_length=MAX_NAME, pattern=NAME)
    input: dict[str, Any]

    idle: ClassVar = {**CACHED, "caller": "The model is who calls.", "toolset_name": "There are no toolsets here."}


_InResult = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock
_Results = Annotated[list[Annotated[_InResult, Field(discriminator="type")]], Field(fail_fast=True)]


class ToolResultBlock(ClientModel):
    """What came of a call; `is_error`: it failed."""

    type: Literal["tool_result"]
    tool_use_id: str = Field(min_length=1, max_length=256)
    content: Annotated[_Results, or_text(as_text_parts, _Results, "text_or_blocks")] | None = None
    is_error: bool | None = None

    idle: ClassVar = {**CACHED, "toolset_name": "There are no toolsets here."}


_OfUser = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolResultBlock
_OfAssistant = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ServerBlock
Block = _OfUser | _OfAssistant
_UserBlocks = Annotated[list[Annotated[_OfUser, Field(discriminator="type")]], Field(fail_fast=True)]
_AssistantBlocks = Annotated[list[Annotated[_OfAssistant, Field(discriminator="type")]], Field(fail_fast=True)]
_TextBlocks = Annotated[list[TextBlock], Field(fail_fast=True)]
SystemText = Annotated[_TextBlocks, or_text(as_text_parts, _TextBlocks, "text_or_blocks")]


class MessagesUser(ClientModel):
    """What the user says, and what came of calls."""

    role: Literal["user"]
    content: Annotated[_UserBlocks, or_text(as_text_parts, _UserBlocks, "text_or_blocks")]


class MessagesAssistant(ClientModel):
    """What the model said."""

    role: Literal["assistant"]
    content: Annotated[_AssistantBlocks, or_text(as_text_parts, _AssistantBlocks, "text_or_blocks")]


class MessagesSystem(ClientModel):
    """What the developer says in the middle of a conversation."""

    role: Literal["system"]
    content: SystemText

    idle: ClassVar = {
        "clear_at": "Nothing is cleared here; the client sends what the model is to read.",
        "output_config": "That of the request counts.",
    }
    told: ClassVar = ("clear_at", "output_config")


Message = MessagesUser | MessagesAssistant | MessagesSystem
MESSAGES: dict[str, type[Message]] = {"user": MessagesUser, "assistant": MessagesAssistant, "system": MessagesSystem}


@dataclass(frozen=True, slots=True)
class ItemPlace:
    """Where an item comes from: a block, or a message several blocks of which are its parts."""

    at: str
    parts: Sequence[str] = ()  # where each part of the item stands
    names: Sequence[tuple[str, str]] = ()  # names of its fields, and what the client calls them


@dataclass(slots=True)
class MessageItems:
    """Messages as items of the Responses API."""

    items: list[JsonObject] = field(default_factory=list)
    places: list[ItemPlace] = field(default_factory=list)  # where each item comes from
    turns: list[PlacedTurn] = field(default_factory=list)  # what the assistant has said

    def name_of(self, index: int, rest: str) -> str:
        """Return the client's name of a field of an item."""
        if index >= len(self.places):
            return AT
        place = self.places[index]
        for part, name in enumerate(place.parts):
            for of in ("content", "output"):
                beginning = f".{of}[{part}]"
                if rest.startswith(beginning):
                    return name + (".source" if "image" in rest or "file" in rest else rest[len(beginning) :])
        for old, new in place.names:
            if rest == old:
                return place.at + new
        return place.at + rest


def read_messages(value: object) -> MessageItems:
    """Validate the messages of a request. Raises `ApiError` that names the message and the field."""
    if value is None:
        raise missing(AT)
    if not isinstance(value, list):
        raise wrong_type(AT, "an array of messages", value)
    if not value:
        raise invalid_request(f"{AT}: at least one message is required.", param=AT, code="empty_array")
    messages = [_message(each, f"{AT}[{index}]") for index, each in enumerate(value)]
    if isinstance(messages[-1], MessagesAssistant) and not _is_paused(messages[-1]):
        raise invalid_request(
            "The model here does not continue a message of the assistant's. The conversation must end with a message "
            "of the user.",
            param=f"{AT}[{len(messages) - 1}]",
            code="invalid_value",
        )
    reader = _ItemsOfMessages()
    for index, message in enumerate(messages):
        reader.take(message, f"{AT}[{index}]")
    return reader.read


def _is_paused(message: MessagesAssistant) -> bool:
    """Whether the model goes on by itself: its last block is the result of a call of the server's."""
    seen = [block for block in message.content if not isinstance(block, RedactedThinkingBlock)]
    return bool(seen) and isinstance(seen[-1], ServerResultBlock | McpToolResultBlock)


def _message(value: object, at: str) -> Message:
    if not isinstance(value, dict):
        raise wrong_type(at, "an object", value)
    role = value.get("role")
    if role is None:
        raise missing(f"{at}.role")
    if not isinstance(role, str) or role not in MESSAGES:
        known = ", ".join(map(repr, MESSAGES))
        raise invalid_value(f"{at}.role", f"{str(role)[:80]!r}. Supported values are: {known}.")
    return validate(MESSAGES[role], value, at=at)


class _ItemsOfMessages:
    """Makes items of messages, one after the other."""

    def __init__(self) -> None:
        self.read = MessageItems()
        self._calls: set[str] = set()  # the ids of the calls so far
        self._served = Unanswered[int]()  # places of the items of the server's calls
        self._parts: list[JsonObject] = []  # of the message that is being put together
        self._named: list[str] = []  # where each of them stands

    def take(self, message: Message, at: str) -> None:
        """Read the next message, which stands at this path."""
        begin = len(self.read.items)
        named = [f"{at}.content[{index}]" for index in range(len(message.content))]
        match message:
            case MessagesAssistant():
                self._assistant(message.content, named)
                self.read.turns.append(PlacedTurn(seen_turn(message.content), begin, len(self.read.items)))
            case MessagesUser() | MessagesSystem():
                if not message.content:
                    raise invalid_request(
                        f"'{at}.content': at least one block is required.", param=f"{at}.content", code="empty_array"
                    )
                role = "user" if isinstance(message, MessagesUser) else "developer"
                for block, name in zip(message.content, named, strict=True):
                    if isinstance(block, ToolResultBlock):
                        self._close(role, at)
                        self._result(block, name)
                    else:
                        parts = input_parts(block)
                        self._parts += parts
                        self._named += [name] * len(parts)
                self._close(role, at)

    def _assistant(self, blocks: Sequence[_OfAssistant], named: Sequence[str]) -> None:
        calls = any(isinstance(block, ToolUseBlock) for block in blocks)
        for block, name in zip(blocks, named, strict=True):
            match block:
                case TextBlock():
                    item: JsonObject = {"type": "message", "role": "assistant"}
                    item["content"] = [{"type": "output_text", "text": block.text}]
                    if calls:
                        item["phase"] = "commentary"
                    self._add(item, ItemPlace(name))
                case ThinkingBlock():
                    content = [{"type": "reasoning_text", "text": block.thinking}] if block.thinking else None
                    thought: JsonObject = {"type": "reasoning", "summary": []}
                    thought |= {"encrypted_content": block.signature} if block.signature else {}
                    self._add(thought | ({"content": content} if content else {}), ItemPlace(name, names=_SIGNATURE))
                case RedactedThinkingBlock():
                    hidden: JsonObject = {"type": "reasoning", "summary": [], "encrypted_content": block.data}
                    self._add(hidden, ItemPlace(name, names=_DATA))
                case ToolUseBlock():
                    self._calls.add(block.id)
                    self._add(
                        {
                            "type": "function_call",
                            "call_id": block.id,
                            "name": block.name,
                            "arguments": orjson.dumps(block.input).decode(),
                        },
                        ItemPlace(name, names=_CALL),
                    )
                case ServerToolUseBlock() | McpToolUseBlock():
                    self._served.add(block.id, len(self.read.items))
                    self._add(call_item(block), ItemPlace(name))
                case ServerResultBlock() | McpToolResultBlock():
                    self._server_result(block, name)
                case McpListingBlock():
                    self._add(listing_item(block), ItemPlace(name))
                case _:
                    assert_never(block)

    def _server_result(self, block: ResultBlock, name: str) -> None:
        place = self._served.answer(block.tool_use_id)
        if place is None:
            kind = "mcp_tool_use" if isinstance(block, McpToolResultBlock) else "server_tool_use"
            raise _orphan(block.tool_use_id, name, kind)
        self.read.items[place] = with_result(self.read.items[place], block)

    def _result(self, block: ToolResultBlock, name: str) -> None:
        if block.tool_use_id not in self._calls:
            raise _orphan(block.tool_use_id, name, "tool_use")
        parts = [part for each in block.content or () for part in input_parts(each)]
        if block.is_error:
            parts.insert(0, {"type": "input_text", "text": FAILED})
        is_text = len(parts) <= 1 and all(part["type"] == "input_text" for part in parts)
        output = "".join(str(part["text"]) for part in parts) if is_text else parts
        item: JsonObject = {"type": "function_call_output", "call_id": block.tool_use_id, "output": output}
        begin = 1 if block.is_error else 0
        named = [f"{name}.content[{max(0, index - begin)}]" for index in range(len(parts))]
        self._add(item, ItemPlace(name, named, _RESULT))

    def _close(self, role: str, at: str) -> None:
        """End the message that is being put together, if there is one."""
        if self._parts:
            place = ItemPlace(at, tuple(self._named))
            self._add({"type": "message", "role": role, "content": self._parts}, place)
            self._parts, self._named = [], []

    def _add(self, item: JsonObject, place: ItemPlace) -> None:
        self.read.items.append(item)
        self.read.places.append(place)


def _orphan(call_id: str, name: str, kind: str) -> ApiError:
    return invalid_request(
        f"'{name}.tool_use_id': there is no '{kind}' block with the id {call_id[:80]!r} before this result. "
        "Send the message of the assistant that made the call, too.",
        param=f"{name}.tool_use_id",
        code="invalid_value",
    )


FAILED = "The tool failed.\n"  # stands before what came of a call that has failed
_SIGNATURE = ((".encrypted_content", ".signature"),)
_DATA = ((".encrypted_content", ".data"),)
_CALL = ((".call_id", ".id"), (".arguments", ".input"))
_RESULT = ((".call_id", ".tool_use_id"), (".output", ".content"))


def seen_turn(blocks: Sequence[_OfAssistant]) -> SeenTurn:
    """Return the turn that a client gives back in a message of the assistant, as `prompt.replaying` knows it."""
    texts = [block.text for block in blocks if isinstance(block, TextBlock)]
    thoughts = [block.thinking for block in blocks if isinstance(block, ThinkingBlock) and block.thinking]
    calls = [
        (block.id, block.name, canonical(orjson.dumps(block.input).decode()))
        for block in blocks
        if isinstance(block, ToolUseBlock | UseBlock)
    ]
    return SeenTurn(BETWEEN.join(texts), BETWEEN.join(thoughts), tuple(calls))


def input_parts(block: TextBlock | ImageBlock | DocumentBlock | SearchResultBlock) -> list[JsonObject]:
    """Return the parts of a block in a message of the Responses API."""
    match block:
        case TextBlock():
            return [_text(block.text)]
        case ImageBlock(source=source):
            return [_IMAGES[source.type](source)]
        case DocumentBlock():
            return _document(block)
        case SearchResultBlock():
            body = "\n".join(each.text for each in block.content)
            return [_text(f"{block.title}\n{block.source}\n\n{body}")]


def _text(text: str) -> JsonObject:
    return {"type": "input_text", "text": text}


_IMAGES: dict[str, Callable[[Any], JsonObject]] = {
    "base64": lambda it: {"type": "input_image", "image_url": f"data:{it.media_type};base64,{it.data}"},
    "url": lambda it: {"type": "input_image", "image_url": it.url},
    "file": lambda it: {"type": "input_image", "file_id": it.file_id},
}


def _document(block: DocumentBlock) -> list[JsonObject]:
    """Return a document: its title and its context, and its content."""
    about = "\n".join(filter(None, (block.title, block.context)))
    before = [_text(about + "\n\n")] if about else []
    name: JsonObject = {"filename": block.title} if block.title else {}
    match block.source:
        case TextSource(data=text):
            return [*before, _text(text)]
        case ContentSource(content=content):
            return [*before, *(part for each in content for part in input_parts(each))]
        case Base64Source() as source:
            data = f"data:{source.media_type};base64,{source.data}"
            name = name or {"filename": "document.pdf"}
            return [*before, {"type": "input_file", "file_data": data, **name}]
        case UrlSource(url=url):
            return [*before, {"type": "input_file", "file_url": url}]
        case FileSource(file_id=file_id):
            return [*before, {"type": "input_file", "file_id": file_id}]
