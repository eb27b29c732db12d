"""`MemoryFileStore`: files for tests that have no database; it keeps the contract of `tests/contracts/files.py`."""

import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence

from responses_app.stores.files import (
    UNLIMITED,
    BaseFileStore,
    FileGone,
    FileRecord,
    FileSettings,
    FilesFull,
    FileUsage,
)


class MemoryFileStore(BaseFileStore):
    """Keeps files of this process."""

    def __init__(self, *, settings: FileSettings = UNLIMITED, now: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._now = now
        self._files: dict[tuple[str, str], tuple[FileRecord, list[bytes]]] = {}

    async def create(
        self,
        project: str,
        record: FileRecord,
        pieces: Iterable[bytes] | AsyncIterable[bytes],
        *,
        over_limits: bool = False,
    ) -> None:
        used, limits = await self.usage(project), self._settings
        is_full = 0 < limits.files_max_entries <= used.files or 0 < limits.files_max_bytes < used.bytes + record.bytes
        if is_full and not over_limits:
            raise FilesFull("This project is full")
        kept = [each async for each in pieces] if isinstance(pieces, AsyncIterable) else list(pieces)
        if sum(map(len, kept)) != record.bytes:
            raise ValueError("another size")
        self._files[project, record.id] = (record, kept)

    async def get(self, project: str, file_id: str) -> FileRecord | None:
        return next((record for record in self._known(project) if record.id == file_id), None)

    async def some(self, project: str, file_ids: Sequence[str]) -> Sequence[FileRecord]:
        return [record for record in self._known(project) if record.id in file_ids]

    async def listed(
        self, project: str, *, purpose: str | None, after: str | None, descending: bool, limit: int
    ) -> Sequence[FileRecord]:
        found = [record for record in self._known(project) if purpose in (None, record.purpose)]
        if descending:
            found.reverse()
        if after is not None:
            found = [each for each in found if (each.id < after if descending else each.id > after)]
        return found[:limit]

    async def pieces(self, project: str, file_id: str) -> AsyncIterator[bytes]:
        if await self.get(project, file_id) is None:
            raise FileGone(file_id)
        _, kept = self._files[project, file_id]
        for piece in kept:
            if (project, file_id) not in self._files:
                raise FileGone(file_id)
            yield piece

    async def delete(self, project: str, file_id: str) -> bool:
        found = await self.get(project, file_id)
        if found is not None:
            del self._files[project, file_id]
        return found is not None

    async def usage(self, project: str) -> FileUsage:
        known = self._known(project)
        return FileUsage(len(known), sum(record.bytes for record in known))

    async def purge(self) -> int:
        gone = [key for key, (record, _) in self._files.items() if not self._lasts(record)]
        for key in gone:
            del self._files[key]
        return len(gone)

    async def aclose(self) -> None:
        pass

    def _known(self, project: str) -> list[FileRecord]:
        kept = [record for (owner, _), (record, _) in self._files.items() if owner == project and self._lasts(record)]
        return sorted(kept, key=lambda record: record.id)

    def _lasts(self, record: FileRecord) -> bool:
        return record.expires_at is None or record.expires_at > self._now()
