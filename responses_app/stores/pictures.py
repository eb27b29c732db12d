"""The contract of what keeps the pictures that models were shown; `tests/contracts/pictures.py` is its suite.

A picture lies there once for each project, found by its digest, which stands in the tokens of the messages that show
it. It is kept for its *owners*: responses, by their ids, and what continues them. With the last of them it goes.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

from responses_app.protocol.pictures import StoredPicture


class BasePictureStore(ABC):
    """Keeps pictures of projects; nobody reaches another project's. Every method raises `StoreError`."""

    @abstractmethod
    async def keep(self, project: str, owner: str, pictures: Sequence[StoredPicture]) -> None:
        """Keep pictures for an owner, which may be accepted only later: within an hour, or they may go."""

    @abstractmethod
    async def use(self, project: str, owner: str, digests: Collection[str]) -> Collection[str]:
        """Keep those of these pictures that are there for one more owner, as `keep` does; return their digests."""

    @abstractmethod
    async def known(self, project: str, digests: Collection[str]) -> Collection[str]:
        """Return which of these pictures are there."""

    @abstractmethod
    async def read(self, project: str, digest: str) -> StoredPicture | None:
        """Return a picture."""

    @abstractmethod
    async def purge(self) -> int:
        """Remove what was kept for owners that were never accepted; return how many uses that were."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of everything. Safe to call twice."""
