"""`MemorySetups`: named setups of this process; it keeps the contract of `contracts/setups.py`."""

from collections.abc import Sequence
from dataclasses import replace

from responses_app.models import json_text
from responses_app.stores.setups import MAX_SETUPS, MAX_TOGETHER, BaseSetups, SetupRecord, TooManySetups


class MemorySetups(BaseSetups):
    """Keeps them in a dictionary, by project and name."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], SetupRecord] = {}

    async def listed(self, project: str) -> Sequence[SetupRecord]:
        return [self._kept[key] for key in sorted(self._kept) if key[0] == project]

    async def put(self, project: str, record: SetupRecord) -> SetupRecord:
        before = self._kept.get((project, record.name))
        if before is None and len(await self.listed(project)) >= MAX_SETUPS:
            raise TooManySetups("too many")
        others = (each for each in await self.listed(project) if each.name != record.name)
        if sum(len(json_text(each.setup)) for each in (*others, record)) > MAX_TOGETHER:
            raise TooManySetups("too large")
        if before is not None:
            record = replace(record, id=before.id, created_at=before.created_at)
        self._kept[project, record.name] = record
        return record

    async def delete(self, project: str, setup_id: str) -> bool:
        names = [key for key, each in self._kept.items() if key[0] == project and each.id == setup_id]
        for key in names:
            del self._kept[key]
        return bool(names)

    async def aclose(self) -> None:
        """Nothing is open."""
