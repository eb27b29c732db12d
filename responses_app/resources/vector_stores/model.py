"""What is kept of vector stores: stores, the files in them, and the chunks of text that a search finds.

A store or a file that clients have deleted is `removed` at once, and its rows go in small steps. The index of the
chunks' words is the database's own, made by the migration: a table of FTS5 on SQLite, a column on PostgreSQL.

Where the server has an embedding model, chunks have vectors too, in two forms. `VectorStoreCodes` has the signs of the
numbers of some successive chunks, a bit each: a search reads those of a whole store. `VectorStoreVector` has the vector
of one chunk, as 16-bit floats: a search reads those of the chunks whose codes are near.
"""

from datetime import datetime, timedelta
from typing import ClassVar

from django.db import models

from responses_app.kit.columns import ID_LENGTH, JSONTextField, WithId
from responses_app.kit.kept import Kept, Line

PENDING = "in_progress"
COMPLETED = "completed"
REMOVED = "removed"  # a status that clients never see
IN_WORK = (PENDING, REMOVED)
MODEL_LENGTH = 255  # characters of the name of an embedding model, with the length of its vectors


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
    kept = Kept(
        shown=(250, "vector stores"),
        dated="created_at",
        line=Line(70, "vector_store", "id name description metadata"),
    )

    @property
    def expires_at(self) -> datetime | None:
        """From when on nothing is found in it; None: it stays."""
        return None if self.expires_days is None else self.last_active_at + timedelta(days=self.expires_days)

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
    kept = Kept(project="store__project", owner="VectorStore")

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
    # The model of the vectors, once all of its chunks have one; empty before
    embedded_by = models.CharField(max_length=MODEL_LENGTH, default="", db_default="")
    # Who embeds it, until `embedding_until`; then anybody may
    embedding_worker = models.CharField(max_length=ID_LENGTH, default="", db_default="")
    embedding_until = models.DateTimeField(null=True)
    kept = Kept(project="store__project", owner="VectorStore")

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["store", "status"], name="vectorstorefile_status"),
            models.Index(fields=["batch_id"], name="vectorstorefile_batch", condition=~models.Q(batch_id="")),
            models.Index(fields=["file_id"], name="vectorstorefile_file"),
            models.Index(
                fields=["embedded_by", "id"], name="vectorstorefile_embedded", condition=models.Q(status=COMPLETED)
            ),
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
    kept = Kept(project="store__project", owner="VectorStoreFile")

    class Meta:
        indexes: ClassVar = [models.Index(fields=["store"], name="vectorstorechunk_store")]
        constraints: ClassVar = [models.UniqueConstraint(fields=["file", "position"], name="vectorstorechunk_position")]

    def __str__(self) -> str:
        return f"{self.file_id} {self.position}"


class VectorStoreCodes(models.Model):
    """The signs of the vectors of some chunks of a file, from the position `start` on. They go with the file."""

    store = models.ForeignKey(VectorStore, on_delete=models.CASCADE, db_constraint=False, db_index=False)
    file = models.ForeignKey(VectorStoreFile, on_delete=models.CASCADE, db_constraint=False, db_index=False)
    model = models.CharField(max_length=MODEL_LENGTH)
    start = models.PositiveIntegerField()
    count = models.PositiveIntegerField()  # of the chunks
    keys = models.BinaryField()  # of the chunks: 64-bit integers, little-endian
    codes = models.BinaryField()  # of all of them, one behind the other
    kept = Kept(project="store__project", owner="VectorStoreFile")

    class Meta:
        indexes: ClassVar = [models.Index(fields=["store"], name="vectorstorecodes_store")]
        constraints: ClassVar = [models.UniqueConstraint(fields=["file", "start"], name="vectorstorecodes_start")]
        verbose_name_plural = "vector store codes"

    def __str__(self) -> str:
        return f"{self.file_id} {self.start}"


class VectorStoreVector(models.Model):
    """The vector of a chunk, of length 1. It goes with the chunk, by a trigger or a constraint of the database."""

    chunk = models.OneToOneField(VectorStoreChunk, on_delete=models.DO_NOTHING, db_constraint=False, primary_key=True)
    vector = models.BinaryField()  # 16-bit floats, little-endian
    kept = Kept(project="chunk__store__project", owner="VectorStoreChunk")

    def __str__(self) -> str:
        return str(self.chunk_id)
