"""Idempotency keys as they are kept, with their answers; `stores/database/idempotency.py` keeps them.

A key is claimed before its request is carried out, and the claim says what has become of it:

    running    a worker carries the request out
    free       nobody does: it failed, and whoever comes next may claim it
    answered   it has an answer: kept in parts here, or that of the response `object_id`
    cut        its answer broke off, or nobody knows what came of it
    too_long   it had an answer that was too long to be kept

Each claim has a token, and whatever is written names it. So a worker that was only slow, and was taken for dead,
changes nothing any more once another one has claimed the key.
"""

from collections.abc import Mapping
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
