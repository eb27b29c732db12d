"""`MemoryPictureStore`: pictures for tests that have no database; it keeps the contract of `contracts/pictures.py`."""

from collections.abc import Collection, Sequence

from responses_app.protocol.pictures import StoredPicture
from responses_app.stores.base import BasePictureStore


class MemoryPictureStore(BasePictureStore):
    """Keeps pictures of this process."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], StoredPicture] = {}
        self.owners: dict[tuple[str, str], set[str]] = {}

    async def keep(self, project: str, owner: str, pictures: Sequence[StoredPicture]) -> None:
        for each in pictures:
            self.kept.setdefault((project, each.digest), each)
        await self.use(project, owner, [each.digest for each in pictures])

    async def use(self, project: str, owner: str, digests: Collection[str]) -> Collection[str]:
        there = await self.known(project, digests)
        for digest in there:
            self.owners.setdefault((project, digest), set()).add(owner)
        return there

    async def known(self, project: str, digests: Collection[str]) -> Collection[str]:
        return {digest for digest in digests if (project, digest) in self.kept}

    async def read(self, project: str, digest: str) -> StoredPicture | None:
        return self.kept.get((project, digest))

    async def purge(self) -> int:
        return 0

    async def aclose(self) -> None:
        """Nothing is open."""
