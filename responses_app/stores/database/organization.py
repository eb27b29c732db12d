"""`DatabaseOrganization`: makes, lists and changes projects and their keys, and admin keys.

What is revoked or archived is out within 2 s on every worker: `auth.keyring` reads the keys in use again and again.
Every step may be executed twice, where a connection broke in between, so ids and secrets are made before.
"""

import os
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model, Q, QuerySet

from responses_app.kit.clock import id_factory, unix
from responses_app.kit.places import made_at
from responses_app.kit.sql import one_at_a_time
from responses_app.kit.table import Store, can_be_known
from responses_app.models import ID_LENGTH, AdminKey, ApiKey, KeyColumns, Organization, Project
from responses_app.protocol import ids
from responses_app.protocol.api_keys import ADMIN_START, DEFAULT_PROJECT, PROJECT_NAME, digest_of, new_secret, prefix_of
from responses_app.protocol.organization import (
    ORGANIZATION,
    KeyChanges,
    default_project_stays,
    key_expired,
    project_archived,
    project_exists,
    scopes_of,
    too_many,
)
from responses_app.protocol.retention import written
from responses_app.resources.audit.chain import append
from responses_app.resources.audit.fields import Action, Actor, AuditEntry
from responses_app.stores.organization import ManagedKey, NewKey, Part, ProjectRecord

MAX_PROJECTS = 10_000  # that are made here; those that a new key made count too
MAX_KEYS = 1_000  # of a project, that are not revoked
MAX_ADMIN_KEYS = 100  # that are not revoked
CREATION_LOCK = 0x6F726761  # the space of the locks under which projects and keys are counted

Row = TypeVar("Row", bound=Model)
Result = TypeVar("Result")


class DatabaseOrganization(Store[None]):
    """Keeps them in the database `using`; `timeout` bounds, in seconds, whatever waits for it. `now` is Unix time.

    Every method raises `StoreError`; those that make or change something also raise `Unchangeable`. What they do is
    recorded in the audit trail, as done by the actor `by`, or it is not done.
    """

    unlimited = None

    async def projects(self, part: Part, *, archived: bool) -> Sequence[ProjectRecord] | None:
        """Return projects, with archived ones where they are wanted; None where `after` is not known."""

        def read(_: BaseDatabaseWrapper) -> Sequence[ProjectRecord] | None:
            rows = self._projects() if archived else self._projects().filter(archived_at=None)
            found = _part_of(rows, self._projects(), part, ids.PROJECT)
            return None if found is None else [_project(row) for row in found]

        return await self._threads.run(read)

    async def project(self, project_id: str) -> ProjectRecord | None:
        """Return a project, also an archived one."""

        def read(_: BaseDatabaseWrapper) -> ProjectRecord | None:
            row = self._projects().filter(pk=project_id).first()
            return None if row is None else _project(row)

        return await self._threads.run(read) if can_be_known(project_id) else None

    async def create_project(self, name: str, *, by: Actor) -> ProjectRecord:
        """Make a project. Its name is its id, too, where it can be one, since operators and logs know it by that."""
        can_be_id = len(name) <= ID_LENGTH and re.fullmatch(PROJECT_NAME, name) is not None
        project_id, title = (name, "") if can_be_id else (self._new_id(ids.PROJECT), name)
        at = self._at()

        def act(connection: BaseDatabaseWrapper) -> ProjectRecord:
            one_at_a_time(connection, CREATION_LOCK, "")
            row = self._projects().filter(pk=project_id).first()
            if row is not None and row.created_at != at:  # else an earlier attempt was committed after all
                raise project_exists(name)
            if row is None and self._projects().count() >= MAX_PROJECTS:
                raise too_many("projects", MAX_PROJECTS, "The operator can erase one with 'respsite manage forget'.")
            row = row or self._projects().create(name=project_id, title=title, created_at=at)
            return _project(row)

        return await self._write(act, AuditEntry(by, Action.PROJECT_CREATED, project_id, project_id))

    async def rename_project(self, project_id: str, name: str, *, by: Actor) -> ProjectRecord | None:
        """Give a project another name for people; None for no such project."""

        def act(row: Project) -> ProjectRecord:
            if row.archived_at is not None:
                raise project_archived(project_id)
            row.title = "" if name == row.name else name
            row.save(using=self._using, update_fields=["title"])
            return _project(row)

        return await self._with_project(project_id, act, AuditEntry(by, Action.PROJECT_CHANGED, project_id, project_id))

    async def retain(self, project_id: str, hours: int | None, *, by: Actor) -> ProjectRecord | None:
        """Set how long a project keeps what it stores (`protocol.retention`); None for no such project.

        It holds on every worker within 2 s. What is past its time by then is erased a little later.
        """

        def act(row: Project) -> ProjectRecord:
            if row.archived_at is not None:
                raise project_archived(project_id)
            row.retention_hours = hours
            row.save(using=self._using, update_fields=["retention_hours"])
            return _project(row)

        detail = {"retention": written(hours)}
        entry = AuditEntry(by, Action.RETENTION_CHANGED, project_id, project_id, detail)
        return await self._with_project(project_id, act, entry)

    async def limit_spending(self, project_id: str, cents: int | None, *, by: Actor) -> ProjectRecord | None:
        """Set what a project may spend in a month; None for no such project. It holds on every worker within 2 s."""

        def act(row: Project) -> ProjectRecord:
            if row.archived_at is not None:
                raise project_archived(project_id)
            row.monthly_spend_cents = cents
            row.save(using=self._using, update_fields=["monthly_spend_cents"])
            return _project(row)

        detail = {"monthly_spend_cents": cents}
        entry = AuditEntry(by, Action.LIMITS_CHANGED, project_id, project_id, detail)
        return await self._with_project(project_id, act, entry)

    async def organization_spend_limit(self) -> int | None:
        def read(connection: BaseDatabaseWrapper) -> int | None:
            rows = Organization.objects.using(connection.alias).filter(pk=ORGANIZATION)
            return rows.values_list("monthly_spend_cents", flat=True).first()

        return await self._threads.run(read)

    async def limit_all_spending(self, cents: int | None, *, by: Actor) -> None:
        """Set what all projects together may spend in a month. It holds on every worker within 15 s."""

        def act(connection: BaseDatabaseWrapper) -> bool:
            rows = Organization.objects.using(connection.alias)
            rows.update_or_create(pk=ORGANIZATION, defaults={"monthly_spend_cents": cents})
            return True

        entry = AuditEntry(by, Action.LIMITS_CHANGED, ORGANIZATION, "", {"monthly_spend_cents": cents})
        await self._write(act, entry)

    async def archive_project(self, project_id: str, *, by: Actor) -> ProjectRecord | None:
        """Archive a project for good, and revoke its keys; its data stays. None for no such project."""
        if project_id == DEFAULT_PROJECT:
            raise default_project_stays()

        def act(row: Project) -> ProjectRecord:
            if row.archived_at is None:
                row.archived_at = self._at()
                row.save(using=self._using, update_fields=["archived_at"])
                # Workers of an older version know revoked keys only.
                self._keys(project_id).update(revoked_at=row.archived_at)
            return _project(row)

        entry = AuditEntry(by, Action.PROJECT_ARCHIVED, project_id, project_id)
        return await self._with_project(project_id, act, entry)

    async def keys(self, project_id: str, part: Part) -> Sequence[ManagedKey] | None:
        """Return keys of a project; None where `after` is not known."""
        every = ApiKey.objects.using(self._using).filter(project_id=project_id)
        return await self._threads.run(lambda _: self._listed(self._keys(project_id), every, part, ids.API_KEY))

    async def key(self, project_id: str, key_id: str) -> ManagedKey | None:
        """Return a key of a project."""
        return await self._found(self._keys(project_id), key_id)

    async def create_key(self, project_id: str, name: str, *, seconds: int | None, by: Actor) -> NewKey | None:
        """Make a key of a project that is good for so many seconds; None for no such project."""
        secret, key_id, at = new_secret(os.urandom), self._new_id(ids.API_KEY), self._at()

        def act(row: Project) -> NewKey:
            if row.archived_at is not None:
                raise project_archived(project_id)
            made = self._keys(project_id).filter(pk=key_id).first()  # by an earlier attempt
            if made is None and self._keys(project_id).count() >= MAX_KEYS:
                raise too_many("keys in a project", MAX_KEYS, "Delete one first.")
            made = made or ApiKey.objects.using(self._using).create(
                project=row, **_new_row(key_id, secret, name, at, seconds)
            )
            return NewKey(key=_key(made), secret=secret)

        return await self._with_project(project_id, act, AuditEntry(by, Action.KEY_CREATED, key_id, project_id))

    async def change_key(self, project_id: str, key_id: str, changes: KeyChanges, *, by: Actor) -> ManagedKey | None:
        """Change until when a key is good, and what it may do; None for no such key."""
        scopes = None if changes.scopes is None else scopes_of(changes.scopes)
        at = self._at()

        def act(row: ApiKey) -> None:
            if row.expires_at is not None and row.expires_at <= at:
                raise key_expired(key_id)
            row.expires_at = _until(at, changes.expires_in_seconds) or row.expires_at
            row.scopes = row.scopes if scopes is None else list(scopes)
            row.save(using=self._using, update_fields=["expires_at", "scopes"])

        return await self._change(project_id, key_id, act, by=by)

    async def rename_key(self, project_id: str, key_id: str, name: str, *, by: Actor) -> ManagedKey | None:
        """Give a key another name; None for no such key."""

        def act(row: ApiKey) -> None:
            row.name = name
            row.save(using=self._using, update_fields=["name"])

        return await self._change(project_id, key_id, act, by=by)

    async def revoke_key(self, project_id: str, key_id: str, *, by: Actor) -> bool:
        """Revoke a key of a project; return whether there was one."""
        return await self._revoke(self._keys(project_id), AuditEntry(by, Action.KEY_REVOKED, key_id, project_id))

    async def admin_keys(self, part: Part) -> Sequence[ManagedKey] | None:
        """Return admin keys; None where `after` is not known."""
        every = AdminKey.objects.using(self._using).all()
        return await self._threads.run(lambda _: self._listed(self._admin_keys(), every, part, ids.ADMIN_KEY))

    async def admin_key(self, key_id: str) -> ManagedKey | None:
        """Return an admin key."""
        return await self._found(self._admin_keys(), key_id)

    async def create_admin_key(self, name: str, *, seconds: int | None, by: Actor) -> NewKey:
        """Make an admin key that is good for so many seconds."""
        secret, key_id, at = new_secret(os.urandom, start=ADMIN_START), self._new_id(ids.ADMIN_KEY), self._at()

        def act(connection: BaseDatabaseWrapper) -> NewKey:
            one_at_a_time(connection, CREATION_LOCK, "")
            made = self._admin_keys().filter(pk=key_id).first()  # by an earlier attempt
            if made is None and self._admin_keys().count() >= MAX_ADMIN_KEYS:
                raise too_many("admin keys", MAX_ADMIN_KEYS, "Delete one first.")
            rows = AdminKey.objects.using(self._using)
            return NewKey(key=_key(made or rows.create(**_new_row(key_id, secret, name, at, seconds))), secret=secret)

        return await self._write(act, AuditEntry(by, Action.KEY_CREATED, key_id))

    async def revoke_admin_key(self, key_id: str, *, by: Actor) -> bool:
        """Revoke an admin key; return whether there was one."""
        return await self._revoke(self._admin_keys(), AuditEntry(by, Action.KEY_REVOKED, key_id))

    # What follows runs on a thread, or has it done there.

    def _new_id(self, prefix: str) -> str:
        return id_factory(self._now)(prefix)

    def _projects(self) -> "QuerySet[Project]":
        return Project.objects.using(self._using)

    def _keys(self, project_id: str) -> "QuerySet[ApiKey]":
        return ApiKey.objects.using(self._using).filter(project_id=project_id, revoked_at=None)

    def _admin_keys(self) -> "QuerySet[AdminKey]":
        return AdminKey.objects.using(self._using).filter(revoked_at=None)

    def _listed(
        self, rows: "QuerySet[Row]", every: "QuerySet[Row]", part: Part, kind: str
    ) -> Sequence[ManagedKey] | None:
        found = _part_of(rows, every, part, kind)
        return None if found is None else [_key(row) for row in found]

    async def _found(self, rows: "QuerySet[Row]", key_id: str) -> ManagedKey | None:
        def read(_: BaseDatabaseWrapper) -> ManagedKey | None:
            row = rows.filter(pk=key_id).first()
            return None if row is None else _key(row)

        return await self._threads.run(read) if can_be_known(key_id) else None

    async def _with_project(self, project_id: str, act: Callable[[Project], Result], done: AuditEntry) -> Result | None:
        """Have this done to a project that nobody else changes meanwhile; None where there is none."""

        def write(_: BaseDatabaseWrapper) -> Result | None:
            row = self._projects().select_for_update().filter(pk=project_id).first()
            return None if row is None else act(row)

        return await self._write(write, done) if can_be_known(project_id) else None

    async def _change(
        self, project_id: str, key_id: str, act: Callable[[ApiKey], None], *, by: Actor
    ) -> ManagedKey | None:
        def write(_: BaseDatabaseWrapper) -> ManagedKey | None:
            row = self._keys(project_id).select_for_update().filter(pk=key_id).first()
            if row is None:
                return None
            act(row)
            return _key(row)

        done = AuditEntry(by, Action.KEY_CHANGED, key_id, project_id)
        return await self._write(write, done) if can_be_known(key_id) else None

    async def _revoke(self, rows: "QuerySet[Row]", done: AuditEntry) -> bool:
        def write(_: BaseDatabaseWrapper) -> bool:
            return rows.filter(pk=done.subject).update(revoked_at=self._at()) > 0

        return can_be_known(done.subject) and await self._write(write, done)

    async def _write(self, act: Callable[[BaseDatabaseWrapper], Result], done: AuditEntry) -> Result:
        def write(connection: BaseDatabaseWrapper) -> Result:
            with transaction.atomic(using=connection.alias):
                result = act(connection)
                if result:  # else there was nothing to do it to
                    append(connection, [done])  # the last thing in a transaction: see there
                return result

        return await self._threads.run(write)


def _part_of(rows: "QuerySet[Row]", known: "QuerySet[Row]", part: Part, kind: str) -> "Sequence[Row] | None":
    """Return a part of rows by age; None where `after` is neither the id of a `known` one nor of this kind."""
    if part.after is not None:
        row = known.filter(pk=part.after) if can_be_known(part.after) else known.none()
        last = row.values_list("created_at", flat=True).first()
        last = made_at(part.after) if last is None and ids.is_made(part.after, kind) else last
        if last is None:
            return None
        way = "lt" if part.descending else "gt"
        rows = rows.filter(Q(**{f"created_at__{way}": last}) | Q(**{"created_at": last, f"pk__{way}": part.after}))
    return list(rows.order_by(*(("-created_at", "-pk") if part.descending else ("created_at", "pk")))[: part.limit])


def _new_row(key_id: str, secret: str, name: str, at: datetime, seconds: int | None) -> dict[str, object]:
    return {
        "id": key_id,
        "name": name,
        "digest": digest_of(secret),
        "prefix": prefix_of(secret),
        "created_at": at,
        "expires_at": _until(at, seconds),
    }


def _until(at: datetime, seconds: int | None) -> datetime | None:
    return None if seconds is None else at + timedelta(seconds=seconds)


def _project(row: Project) -> ProjectRecord:
    return ProjectRecord(
        id=row.pk,
        name=row.title or row.pk,
        created_at=unix(row.created_at),
        archived_at=_seconds(row.archived_at),
        retention_hours=row.retention_hours,
        monthly_spend_cents=row.monthly_spend_cents,
    )


def _key(row: KeyColumns) -> ManagedKey:
    return ManagedKey(
        id=row.id,
        name=row.name,
        prefix=row.prefix,
        created_at=unix(row.created_at),
        expires_at=_seconds(row.expires_at),
        last_used_at=_seconds(row.last_used_at),
        scopes=tuple(row.scopes) if isinstance(row, ApiKey) else (),
    )


def _seconds(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp())
