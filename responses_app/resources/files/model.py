"""What is kept of files: the files, uploads, and the parts of these. Their contents are in pieces: see `kit.pieces`."""

from typing import ClassVar

from django.db import models

from responses_app.kit.columns import ID_LENGTH, WithId
from responses_app.kit.kept import Kept, Line

PENDING, COMPLETED, CANCELLED, EXPIRED = "pending", "completed", "cancelled", "expired"  # of an upload


class StoredFile(WithId):
    """A file that a client uploaded, or that a batch has written."""

    project = models.CharField(max_length=64, default="default")
    purpose = models.CharField(max_length=32)
    filename = models.TextField()
    bytes = models.PositiveBigIntegerField()
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True)  # null: it stays until somebody deletes it
    is_whole = models.BooleanField(default=False)  # from then on clients find it
    kept = Kept(shown=(200, "files"), dated="created_at", line=Line(80, "file", "id filename purpose bytes created_at"))

    class Meta:
        verbose_name = "file"
        indexes: ClassVar = [
            models.Index(fields=["project", "id"], name="file_project"),
            models.Index(fields=["expires_at"], name="file_expires", condition=models.Q(expires_at__isnull=False)),
            models.Index(fields=["created_at"], name="file_unfinished", condition=models.Q(is_whole=False)),
        ]


class Upload(WithId):
    """A file that comes in parts, from its first part to the day after its time is over."""

    project = models.CharField(max_length=64, default="default")
    status = models.CharField(max_length=16)  # a pending one whose time is over has expired
    purpose = models.CharField(max_length=32)
    filename = models.TextField()
    bytes = models.PositiveBigIntegerField()  # that the file is to have
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    # How long the file stays once it is whole; null: until it is deleted
    file_seconds = models.PositiveIntegerField(null=True)
    file_id = models.CharField(max_length=ID_LENGTH, default="")  # once it is completed
    kept = Kept(shown=(210, "uploads"), dated="created_at")

    file: StoredFile | None  # of one that the store has read: once it is completed, for as long as there is the file

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["project"], name="upload_open", condition=models.Q(status=PENDING)),
            models.Index(fields=["expires_at"], name="upload_expires"),
        ]


class UploadPart(WithId):
    """A part of an upload, and then of the file `file_id`, in the order of `place`."""

    upload = models.ForeignKey(
        Upload, on_delete=models.DO_NOTHING, related_name="parts", db_constraint=False, db_index=False
    )
    bytes = models.PositiveIntegerField()
    created_at = models.DateTimeField()
    is_whole = models.BooleanField(default=False)
    file_id = models.CharField(max_length=ID_LENGTH, default="")
    place = models.PositiveIntegerField(null=True)  # in the file, from 0 on; null while it is not of the file
    kept = Kept(project="upload__project", owner="Upload")  # or the file that they have become

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["upload"], name="uploadpart_upload"),
            models.Index(fields=["upload"], name="uploadpart_left", condition=models.Q(place__isnull=True)),
            models.Index(fields=["file_id", "place"], name="uploadpart_file", condition=models.Q(place__isnull=False)),
        ]
