"""The contract of what keeps vector stores: files that are searched together, cut into chunks."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from responses_app.protocol.files.fusion import Weights
from responses_app.protocol.files.searches import Chunking
from responses_app.protocol.files.vector_stores import FileProblem, FileStatus
from responses_app.protocol.setting import MIB, RoomSettings, flag, setting, whole

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


@dataclass(frozen=True, kw_only=True)
class VectorStoreSettings(RoomSettings):
    """Whether there are vector stores, and how much they may keep."""

    file_search: bool = setting(True, flag, "serve vector stores and the tool `file_search` (see File search)")
    vector_stores_max_entries: int = setting(
        1000, whole(), "vector stores that one project may have (see File search); 0 = no limit"
    )
    vector_store_max_files: int = setting(10_000, whole(), "files in one vector store; 0 = no limit")
    vector_store_max_chunks: int = setting(100_000, whole(), "chunks in one vector store; 0 = no limit")
    file_search_cache_bytes: int = setting(
        64 * MIB,
        whole(),
        "memory in which a process keeps what searches by meaning compare, of the vector stores that were searched "
        "last: 15 MB for 100,000 chunks with vectors of 1,024 numbers; 0 = it is read for each search",
    )


class VectorStoresFull(Exception):
    """There are as many as there may be; the message says of what."""


class BaseVectorStores(ABC):
    """Keeps the vector stores of projects. A file is in its stores as long as it is kept (`BaseFileStore`).

    Every method raises `StoreError` where the store is away.
    """

    @abstractmethod
    async def create(self, project: str, record: VectorStoreRecord, files: Sequence[NewStoreFile]) -> None:
        """Keep a new store. Raises `VectorStoresFull`."""

    @abstractmethod
    async def get(self, project: str, store_id: str) -> VectorStoreRecord | None:
        """Return a store."""

    @abstractmethod
    async def listed(
        self, project: str, *, after: str | None, descending: bool, limit: int, before: str | None = None
    ) -> Sequence[VectorStoreRecord]:
        """Return up to `limit` stores behind the store `after` and before the store `before`, which may be gone."""

    @abstractmethod
    async def update(self, project: str, store_id: str, changes: Mapping[str, object]) -> VectorStoreRecord | None:
        """Change fields of a store's record."""

    @abstractmethod
    async def delete(self, project: str, store_id: str) -> bool:
        """Forget a store; the files stay."""

    @abstractmethod
    async def add(
        self, project: str, store_id: str, files: Sequence[NewStoreFile], *, batch_id: str = ""
    ) -> Sequence[StoreFileRecord] | None:
        """Put files into a store, where they are read; one that is there is read again. Raises `VectorStoresFull`."""

    @abstractmethod
    async def files(self, project: str, store_id: str, query: FileQuery) -> Sequence[StoreFileRecord]:
        """Return files of a store; `after` and `before` may be gone."""

    @abstractmethod
    async def file(self, project: str, store_id: str, file_id: str) -> StoreFileRecord | None:
        """Return a file of a store."""

    @abstractmethod
    async def set_attributes(
        self, project: str, store_id: str, file_id: str, attributes: Mapping[str, Value]
    ) -> StoreFileRecord | None:
        """Give a file of a store other attributes."""

    @abstractmethod
    async def remove(self, project: str, store_id: str, file_id: str) -> bool:
        """Take a file out of a store."""

    @abstractmethod
    async def forget_file(self, project: str, file_id: str) -> None:
        """Take a file out of all stores."""

    @abstractmethod
    async def content(self, project: str, store_id: str, file_id: str) -> Sequence[str] | None:
        """Return the chunks of a file."""

    @abstractmethod
    async def batch(self, project: str, store_id: str, batch_id: str) -> BatchRecord | None:
        """Return a batch."""

    @abstractmethod
    async def cancel_batch(self, project: str, store_id: str, batch_id: str) -> BatchRecord | None:
        """Leave those files of a batch out that were not read yet."""

    @abstractmethod
    async def search(self, project: str, store_id: str, search: Search) -> Sequence[Hit] | None:
        """Return what was found, the best first; None where there is no such store, or it has expired."""

    @abstractmethod
    async def claim(self, worker: str, *, lease_seconds: float, after: str = "") -> PendingFile | None:
        """Return a file that is to be read, for so long; what it had is gone. None for nothing.

        It is the oldest of one project: of the one that follows `after`, so that projects take turns.
        """

    @abstractmethod
    async def keep(self, pending: PendingFile, chunks: Sequence[str]) -> bool:
        """Keep the chunks of a file, which is then found; False where it is nobody's any more, or another worker's."""

    @abstractmethod
    async def fail(self, pending: PendingFile, code: str, message: str) -> None:
        """Note that a file cannot be read, and why."""

    @abstractmethod
    async def release(self, pending: PendingFile) -> None:
        """Leave a file that was not read to the worker that looks first."""

    @abstractmethod
    async def claim_vectors(
        self, worker: str, model: str, *, lease_seconds: float, after: str = ""
    ) -> PendingVectors | None:
        """Return a file that has been read and lacks vectors of this model, for so long; None for nothing.

        Those of other models are gone then. Projects take turns, as with `claim`.
        """

    @abstractmethod
    async def chunks_of(self, pending: PendingVectors, start: int, limit: int) -> Sequence[tuple[int, str]]:
        """Return the keys and texts of some of a file's chunks, from the position `start` on."""

    @abstractmethod
    async def keep_vectors(
        self,
        pending: PendingVectors,
        start: int,
        keys: Sequence[int],
        vectors: Sequence[Sequence[float]],
        *,
        lease_seconds: float,
    ) -> bool:
        """Keep the vectors of chunks, which are found by them from now on, and lease the file for so long again.

        False where the file is gone, or another worker's.
        """

    @abstractmethod
    async def end_vectors(self, pending: PendingVectors, *, whole: bool) -> None:
        """Let go of a file: `whole` where every chunk has its vector; else another worker goes on at once."""

    @abstractmethod
    async def sweep(self) -> bool:
        """Remove a part of what was deleted or has expired; return whether there may be more."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of everything. Safe to call twice."""
