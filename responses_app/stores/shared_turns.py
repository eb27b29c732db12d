"""`BaseSharedTurns`: what workers share of the turns of chats; see `runs.known_turns`."""

from abc import ABC, abstractmethod
from collections.abc import Sequence


class BaseSharedTurns(ABC):
    """Turns by their keys, each for some time.

    It raises nothing, and takes no long: what cannot be asked is not known, what cannot be kept is not kept.
    """

    @abstractmethod
    async def get(self, keys: Sequence[str]) -> Sequence[bytes | None]:
        """Return what is kept under each of these keys."""

    @abstractmethod
    async def put(self, key: str, data: bytes, *, seconds: float) -> None:
        """Keep something for so long."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of everything."""
