"""The contract of what keeps usage: which tokens were used, when, by whom; `contracts/adapters/test_usage` tests it.

What a request has used is kept once, however often it is told. That of a stored response is written in the transaction
that keeps its end (`stores.database.responses.writes`); all else comes over `keep`. It outlives responses and keys;
`forget` of a project erases it. `fold` adds up what is older, in UTC: to minutes after an hour, and then as the
constants below say.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Source = Literal["responses", "completions", "decisions", "embeddings"]
SOURCES: Sequence[Source] = get_args(Source)

# What sums can be told apart by. A key is an API key. A user is one of the admin, who asked without a key.
Group = Literal["project", "key", "user", "model", "source", "batch"]
GROUPS: Sequence[Group] = get_args(Group)

BATCH = "batch"  # the transport of what is a line of a batch

MINUTE, HOUR, DAY = 60, 3600, 86_400  # seconds
MINUTES_STAY = 2 * DAY  # then they become hours
HOURS_STAY = 32 * DAY  # then they become days


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedTokens:
    """Tokens that were used."""

    input: int
    cached: int  # of the input
    output: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageEntry:
    """What one request has used."""

    id: str  # of what was made: it counts once
    at: int  # Unix seconds, when it ended
    project: str
    key_id: str  # "session:7" for the user 7 of the admin, "" for none
    model: str
    source: Source
    tokens: UsedTokens
    batch: bool = False  # it was a line of a batch


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageQuery:
    """Whose usage is wanted, of which time, and how finely."""

    start: int  # Unix seconds
    end: int  # Unix seconds, exclusive
    width: int | None = None  # seconds of each bucket, counted from 1970 on in UTC; None for the whole time
    groups: Sequence[Group] = ()  # what sums are told apart by
    # Each of these leaves out all others; empty ones leave out nothing.
    projects: Sequence[str] = ()
    keys: Sequence[str] = ()
    users: Sequence[str] = ()
    models: Sequence[str] = ()
    sources: Sequence[Source] = ()
    batch: bool | None = None  # lines of batches alone, or none of them
    limit: int = 10_000  # sums at most


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSum:
    """What was used in a bucket by those who share all that was grouped by; what was not grouped by is None."""

    start: int  # of the bucket, Unix seconds; the query's without buckets
    requests: int
    tokens: UsedTokens
    project: str | None = None
    key: str | None = None  # "" for requests without an API key
    user: str | None = None  # "" for requests that no user of the admin made
    model: str | None = None
    source: str | None = None
    batch: bool | None = None


class BaseUsageStore(ABC):
    """Keeps usage. Every method raises `StoreError`."""

    @abstractmethod
    async def keep(self, entries: Sequence[UsageEntry]) -> None:
        """Keep what requests have used, of projects that are there; what is known already stays as it is."""

    @abstractmethod
    async def sums(self, query: UsageQuery) -> Sequence[UsageSum]:
        """Return the sums, by time and then by what they are grouped by; none for what was not used."""

    @abstractmethod
    async def fold(self) -> bool:
        """Add up some of what is older; return whether there may be more. One worker does so at a time."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of everything. Safe to call twice."""
