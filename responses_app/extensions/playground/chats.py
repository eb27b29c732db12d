"""Chats as their owners see them: `KeptChats` lists, reads, changes and deletes them.

A chat is its owner's where any of its responses was asked for with the owner's key, or by that user of the admin; where
nobody is asked who he is, all are everybody's. What is another's is not found, or, where a server lets a project share
its chats, can be read. That keeps lists apart, and no secrets: whoever knows the id of a response of the project may
read it (`runs.by_id`).
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from responses_app.extensions.playground.chat_store import ChatsQuery, DatabaseKeptChats, KeptChat, KeptTurns
from responses_app.protocol.api_keys import Caller
from responses_app.protocol.errors import ApiError, not_found
from responses_app.runs.by_id import ResponsesById
from responses_app.wiring.site import Site

ADOPTING_SECONDS = 1.0  # between two parts of what an older version has left


@dataclass(frozen=True, slots=True)
class WholeChat:
    """A chat with its turns."""

    chat: KeptChat
    turns: KeptTurns


class KeptChats:
    """The chats of a server. Where it keeps no responses, there are none.

    `sharing`: those of others in the project can be read.

    Every method raises `ApiError` (404) for what the caller does not have, and `StoreError`.
    """

    def __init__(self, store: DatabaseKeptChats, responses: ResponsesById, *, keeps: bool, sharing: bool) -> None:
        self._store = store
        self._responses = responses
        self._keeps = keeps
        self._sharing = sharing

    @classmethod
    def of(cls, site: Site) -> Self:
        """Return those of a server."""
        settings: Any = site.settings  # with those of the extension
        store = DatabaseKeptChats(
            settings=settings,
            now=site.clock,
            timeout=settings.database_timeout_seconds,
            retentions=site.retentions,
        )
        return cls(store, site.responses, keeps=settings.responses_store, sharing=settings.playground_sharing)

    async def aclose(self) -> None:
        """Let go of everything. Safe to call twice."""
        await self._store.aclose()

    async def adopt(self) -> None:
        """Find out to which chats the responses belong that an older version kept."""
        more = self._keeps
        while more:
            more = await self._store.adopt()
            await asyncio.sleep(ADOPTING_SECONDS if more else 0)

    async def listed(self, caller: Caller, query: ChatsQuery) -> Sequence[KeptChat]:
        """Return a part of the list; the chat behind which it begins may be gone."""
        return await self._store.listed(caller.project, query) if self._keeps else ()

    async def whole(self, caller: Caller, name: str) -> WholeChat:
        """Return a chat with its turns."""
        chat = await self._chat(caller, name, reads=True)
        turns = await self._store.turns(caller.project, chat.id)
        if not turns.turns:  # the last of them has gone meanwhile
            raise chat_not_found(name)
        return WholeChat(chat, turns)

    async def change(self, caller: Caller, name: str, changes: Mapping[str, object]) -> KeptChat:
        """Change what people set of a chat, and return it."""
        chat = await self._chat(caller, name)
        if changes:
            await self._store.change(caller.project, chat.id, changes)
        return await self._chat(caller, chat.id)

    async def delete(self, caller: Caller, name: str) -> tuple[str, int]:
        """Delete all responses of a chat; return its id, and how many there were. What runs is cancelled."""
        chat = await self._chat(caller, name)
        await self._store.leave(caller.project, chat.id)
        gone = 0
        # Once more where another response of it was accepted meanwhile.
        while ids := await self._store.responses(caller.project, chat.id):
            deleted = [await self._delete(caller.project, response_id) for response_id in ids]
            if not any(deleted):
                break
            gone += sum(deleted)
        return chat.id, gone

    async def _delete(self, project: str, response_id: str) -> bool:
        try:
            await self._responses.delete(project, response_id)
        except ApiError as error:
            if error.status != 404:
                raise
            return False  # it has gone meanwhile
        return True

    async def _chat(self, caller: Caller, name: str, *, reads: bool = False) -> KeptChat:
        chat = await self._store.get(caller.project, name, key_id=caller.key_id) if self._keeps else None
        if chat is None or not (chat.is_own or (self._sharing and reads)):
            raise chat_not_found(name)
        return chat


def chat_not_found(name: str) -> ApiError:
    """The caller has no such chat (404)."""
    return not_found(f"No chat found with id '{name[:80]}'.", code="chat_not_found")
