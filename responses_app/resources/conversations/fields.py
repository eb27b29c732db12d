"""The Conversations API: its bodies, validated, and the objects it answers with.

`title` and `status` are this server's own, beside OpenAI's fields; null clears them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from typing_extensions import TypedDict

from responses_app.protocol.errors import ApiError, JsonObject, invalid_request, not_found, rate_limited
from responses_app.protocol.fields import (
    ClientModel,
    Metadata,
    Text,
    check_fields,
    check_metadata,
    missing,
    validate,
    wrong_type,
)
from responses_app.protocol.items.items import parse_items
from responses_app.protocol.items.resources import item_resource
from responses_app.protocol.json_text import json_size

MAX_ITEMS = 20  # that one request may add
ITEM_STATUSES = ("in_progress", "completed", "incomplete")
_CHECKED = ("message", "function_call", "function_call_output")  # of other items a status may be anything


class ConversationFields(ClientModel):
    """What a client may say of a conversation."""

    metadata: Metadata | None = None
    title: Annotated[Text, Field(max_length=512)] | None = None
    status: Annotated[Text, Field(max_length=512)] | None = None

    own: ClassVar = ("title", "status")


class NewConversationFields(ConversationFields):
    """The body of a create."""

    beside: ClassVar = ("items",)


class AddedItems(ClientModel):
    """A body that adds items."""

    beside: ClassVar = ("items",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRecord:
    """A conversation without its items."""

    id: str  # "conv_…"
    created_at: int  # Unix seconds
    metadata: Mapping[str, str]
    title: str = ""
    status: str = ""
    head: str = ""  # the response whose chain has the items up to `head_position`; "" for none
    head_position: int = 0  # 0 where there is no head
    version: int = 0  # counts all changes


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationEntry:
    """An item of a conversation, and where it stands."""

    position: int  # from 1 on; not without gaps, where items were deleted
    item: JsonObject
    created_at: int  # Unix seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationAppend:
    """What a response adds to its conversation: its input and its output, each item with an id.

    Where no change came since `read_version`, whose items the response read, it becomes the conversation's head.
    """

    conversation_id: str  # of the same project
    items: tuple[JsonObject, ...]  # in their order
    read_version: int  # of the conversation, when its items were read


@dataclass(frozen=True, slots=True, kw_only=True)
class NewConversation:
    """A conversation to be created; `items` may name others by their ids (`resolved`)."""

    metadata: Mapping[str, str]  # up to 16 pairs
    title: str
    status: str
    items: Sequence[JsonObject]  # may name others by their ids, see `resolved`


def parse_conversation(data: Mapping[str, object]) -> NewConversation:
    """Read the body of a create. Raises `ApiError` that names the field and says what it takes."""
    fields = _fields(NewConversationFields, data)
    items = _items(data["items"]) if data.get("items") is not None else []
    return NewConversation(
        metadata=fields.metadata or {}, title=fields.title or "", status=fields.status or "", items=items
    )


def parse_changes(data: Mapping[str, object]) -> JsonObject:
    """Read the body of an update: the fields to set, of which there must be one."""
    fields = _fields(ConversationFields, data)
    empty = {"metadata": {}, "title": "", "status": ""}
    # Only what the body names: null clears a field, and a field that is not there stays.
    changes: JsonObject = {name: getattr(fields, name) or empty[name] for name in empty if name in data}
    if not changes:
        raise missing("metadata")
    return changes


def parse_added_items(data: Mapping[str, object]) -> Sequence[JsonObject]:
    """Read the items of a body that adds some."""
    check_fields(AddedItems, data)
    if data.get("items") is None:
        raise missing("items")
    return _items(data["items"])


def references(items: Sequence[JsonObject]) -> set[str]:
    """Return the ids of the items that these name."""
    return {str(item["id"]) for item in items if item["type"] == "item_reference"}


def resolved(items: Sequence[JsonObject], known: Mapping[str, JsonObject]) -> list[JsonObject]:
    """Return items with those they name in their place. Raises `ApiError` for one that is not known."""
    whole = []
    for index, item in enumerate(items):
        if item["type"] == "item_reference":
            item_id = str(item["id"])
            if item_id not in known:
                raise _unknown_reference(f"items[{index}].id", item_id)
            item = known[item_id]
        whole.append(item)
    return whole


class Conversation(TypedDict):
    """A conversation; `title` and `status` are this server's own fields."""

    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]
    title: str | None
    status: str | None


class DeletedConversation(TypedDict):
    """A conversation is gone."""

    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]


def conversation_object(record: ConversationRecord) -> Conversation:
    """Return a conversation as clients read it."""
    return {
        "id": record.id,
        "object": "conversation",
        "created_at": record.created_at,
        "metadata": dict(record.metadata),
        "title": record.title or None,
        "status": record.status or None,
    }


def item_object(item: JsonObject, *, created_at: int) -> JsonObject:
    """Return a conversation's item as clients read it."""
    return {**item_resource(item), "created_at": created_at}


def item_not_found(conversation_id: str, item_id: str) -> ApiError:
    """The conversation has no such item, or not any more (404)."""
    message = f"Item with id '{item_id[:80]}' not found in conversation '{conversation_id[:80]}'."
    return not_found(message, param="item_id")


def too_many_conversations(maximum: int) -> ApiError:
    """The project has as many conversations as it may have (429)."""
    return rate_limited(
        f"There are {maximum} conversations already, and this server keeps no more (CONVERSATIONS_MAX_ENTRIES). "
        "Delete some, or ask the operator to raise it."
    )


def _fields(model: type[ConversationFields], data: Mapping[str, object]) -> ConversationFields:
    json_size({name: data[name] for name in model.model_fields if name in data})
    fields = validate(model, data)
    check_metadata(fields.metadata)
    return fields


def _items(value: object) -> list[JsonObject]:
    if not isinstance(value, list):
        raise wrong_type("items", "an array of items", value)
    if len(value) > MAX_ITEMS:
        raise invalid_request(
            f"Invalid value for 'items': there are {len(value)}. A request adds at most {MAX_ITEMS} items; send the "
            "others in another one.",
            param="items",
            code="invalid_value",
        )
    json_size({"items": value})
    _, items = parse_items(value, at="items")
    for index, item in enumerate(items):
        _check_kept(item, f"items[{index}]")
    return items


def _check_kept(item: JsonObject, at: str) -> None:
    """Refuse what is read in a request, but is nothing to keep."""
    if item["type"] == "compaction_trigger":
        raise invalid_request(
            f"Invalid value for '{at}.type': 'compaction_trigger' is an instruction, which no conversation keeps.",
            param=f"{at}.type",
            code="invalid_value",
        )
    status = item.get("status")
    if item["type"] in _CHECKED and status is not None and status not in ITEM_STATUSES:
        raise invalid_request(
            f"Invalid value for '{at}.status': {str(status)[:80]!r}. "
            f"Supported values are: {', '.join(map(repr, ITEM_STATUSES))}.",
            param=f"{at}.status",
            code="invalid_value",
        )


def _unknown_reference(param: str, item_id: str) -> ApiError:
    return invalid_request(f"Item with id '{item_id[:80]}' not found ('{param}'). Send the item itself.", param=param)
