"""What is kept of vector stores: stores, the files in them, and the chunks of text that a search finds.

A store or a file that clients have deleted is `removed` at once, and its rows go in small steps. The index of the
chunks' words is the database's own, made by the migration: a table of FTS5 on SQLite, a column on PostgreSQL.
"""

from typing import ClassVar

from django.db import models

from responses_app.models.fields import ID_LENGTH, JSONTextField, WithId

PENDING = "in_progress"
REMOVED = "removed"  # a status that clients never see
IN_WORK = (PENDING, REMOVED)


class VectorStore(WithId):
    """Files that are searched together."""

    project = models.CharField(max_length=64, default="default")
    name = models.TextField(default="")
    description = models.TextField(default="")
    metadata = JSONTextField(default=dict)
    created_at = models.DateTimeField()
    last_active_at = models.DateTimeField()  # changed, or searched
    expires_days = models.PositiveIntegerField(null=True)  # counted from `last_active_at`; null: it stays
    removed = models.BooleanField(default=False)  # clients have deleted it; its rows go in small steps

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["project", "id"], name="vectorstore_project"),
            models.Index(fields=["id"], name="vectorstore_removed", condition=models.Q(removed=True)),
            models.Index(
                fields=["last_active_at"], name="vectorstore_expires", condition=models.Q(expires_days__isnull=False)
            ),
        ]


class VectorStoreBatch(WithId):
    """Files that were put into a store together."""

    store = models.ForeignKey(VectorStore, on_delete=models.CASCADE, db_constraint=False, db_index=False)
    created_at = models.DateTimeField()
    cancelled = models.BooleanField(default=False)

    class Meta:
        indexes: ClassVar = [models.Index(fields=["store"], name="vectorstorebatch_store")]


class VectorStoreFile(models.Model):
    """A file in a store."""

    store = models.ForeignKey(VectorStore, on_delete=models.CASCADE, db_constraint=False, db_index=False)
    file_id = models.CharField(max_length=ID_LENGTH)
    batch_id = models.CharField(max_length=ID_LENGTH, default="")  # empty where it was added alone
    filename = models.TextField()
    created_at = models.DateTimeField()
    status = models.CharField(max_length=16, default=PENDING)
    error_code = models.CharField(max_length=32, default="")
    error_message = models.TextField(default="")
    attributes = JSONTextField(default=dict)
    chunk_size = models.PositiveIntegerField()  # tokens; so is the overlap
    chunk_overlap = models.PositiveIntegerField()
    usage_bytes = models.PositiveBigIntegerField(default=0)  # of its chunks
    # Who reads it, until `leased_until`; then anybody may
    worker = models.CharField(max_length=ID_LENGTH, default="")
    leased_until = models.DateTimeField(null=True)
    attempts = models.PositiveIntegerField(default=0)  # how often it was begun

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["store", "status"], name="vectorstorefile_status"),
            models.Index(fields=["batch_id"], name="vectorstorefile_batch", condition=~models.Q(batch_id="")),
            models.Index(fields=["file_id"], name="vectorstorefile_file"),
            models.Index(
                fields=["status", "id"], name="vectorstorefile_in_work", condition=models.Q(status__in=IN_WORK)
            ),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["store", "file_id"], name="vectorstorefile_once", condition=~models.Q(status=REMOVED)
            )
        ]

    def __str__(self) -> str:
        return f"{self.store_id} {self.file_id}"


class VectorStoreChunk(models.Model):
    """A chunk of a file, in the order of `position`."""

    store = models.ForeignKey(VectorStore, on_delete=models.CASCADE, db_constraint=False, db_index=False)
    file = models.ForeignKey(VectorStoreFile, on_delete=models.CASCADE, db_constraint=False, db_index=False)
    position = models.PositiveIntegerField()
    text = models.TextField()

    class Meta:
        indexes: ClassVar = [models.Index(fields=["store"], name="vectorstorechunk_store")]
        constraints: ClassVar = [models.UniqueConstraint(fields=["file", "position"], name="vectorstorechunk_position")]

    def __str__(self) -> str:
        return f"{self.file_id} {self.position}"
