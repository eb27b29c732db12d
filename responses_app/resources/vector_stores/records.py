"""Vector stores, as what keeps them gives and takes them: files that are searched together, cut into chunks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from responses_app.protocol.files.fusion import Weights
from responses_app.protocol.files.searches import Chunking

FileStatus = Literal["in_progress", "completed", "failed", "cancelled"]
FileProblem = Literal["server_error", "unsupported_file", "invalid_file"]  # why one could not be read
Value = str | int | float | bool
MAX_TRIES = 3  # to read a file: after that, it is the file that ends workers
DAY = 86_400  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFileCounts:
    """How many files of a store or a batch have which status."""

    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.in_progress + self.completed + self.failed + self.cancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorStoreRecord:
    """What is known of a store."""

    id: str
    name: str
    created_at: int  # Unix seconds, as all times here
    last_active_at: int  # when it was changed or searched last, to the minute
    description: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    expires_days: int | None = None  # after `last_active_at`; None: it stays
    counts: StoreFileCounts = StoreFileCounts()
    usage_bytes: int = 0  # of the chunks of all its files

    @property
    def expires_at(self) -> int | None:
        """When nothing more can be found in it; None: never."""
        return None if self.expires_days is None else self.last_active_at + self.expires_days * DAY


@dataclass(frozen=True, slots=True, kw_only=True)
class NewStoreFile:
    """A file that is to be put into a store."""

    file_id: str
    filename: str
    attributes: Mapping[str, Value] = field(default_factory=dict)
    chunking: Chunking = Chunking()  # noqa: RUF009 - it is frozen


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFileRecord:
    """A file in a store."""

    store_id: str
    file_id: str
    filename: str
    created_at: int
    status: FileStatus
    attributes: Mapping[str, Value]
    chunking: Chunking
    usage_bytes: int = 0  # of its chunks
    error: tuple[FileProblem, str] | None = None  # a code and a message of one that has failed


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """Files that were put into a store together."""

    id: str
    store_id: str
    created_at: int
    cancelled: bool
    counts: StoreFileCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class FileQuery:
    """Which files of a store are listed."""

    status: str | None = None  # None for any
    batch_id: str | None = None  # None for any
    after: str | None = None  # the file behind which the list begins
    before: str | None = None  # the file before which it ends
    descending: bool = True
    limit: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingFile:
    """A file that a worker is to read, by the right of a lease."""

    key: int  # of its row
    project: str
    store_id: str
    file_id: str
    filename: str
    chunking: Chunking
    worker: str  # who has the lease
    room: int  # chunks that the store still takes


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingVectors:
    """A file whose chunks a worker is to embed, by the right of a lease."""

    key: int  # of its row
    project: str
    store_id: str
    file_id: str
    model: str  # whose vectors it is to have, with their length
    start: int  # the first position without one
    worker: str  # who has the lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """The vectors of the queries of a search, and how they count."""

    model: str  # that made them, with their length; vectors of others are not compared with them
    vectors: Sequence[Sequence[float]]  # one for each query, of length 1
    weights: Weights = Weights()  # noqa: RUF009 - it is frozen


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What is looked for in a store."""

    queries: Sequence[str]  # a chunk that fits any of them is found
    limit: int = 10  # chunks, of all queries together
    threshold: float = 0.0  # the least score
    matches: Callable[[Mapping[str, Value]], bool] | None = None  # whether a file's attributes fit; None: all do
    meaning: Meaning | None = None  # None: words alone are searched


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A chunk that was found."""

    key: int  # of its row
    file_id: str
    filename: str
    attributes: Mapping[str, Value]
    text: str
    score: float  # from 0 to 1, see `vector_stores.search`


class VectorStoresFull(Exception):
    """There are as many as there may be; the message says of what."""
