"""The fields of requests and answers of `/v1/conversations`, what a response appends, and errors.

`title` and `status` are this server's own, beside OpenAI's fields; null clears them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field
from typing_extensions import TypedDict

from responses_app.kit.clock import unix
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
from responses_app.protocol.setting import RoomSettings, setting, whole

if TYPE_CHECKING:
    from responses_app.resources.conversations import model

MAX_ITEMS = 20  # that one request may add
ITEM_STATUSES = ("in_progress", "completed", "incomplete")
_CHECKED = ("message", "function_call", "function_call_output")  # of other items a status may be anything


@dataclass(frozen=True, kw_only=True)
class ConversationSettings(RoomSettings):
    """How many conversations are kept."""

    conversations_max_entries: int = setting(0, whole(), "conversations that one project may have; 0 = no limit")


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
class ConversationAppend:
    """What a response adds to its conversation: its input and its output, each item with an id.

    Where no change came since `read_version`, whose items the response read, it becomes the conversation's head.
    """

    conversation_id: str  # of the same project
    items: tuple[JsonObject, ...]  # in their order
    read_version: int  # of the conversation, when its items were read


def parse_conversation(data: Mapping[str, object]) -> tuple[JsonObject, Sequence[JsonObject]]:
    """Return the columns that the body of a create names, and its items, which may name others by ids (`resolved`).

    Raises `ApiError` that names the field and says what it takes.
    """
    columns = _columns(NewConversationFields, data)
    return columns, _items(data["items"]) if data.get("items") is not None else []


def parse_changes(data: Mapping[str, object]) -> JsonObject:
    """Return the columns that the body of an update sets, of which there must be one. Raises `ApiError`."""
    columns = _columns(ConversationFields, data)
    if not columns:
        raise missing("metadata")
    return columns


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


def shown(row: "model.Conversation") -> Conversation:
    """Return a conversation as clients see it."""
    return {
        "id": row.pk,
        "object": "conversation",
        "created_at": unix(row.created_at),
        "metadata": row.metadata,
        "title": row.title or None,
        "status": row.status or None,
    }


def shown_item(row: "model.ConversationItem") -> JsonObject:
    """Return a conversation's item as clients see it."""
    return {**item_resource(row.item), "created_at": unix(row.created_at)}


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


def _columns(body: type[ConversationFields], data: Mapping[str, object]) -> JsonObject:
    """Return the columns of a conversation that a body names; null clears one."""
    json_size({name: data[name] for name in body.model_fields if name in data})
    fields = validate(body, data)
    check_metadata(fields.metadata)
    cleared: JsonObject = {"metadata": {}, "title": "", "status": ""}
    return {name: getattr(fields, name) or empty for name, empty in cleared.items() if name in data}


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
