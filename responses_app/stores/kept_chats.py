"""The contract of what finds chats among stored responses, and keeps what people set of them and named setups.

A chat is the tree of stored responses that go on from one root, or the responses of a conversation. Another version of
a first message has a root of its own, which says in its `metadata` to which chat it belongs (`VERSION_OF`). Nothing is
kept a second time: what a person sets of a chat (a title, a pin) goes with its last response.

`tests/contracts/adapters/test_kept_chats.py` has the suite, which runs over every implementation.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from responses_app.kit.errors import StoreError
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.requests.resources import ResponseObject

TITLE_WORDS = 70  # characters of what was asked first that are a chat's title until somebody sets one
MAX_TURNS = 1000  # of a chat that are read at once, the newest
MAX_TURN_BYTES = 32 << 20  # of these turns; the newest is read in any case
MAX_PINNED = 100  # chats of a project
SEARCHED_RESPONSES = 2000  # the newest ones of the caller, in which a search looks
SEARCHED_BYTES = 16 << 20  # of their texts
SEARCHED_EACH = 256 << 10  # bytes of a response; a larger one is not searched
SEARCHED_TITLES = 5000  # the titles of a project that were set last
MADE_IN, PLAYGROUND = "made_in", "playground"  # in `metadata` of what the playground's page asks for
VERSION_OF = "version_of"  # a key of `metadata`: a response of the chat that a root belongs to


def made_in_playground(response: ResponseObject) -> bool:
    """Return whether the playground's page asked for a response."""
    return (response.get("metadata") or {}).get(MADE_IN) == PLAYGROUND


def version_of(response: ResponseObject) -> str:
    """Return the response whose chat a root says that it belongs to; "" for none."""
    named = (response.get("metadata") or {}).get(VERSION_OF, "")
    return named if named.startswith("resp_") and named.isidentifier() else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptChat:
    """A chat, without its turns."""

    id: str  # its root's, or the conversation's
    title: str  # that was set, else its first words
    title_from: str  # words, model or person
    pinned: bool
    model: str  # of its newest response
    created_at: int  # Unix seconds: when its first response was created that is still kept
    updated_at: int  # Unix seconds: when its newest response was created
    newest: str  # the id of that
    responses: int  # how many there are
    is_own: bool  # whether the key that asks has asked for any of them


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTurn:
    """A response of a chat; `parent` is the id of the one it goes on from, None for a root."""

    response: ResponseObject
    parent: str | None
    input_items: Sequence[JsonObject]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTurns:
    """The turns of a chat, the oldest first; `more`: older ones are left out."""

    turns: Sequence[KeptTurn]
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatsQuery:
    """What part of the list of chats is asked for."""

    key_id: str  # whose; "": everybody's
    only_playground: bool = False  # pinned chats, and those in which the playground's page asked for a response
    search: str = ""  # what stands in their titles or texts
    after: str | None = None  # the id of the chat behind which it begins
    limit: int  # chats, at most


class TooManyPinned(StoreError):
    """A project has as many pinned chats as it may have."""


class BaseKeptChats(ABC):
    """Finds the chats of projects. Every method raises `StoreError`; one object serves one worker process.

    A chat is named by its id, or by the id of any of its responses. What is past its time is not found.
    """

    @abstractmethod
    async def listed(self, project: str, query: ChatsQuery) -> Sequence[KeptChat]:
        """Return the pinned chats, then the others, each the one with the newest response first.

        A search finds chats by their titles and by what was said in the newest responses, whatever the case; it is
        bounded in what it reads. The chat `after` may be gone.
        """

    @abstractmethod
    async def get(self, project: str, name: str, *, key_id: str) -> KeptChat | None:
        """Return a chat."""

    @abstractmethod
    async def turns(self, project: str, chat_id: str) -> KeptTurns:
        """Return the newest turns of a chat, by its own id."""

    @abstractmethod
    async def change(self, project: str, chat_id: str, changes: Mapping[str, object]) -> None:
        """Set `title`, `title_from` or `pinned` of a chat that there is. Raises `TooManyPinned`."""

    @abstractmethod
    async def responses(self, project: str, chat_id: str) -> Sequence[str]:
        """Return the ids of a chat's newest responses, the newest first, about as many as `MAX_TURNS`."""

    @abstractmethod
    async def leave(self, project: str, chat_id: str) -> None:
        """Note where a chat stands in the list, before it is deleted: it may be the cursor of a client."""

    @abstractmethod
    async def adopt(self) -> bool:
        """Find out to which chats some responses belong that an older version kept; return whether there are more."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of everything. Safe to call twice."""
