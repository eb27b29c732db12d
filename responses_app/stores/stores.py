"""The contracts of chats and of shared turns.

`tests/contracts/adapters/` tests every implementation.

Chat completions are written with the responses that their choices are (`StoredResponse.chat`), in the same transaction,
and go with them. Everything is seen per project, and what is past its time is not found.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from responses_app.protocol.chat.completion import ChatForm, ChatQuery
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.requests.resources import ResponseObject


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
