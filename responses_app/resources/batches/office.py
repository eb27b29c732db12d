"""What the work on batches needs of the rest of the server, and what is asked of it in more than one step."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from responses_app.protocol.api_keys import Caller, is_by_session
from responses_app.resources.batches.lines import NewLine
from responses_app.resources.batches.records import BaseBatchStore, BatchRecord
from responses_app.resources.batches.settings import BatchSettings
from responses_app.stores.callers import BaseKeyStore
from responses_app.stores.files import BaseFileStore


class KeyGone(Exception):
    """The key that a batch was created with was deleted."""


class ReadLines(Protocol):
    """Reads a part of a project's input, which counts as running for that time; see `JsonReader.read`."""

    def __call__(
        self, project: str, size: int, content: Callable[[], bytes], parse: Callable[[bytes], Sequence[NewLine]], /
    ) -> Awaitable[Sequence[NewLine]]:
        """Return the lines that `parse` reads in the content. Raises `EndsWorkers` for content that ends workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOffice:
    """What the work on batches needs."""

    store: BaseBatchStore
    files: BaseFileStore
    keys: BaseKeyStore
    settings: BatchSettings
    max_line_bytes: int
    read: ReadLines
    loads: Callable[[bytes], object]  # reads a body; raises `ApiError` and `orjson.JSONDecodeError`
    check_model: Callable[[str, str | None, Caller], None]  # raises `ApiError` for a model that an endpoint has not
    new_id: Callable[[str], str]
    now: Callable[[], float]  # Unix seconds

    async def caller(self, record: BatchRecord) -> Caller:
        """Return who a batch works for: its project by the key that it was created with, whether that still opens.

        So a batch goes on as a background response does. Raises `KeyGone` where the key was deleted: nobody knows any
        more what it might do. Raises `StoreError`.
        """
        if record.key_id and not is_by_session(record.key_id):
            key = await self.keys.get(record.key_id)
            if key is None:
                raise KeyGone(f"the key {record.key_id} of batch {record.id} was deleted")
            return Caller.by_key(key)
        if not record.key_id:
            return Caller(project=record.project)
        return Caller(project=record.project, limited=await self.keys.limits_of_project(record.project))
