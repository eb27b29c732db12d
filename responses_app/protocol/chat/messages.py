"""The messages of a chat, validated, and as the items that the Responses API has for them.

system, developer      instructions, where they stand before all others; else a message
user                   a message
assistant              what it thought, what it said, and its calls: an item each
tool, function         what came of a call
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from engine.formats.base import Unanswered
from responses_app.protocol.errors import JsonObject, invalid_request
from responses_app.protocol.fields import (
    BREAKPOINT,
    ClientModel,
    as_text_parts,
    missing,
    one_of,
    or_text,
    validate,
    wrong_type,
)
from responses_app.protocol.items.calls import MAX_NAME, NAME
from responses_app.protocol.items.spelling import canonical
from responses_app.protocol.prompt.replaying import SeenTurn

AT = "messages"
OLD_CALL_ID = "call_of_message_"  # of a `function_call`, which has no id: with the number of its message


class ChatText(ClientModel):
    """Text."""

    type: Literal["text"]
    text: str

    idle: ClassVar = BREAKPOINT


class ChatRefusal(ClientModel):
    """What an assistant said in place of an answer."""

    type: Literal["refusal"]
    refusal: str


class ImageUrl(ClientModel):
    """Where an image is, or the image itself as a data URL."""

    url: str = Field(min_length=1)
    detail: Literal["auto", "low", "high", "original"] | None = None


class ChatImage(ClientModel):
    """An image."""

    type: Literal["image_url"]
    image_url: ImageUrl

    idle: ClassVar = BREAKPOINT


class ChatFileContent(ClientModel):
    """A file that was uploaded, or the file itself."""

    file_id: str | None = None
    file_data: str | None = Field(default=None, repr=False)
    filename: str | None = None


class ChatFile(ClientModel):
    """A file."""

    type: Literal["file"]
    file: ChatFileContent

    idle: ClassVar = BREAKPOINT


class ChatAudio(ClientModel):
    """A sound; no model here hears it, so a note stands for it."""

    type: Literal["input_audio"]
    input_audio: dict[str, Any]

    idle: ClassVar = BREAKPOINT


_Texts = Annotated[list[ChatText], Field(fail_fast=True)]
Texts = Annotated[_Texts, or_text(as_text_parts, _Texts)]


class ChatThinking(ClientModel):
    """A thought of the model within its content, as clients of Mistral's models keep it."""

    type: Literal["thinking"]
    thinking: Texts

    idle: ClassVar = {"closed": "Whether the thought had ended; it is read as one that has."}
    own: ClassVar = ("thinking", "closed")


_Part = Annotated[ChatText | ChatRefusal | ChatImage | ChatFile | ChatAudio, Field(discriminator="type")]
_Parts = Annotated[list[_Part], Field(fail_fast=True)]
Content = Annotated[_Parts, or_text(as_text_parts, _Parts)]
_SaidPart = Annotated[
    ChatText | ChatThinking | ChatRefusal | ChatImage | ChatFile | ChatAudio, Field(discriminator="type")
]
_SaidParts = Annotated[list[_SaidPart], Field(fail_fast=True)]
_Said = Annotated[_SaidParts, or_text(as_text_parts, _SaidParts)]


_GIVEN_BACK = "SDKs give it back as they got it; the model does not read it."


_ECHOED = ("annotations", "parsed", "provider_specific_fields")  # of answers; the last one is LiteLLM's


class CalledFunction(ClientModel):
    """A function with its arguments, which are JSON as text."""

    name: str = Field(min_length=1, max_length=MAX_NAME, pattern=NAME)
    arguments: str = ""

    idle: ClassVar = {"parsed_arguments": _GIVEN_BACK}
    own: ClassVar = ("parsed_arguments",)


class CalledCustom(ClientModel):
    """A custom tool with its input, which is any text."""

    name: str = Field(min_length=1, max_length=MAX_NAME, pattern=NAME)
    input: str = ""


class ToolCall(ClientModel):
    """A call that the assistant has made; it has the object of its type."""

    id: str = Field(min_length=1, max_length=256)
    type: Literal["function", "custom"] = "function"
    function: CalledFunction | None = None
    custom: CalledCustom | None = None

    idle: ClassVar = dict.fromkeys(("index", "provider_specific_fields"), _GIVEN_BACK)  # of a delta, and LiteLLM's
    own: ClassVar = ("index", "provider_specific_fields")


_NAMED = {"name": "What the model reads has no place for who speaks: say it in the text."}


class SystemMessage(ClientModel):
    """What the developer says."""

    role: Literal["system", "developer"]
    content: Texts

    idle: ClassVar = _NAMED
    told: ClassVar = ("name",)


class UserMessage(ClientModel):
    """What the user says."""

    role: Literal["user"]
    content: Content

    idle: ClassVar = _NAMED
    told: ClassVar = ("name",)


class AssistantMessage(ClientModel):
    """A message of the model: its thoughts may come back under either name, or as parts of the content."""

    role: Literal["assistant"]
    content: _Said | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    function_call: CalledFunction | None = None

    idle: ClassVar = {
        **_NAMED,
        "audio": "The text of what was said is in 'content'.",
        **dict.fromkeys(_ECHOED, _GIVEN_BACK),
    }
    told: ClassVar = ("name",)
    own: ClassVar = ("reasoning", "reasoning_content", *_ECHOED)


class ToolMessage(ClientModel):
    """What came of a call."""

    role: Literal["tool"]
    tool_call_id: str = Field(min_length=1, max_length=256)
    content: Content

    idle: ClassVar = {"name": "The call says it, which this answers."}
    own: ClassVar = ("name",)


class FunctionMessage(ClientModel):
    """What came of the last `function_call`: the older form."""

    role: Literal["function"]
    name: str = Field(min_length=1, max_length=MAX_NAME, pattern=NAME)
    content: Content | None = None


ChatMessage = SystemMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage
MESSAGES: dict[str, type[ChatMessage]] = {  # by their roles
    "system": SystemMessage,
    "developer": SystemMessage,
    "user": UserMessage,
    "assistant": AssistantMessage,
    "tool": ToolMessage,
    "function": FunctionMessage,
}


@dataclass(frozen=True, slots=True)
class AssistantTurn:
    """A message of the assistant, and which items it became."""

    message: AssistantMessage
    begin: int  # the place of its first item
    end: int  # and that behind its last one; the same where it has none


@dataclass(slots=True)
class ChatItems:
    """Messages of a chat as items of the Responses API."""

    # Of the messages of the developer that stand before all others; None: there are none.
    instructions: str | None = None
    items: list[JsonObject] = field(default_factory=list)
    places: list[int] = field(default_factory=list)  # the number of each item's message
    turns: list[AssistantTurn] = field(default_factory=list)  # the assistant's messages


def read_messages(value: object) -> ChatItems:
    """Validate the messages of a chat. Raises `ApiError` that names the message and the field."""
    if value is None:
        raise missing(AT)
    if not isinstance(value, list):
        raise wrong_type(AT, "an array of messages", value)
    if not value:
        raise invalid_request(
            f"Invalid '{AT}': empty array. Expected at least one message.", param=AT, code="empty_array"
        )
    messages = [_message(each, f"{AT}[{index}]") for index, each in enumerate(value)]
    reader = _ItemsOfChat()
    # How many messages of the developer stand before all others; none where there are no others.
    leading = next((index for index, each in enumerate(messages) if not isinstance(each, SystemMessage)), 0)
    for index, message in enumerate(messages):
        if index >= leading and not _is_remnant(message, messages[index + 1 : index + 2]):
            reader.take(message, index)
    if leading:
        texts = [part.text for each in messages[:leading] if isinstance(each, SystemMessage) for part in each.content]
        reader.read.instructions = "\n\n".join(texts)
    return reader.read


def _message(value: object, at: str) -> ChatMessage:
    if not isinstance(value, dict):
        raise wrong_type(at, "an object", value)
    message = validate(MESSAGES[one_of(f"{at}.role", value.get("role"), MESSAGES)], value, at=at)
    if not isinstance(message, AssistantMessage):
        return message
    for index, call in enumerate(message.tool_calls or ()):
        if (call.function if call.type == "function" else call.custom) is None:
            raise missing(f"{at}.tool_calls[{index}].{call.type}")
    fields = (message.content, message.refusal, message.reasoning, message.reasoning_content, message.function_call)
    if not message.tool_calls and all(each is None for each in fields):
        raise missing(f"{at}.content")
    return message


def _is_remnant(message: ChatMessage, following: Sequence[ChatMessage]) -> bool:
    """Whether it is left of an answer whose stream broke before its first word: the next one is whole."""
    if not isinstance(message, AssistantMessage) or not any(isinstance(each, AssistantMessage) for each in following):
        return False
    if message.tool_calls or message.function_call or message.refusal or reasoning_of(message):
        return False
    return all(isinstance(part, ChatText) and not part.text for part in message.content or ())


class _ItemsOfChat:
    """Makes items of messages, one after the other."""

    def __init__(self) -> None:
        self.read = ChatItems()
        self._calls = Unanswered[str]()  # the types of their items
        self._old_calls = Unanswered[str]()  # the ids of each `function_call`, by the names of functions
        self._old_call = ""  # the id of the last one

    def take(self, message: ChatMessage, index: int) -> None:
        """Read the next message, which is the `index`-th of its request."""
        begin = len(self.read.items)
        match message:
            case SystemMessage() | UserMessage():
                self._calls.next_turn()
                content = [_input_part(part) for part in message.content]
                self._add({"type": "message", "role": message.role, "content": content})
            case AssistantMessage():
                self._assistant(message, index)
                self.read.turns.append(AssistantTurn(message, begin, len(self.read.items)))
            case ToolMessage(tool_call_id=call_id):
                # A message of the role `tool` does not say what kind of call it answers.
                kind = self._calls.answer(call_id) or self._calls.latest(call_id) or "function_call"
                self._add({"type": f"{kind}_output", "call_id": call_id, "output": _output(message.content)})
            case FunctionMessage():
                # Without a call before it the id names nothing, and is refused as such.
                call_id = self._old_calls.answer(message.name) or self._old_call or f"{OLD_CALL_ID}{index}"
                self._add({"type": "function_call_output", "call_id": call_id, "output": _output(message.content)})
        self.read.places += [index] * (len(self.read.items) - begin)

    def _assistant(self, message: AssistantMessage, index: int) -> None:
        thought = reasoning_of(message)
        if thought:
            self._add({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": thought}]})
        parts = [
            {"type": "output_text", "text": part.text} if isinstance(part, ChatText) else _input_part(part)
            for part in message.content or ()
            if not isinstance(part, ChatThinking)
        ]
        parts += [{"type": "refusal", "refusal": message.refusal}] if message.refusal else []
        calls = list(message.tool_calls or ())
        # An empty text beside calls is what SDKs send for none: it is not an item.
        if any(part.get("text") or part.get("refusal") for part in parts) or not (calls or message.function_call):
            # Text beside calls is a word before them, not the answer.
            phase = {"phase": "commentary"} if calls or message.function_call else {}
            # A message of a thought alone was cut before its answer.
            if parts or not thought:
                self._add({"type": "message", "role": "assistant", "content": parts, **phase})
        for call in calls:
            self._call(call)
        if message.function_call is not None:
            self._old_call = f"{OLD_CALL_ID}{index}"
            self._old_calls.add(message.function_call.name, self._old_call)
            self._add({"type": "function_call", "call_id": self._old_call, **message.function_call.model_dump()})

    def _call(self, call: ToolCall) -> None:
        if call.type == "custom":
            assert call.custom is not None, "checked when it was read"
            self._add({"type": "custom_tool_call", "call_id": call.id, **call.custom.model_dump()})
        else:
            assert call.function is not None, "checked when it was read"
            self._add({"type": "function_call", "call_id": call.id, **call.function.model_dump()})
        self._calls.add(call.id, str(self.read.items[-1]["type"]))

    def _add(self, item: JsonObject) -> None:
        self.read.items.append(item)


def reasoning_of(message: AssistantMessage) -> str:
    """Return the model's thought, as its client gives it back; "" where it does not."""
    thoughts = (part.thinking for part in message.content or () if isinstance(part, ChatThinking))
    return message.reasoning or message.reasoning_content or "".join(text.text for each in thoughts for text in each)


def seen_turn(message: AssistantMessage) -> SeenTurn:
    """Return the turn that a client gives back; an empty one where there is more than text and calls.

    That is not remembered: see `prompt.replaying`.
    """
    parts = message.content or ()
    if message.function_call is not None or message.refusal or any(not isinstance(part, ChatText) for part in parts):
        return SeenTurn("", "", ())
    calls = []
    for call in message.tool_calls or ():
        if call.custom is not None and call.type == "custom":
            calls.append((call.id, call.custom.name, call.custom.input))
        elif call.function is not None:
            calls.append((call.id, call.function.name, canonical(call.function.arguments)))
    text = "".join(part.text for part in parts if isinstance(part, ChatText))
    return SeenTurn(text, reasoning_of(message), tuple(calls))


def _input_part(part: ClientModel) -> JsonObject:
    match part:
        case ChatText():
            return {"type": "input_text", "text": part.text}
        case ChatImage(image_url=image):
            return {"type": "input_image", "image_url": image.url, "detail": image.detail or "auto"}
        case ChatFile(file=file):
            return {"type": "input_file", **file.model_dump(exclude_none=True)}
    return part.model_dump()


def _output(parts: Sequence[ClientModel] | None) -> str | list[JsonObject]:
    """Return the output of a call: its text where it is one text, as nearly always."""
    read = [_input_part(part) for part in parts or ()]
    if len(read) <= 1 and all(part["type"] == "input_text" for part in read):
        return str(read[0]["text"]) if read else ""
    return read
