"""The contract of what keeps batches and their lines; `contracts/adapters/test_batches` tests it.

    pending ──> begun ──> done, with its result

A batch is worked on by one process at a time, which holds a claim on it as on a response. Whatever it writes names its
claim, and changes nothing where that is not the present one (`ClaimLost`). A line is begun in the store before anything
of it is done, and whoever claims the batch next is told which lines were begun: so no line runs twice that may not.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from responses_app.kit.errors import StoreError
from responses_app.resources.batches.lines import NO_TOKENS, OPEN, BatchError, LineTokens, NewLine, Status
from responses_app.resources.batches.settings import BatchSettings
from responses_app.stores.base import Claim

UNLIMITED = BatchSettings(batches_max_open=1_000_000)
SUCCEEDED, ERRORED = (
    "succeeded",
    "errored",
)  # outcomes of lines, beside `EXPIRED` and `CANCELLED`


@dataclass(frozen=True, slots=True, kw_only=True)
class LineCounts:
    """How many lines a batch has, and how many of them ended in each way."""

    total: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0


NO_LINES = LineCounts()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """A batch without its lines. Times are Unix seconds."""

    id: str
    project: str
    endpoint: str  # that answers its lines
    status: Status
    created_at: int
    expires_at: int
    key_id: str = ""  # of who created it
    input_file_id: str = ""  # "" where its lines came with the request
    output_file_id: str = ""  # while it is finalizing: that of the file that is being written
    error_file_id: str = ""
    output_seconds: int | None = None  # how long these files stay; None: until they are deleted
    model: str = ""  # of its lines; "" where they may have several
    metadata: Mapping[str, str] | None = None
    errors: Sequence[BatchError] = ()  # why its input was refused
    times: Mapping[str, int] = field(default_factory=dict)  # when it came to each status
    counts: LineCounts = NO_LINES
    tokens: LineTokens = NO_TOKENS

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.status in OPEN


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedBatch:
    """A batch that a process is to work on."""

    record: BatchRecord
    claim: Claim


@dataclass(frozen=True, slots=True)
class BegunLine:
    """A line that is to be run."""

    number: int
    custom_id: str
    body: bytes  # the JSON of the request
    again: bool  # it was begun before, by a process that may be dead: nobody knows how far it came


@dataclass(frozen=True, slots=True, kw_only=True)
class DoneLine:
    """What came of a line."""

    number: int
    outcome: str  # SUCCEEDED or ERRORED
    result: bytes  # the line of the output
    tokens: LineTokens = NO_TOKENS


@dataclass(frozen=True, slots=True)
class ResultLine:
    """A line that has ended."""

    number: int
    custom_id: str
    outcome: str
    result: bytes  # empty for one that was never begun


@dataclass(frozen=True, slots=True)
class Step:
    """What a step gave."""

    status: Status  # of the batch: somebody may have cancelled it
    lines: Sequence[BegunLine] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEnd:
    """How a batch ends."""

    status: Status  # failed, completed, expired or cancelled
    at: int  # Unix seconds
    output_file_id: str = ""  # of the lines that succeeded; "" where there are none
    error_file_id: str = ""  # of the others
    errors: Sequence[BatchError] = ()  # why its input was refused


class TooManyBatches(StoreError):
    """A project has as many batches under way as it may have."""


class BaseBatchStore(ABC):
    """Keeps batches of projects. Every method raises `StoreError`; one object serves one worker process.

    What takes a claim raises `ClaimLost` where that is not the present one, or the batch has ended.
    """

    # What clients ask for.

    @abstractmethod
    async def create(self, record: BatchRecord, lines: Sequence[NewLine] = ()) -> None:
        """Keep a new batch, with its lines where they came with the request. Raises `TooManyBatches`."""

    @abstractmethod
    async def get(self, project: str, batch_id: str) -> BatchRecord | None:
        """Return a batch."""

    @abstractmethod
    async def listed(
        self, project: str, prefix: str, *, after: str | None, limit: int, descending: bool = True
    ) -> Sequence[BatchRecord]:
        """Return up to `limit` batches whose ids begin so, behind the batch `after`, which may be gone."""

    @abstractmethod
    async def cancel(self, project: str, batch_id: str, *, at: int) -> BatchRecord | None:
        """Let a batch end early, unless its end is being written already; return it as it is then."""

    @abstractmethod
    async def delete(self, project: str, batch_id: str) -> bool:
        """Forget a batch that has ended, with its lines; return whether there was such a one."""

    @abstractmethod
    async def results(self, batch_id: str, *, after: int, limit: int, outcomes: Sequence[str]) -> Sequence[ResultLine]:
        """Return up to `limit` lines that ended so, behind the line with this number; fewer where they are large."""

    # What the process asks for that works on a batch.

    @abstractmethod
    async def has_work(
        self, worker: str, *, dead_before: float, known: Collection[str] = (), without: Collection[str] = ()
    ) -> bool:
        """Whether there is something to claim, as `claim` has it."""

    @abstractmethod
    async def claim(
        self,
        worker: str,
        *,
        dead_before: float,
        limit: int,
        known: Collection[str] = (),
        without: Collection[str] = (),
    ) -> Sequence[ClaimedBatch]:
        """Claim batches that nobody works on, or a worker that was not seen since then; the oldest first.

        `known`: those that this worker works on. Another one that is its own was claimed by a call whose answer was
        lost. `without`: projects whose batches are left to others.
        """

    @abstractmethod
    async def add_lines(self, batch_id: str, claim: Claim, lines: Sequence[NewLine]) -> None:
        """Keep lines of an input that is being read; one that is there already stays as it is."""

    @abstractmethod
    async def begin(self, batch_id: str, claim: Claim, *, total: int, model: str, at: int) -> None:
        """Note that the input is right, and its lines are all there; a batch that was cancelled stays so."""

    @abstractmethod
    async def step(
        self, batch_id: str, claim: Claim, *, done: Sequence[DoneLine], after: int, limit: int, max_bytes: int
    ) -> Step:
        """Keep what came of lines, and begin up to `limit` more behind the line with this number.

        All at once: together in one transaction. Of lines that are large fewer are begun, at least one. None are begun
        of a batch that is not in progress. To keep a result that is kept already changes nothing.
        """

    @abstractmethod
    async def give_back(self, batch_id: str, claim: Claim, *, pending: Sequence[int]) -> None:
        """Leave a batch to others, and begun lines that were not run, or may be run again, pending."""

    @abstractmethod
    async def finalize(
        self, batch_id: str, claim: Claim, *, unrun: str | None, output_file_id: str, error_file_id: str, at: int
    ) -> BatchRecord:
        """Let all lines that have not ended end as `unrun`, and name the files that will be written; return the batch.

        The ids of files that an earlier process was to write are replaced: see `BatchRecord`.
        """

    @abstractmethod
    async def sizes(self, batch_id: str, outcomes: Sequence[str]) -> tuple[int, int]:
        """Return how many lines ended so, and the bytes of their results."""

    @abstractmethod
    async def end(self, batch_id: str, claim: Claim, end: BatchEnd) -> None:
        """Let a batch end: this is the one place where it becomes failed, completed, expired or cancelled.

        Its files are among those that `finalize` named last; else this raises `ClaimLost`.
        """

    @abstractmethod
    async def drop_lines(self, batch_id: str) -> None:
        """Forget all lines of a batch: their results are in files, or its input is wrong."""

    @abstractmethod
    async def purge(self, *, created_before: float) -> int:
        """Forget batches that ended and were created before then, a few at a time; return how many."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of everything. Safe to call twice."""
