"""`StoredChats`: chat completions that were created with `store: true`: read, listed, changed, deleted."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from responses_app.protocol.chat.completion import ChatCompletion, response_id, stored_completion
from responses_app.protocol.chat.stored import ChatQuery, StoredChatMessage, completion_not_found, stored_messages
from responses_app.protocol.errors import ApiError
from responses_app.protocol.ids import CHAT_COMPLETION
from responses_app.runs.by_id import ResponsesById
from responses_app.stores.chats import BaseChatStore


class StoredChats:
    """Every method raises `ApiError` (404) for what the project does not have, and `StoreError`.

    `stores`: responses are kept here at all.
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

    async def listed(self, project: str, query: ChatQuery) -> Sequence[ChatCompletion] | None:
        """Return one completion more than the query's page has, if there are so many.

        None where the completion behind which the page begins is not known.
        """
        page = query.page
        if page.after is not None and not page.after.startswith(CHAT_COMPLETION):
            return None
        after = None if page.after is None else response_id(page.after)
        behind = replace(query, page=replace(page, after=after))
        found = await self._chats.listed(project, behind, limit=page.limit + 1)
        if found is None:
            return None
        return [stored_completion(kept.responses, kept.form, kept.metadata) for kept in found]

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
        for choice in reversed(choices):
            try:
                await self._responses.delete(project, choice)
            except ApiError as error:
                if error.status != 404:  # else it has gone meanwhile
                    raise

    async def aclose(self) -> None:
        """Let go of the store."""
        await self._chats.aclose()

    def _first(self, completion: str) -> str:
        """Return the response by which a completion is named. Raises `ApiError`."""
        if not completion.startswith(CHAT_COMPLETION):
            raise self._not_found(completion)
        return response_id(completion)

    def _not_found(self, completion: str) -> ApiError:
        return completion_not_found(completion, stores=self._stores)
