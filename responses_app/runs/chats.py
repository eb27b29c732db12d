"""Chat completions as runs: those that are stored (`StoredChats`), and the choices of one request (`Choices`).

    create(0), create(1), … ──> readers ── news() ──> whoever encodes them takes from each

Each choice is a run of its own: it is admitted, counted and ended like any other. They belong together only here: if
one of them is refused there is none, and whoever leaves, leaves all.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Self

from responses_app.protocol.chat.completion import (
    ChatCompletion,
    ChatQuery,
    StoredChatMessage,
    completion_not_found,
    response_id,
    stored_completion,
    stored_messages,
)
from responses_app.protocol.errors import ApiError
from responses_app.protocol.ids import CHAT_COMPLETION
from responses_app.runs.by_id import ResponsesById
from responses_app.runs.log.journal import ResponseReader, Waiter
from responses_app.stores.base import BaseChatStore


class StoredChats:
    """The chat completions that are stored. `stores`: responses are kept here at all.

    Every method raises `ApiError` (404) for what the project does not have, and `StoreError`.
    """

    def __init__(self, chats: BaseChatStore, responses: ResponsesById, *, stores: bool) -> None:
        self._chats = chats
        self._responses = responses
        self._stores = stores

    async def get(self, project: str, completion: str) -> ChatCompletion:
        """Return a completion."""
        kept = await self._chats.get(project, self._first(completion))
        if kept is None:
            raise self._not_found(completion)
        return stored_completion(kept.responses, kept.form, kept.metadata)

    async def listed(self, project: str, query: ChatQuery) -> Sequence[ChatCompletion]:
        """Return one completion more than the query's page has, if there are so many."""
        page = query.page
        after = None if page.after is None else response_id(page.after)
        # A completion is stored under its first choice's response: clients' ids are turned into that.
        behind = replace(query, page=replace(page, after=after))
        completions = await self._chats.listed(project, behind, limit=page.limit + 1)
        return [stored_completion(kept.responses, kept.form, kept.metadata) for kept in completions]

    async def messages(self, project: str, completion: str) -> Sequence[StoredChatMessage]:
        """Return what a completion was asked, oldest first."""
        messages = await self._chats.messages(project, self._first(completion))
        if messages is None:
            raise self._not_found(completion)
        return stored_messages(completion, messages)

    async def change(self, project: str, completion: str, metadata: Mapping[str, str]) -> ChatCompletion:
        """Give a completion other metadata, and return it."""
        await self._chats.change(project, self._first(completion), metadata)
        return await self.get(project, completion)

    async def delete(self, project: str, completion: str) -> None:
        """Forget a completion: the responses of all its choices, the first one last, by which it is named."""
        choices = await self._chats.choices(project, self._first(completion))
        if not choices:
            raise self._not_found(completion)
        # The first choice goes last: where this stops half way, the completion can still be named, and deleted again.
        for choice in reversed(choices):
            try:
                await self._responses.delete(project, choice)
            except ApiError as error:
                if error.status != 404:  # else it has gone meanwhile
                    raise

    def _first(self, completion: str) -> str:
        """Return the response by which a completion is named. Raises `ApiError`."""
        if not completion.startswith(CHAT_COMPLETION):
            raise self._not_found(completion)
        return response_id(completion)

    def _not_found(self, completion: str) -> ApiError:
        return completion_not_found(completion, stores=self._stores)


class Choices:
    """The readers of one request, in the order of its choices. Whoever has it lets go of it with `leave`."""

    def __init__(self, readers: Sequence[ResponseReader]) -> None:
        self.readers = tuple(readers)
        self._one = self.readers[0] if len(self.readers) == 1 else None  # nearly always, and asked at each event
        self._news = Waiter()
        # One waiter for all readers, so that one wait wakes for whichever has news.
        for reader in self.readers:
            reader.listen(self._news)

    @classmethod
    async def create(cls, create: Callable[[int], Awaitable[ResponseReader]], count: int) -> Self:
        """Start `count` responses, one behind the other. Raises what `create` raises, and then none of them runs."""
        readers: list[ResponseReader] = []
        try:
            for index in range(count):
                readers.append(await create(index))
        # A cancellation, too: else the choices that run already would have no reader.
        except BaseException:
            for reader in readers:
                reader.leave("another choice of its request was refused")
            raise
        return cls(readers)

    @property
    def ended(self) -> bool:
        """Whether all that there is of every one has been taken."""
        if self._one is not None:
            return self._one.ended
        return all(reader.ended for reader in self.readers)

    @property
    def behind(self) -> bool:
        """Whether any has events that were not taken."""
        if self._one is not None:
            return self._one.behind
        return any(reader.behind for reader in self.readers)

    @property
    def has_little(self) -> bool:
        """Whether there are events that were not taken, and so few that more may come with them."""
        if self._one is not None:
            return self._one.has_little
        return any(reader.has_little for reader in self.readers)

    async def news(self, timeout: float | None = None) -> bool:
        """Wait until any of them has news, at most `timeout` seconds (None: as long as it takes); return whether."""
        return await self._news.wait(timeout)

    def leave(self, reason: str) -> None:
        """Let go of all; those that still run end. Twice is not an error."""
        for reader in self.readers:
            reader.leave(reason)
