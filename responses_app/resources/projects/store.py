"""`Projects`: makes, lists and changes projects and their keys, and admin keys.

What is revoked or archived is out within 2 s on every worker: `auth.keyring` reads the keys in use again and again.
Every step may be executed twice, where a connection broke in between, so ids and secrets are made before.
"""

import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.db.models import Model, Q, QuerySet

from responses_app.kit.clock import IdFactory
from responses_app.kit.columns import ID_LENGTH
from responses_app.kit.places import made_at
from responses_app.kit.sql import one_at_a_time
from responses_app.kit.table import Store, assign, can_be_known, reads, writes
from responses_app.protocol import ids
from responses_app.protocol.api_keys import ADMIN_START, DEFAULT_PROJECT, PROJECT_NAME, START, new_secret
from responses_app.protocol.requests.pages import ListQuery
from responses_app.resources.audit.chain import append
from responses_app.resources.audit.fields import Action, Actor, AuditEntry
from responses_app.resources.projects.fields import (
    NO_PROJECT,
    ORGANIZATION,
    KeyChanges,
    NewAdminKey,
    NewProject,
    NewServiceAccount,
    default_project_stays,
    key_expired,
    project_archived,
    project_exists,
    too_many,
)
from responses_app.resources.projects.model import AdminKey, ApiKey, KeyColumns, Organization, Project, secret_columns

MAX_PROJECTS = 10_000  # that are made here; those that a new key made count too
MAX_KEYS = 1_000  # of a project, that are not revoked
MAX_ADMIN_KEYS = 100  # that are not revoked
CREATION_LOCK = 0x6F726761  # the space of the locks under which projects and keys are counted

Row = TypeVar("Row", bound=Model)


class Projects(Store[None]):
    """All projects and keys, for those who manage them. Those that are revoked are not known here.

    Every method raises `StoreError`; those that make or change something also raise `Unchangeable`. What they do is
    recorded in the audit trail, as done by the actor `by`, or it is not done. What holds for requests, such as limits,
    scopes and retention, holds on every worker within 2 s; limits of all projects together within 15 s.
    """

    unlimited = None

    @reads
    def projects(self, query: ListQuery, *, archived: bool) -> Sequence[Project] | None:
        """Return a part of the projects by age and one more, also `archived` ones; None where `after` is not known."""
        every = Project.objects.using(self._using)
        return _part_of(every if archived else every.filter(archived_at=None), every.all(), query, ids.PROJECT)

    @reads
    def project(self, project_id: str) -> Project | None:
        """Return a project, also an archived one."""
        return Project.objects.using(self._using).filter(pk=project_id).first() if can_be_known(project_id) else None

    async def create_project(self, body: NewProject, *, by: Actor) -> Project:
        """Make a project. Its name is its id, too, where it can be one, since operators and logs know it by that."""
        name, others = body.name, body.model_dump(exclude={"name"})
        can_be_id = len(name) <= ID_LENGTH and re.fullmatch(PROJECT_NAME, name) is not None
        own_id, title = (name, "") if can_be_id else (IdFactory(self._now)(ids.PROJECT), name)
        row = Project(name=own_id, title=title, created_at=self._at(), **others)
        await self._add_project(row, by)
        return row

    @writes
    def _add_project(self, row: Project, by: Actor) -> None:
        one_at_a_time(self._db, CREATION_LOCK, "")
        rows = Project.objects.using(self._using)
        same = rows.filter(pk=row.pk).first()
        if same is not None and same.created_at != row.created_at:
            raise project_exists(row.title or row.pk)
        if same is None:  # else an earlier attempt was committed after all
            if rows.count() >= MAX_PROJECTS:
                raise too_many("projects", MAX_PROJECTS, "The operator can erase one with 'respsite manage forget'.")
            row.save(using=self._using, force_insert=True)
            self._record(by, Action.PROJECT_CREATED, row.pk, row.pk)

    @writes
    def change_project(
        self, project_id: str, columns: Mapping[str, Any], action: Action, *, by: Actor, **detail: object
    ) -> Project | None:
        """Give a project these values, and record that with `detail`; None for no such project."""
        row = self._open_project(project_id)
        if row is not None:
            assign(row, columns)
            row.save(using=self._using, update_fields=list(columns))
            self._record(by, action, project_id, project_id, **detail)
        return row

    @writes
    def archive_project(self, project_id: str, *, by: Actor) -> Project | None:
        """Archive a project for good, and revoke its keys; its data stays. None for no such project."""
        if project_id == DEFAULT_PROJECT:
            raise default_project_stays()
        row = self._locked(Project.objects.using(self._using), project_id)
        if row is not None:
            if row.archived_at is None:
                row.archived_at = self._at()
                row.save(using=self._using, update_fields=["archived_at"])
                # Workers of an older version know revoked keys only.
                self._keys(project_id).update(revoked_at=row.archived_at)
            self._record(by, Action.PROJECT_ARCHIVED, project_id, project_id)
        return row

    @reads
    def organization_spend_limit(self) -> int | None:
        """Return what all projects together may spend in a month, in cents; None: as much as they like."""
        rows = Organization.objects.using(self._using).filter(pk=ORGANIZATION)
        return rows.values_list("monthly_spend_cents", flat=True).first()

    @writes
    def limit_all_spending(self, cents: int | None, *, by: Actor) -> None:
        """Set what all projects together may spend in a month."""
        rows = Organization.objects.using(self._using)
        rows.update_or_create(pk=ORGANIZATION, defaults={"monthly_spend_cents": cents})
        self._record(by, Action.LIMITS_CHANGED, ORGANIZATION, monthly_spend_cents=cents)

    # Keys of a project; of `NO_PROJECT`: admin keys.

    @reads
    def keys(self, project_id: str, query: ListQuery) -> Sequence[KeyColumns] | None:
        """Return a part of the keys by age and one more; None where `after` is not known."""
        kind = ids.API_KEY if project_id else ids.ADMIN_KEY
        return _part_of(self._keys(project_id), self._every_key(project_id), query, kind)

    @reads
    def key(self, project_id: str, key_id: str) -> KeyColumns | None:
        """Return a key."""
        return self._keys(project_id).filter(pk=key_id).first() if can_be_known(key_id) else None

    async def create_key(
        self, project_id: str, body: NewServiceAccount | NewAdminKey, *, by: Actor
    ) -> tuple[str, KeyColumns] | None:
        """Make a key; return its secret and its row, None for no such project."""
        secret, at = new_secret(os.urandom, start=START if project_id else ADMIN_START), self._at()
        columns: dict[str, Any] = {
            "id": IdFactory(self._now)(ids.API_KEY if project_id else ids.ADMIN_KEY),
            "expires_at": _until(at, body.expires_in_seconds),
            **body.model_dump(exclude={"expires_in_seconds"}),
            **secret_columns(secret, at),
        }
        row = ApiKey(project_id=project_id, **columns) if project_id else AdminKey(**columns)
        return (secret, row) if await self._add_key(row, by) else None

    async def create_admin_key(self, body: NewAdminKey, *, by: Actor) -> tuple[str, KeyColumns]:
        """Make an admin key; return its secret and its row."""
        created = await self.create_key(NO_PROJECT, body, by=by)
        assert created is not None, "only projects can be unknown"
        return created

    @writes
    def _add_key(self, row: Any, by: Actor) -> bool:
        """Keep a new key, which is an `ApiKey` or an `AdminKey`; return whether its project is there."""
        if not row.project_id:
            one_at_a_time(self._db, CREATION_LOCK, "")
        elif self._open_project(row.project_id) is None:
            return False
        rows = self._keys(row.project_id)
        if not rows.filter(pk=row.pk).exists():  # else an earlier attempt was committed after all
            most, what = (MAX_KEYS, "keys in a project") if row.project_id else (MAX_ADMIN_KEYS, "admin keys")
            if rows.count() >= most:
                raise too_many(what, most, "Delete one first.")
            row.save(using=self._using, force_insert=True)
            self._record(by, Action.KEY_CREATED, row.pk, row.project_id)
        return True

    @writes
    def change_key(self, project_id: str, key_id: str, body: KeyChanges, *, by: Actor) -> KeyColumns | None:
        """Change until when a key that has not expired is good, and what it may do; None for no such key."""
        columns = body.columns()
        row, at = self._locked(self._keys(project_id), key_id), self._at()
        if row is None:
            return None
        if row.expires_at is not None and row.expires_at <= at:
            raise key_expired(key_id)
        return self._change(row, {**columns, "expires_at": _until(at, body.expires_in_seconds) or row.expires_at}, by)

    @writes
    def rename_key(self, project_id: str, key_id: str, name: str, *, by: Actor) -> KeyColumns | None:
        """Give a key another name; None for no such key."""
        row = self._locked(self._keys(project_id), key_id)
        return None if row is None else self._change(row, {"name": name}, by)

    @writes
    def revoke_key(self, project_id: str, key_id: str, *, by: Actor) -> bool:
        """Revoke a key; return whether there was one."""
        rows = self._keys(project_id).filter(pk=key_id)
        if not can_be_known(key_id) or not rows.update(revoked_at=self._at()):
            return False
        self._record(by, Action.KEY_REVOKED, key_id, project_id)
        return True

    # What follows runs on a thread.

    def _every_key(self, project_id: str) -> "QuerySet[Any]":
        if not project_id:
            return AdminKey.objects.using(self._using).all()
        return ApiKey.objects.using(self._using).filter(project_id=project_id)

    def _keys(self, project_id: str) -> "QuerySet[Any]":
        return self._every_key(project_id).filter(revoked_at=None)

    def _locked(self, rows: "QuerySet[Row]", row_id: str) -> Row | None:
        return rows.select_for_update().filter(pk=row_id).first() if can_be_known(row_id) else None

    def _open_project(self, project_id: str) -> Project | None:
        """Return a project that nobody else changes meanwhile, None for none. Raises `Unchangeable` once archived."""
        row = self._locked(Project.objects.using(self._using), project_id)
        if row is not None and row.archived_at is not None:
            raise project_archived(project_id)
        return row

    def _change(self, row: ApiKey, columns: Mapping[str, Any], by: Actor) -> ApiKey:
        assign(row, columns)
        row.save(using=self._using, update_fields=list(columns))
        self._record(by, Action.KEY_CHANGED, row.pk, row.project_id)
        return row

    def _record(self, by: Actor, action: Action, subject: str, project: str = "", **detail: object) -> None:
        """Record this; the last thing in a transaction, see `append`."""
        append(self._db, [AuditEntry(by, action, subject, project, detail)])


def _part_of(rows: "QuerySet[Row]", known: "QuerySet[Row]", query: ListQuery, kind: str) -> "Sequence[Row] | None":
    """Return a part of rows by age and one more; None where `after` is no `known` one's id, nor one of this kind."""
    if query.after is not None:
        row = known.filter(pk=query.after) if can_be_known(query.after) else known.none()
        last = row.values_list("created_at", flat=True).first()
        last = made_at(query.after) if last is None and ids.is_made(query.after, kind) else last
        if last is None:
            return None
        way = "lt" if query.descending else "gt"
        rows = rows.filter(Q(**{f"created_at__{way}": last}) | Q(**{"created_at": last, f"pk__{way}": query.after}))
    order = ("-created_at", "-pk") if query.descending else ("created_at", "pk")
    return list(rows.order_by(*order)[: query.limit + 1])


def _until(at: datetime, seconds: int | None) -> datetime | None:
    return None if seconds is None else at + timedelta(seconds=seconds)
