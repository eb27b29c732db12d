"""What is kept of batches, and of their lines: each is a request, and then what came of it.

validating ──> in_progress ──> finalizing ──> completed | expired
    └─> failed      └─> cancelling ──> cancelled
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from django.db import models

from responses_app.kit.columns import ID_LENGTH, JSONTextField, WithId, json_text
from responses_app.kit.kept import Kept, Line, removes, writes_lines
from responses_app.protocol.ids import MESSAGE_BATCH

VALIDATING, IN_PROGRESS, FINALIZING, CANCELLING = "validating", "in_progress", "finalizing", "cancelling"
OPEN = (VALIDATING, IN_PROGRESS, FINALIZING, CANCELLING)
FAILED, COMPLETED = "failed", "completed"  # or EXPIRED, or CANCELLED
PENDING, BEGUN, DONE = 0, 1, 2  # of `BatchLine.state`
REMOVED_AT_ONCE = 1000  # lines that one statement removes
READ_AT_ONCE = 200  # lines


class Batch(WithId):
    """A batch, of OpenAI's API or of Anthropic's: the prefix of its id says which."""

    project = models.CharField(max_length=64, default="default")
    key_id = models.CharField(max_length=ID_LENGTH, default="")  # of who created it, as in a response
    endpoint = models.CharField(max_length=64)  # that answers its lines
    status = models.CharField(max_length=16)
    input_file_id = models.CharField(max_length=ID_LENGTH, default="")  # empty where its lines came with the request
    # Of OpenAI's: once they are to be written, and shown once the batch has ended
    output_file_id = models.CharField(max_length=ID_LENGTH, default="")
    error_file_id = models.CharField(max_length=ID_LENGTH, default="")
    output_seconds = models.PositiveIntegerField(null=True)  # how long these files stay; null: until they are deleted
    model = models.CharField(max_length=256, default="")  # of its lines, where all have the same
    metadata = JSONTextField(null=True)
    errors = JSONTextField(default=list)  # why its input was refused
    times = JSONTextField(default=dict)  # when it came to each status: Unix seconds by OpenAI's names
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()  # from then on no line is begun
    worker = models.CharField(max_length=ID_LENGTH, default="")  # the process that works on it; empty for none
    epoch = models.IntegerField(default=0)  # how many have claimed it
    # Of its lines: how many there are, and how many ended in each way.
    total = models.PositiveIntegerField(default=0)
    completed = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    cancelled = models.PositiveIntegerField(default=0)
    expired = models.PositiveIntegerField(default=0)
    # Tokens of all lines that have ended.
    input_tokens = models.PositiveBigIntegerField(default=0)
    cached_tokens = models.PositiveBigIntegerField(default=0)
    output_tokens = models.PositiveBigIntegerField(default=0)
    reasoning_tokens = models.PositiveBigIntegerField(default=0)
    kept = Kept(
        shown=(190, "batches"),
        key="key_id",
        dated="created_at",
        erased=-1,  # before the responses and files that it makes
        line=Line(20, "batch", "id status metadata"),
    )

    class Meta:
        verbose_name_plural = "batches"
        indexes: ClassVar = [
            models.Index(fields=["project", "id"], name="batch_project"),
            models.Index(fields=["worker"], name="batch_open", condition=models.Q(status__in=OPEN)),
            models.Index(fields=["created_at"], name="batch_created"),
        ]

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.status in OPEN

    @property
    def is_of_messages(self) -> bool:
        """Whether it is one of Anthropic's API."""
        return str(self.pk).startswith(MESSAGE_BATCH)

    def come_to(self, status: str, at: int) -> None:
        """Give it a status, from a time in Unix seconds on."""
        self.status, self.times = status, {**self.times, status: at}


class BatchLine(models.Model):
    """A line of a batch. Its body goes when it has ended, and the line when its result is in a file."""

    batch = models.ForeignKey(
        Batch, on_delete=models.DO_NOTHING, related_name="lines", db_constraint=False, db_index=False
    )
    number = models.PositiveIntegerField()  # of the line in its input, from 1 on
    custom_id = models.TextField()
    # 0: not begun; 1: given to a worker; 2: it has ended, and `outcome` says how. See `resources.batches.rows`
    state = models.PositiveSmallIntegerField(default=0)
    outcome = models.CharField(max_length=16, default="")
    body_size = models.PositiveIntegerField()  # bytes
    body = models.BinaryField()  # the JSON of the request
    result_size = models.PositiveIntegerField(default=0)  # bytes
    result = models.BinaryField(default=b"")  # the line of the output; empty for one that was never begun
    kept = Kept(project="batch__project", owner="Batch")

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["batch", "number"], name="batchline_number")]

    def __str__(self) -> str:
        return f"{self.batch_id} {self.number}"


def remove_some_lines(using: str, batch_id: str) -> bool:
    """Remove a few lines of a batch; return whether none is left."""
    lines = BatchLine.objects.using(using).filter(batch_id=batch_id)
    some = list(lines.values_list("pk", flat=True)[: REMOVED_AT_ONCE + 1])
    lines.filter(pk__in=some[:REMOVED_AT_ONCE]).delete()
    return len(some) <= REMOVED_AT_ONCE


@removes(Batch)
def _remove_some_of(rows: "models.QuerySet[Batch]", ids: Sequence[str]) -> None:
    # Its lines first: nothing would name them once it is gone. Who works on it meanwhile finds none, and then no batch.
    if remove_some_lines(rows.db, ids[0]):
        rows.delete()


@writes_lines(Batch)
def _lines(row: Batch, head: Mapping[str, Any], using: str) -> Iterator[str]:
    yield json_text(head)
    lines = BatchLine.objects.using(using).filter(batch_id=row.pk).order_by("number")
    for line in lines.iterator(chunk_size=READ_AT_ONCE):
        texts = {"body": bytes(line.body).decode(), "result": bytes(line.result).decode()}
        yield json_text({"line_of": row.pk, "custom_id": line.custom_id, "outcome": line.outcome, **texts})
