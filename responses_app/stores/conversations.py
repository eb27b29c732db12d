"""The contract of what keeps conversations; `tests/contracts/conversations.py` is its suite."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from responses_app.protocol.errors import JsonObject
from responses_app.stores.base import StoreError


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRecord:
    """A conversation without its items. `created_at` is in Unix seconds."""

    id: str
    created_at: int
    metadata: Mapping[str, str]
    title: str = ""
    status: str = ""
    head: str = ""
    head_position: int = 0
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationEntry:
    """An item of a conversation and where it stands. `created_at` is in Unix seconds."""

    position: int
    item: JsonObject
    created_at: int


class ConversationFull(StoreError):
    """A project has as many conversations as it may have."""


class BaseConversationStore(ABC):
    """Keeps conversations; everything is seen per project. All methods raise `StoreError`."""

    async def start(self) -> None:  # noqa: B027 - as with responses
        """Get ready."""

    async def aclose(self) -> None:  # noqa: B027
        """Finish what was asked and let go of everything. Safe to call twice."""

    @abstractmethod
    async def create(self, project: str, record: ConversationRecord, items: Sequence[JsonObject]) -> None:
        """Keep a new conversation with its first items, each of which has an id.

        Raises `ConversationFull` where the project has as many as it may have.
        """

    @abstractmethod
    async def get(self, project: str, conversation_id: str) -> ConversationRecord | None:
        """Return a conversation."""

    @abstractmethod
    async def update(
        self, project: str, conversation_id: str, changes: Mapping[str, object]
    ) -> ConversationRecord | None:
        """Change `metadata`, `title` or `status`; return the conversation, None if there is none."""

    @abstractmethod
    async def delete(self, project: str, conversation_id: str) -> bool:
        """Forget a conversation and its items; return whether there was one."""

    @abstractmethod
    async def append(
        self, project: str, conversation_id: str, items: Sequence[JsonObject]
    ) -> Sequence[ConversationEntry] | None:
        """Add items, all at once and in order; one whose id the conversation has already gets another.

        Return them as they stand, None if there is no such conversation.
        """

    @abstractmethod
    async def entries(
        self, project: str, conversation_id: str, *, after: str | None, descending: bool, limit: int
    ) -> Sequence[ConversationEntry] | None:
        """Return up to `limit` items after the item `after`; None if the conversation or `after` is unknown."""

    @abstractmethod
    async def entries_since(self, project: str, conversation_id: str, position: int) -> Sequence[ConversationEntry]:
        """Return all items behind a position, oldest first."""

    @abstractmethod
    async def entry(self, project: str, conversation_id: str, item_id: str) -> ConversationEntry | None:
        """Return one item."""

    @abstractmethod
    async def remove(self, project: str, conversation_id: str, item_id: str) -> bool:
        """Forget one item; return whether there was one. The conversation's head goes with an item it covers."""
