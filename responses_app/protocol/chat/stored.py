"""What is kept of a chat completion that is stored, beside the responses that its choices are.

    response of choice 0   StoredChoice(count=2, chat=StoredChat(…))     what was asked, and how it is worded
    response of choice 1   StoredChoice(count=2, place=1, first=…)       where it belongs

The completion is made of these responses whenever it is read: nothing that the model has said is kept twice. One whose
choices are not all there (one runs, has failed or was deleted) is not known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

from typing_extensions import TypedDict

from responses_app.protocol import ids
from responses_app.protocol.errors import ApiError, JsonObject, invalid_request, not_found
from responses_app.protocol.fields import MAX_PAIRS, ClientModel, Metadata, check_metadata, missing, validate
from responses_app.protocol.requests.pages import ListQuery, Query, parse_list_query

_PREFIX, _SUFFIX = "metadata[", "]"  # of a filter in a query, around its key


class StoredChatMessage(TypedDict):
    """A message as it was sent; `content_parts` are those of a content that was a list."""

    id: str
    role: str
    content: str | None
    name: str | None
    refusal: str | None
    content_parts: list[JsonObject] | None


THOUGHT_NAMES = ("reasoning", "reasoning_content")  # of the field that has the model's thought, the newer one first


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatForm:
    """How responses are worded as a completion; all but the last field are those of `ChatRequest`."""

    stops: Sequence[str] = ()
    shows_reasoning: bool = True
    old_calls: bool = False
    thought_names: Sequence[str] = THOUGHT_NAMES
    version: str = ""  # of the server that ran them: it makes the fingerprint

    def as_json(self) -> JsonObject:
        """Return it as JSON, for `from_json`."""
        return {
            "stops": list(self.stops),
            "shows_reasoning": self.shows_reasoning,
            "old_calls": self.old_calls,
            "thought_names": list(self.thought_names),
            "version": self.version,
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "ChatForm":
        """Read the JSON of `as_json`, of this version or of a newer one, which may say more."""
        known: dict[str, Any] = {each.name: kept[each.name] for each in fields(cls) if each.name in kept}
        return cls(**known | {name: tuple(value) for name, value in known.items() if isinstance(value, list)})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredChat:
    """What a completion was asked."""

    messages: Sequence[JsonObject]  # as they were sent
    metadata: Mapping[str, str] = field(default_factory=dict)  # clients may change it later
    form: ChatForm = field(default_factory=ChatForm)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredChoice:
    """Where a response belongs: which choice of a completion it is."""

    count: int = 1  # choices of the completion
    place: int = 0  # from 0 on
    first: str = ""  # the response of choice 0; "" where that is this one
    chat: StoredChat | None = None  # what all of them were asked; choice 0 has it

    def beside(self, first: str, place: int) -> "StoredChoice":
        """Return another choice of the same completion."""
        return replace(self, first=first, place=place, chat=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatQuery:
    """Which stored completions are listed."""

    page: ListQuery
    model: str | None = None  # None: of any
    metadata: Mapping[str, str] = field(default_factory=dict)  # all these pairs; none: any


class ChatCompletionChanges(ClientModel):
    """What a stored completion is to have from now on; null is none."""

    metadata: Metadata | None


def parse_chat_query(query: Query) -> ChatQuery:
    """Read the query of a list. Raises `ApiError` that names the parameter that is wrong."""
    # `metadata[team]=red` is the filter of `team`; of one that is there twice the last counts.
    filters = {
        name[len(_PREFIX) : -len(_SUFFIX)]: values[-1]
        for name, values in query.items()
        if name.startswith(_PREFIX) and name.endswith(_SUFFIX)
    }
    if len(filters) > MAX_PAIRS:
        raise invalid_request(f"A list is filtered by {MAX_PAIRS} pairs of metadata at most.", param="metadata")
    check_metadata(filters)
    # An empty name is no filter.
    model = (query.get("model") or [""])[-1] or None
    return ChatQuery(page=parse_list_query(query, ids.CHAT_COMPLETION, descending=False), model=model, metadata=filters)


def parse_chat_changes(data: Mapping[str, object]) -> Mapping[str, str]:
    """Return the metadata that a completion is to have. Raises `ApiError`."""
    if "metadata" not in data:
        raise missing("metadata")
    metadata = validate(ChatCompletionChanges, data).metadata or {}
    check_metadata(metadata)
    return metadata


def stored_messages(completion_id: str, messages: Sequence[JsonObject]) -> list[StoredChatMessage]:
    """Return the messages of a completion's request as OpenAI lists them: each has an id, and a text or parts."""
    return [_message(f"{completion_id}-{index}", message) for index, message in enumerate(messages)]


def _message(message_id: str, message: JsonObject) -> StoredChatMessage:
    content = message.get("content")
    parts = content if isinstance(content, list) else None
    texts = [str(part["text"]) for part in parts or () if part.get("type") == "text"]
    whole = {
        "name": None,
        "refusal": None,
        **message,
        "id": message_id,
        "content": content if parts is None else "".join(texts) if texts else None,
        "content_parts": parts,
    }
    return cast(StoredChatMessage, whole)  # the message was validated when it came, and may have more fields


def completion_not_found(completion: str, *, stores: bool) -> ApiError:
    """There is no such stored completion, or not any more (404); `stores`: this server keeps any at all."""
    message = f"Chat completion with id '{completion[:80]}' not found. "
    message += (
        "Only those that were created with 'store': true are kept."
        if stores
        else "This server stores none (RESPONSES_STORE=off)."
    )
    return not_found(message, param="completion_id")
