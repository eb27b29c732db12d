"""The contract of what keeps idempotency keys, and their answers; `contracts/adapters/test_idempotency` tests it.

A key is claimed before its request is carried out, and the claim says what has become of it:

    running    a worker carries the request out
    free       nobody does: it failed, and whoever comes next may claim it
    answered   it has an answer: kept in parts here, or that of the response `object_id`
    cut        its answer broke off, or nobody knows what came of it
    too_long   it had an answer that was too long to be kept

Each claim has a token, and whatever is written names it. So a worker that was only slow, and was taken for dead,
changes nothing any more once another one has claimed the key.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from responses_app.protocol.setting import KIB, MIB, RoomSettings, seconds, setting, whole


@dataclass(frozen=True, kw_only=True)
class IdempotencySettings(RoomSettings):
    """How long keys hold, and how much is kept for them."""

    idempotency_key_ttl: float = setting(
        86_400.0, seconds(1), "seconds for which an Idempotency-Key holds, and its answer is kept"
    )
    idempotency_max_keys: int = setting(
        100_000, whole(1), "about how many Idempotency-Keys of one project hold at once; further ones get a 429"
    )
    idempotency_max_bytes: int = setting(
        256 * MIB, whole(KIB),
        "about how many bytes of answers are kept for the Idempotency-Keys of one project; beyond it new keys get a "
        "429. Stored responses do not count here.",
    )  # fmt: skip
    idempotency_max_answer_bytes: int = setting(
        8 * MIB, whole(KIB),
        "largest answer that is kept for an Idempotency-Key; a longer one is sent, but not a second time",
    )  # fmt: skip


class KeyState(StrEnum):
    """What has become of the request of a key."""

    RUNNING = "running"
    FREE = "free"
    ANSWERED = "answered"
    CUT = "cut"
    TOO_LONG = "too_long"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHead:
    """What comes before the body of an answer."""

    status: int  # of HTTP
    headers: Mapping[str, str]  # by their names in lower case
    streams: bool  # the body comes in parts, as it is made


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyClaim:
    """That a worker is to carry out the request of a key."""

    id: str  # made of the project and the key
    project: str
    fingerprint: str  # of the request
    object_id: str  # the id of the stored response that it will make; "" where its answer is kept here
    token: str  # of this claim alone
    worker: str  # the id of the process


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyRecord:
    """A key, as it is kept."""

    fingerprint: str  # of the request it was first sent with
    object_id: str  # the stored response it makes; "" where its answer is kept here
    state: KeyState
    epoch: int  # how many have claimed it
    token: str  # of the claim that holds it
    is_orphan: bool  # its worker died while it was running, or does not know of it
    head: AnswerHead | None = None  # None until there is an answer


class BaseIdempotencyStore(ABC):
    """Keeps keys of projects until their time is over. Every method raises `StoreError`."""

    @abstractmethod
    async def claim(self, claim: KeyClaim, *, dead_before: float, held: Collection[str]) -> IdempotencyRecord:
        """Claim a key that is new, free, or that a dead worker holds for a stored response; return it as it is then.

        It was claimed if its `token` is that of `claim`. A free key takes the claim's fingerprint; one that is not free
        and has another fingerprint stays as it is. A key that was claimed before keeps its `object_id`, unless it was
        free with another request. A dead worker's key without an `object_id` becomes `CUT`: nobody knows how far its
        request came. A worker is dead that was not seen since `dead_before`; a claim of this very worker is one of a
        dead one unless `held` has its token.
        """

    @abstractmethod
    async def look(self, key_id: str, *, dead_before: float) -> IdempotencyRecord | None:
        """Return a key, None where nobody has it."""

    @abstractmethod
    async def keep(
        self, key_id: str, token: str, *, head: AnswerHead, parts: Mapping[int, str], state: KeyState
    ) -> bool:
        """Keep parts of an answer, by their positions, and what has become of it; return whether the claim holds.

        Where it does not, or something else has become of it meanwhile, nothing is kept. To keep the same again changes
        nothing.
        """

    @abstractmethod
    async def settle(self, key_id: str, token: str, state: KeyState) -> None:
        """Note what has become of a key, if the claim holds, and drop the parts of an answer that is not whole."""

    @abstractmethod
    async def rename(self, key_id: str, token: str, object_id: str) -> None:
        """Note that the request of a key makes another response than it was to make, if the claim holds."""

    @abstractmethod
    async def forget(self, key_id: str, token: str) -> None:
        """Let go of a key whose request has changed nothing, if the claim holds."""

    @abstractmethod
    async def parts(self, key_id: str, start: int) -> Sequence[str]:
        """Return the parts of an answer from a position on, a bounded number of them."""

    @abstractmethod
    async def usage(self, project: str) -> tuple[int, int]:
        """Return how many keys of a project hold, and how many bytes their answers have."""

    @abstractmethod
    async def purge(self) -> int:
        """Remove keys whose time is over, with their answers; return how many. All of them, in bounded steps."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of everything. Safe to call twice."""
