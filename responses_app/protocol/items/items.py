"""The input items a request may carry, validated.

An item without `type` but with a `role` is an easy-input message (the SDKs send those). Items of other tools than
functions pass through untouched and are never refused: an agent that has one in its history sends it with every turn.
Ids are kept, and need not be known here, since clients make their own.
"""

import hashlib
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from engine.formats.base import RenderedMessage
from responses_app.protocol import ids
from responses_app.protocol.errors import JsonObject, invalid_value, unsupported_parameter
from responses_app.protocol.fields import (
    BREAKPOINT,
    KEPT,
    ClientModel,
    as_text_parts,
    is_of_client,
    missing,
    or_text,
    validate,
    wrong_type,
)
from responses_app.protocol.files.containers import without_values
from responses_app.protocol.items.calls import CLIENT_KINDS, MAX_NAME, NAME, called_name
from responses_app.protocol.items.compaction import Compacted
from responses_app.protocol.items.spelling import canonical

PASSED_THROUGH = frozenset(
    "additional_tools agent_message apply_patch_call apply_patch_call_output code_interpreter_call "
    "computer_call computer_call_output configuration_update custom_tool_call custom_tool_call_output "
    "file_search_call image_generation_call local_shell_call local_shell_call_output mcp_approval_request "
    "mcp_approval_response mcp_call mcp_list_tools multi_agent_call multi_agent_call_output program "
    "program_output shell_call shell_call_output tool_search_call tool_search_output web_search_call".split()
)
_HAVE_TOOLS = ("additional_tools", "tool_search_output")
_CREDENTIALS = ("headers", "authorization")  # of a tool of MCP
REFUSED_ITEMS = {  # as clients send them: what was kept of one is not read
    "configuration_update": "Set 'reasoning' and 'text' in the request itself: they hold for its response.",
}


class TextPart(ClientModel):
    """Text the model reads."""

    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"]
    text: str

    idle: ClassVar = {**dict.fromkeys(("annotations", "logprobs", "parsed"), KEPT), **BREAKPOINT}
    own: ClassVar = ("parsed",)  # which SDKs add


class RefusalPart(ClientModel):
    """What the model said instead of an answer."""

    type: Literal["refusal"]
    refusal: str


# The head of a data URL: `data:image/png;base64,`.
_IMAGE = re.compile(r"data:image/[a-z0-9.+-]+;base64,", re.IGNORECASE)
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]*")  # any part of base64, which may be broken into lines
# Its end, with up to two `=`; at least one character stands before them.
_BASE64_END = re.compile(r"[A-Za-z0-9+/\s]*[A-Za-z0-9+/]\s*={0,2}\s*")
_LOOKED_AT = 256 * 1024  # characters at both ends: a look at 30 MB would hold the interpreter for half a second


def _is_image(url: str) -> bool:
    """Whether a data URL has an image's type, and base64 at its beginning and at its end."""
    head = _IMAGE.match(url)
    if head is None:
        return False
    # Of a long text the beginning and the end are looked at, of a short one all.
    last = max(head.end(), len(url) - _LOOKED_AT)
    begins = _BASE64.fullmatch(url, head.end(), min(head.end() + _LOOKED_AT, last))
    return begins is not None and _BASE64_END.fullmatch(url, last) is not None


def _checked_url(url: object) -> object:
    """Refuse an image in a data URL that is none."""
    if isinstance(url, str) and url[:5].lower() == "data:" and is_of_client() and not _is_image(url):
        raise PydanticCustomError(
            "data_url",
            "Input should be a base64-encoded data URL with an image MIME type, like 'data:image/png;base64,aW1hZ2U='",
        )
    return url


class MediaPart(ClientModel):
    """An image, file or sound; a note replaces what the model can neither read nor see."""

    type: Literal["input_image", "computer_screenshot", "input_file", "input_audio"]
    filename: str | None = None
    file_id: str | None = None
    file_data: str | None = Field(default=None, repr=False)
    image_url: Annotated[Any, AfterValidator(_checked_url)] = Field(default=None, repr=False)
    detail: Any = None  # "low": a small picture is enough

    beside: ClassVar = ("file_url", "input_audio")
    own: ClassVar = ("input_audio",)
    idle: ClassVar = BREAKPOINT


class OmittedFile(MediaPart):
    """A file of which the model reads a note. No client sends one."""

    type: Literal["input_file"] = "input_file"
    note: str


class SeenImage(MediaPart):
    """An image that the model sees. No client sends one."""

    type: Literal["input_image"] = "input_image"
    digest: str  # of the picture that it is


Part = Annotated[TextPart | RefusalPart | MediaPart, Field(discriminator="type")]


Parts = Annotated[list[Part], Field(fail_fast=True)]  # else pydantic would describe each of 100,000 wrong parts
Content = Annotated[Parts, or_text(as_text_parts, Parts)]


@dataclass(frozen=True, slots=True)
class Exact:
    """What an item was sampled as."""

    format: str  # the name of the model format whose tokens these are
    messages: Sequence[RenderedMessage]  # none: the item is not read at all


class SampledInput(ClientModel):
    """An item that the model may have sampled. `exact` is what it sampled, where a seal tells that."""

    exact: ClassVar[Exact | None] = None  # no field: no client can set it, and the items that have none pay nothing

    def with_exact(self, exact: Exact) -> Self:
        """Return the item with what it was sampled as."""
        copy = self.model_copy()
        # Past pydantic: the class attribute is not a field, and the model is frozen.
        object.__setattr__(copy, "exact", exact)
        return copy


AGENT = {"agent": "It says whose item it is: what agents below the root have said and read is not read again."}


class Message(SampledInput):
    """Something a user, developer, system or assistant said."""

    type: Literal["message"] = "message"
    id: str | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    phase: Literal["commentary", "final_answer"] | None = None

    idle: ClassVar = {"status": KEPT, **AGENT}
    own: ClassVar = ("agent",)


class Reasoning(SampledInput):
    """What the model thought in an earlier turn."""

    type: Literal["reasoning"]
    id: str | None = None
    content: Parts | None = None
    summary: Parts = Field(default_factory=list)
    encrypted_content: str | None = None

    idle: ClassVar = {"status": KEPT, **AGENT}
    own: ClassVar = ("agent",)


class FunctionCall(SampledInput):
    """A call the model made in an earlier turn, perhaps with what came of it."""

    type: Literal["function_call"]
    id: str | None = None
    call_id: str = Field(min_length=1, max_length=256)
    name: str = Field(min_length=1, max_length=MAX_NAME, pattern=NAME)
    namespace: str | None = Field(default=None, max_length=MAX_NAME, pattern=NAME)
    arguments: str
    status: Any = None
    output: Any = None  # what the function gave back: some clients put it here

    idle: ClassVar = {**dict.fromkeys(("async", "caller", "parsed_arguments"), KEPT), **AGENT}
    own: ClassVar = ("output", "parsed_arguments", "agent")

    @property
    def called(self) -> str:
        """What the model called."""
        return called_name(self.name, self.namespace)


class NamelessCall(FunctionCall):
    """A call that comes back `completed` with its `call_id` alone; the response that made it has the rest."""

    name: str = ""
    arguments: str = ""


class FunctionCallOutput(ClientModel):
    """What the client's function gave back."""

    type: Literal["function_call_output"]
    id: str | None = None
    call_id: str = Field(min_length=1, max_length=256)
    output: Content

    idle: ClassVar = {**dict.fromkeys(("status", "caller", "name", "namespace"), KEPT), **AGENT}
    own: ClassVar = ("agent",)


class ItemReference(ClientModel):
    """An item this server keeps, named by its id."""

    type: Literal["item_reference"]
    id: str = Field(min_length=1, max_length=256)


class Compaction(ClientModel):
    """A sealed summary of what came before."""

    type: Literal["compaction"]
    id: str | None = None
    encrypted_content: str = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class OpenedCompaction:
    """A compaction whose seal is good: what the model reads in its place."""

    compacted: Compacted
    id: str | None = None
    type: Literal["compaction"] = "compaction"


class CompactionTrigger(ClientModel):
    """Asks for a compaction of everything before it, and for nothing else."""

    type: Literal["compaction_trigger"]
    id: str | None = None


class PassedThrough(SampledInput):
    """An item of another tool than a function: its JSON is kept, and `tool_items` reads it."""

    open: ClassVar = True

    type: Annotated[str, WithJsonSchema({"type": "string", "enum": sorted(PASSED_THROUGH)})]
    id: str | None = None

    seen: ClassVar[JsonObject | None] = None  # its JSON with pictures in it, where there are any; no field, as `exact`

    def with_seen(self, seen: JsonObject) -> Self:
        """Return the item with its pictures."""
        copy = self.model_copy()
        object.__setattr__(copy, "seen", seen)
        return copy


_Read = Message | Reasoning | FunctionCall | FunctionCallOutput | ItemReference | Compaction | CompactionTrigger
ParsedItem = _Read | PassedThrough
InputItem = ParsedItem | OpenedCompaction

MODELS: dict[str, type[_Read]] = {
    "message": Message,
    "reasoning": Reasoning,
    "function_call": FunctionCall,
    "function_call_output": FunctionCallOutput,
    "item_reference": ItemReference,
    "compaction": Compaction,
    "compaction_trigger": CompactionTrigger,
}
# Codex keeps compactions of OpenAI's under these names, too, and sends them with every turn.
_SYNONYMS = {"compaction_summary": "compaction", "context_compaction": "compaction"}


@dataclass(frozen=True, slots=True)
class SampledMessage:
    """An output item that this server still knows."""

    id: str
    fingerprint: str  # a digest of what clients see of it
    message: RenderedMessage  # what the model sampled for it

    def is_replayed_by(self, item: JsonObject) -> bool:
        """Whether a client gives the item back with its visible content unchanged.

        Reasoning may come back without its text: clients that only keep the encrypted form leave it out.
        """
        if item.get("type") == "reasoning" and not item.get("content"):
            return True
        # Those of older versions are of the arguments as they were spelled.
        return self.fingerprint in (fingerprint(item), _digest_of_seen(item))


def fingerprint(item: JsonObject) -> str:
    """Digest what a client sees of an output item: its type and texts, not its decorations (annotations, status).

    The arguments of a call count as JSON, however they are spelled.
    """
    arguments = item.get("arguments")
    return _digest_of_seen({**item, "arguments": canonical(arguments)} if isinstance(arguments, str) else item)


def _digest_of_seen(item: JsonObject) -> str:
    seen = [item.get(name) for name in ("type", "call_id", "name")]
    arguments = item.get("arguments")  # digests are kept: what this makes of an item may never change
    seen.append(_without_nulls(arguments) if isinstance(arguments, dict) else arguments)
    seen += [_without_nulls(item[name]) for name in ("input", "action", "operation") if item.get(name) is not None]
    parts = item.get("content")
    if isinstance(parts, str):
        seen.append(parts)
    elif isinstance(parts, list):
        seen += [part.get("text") for part in parts if isinstance(part, dict)]
    return hashlib.blake2b(repr(seen).encode(), digest_size=16).hexdigest()


def _without_nulls(value: object) -> object:
    """Return an object with its fields in one order and without nulls, which some SDKs add and others leave out."""
    if not isinstance(value, dict):
        return value
    return {name: _without_nulls(each) for name, each in sorted(value.items()) if each is not None}


def parse_input(value: object, *, nameless: bool = False) -> tuple[list[ParsedItem], list[JsonObject]]:
    """Validate a request's `input`: the items, and beside them their JSON as it is kept and given back."""
    if value is None:
        return [], []
    if isinstance(value, str):
        value = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": value}]}]
    if not isinstance(value, list):
        raise wrong_type("input", "a string or an array of items", value)
    return parse_items(value, at="input", nameless=nameless)


def parse_items(values: list[Any], *, at: str, nameless: bool = False) -> tuple[list[ParsedItem], list[JsonObject]]:
    """Validate a list of items, which stands at the path `at` of the request; `nameless`: see `NamelessCall`."""
    parsed = [_parse_item(value, f"{at}[{index}]", nameless) for index, value in enumerate(values)]
    return parsed, [_kept(item, raw) for item, raw in zip(parsed, values, strict=True)]


def _parse_item(value: object, at: str, nameless: bool) -> ParsedItem:
    if not isinstance(value, dict):
        raise wrong_type(at, "an object", value)
    kind = value.get("type") or ("message" if "role" in value else None)
    if kind is None:
        raise missing(f"{at}.type")
    if not isinstance(kind, str):
        raise wrong_type(f"{at}.type", "a string", kind)
    if nameless and kind == "function_call" and value.get("status") == "completed" and value.get("name") is None:
        return validate(NamelessCall, {name: each for name, each in value.items() if each is not None}, at=at)
    kind = _SYNONYMS.get(kind, kind)
    if kind in MODELS:
        return validate(MODELS[kind], {**value, "type": kind}, at=at)
    if kind in REFUSED_ITEMS and is_of_client():
        raise unsupported_parameter(at, REFUSED_ITEMS[kind])
    if kind in PASSED_THROUGH:
        return validate(PassedThrough, value, at=at)
    known = ", ".join(sorted(PASSED_THROUGH.union(MODELS)))
    raise invalid_value(f"{at}.type", f"{kind[:80]!r}. Supported values are: {known}.")


def _kept(item: ParsedItem, raw: Mapping[str, object]) -> JsonObject:
    """Return an item's JSON in its full form: an easy-input message becomes a message with parts."""
    kept = {**raw, "type": item.type}
    if isinstance(item, Message) and isinstance(raw["content"], str):
        part = "output_text" if item.role == "assistant" else "input_text"
        kept["content"] = [{"type": part, "text": raw["content"]}]
    if item.type == "shell_call":
        return without_values(kept)
    if item.type in _HAVE_TOOLS and isinstance(tools := kept.get("tools"), list):
        kept["tools"] = [_without_credentials(each) if isinstance(each, dict) else each for each in tools]
    return kept


def _without_credentials(tool: JsonObject) -> JsonObject:
    """Return a tool that stands in an item, without what is never kept of the tools of a request either."""
    if tool.get("type") == "mcp":
        return {name: value for name, value in tool.items() if name not in _CREDENTIALS}
    return without_values(tool)


MAX_ID = 64  # characters; longer ones, which some clients make, get another id
PREFIXES: dict[str, str] = {
    "message": ids.MESSAGE,
    "reasoning": ids.REASONING,
    "function_call": ids.FUNCTION_CALL,
    "function_call_output": ids.FUNCTION_CALL_OUTPUT,
    "custom_tool_call": ids.CUSTOM_TOOL_CALL,
    **{kind.item: kind.prefix for kind in CLIENT_KINDS.values()},
    "compaction": ids.COMPACTION,
}


def identified(
    items: Sequence[JsonObject], new_id: Callable[[str], str], *, taken: Container[str] = ()
) -> list[JsonObject]:
    """Return items that each have an id; one that is not usable, or `taken`, or there twice, is replaced."""
    seen: set[str] = set()
    kept = []
    for item in items:
        own = item.get("id")
        usable = isinstance(own, str) and 0 < len(own) <= MAX_ID and own.isascii() and own.isprintable()
        # Clients name items by their ids, so two of one list must never share one.
        if not usable or own in seen or own in taken:
            own = new_id(PREFIXES.get(str(item["type"]), ids.ITEM))
        seen.add(str(own))
        kept.append({**item, "id": own})
    return kept
