"""Projects and their keys, admin keys, and what holds for all projects together."""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, ClassVar

from django.db import models

from responses_app.kit.columns import ID_LENGTH, JSONTextField
from responses_app.kit.kept import Kept, Line, OfNoProject, writes_lines
from responses_app.protocol.api_keys import digest_of, prefix_of


class LimitColumns(models.Model):
    """How much may be asked for; None: as much as anybody likes."""

    requests_per_minute = models.PositiveBigIntegerField(null=True, blank=True)
    input_tokens_per_minute = models.PositiveBigIntegerField(null=True, blank=True)
    output_tokens_per_minute = models.PositiveBigIntegerField(null=True, blank=True)
    tokens_per_day = models.PositiveBigIntegerField(null=True, blank=True)
    concurrent_responses = models.PositiveIntegerField(null=True, blank=True)
    websockets = models.PositiveIntegerField(null=True, blank=True)
    monthly_spend_cents = models.PositiveBigIntegerField(null=True, blank=True)

    class Meta:
        abstract = True


class Project(LimitColumns):
    """Those who share what is stored. Its limits count all its keys together."""

    name = models.CharField(primary_key=True, max_length=ID_LENGTH)
    created_at = models.DateTimeField()
    title = models.CharField(max_length=256, default="", db_default="")  # another name for people; empty for none
    archived_at = models.DateTimeField(null=True)  # from then on its keys open no more
    retention_hours = models.IntegerField(null=True)  # how long it keeps what it stores: see `kit.retention`
    kept = Kept(shown=(280, "projects"), project="name", stays="it holds what is kept, and is none of it", erased=1)

    def __str__(self) -> str:
        return self.name


class Organization(models.Model):
    """What holds for all projects together: one row, or none."""

    id = models.CharField(primary_key=True, max_length=ID_LENGTH)  # `fields.ORGANIZATION`
    monthly_spend_cents = models.PositiveBigIntegerField(null=True)
    kept = OfNoProject("it is for all projects together")

    def __str__(self) -> str:
        return str(self.pk)


class KeyColumns(models.Model):
    """A key, see `protocol.api_keys`."""

    id = models.CharField(primary_key=True, max_length=ID_LENGTH)
    name = models.CharField(max_length=100, blank=True, default="")
    digest = models.CharField(max_length=64)  # of the secret, which is not kept
    prefix = models.CharField(max_length=16)  # the secret's beginning, by which people tell keys apart
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)
    # A revoked key stays, so that it can be seen who had one
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.prefix}… {self.name}".rstrip()

    def state(self, now: datetime) -> str:
        """Return whether it opens: good, expired or revoked."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "good"


class ApiKey(KeyColumns, LimitColumns):
    """A key of a project."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="keys", db_index=False)
    scopes = JSONTextField(default=list)  # none mean all
    allowed_models = JSONTextField(default=list)  # none mean all
    kept = Kept(
        shown=(270, "API keys"),
        stays="who may come in is not content",
        erased=1,
        line=Line(120, "api_key", "id name prefix created_at", by="created_at"),
    )

    class Meta:
        verbose_name = "API key"
        indexes: ClassVar = [models.Index(fields=["project", "created_at"], name="apikey_project_created")]
        constraints: ClassVar = [models.UniqueConstraint(fields=["digest"], name="apikey_digest")]


class AdminKey(KeyColumns):
    """A key that manages projects and their keys, and is of no project."""

    project_id: ClassVar = ""
    kept = OfNoProject("it opens all projects")

    class Meta:
        verbose_name = "admin key"
        constraints: ClassVar = [models.UniqueConstraint(fields=["digest"], name="adminkey_digest")]


def secret_columns(secret: str, at: datetime) -> dict[str, Any]:
    """Return the columns of a new key that are of its secret."""
    return {"digest": digest_of(secret), "prefix": prefix_of(secret), "created_at": at}


@writes_lines(ApiKey)
def _lines(row: ApiKey, head: Mapping[str, Any], using: str) -> Iterator[str]:
    yield json.dumps(head)
