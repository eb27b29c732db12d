"""The audit trail, a chain of entries (`chain`). Rows are added to it, and never changed or removed."""

from typing import ClassVar

from django.db import models

from responses_app.kit.columns import ID_LENGTH
from responses_app.kit.kept import OfNoProject

MAX_NAME = 200  # characters of a name, a subject or an action


class AuditRow(models.Model):
    """An entry of the trail."""

    number = models.BigIntegerField(primary_key=True)  # from 1 on, without gaps
    created_at = models.DateTimeField()
    action = models.CharField(max_length=ID_LENGTH)
    actor_kind = models.CharField(max_length=16)
    actor_id = models.CharField(max_length=ID_LENGTH, default="")
    actor_name = models.CharField(max_length=MAX_NAME, default="")
    project = models.CharField(max_length=ID_LENGTH, default="")
    subject = models.CharField(max_length=MAX_NAME, default="")
    address = models.CharField(max_length=ID_LENGTH, default="")
    detail = models.TextField(default="{}")  # JSON; the hash is of this text
    hash = models.CharField(max_length=64)  # SHA-256 in hex: of the hash before, and of all columns above
    kept = OfNoProject("the trail stays: it has no content, and a chain without some of its entries proves nothing")

    class Meta:
        verbose_name = "audit entry"
        verbose_name_plural = "audit entries"
        indexes: ClassVar = [
            models.Index(fields=["created_at"], name="auditrow_created"),
            models.Index(fields=["project", "number"], name="auditrow_project"),
            models.Index(fields=["subject", "number"], name="auditrow_subject"),
            models.Index(fields=["actor_name", "number"], name="auditrow_actor"),
        ]

    def __str__(self) -> str:
        return str(self.number)
