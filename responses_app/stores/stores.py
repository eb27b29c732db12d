"""The contracts of chats, conversations, approvals and shared turns.

`tests/contracts/adapters/` tests every implementation.

Chat completions are written with the responses that their choices are (`StoredResponse.chat`), in the same transaction,
and go with them. Everything is seen per project, and what is past its time is not found.

An answer to a request for approval may come twice at the same time, on two workers. Both would make the call, so the
response to each claims the request first, and one of them gets it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from responses_app.protocol.chat.completion import ChatForm, ChatQuery
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.requests.resources import ResponseObject


@dataclass(frozen=True, slots=True)
class ApprovalHolder:
    """The response that makes an approved call, and when it claimed that, in Unix seconds."""

    response_id: str  # may be one that no store knows
    claimed_at: float  # Unix seconds; renewed while it runs, where it is not stored


class BaseApprovalStore(ABC):
    """The store of the holder of each request for approval of a project. Every method raises `StoreError`."""

    @abstractmethod
    async def claim(self, project: str, request_id: str, response_id: str, *, instead_of: str = "") -> ApprovalHolder:
        """Claim a request that nobody holds, or that the response `instead_of` holds; return who holds it then.

        Of several that claim the same at once, one gets it. To claim again what one holds changes nothing.
        """

    @abstractmethod
    async def release(self, project: str, request_id: str, response_id: str) -> None:
        """Let go of a request, if this response holds it."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of everything. Safe to call twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCompletion:
    """A stored completion: the responses of its choices, in their order, and how they are worded."""

    responses: Sequence[ResponseObject]  # in the order of the choices
    form: ChatForm  # how its request was worded
    metadata: Mapping[str, str]  # as it was changed last


class BaseChatStore(ABC):
    """The store of chat completions, which are named by the responses of their first choices.

    One whose choices are not all there is not known. Every method raises `StoreError`.
    """

    @abstractmethod
    async def get(self, project: str, first: str) -> KeptCompletion | None:
        """Return a completion."""

    @abstractmethod
    async def messages(self, project: str, first: str) -> Sequence[JsonObject] | None:
        """Return the messages that a completion was asked for, as they were sent."""

    @abstractmethod
    async def listed(self, project: str, query: ChatQuery, *, limit: int) -> Sequence[KeptCompletion]:
        """Return up to `limit` completions behind the one that `query.page.after` names, which may be gone."""

    @abstractmethod
    async def change(self, project: str, first: str, metadata: Mapping[str, str]) -> None:
        """Give a completion other metadata, if it is there."""

    @abstractmethod
    async def choices(self, project: str, first: str) -> Sequence[str]:
        """Return the responses of a completion's choices, as far as they are kept."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of everything. Safe to call twice."""


class ReadConversation(Protocol):
    """What a run reads of a conversation: its row."""

    id: str  # "conv_…"
    head: str  # the response whose chain has the items up to `head_position`; "" for none
    head_position: int  # 0 where there is no head
    version: int  # counts all changes


class ReadItem(Protocol):
    """What a run reads of a conversation's item: its row."""

    item: JsonObject


class BaseConversations(ABC):
    """The conversations that runs read and append to, by projects. Every method raises `StoreError`."""

    @abstractmethod
    async def get(self, project: str, conversation_id: str) -> ReadConversation | None:
        """Return a conversation."""

    @abstractmethod
    async def items_since(self, project: str, conversation_id: str, position: int) -> Sequence[ReadItem]:
        """Return all items behind a position, oldest first."""

    @abstractmethod
    async def append(self, project: str, conversation_id: str, items: Sequence[JsonObject]) -> object:
        """Add items, all at once and in order, if there is such a conversation."""


class BaseSharedTurns(ABC):
    """The turns of chats that workers share, by their keys, each for some time.

    It raises nothing, and takes no long: what cannot be asked is not known, what cannot be kept is not kept.
    """

    @abstractmethod
    async def get(self, keys: Sequence[str]) -> Sequence[bytes | None]:
        """Return what is kept under each of these keys."""

    @abstractmethod
    async def put(self, key: str, data: bytes, *, seconds: float) -> None:
        """Keep something for so long."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of everything."""
