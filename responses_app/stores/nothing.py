"""The stores of a server that keeps no responses (RESPONSES_STORE=off): all is unknown, and nothing is to be done."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Never

from responses_app.kit.errors import StoreError
from responses_app.limits.suspects import Stage
from responses_app.protocol.chat.completion import ChatQuery
from responses_app.protocol.pictures import StoredPicture
from responses_app.stores.base import (
    AcceptedResponse,
    Appended,
    BaseChatStore,
    BasePictureStore,
    BaseResponseStore,
    Claim,
    LogAppend,
    Orphans,
    Purged,
    StoredResponse,
    WorkerState,
)


class NoResponseStore(BaseResponseStore):
    """A store without any response. `now` is the clock, in Unix seconds."""

    def __init__(self, *, now: Callable[[], float] = time.time) -> None:
        self._now = now

    async def accept(self, accepted: AcceptedResponse) -> None:
        _refuse()

    async def begin(self, project: str, response_id: str, claim: Claim) -> None:
        _refuse()

    async def append(self, appends: Collection[LogAppend]) -> Appended:
        _refuse()

    async def give_back(self, accepted: AcceptedResponse) -> None:
        _refuse()

    async def save(self, stored: StoredResponse) -> None:
        _refuse()

    async def response(self, project: str, response_id: str) -> None:
        return None

    async def knows(self, project: str, response_id: str) -> bool:
        return False

    async def newest_leg(self, project: str, name: str) -> None:
        return None

    async def legs(self, project: str, name: str) -> Sequence[Never]:
        return ()

    async def input_items(self, project: str, response_id: str) -> None:
        return None

    async def log(self, project: str, response_id: str) -> None:
        return None

    async def log_since(self, project: str, response_id: str, position: int) -> None:
        return None

    async def delete(self, project: str, response_id: str) -> bool:
        return False

    async def delete_legs(self, project: str, name: str) -> Sequence[Never]:
        return ()

    async def chain(self, project: str, response_id: str) -> None:
        return None

    async def sampled_items(self, project: str, item_ids: Collection[str]) -> Mapping[str, Never]:
        return {}

    async def items(
        self, project: str, item_ids: Collection[str], *, conversations: bool = True
    ) -> Mapping[str, Never]:
        return {}

    async def beat(self, worker: WorkerState) -> float:
        return self._now()

    async def reclaim(self, worker_id: str, *, dead_before: float, known: Collection[str] = ()) -> Orphans:
        return Orphans()

    async def suspect(self, project: str, response_id: str, claim: Claim, stage: Stage) -> None:
        _refuse()

    async def has_orphans(self, worker_id: str, *, dead_before: float) -> bool:
        return False

    async def lost(self, claims: Mapping[str, Claim]) -> Collection[Never]:
        return ()

    async def purge(self) -> Purged:
        return Purged()

    async def check(self) -> str | None:
        return None


class NoChatStore(BaseChatStore):
    """A store without any chat completion."""

    async def get(self, project: str, first: str) -> None:
        return None

    async def messages(self, project: str, first: str) -> None:
        return None

    async def listed(self, project: str, query: ChatQuery, *, limit: int) -> Sequence[Never]:
        return ()

    async def change(self, project: str, first: str, metadata: Mapping[str, str]) -> None:
        """There is none to change."""

    async def choices(self, project: str, first: str) -> Sequence[Never]:
        return ()

    async def aclose(self) -> None:
        """Nothing is held."""


def _refuse() -> Never:
    """Raise `StoreError`: a plan whose response is not stored asks for nothing to be kept."""
    raise StoreError("No responses are stored here (RESPONSES_STORE=off).")


class NoPictureStore(BasePictureStore):
    """A store without any picture: each process has those of its own connections, in memory."""

    async def keep(self, project: str, owner: str, pictures: Sequence[StoredPicture]) -> None:
        """Keep nothing: no response is stored that would need it."""

    async def use(self, project: str, owner: str, digests: Collection[str]) -> Collection[str]:
        return ()

    async def known(self, project: str, digests: Collection[str]) -> Collection[str]:
        return ()

    async def read(self, project: str, digest: str) -> None:
        return None

    async def purge(self) -> int:
        return 0

    async def aclose(self) -> None:
        """Nothing is open."""
