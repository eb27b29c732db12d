"""Stored chat completions in this process's memory: for tests, and where nothing is stored."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice

from responses_app.protocol.chat.stored import ChatQuery, StoredChat, StoredChoice
from responses_app.protocol.errors import JsonObject
from responses_app.stores.base import StoredResponse
from responses_app.stores.chats import BaseChatStore, KeptCompletion
from responses_app.stores.memory import MemoryResponseStore


class MemoryChatStore(BaseChatStore):
    """Of the responses that a store in memory keeps."""

    def __init__(self, responses: MemoryResponseStore) -> None:
        self._responses = responses

    async def get(self, project: str, first: str) -> KeptCompletion | None:
        return self._completion(project, first)

    async def messages(self, project: str, first: str) -> Sequence[JsonObject] | None:
        if self._completion(project, first) is None:
            return None
        return _chat_of(self._of(project, first)[0]).messages

    async def listed(self, project: str, query: ChatQuery, *, limit: int) -> Sequence[KeptCompletion] | None:
        kept = [each for each in self._responses.ended(project) if each.chat is not None and not each.chat.first]
        kept.sort(key=_order, reverse=query.page.descending)
        if query.page.after is not None:
            places = [place for place, each in enumerate(kept) if each.response["id"] == query.page.after]
            if not places:
                return None
            kept = kept[places[0] + 1 :]
        found = (self._completion(project, each.response["id"]) for each in kept if _fits(each, query))
        return list(islice((each for each in found if each is not None), limit))

    async def change(self, project: str, first: str, metadata: Mapping[str, str]) -> None:
        for kept in self._of(project, first)[:1]:
            if kept.chat is not None and kept.chat.chat is not None:
                chat = replace(kept.chat, chat=replace(kept.chat.chat, metadata=dict(metadata)))
                self._responses.change(replace(kept, chat=chat))

    async def choices(self, project: str, first: str) -> Sequence[str]:
        return [each.response["id"] for each in self._of(project, first)]

    async def aclose(self) -> None:
        """Nothing is held."""

    def _completion(self, project: str, first: str) -> KeptCompletion | None:
        kept = self._of(project, first)
        if not kept or len(kept) != _choice(kept[0]).count:
            return None
        chat = _chat_of(kept[0])
        return KeptCompletion(responses=[each.response for each in kept], form=chat.form, metadata=chat.metadata)

    def _of(self, project: str, first: str) -> list[StoredResponse]:
        """Return the choices of a completion, in their order."""
        kept = [
            each
            for each in self._responses.ended(project)
            if each.chat is not None and (each.chat.first or each.response["id"]) == first
        ]
        return sorted(kept, key=lambda each: _choice(each).place)


def _choice(kept: StoredResponse) -> StoredChoice:
    assert kept.chat is not None, "only choices are looked at"
    return kept.chat


def _chat_of(kept: StoredResponse) -> StoredChat:
    chat = _choice(kept).chat
    assert chat is not None, "the first choice has what was asked"
    return chat


def _order(kept: StoredResponse) -> tuple[float, str]:
    return kept.response["created_at"], kept.response["id"]


def _fits(kept: StoredResponse, query: ChatQuery) -> bool:
    is_model = query.model is None or kept.response["model"] == query.model
    return is_model and query.metadata.items() <= _chat_of(kept).metadata.items()
