"""API keys and users of the admin in the database; and functions that make and revoke keys."""

import os
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from django.contrib.auth import get_user
from django.contrib.sessions.backends.db import SessionStore
from django.db import IntegrityError, transaction

from responses_app.kit.clock import IdFactory, utc
from responses_app.kit.sql import in_parts
from responses_app.kit.table import Store, reads
from responses_app.protocol import ids
from responses_app.protocol.api_keys import (
    ADMIN_START,
    DEFAULT_PROJECT,
    MANAGES,
    Caller,
    KeyRecord,
    SessionPass,
    new_secret,
)
from responses_app.protocol.errors import ApiError
from responses_app.protocol.rate_limits import NO_LIMITS, LimitedSubject, Limits, limited_by
from responses_app.resources.audit.chain import append
from responses_app.resources.audit.fields import SERVER, Action, AuditEntry
from responses_app.resources.projects.fields import project_archived
from responses_app.resources.projects.model import AdminKey, ApiKey, Project, secret_columns
from responses_app.stores.database.roles import chooses_project, session_scopes
from responses_app.stores.database.sign_on import is_over

FIRST = f"{ids.API_KEY}first"  # the id of the key that a server makes for itself: there is one at most

_new_id = IdFactory(time.time)


class KeyStore(Store[None]):
    """Finds keys by their digests. One object serves one worker process; every method raises `StoreError`."""

    unlimited = None

    @reads
    def find(self, digests: Sequence[str]) -> Mapping[str, KeyRecord]:
        """Return the keys that are kept under these digests, revoked and expired ones too."""
        keys = ApiKey.objects.using(self._using).select_related("project")
        records: dict[str, KeyRecord] = {}
        for some in in_parts(digests):
            records |= {row.digest: key_of(row) for row in keys.filter(digest__in=some)}
        # Nearly always there is nothing left to look for among the admin keys.
        admin_keys = AdminKey.objects.using(self._using)
        for some in in_parts([digest for digest in digests if digest not in records]):
            records |= {row.digest: admin_key_of(row) for row in admin_keys.filter(digest__in=some)}
        return records

    @reads
    def get(self, key_id: str) -> KeyRecord | None:
        """Return the key with this id, also if it is revoked or has expired."""
        row = ApiKey.objects.using(self._using).select_related("project").filter(pk=key_id).first()
        return None if row is None else key_of(row)

    @reads
    def limits_of_project(self, project: str) -> Sequence[LimitedSubject]:
        """Return whose limits hold for who asks in a project without a key of it."""
        return limited_in(Project.objects.using(self._using).filter(pk=project).first())

    @reads
    def note_use(self, key_ids: Sequence[str], at: float) -> None:
        """Keep when keys were used last, in Unix seconds."""
        for table in (ApiKey, AdminKey):
            for some in in_parts(key_ids):
                table.objects.using(self._using).filter(pk__in=some).update(last_used_at=utc(at))

    @reads
    def has_keys(self) -> bool:
        """Whether there is any key, of any project."""
        return ApiKey.objects.using(self._using).exists()

    @reads
    def make_first(self, secret: str) -> bool:
        """Keep this key for the default project if there is no key at all, of any project; return whether it is kept.

        Of several workers that do so at once, one does.
        """
        if ApiKey.objects.using(self._using).exists():
            return False
        try:
            with transaction.atomic(using=self._using):
                _keep(DEFAULT_PROJECT, secret, id=FIRST, name="first key", using=self._using)
                append(self._db, [AuditEntry(SERVER, Action.KEY_CREATED, FIRST, DEFAULT_PROJECT)])
        # The fixed id `FIRST` is what makes two workers meet.
        except IntegrityError:  # another worker was faster
            return False
        return True


def key_of(row: ApiKey) -> KeyRecord:
    """Return a row as the rest of the code knows it."""
    return KeyRecord(
        id=row.pk,
        project=row.project_id,
        digest=row.digest,
        name=row.name,
        scopes=tuple(row.scopes),
        models=tuple(row.allowed_models),
        expires_at=row.expires_at.timestamp() if row.expires_at else None,
        revoked=row.revoked_at is not None or row.project.archived_at is not None,
        limited=limited_by(row.pk, row.project_id, Limits.of(row), Limits.of(row.project)),
    )


def admin_key_of(row: AdminKey) -> KeyRecord:
    """Return a row as the rest of the code knows it: a key that may manage, and nothing else."""
    return KeyRecord(
        id=row.pk,
        project="",
        digest=row.digest,
        name=row.name,
        scopes=MANAGES,
        expires_at=row.expires_at.timestamp() if row.expires_at else None,
        revoked=row.revoked_at is not None,
    )


def limited_in(project: Project | None) -> Sequence[LimitedSubject]:
    """Return whose limits hold for who asks in a project without a key of it; nobody's where there is no such row."""
    return () if project is None else limited_by("", project.pk, NO_LIMITS, Limits.of(project))


def create_key(project: str, **fields: Any) -> tuple[str, ApiKey]:
    """Make a key of a project, which is made too if there is none; return it, this once, and its row.

    `fields` are those of the row: `name`, `scopes`, `allowed_models`, `expires_at`, and limits. Raises `Unchangeable`
    where the project is archived.
    """
    secret = new_secret(os.urandom)
    return secret, _keep(project, secret, id=_new_id(ids.API_KEY), **fields)


def create_admin_key(name: str, expires_at: datetime | None) -> tuple[str, AdminKey]:
    """Make an admin key; return it, this once, and its row."""
    secret = new_secret(os.urandom, start=ADMIN_START)
    columns = secret_columns(secret, datetime.now(UTC))
    return secret, AdminKey.objects.create(id=_new_id(ids.ADMIN_KEY), name=name, expires_at=expires_at, **columns)


def _keep(project: str, secret: str, *, using: str = "default", **fields: Any) -> ApiKey:
    at = datetime.now(UTC)
    with transaction.atomic(using=using):
        owner, _ = Project.objects.using(using).get_or_create(name=project, defaults={"created_at": at})
        # Again, under a lock: whoever archives it waits.
        owner = Project.objects.using(using).select_for_update().get(pk=owner.pk)
        if owner.archived_at is not None:
            raise project_archived(project)
        return ApiKey.objects.using(using).create(project=owner, **secret_columns(secret, at), **fields)


def revoke_keys(key_ids: Collection[str]) -> int:
    """Revoke keys: they open no more, within 2 s on every worker. Return how many were good before."""
    revoked, at, named = 0, datetime.now(UTC), list(key_ids)
    for table in (ApiKey, AdminKey):
        # Only those that were not revoked: `revoked_at` stays the time of the first revocation.
        revoked += table.objects.filter(pk__in=named, revoked_at=None).update(revoked_at=at)
    return revoked


MAX_CHOICE = 500  # projects that a page offers


class Staff(Store[None]):
    """The users of the admin, by Django's sessions."""

    unlimited = None

    @reads
    def caller(self, session_pass: SessionPass) -> Caller | None:
        """Return who comes in by a session, None where it opens nothing: it is over, or its user may not.

        Raises `ApiError` (403) for a project that the user may not choose, and `StoreError`.
        """
        # `get_user` needs no more of a request than its session. It also checks the session's hash of the password.
        session = SessionStore(session_pass.key)
        user: Any = get_user(SimpleNamespace(session=session))  # type: ignore[arg-type]
        scopes = () if is_over(session) else session_scopes(user)
        if not scopes:
            return None
        project = session_pass.project or DEFAULT_PROJECT
        row = Project.objects.filter(pk=project).first()
        # The same answer for a project that is not there, so that nobody learns which ones there are.
        is_there = row is not None and row.archived_at is None
        if project != DEFAULT_PROJECT and not (is_there and chooses_project(user)):
            raise ApiError(
                "You may not work in this project. Choose another one; whoever may change projects may choose among "
                "all.",
                status=403,
                type="permission_error",
                code="project_not_allowed",
            )
        return Caller.by_session(project, session_pass.key, str(user.pk), scopes=scopes, limited=limited_in(row))


def projects_of(user: Any) -> list[str]:
    """Return the projects that a user may choose from, the one that counts without a choice first."""
    if not chooses_project(user):
        return [DEFAULT_PROJECT]
    others = Project.objects.filter(archived_at=None).exclude(pk=DEFAULT_PROJECT)
    names = others.order_by("pk").values_list("pk", flat=True)
    return [DEFAULT_PROJECT, *names[:MAX_CHOICE]]
