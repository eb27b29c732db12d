"""`MemoryKeptChats`: the chats among the responses of a store in memory."""

from collections.abc import Mapping, Sequence
from typing import Any

from responses_app.protocol.items.words import as_searched, text_of, words_of
from responses_app.stores.base import AcceptedResponse, StoredResponse
from responses_app.stores.kept_chats import (
    MAX_PINNED,
    TITLE_WORDS,
    BaseKeptChats,
    ChatsQuery,
    KeptChat,
    KeptTurn,
    KeptTurns,
    TooManyPinned,
)
from tests.kit.memory_stores import MemoryResponseStore


class MemoryKeptChats(BaseKeptChats):
    """It keeps the contract of `contracts/kept_chats.py`."""

    def __init__(self, responses: MemoryResponseStore) -> None:
        self._responses = responses
        self._labels: dict[tuple[str, str], dict[str, Any]] = {}

    async def listed(self, project: str, query: ChatsQuery) -> Sequence[KeptChat] | None:
        chats = self._responses.chats(project)
        own = {each: [one for one in chats[each] if not query.key_id or one.key_id == query.key_id] for each in chats}
        places = {each: _place(mine[0]) for each, mine in own.items() if mine}
        shown = {each: self._shown(project, each, query.key_id) for each in places}
        ordered = sorted(places, key=lambda each: (shown[each].pinned, places[each]), reverse=True)
        if query.search:
            ordered = [each for each in ordered if self._has(shown[each], own[each], as_searched(query.search))]
        if query.after is not None:
            if query.after not in ordered:
                return None
            ordered = ordered[ordered.index(query.after) + 1 :]
        return [shown[each] for each in ordered[: query.limit]]

    async def get(self, project: str, name: str, *, key_id: str) -> KeptChat | None:
        leg = await self._responses.newest_leg(project, name)
        names = {name, leg.response_id if leg else name}
        for chat_id, responses in self._responses.chats(project).items():
            if chat_id == name or names.intersection(str(each.response["id"]) for each in responses):
                return self._shown(project, chat_id, key_id)
        return None

    async def turns(self, project: str, chat_id: str) -> KeptTurns:
        turns: list[KeptTurn] = []
        before = ""  # the response of the conversation before this one
        newest: dict[str, str] = {}
        for each in reversed(self._responses.chats(project).get(chat_id, ())):
            link = each.link if isinstance(each, StoredResponse) else None
            parent = link.parent.response_id if link and link.parent else each.response.get("previous_response_id")
            parent = newest.get(parent or "", parent or "")
            if each.response.get("conversation"):
                parent, before = parent or before, each.response["id"]
            turns.append(KeptTurn(response=each.response, parent=parent or None, input_items=list(each.input_items)))
            if name := self._responses.name_of(project, each.response["id"]):
                newest[name] = each.response["id"]
        return KeptTurns(turns=turns, more=False)

    async def change(self, project: str, chat_id: str, changes: Mapping[str, object]) -> None:
        labels = [self._label(project, each) for each in self._responses.chats(project) if each != chat_id]
        if changes.get("pinned") and sum(each["pinned"] for each in labels) >= MAX_PINNED:
            raise TooManyPinned("too many")
        if chat_id in self._responses.chats(project):
            self._labels[project, chat_id] = {**self._label(project, chat_id), **changes}

    async def responses(self, project: str, chat_id: str) -> Sequence[str]:
        return [each.response["id"] for each in self._responses.chats(project).get(chat_id, ())]

    async def adopt(self) -> bool:
        return False

    async def aclose(self) -> None:
        """Nothing is held."""

    def _label(self, project: str, chat_id: str) -> dict[str, Any]:
        return self._labels.get((project, chat_id), {"title": "", "title_from": "", "pinned": False})

    def _shown(self, project: str, chat_id: str, key_id: str) -> KeptChat:
        responses, label = self._responses.chats(project)[chat_id], self._label(project, chat_id)
        newest, first = responses[0], responses[-1]
        return KeptChat(
            id=chat_id,
            title=label["title"] or words_of(list(first.input_items), TITLE_WORDS),
            title_from=label["title_from"] or "words",
            pinned=label["pinned"],
            model=newest.response["model"],
            created_at=first.response["created_at"],
            updated_at=newest.response["created_at"],
            newest=newest.response["id"],
            responses=len(responses),
            is_own=not key_id or any(each.key_id == key_id for each in responses),
        )

    def _has(self, chat: KeptChat, responses: Sequence[AcceptedResponse | StoredResponse], needle: str) -> bool:
        items = [item for each in responses for item in (*each.input_items, *each.response["output"])]
        return any(needle in as_searched(text) for text in (chat.title, *map(text_of, items)))


def _place(of: AcceptedResponse | StoredResponse) -> tuple[float, str]:
    return of.response["created_at"], of.response["id"]
