"""The contract of what reads stored chat completions: `tests/contracts/chats.py` is its suite.

They are written with the responses that their choices are (`StoredResponse.chat`), in the same transaction, and go with
them. Everything is seen per project, and what is past its time is not found.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from responses_app.protocol.chat.stored import ChatForm, ChatQuery
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.requests.resources import ResponseObject


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCompletion:
    """A stored completion: the responses of its choices, in their order, and how they are worded."""

    responses: Sequence[ResponseObject]
    form: ChatForm
    metadata: Mapping[str, str]


class BaseChatStore(ABC):
    """Completions are named by the responses of their first choices. Every method raises `StoreError`.

    One whose choices are not all there is not known.
    """

    @abstractmethod
    async def get(self, project: str, first: str) -> KeptCompletion | None:
        """Return a completion."""

    @abstractmethod
    async def messages(self, project: str, first: str) -> Sequence[JsonObject] | None:
        """Return the messages that a completion was asked for, as they were sent."""

    @abstractmethod
    async def listed(self, project: str, query: ChatQuery, *, limit: int) -> Sequence[KeptCompletion] | None:
        """Return up to `limit` completions behind the one that `query.page.after` names; None if that is not known."""

    @abstractmethod
    async def change(self, project: str, first: str, metadata: Mapping[str, str]) -> None:
        """Give a completion other metadata, if it is there."""

    @abstractmethod
    async def choices(self, project: str, first: str) -> Sequence[str]:
        """Return the responses of a completion's choices, as far as they are kept."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of everything. Safe to call twice."""
