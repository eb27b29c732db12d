"""`DatabaseSkills`: skills in Django's database, SQLite or PostgreSQL, so that every host finds them.

A version is written as a file is: its row first and hidden, then the pieces of its bundle, each in a transaction of its
own, and at last the row is shown. It goes in the opposite order. What a process leaves hidden, as it was ended in
between, `purge_skills` removes.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Max, QuerySet

from responses_app.kit.clock import unix, utc
from responses_app.kit.errors import StoreError
from responses_app.kit.kept import removes, writes_lines
from responses_app.kit.places import place_of
from responses_app.kit.sql import one_at_a_time
from responses_app.kit.table import Store, can_be_known, part_of
from responses_app.kit.threads import DatabaseReaders
from responses_app.models.skills import Skill, SkillVersion
from responses_app.stores.database.files.rows import (
    CREATION_LOCK,
    MAX_PURGED,
    UNFINISHED,
    add_piece,
    check_room,
    piece_of,
    remove_some,
    write_pieces,
    written_pieces,
)
from responses_app.stores.files import PIECE_BYTES, UNLIMITED, FileSettings
from responses_app.stores.skills import (
    BaseSkills,
    DefaultInUse,
    NewBundle,
    SkillGone,
    SkillRecord,
    SkillSettings,
    SkillsFull,
    VersionRecord,
)

logger = logging.getLogger("respsite.stores")

LATEST = 0
Mine = Mapping[str, object]  # what the skills of a project have that are not past its retention


class DatabaseSkills(Store[FileSettings], BaseSkills):
    """Keeps skills in the database `using`; `timeout` bounds, in seconds, whatever waits for it. `now` is Unix time.

    Their bytes are bytes of the project's files, so `settings` are those of files.
    """

    unlimited = UNLIMITED

    def __init__(self, bounds: SkillSettings, **given: Any) -> None:
        super().__init__(**given)
        self.bounds = bounds

    async def create(self, project: str, skill_id: str, version_id: str, bundle: NewBundle, at: int) -> SkillRecord:
        def begin(db: BaseDatabaseWrapper) -> None:
            with transaction.atomic(using=db.alias):
                if Skill.objects.using(db.alias).filter(pk=skill_id).exists():
                    return  # an earlier attempt was committed after all
                Skill(id=skill_id, project=project, created_at=utc(at), next_version=2).save(
                    using=db.alias, force_insert=True
                )
                self._reserve(db, _row(project, skill_id, version_id, 1, bundle, at))

        def show(db: BaseDatabaseWrapper) -> SkillRecord:
            with transaction.atomic(using=db.alias):
                _show(db, version_id, skill_id)
                Skill.objects.using(db.alias).filter(pk=skill_id).update(is_whole=True)
            return _record(db, self._mine(project), skill_id)

        await self._threads.run(begin)
        try:
            await self._write(version_id, bundle)
            return await self._threads.run(show)
        # A cancellation, too: the client has broken off its upload.
        except BaseException:
            await asyncio.shield(self._give_up([version_id], skill_id))
            raise

    async def add(
        self, project: str, skill_id: str, version_id: str, bundle: NewBundle, at: int, *, default: bool
    ) -> VersionRecord:
        def begin(db: BaseDatabaseWrapper) -> None:
            with transaction.atomic(using=db.alias):
                if SkillVersion.objects.using(db.alias).filter(pk=version_id).exists():
                    return
                skill = _locked(db, self._mine(project), skill_id)
                self._reserve(db, _row(project, skill_id, version_id, skill.next_version, bundle, at))
                skill.next_version += 1
                skill.save(using=db.alias, update_fields=["next_version"])

        def show(db: BaseDatabaseWrapper) -> VersionRecord:
            with transaction.atomic(using=db.alias):
                skill = _locked(db, self._mine(project), skill_id)
                _show(db, version_id, skill_id)
                row = SkillVersion.objects.using(db.alias).get(pk=version_id)
                if default:
                    skill.default_version = row.version
                    skill.save(using=db.alias, update_fields=["default_version"])
            return _version(row)

        await self._threads.run(begin)
        try:
            await self._write(version_id, bundle)
            return await self._threads.run(show)
        except BaseException:
            await asyncio.shield(self._give_up([version_id]))
            raise

    async def get(self, project: str, skill_id: str) -> SkillRecord:
        return await self._threads.run(lambda db: _record(db, self._mine(project), skill_id))

    async def version(self, project: str, skill_id: str, version: int | None) -> VersionRecord:
        return await self._threads.run(lambda db: _version(_row_of(db, self._mine(project), skill_id, version)))

    async def listed(self, project: str, *, after: str | None, descending: bool, limit: int) -> Sequence[SkillRecord]:
        def read(db: BaseDatabaseWrapper) -> list[SkillRecord]:
            rows = _skills(db, self._mine(project))
            return _records(db, part_of(rows, after=after, descending=descending, limit=limit))

        return await self._threads.run(read)

    async def versions(
        self, project: str, skill_id: str, *, after: str | None, descending: bool, limit: int
    ) -> Sequence[VersionRecord]:
        def read(db: BaseDatabaseWrapper) -> list[VersionRecord]:
            _found(_skills(db, self._mine(project)), skill_id)
            every = SkillVersion.objects.using(db.alias).filter(skill_id=skill_id)
            place = place_of(every, after, named="pk", key="version")
            rows = _versions(db, skill_id)
            return [
                _version(row) for row in part_of(rows, after=place, descending=descending, limit=limit, key="version")
            ]

        return await self._threads.run(read)

    async def set_default(self, project: str, skill_id: str, version: int) -> SkillRecord:
        def write(db: BaseDatabaseWrapper) -> SkillRecord:
            with transaction.atomic(using=db.alias):
                skill = _locked(db, self._mine(project), skill_id)
                _row_of(db, self._mine(project), skill_id, version)
                skill.default_version = version
                skill.save(using=db.alias, update_fields=["default_version"])
            return _record(db, self._mine(project), skill_id)

        return await self._threads.run(write)

    async def delete(self, project: str, skill_id: str) -> None:
        def hide(db: BaseDatabaseWrapper) -> list[str]:
            with transaction.atomic(using=db.alias):
                skill = _locked(db, self._mine(project), skill_id)
                return _hide(db, skill, SkillVersion.objects.using(db.alias).filter(skill_id=skill_id))

        await asyncio.shield(self._give_up(await self._threads.run(hide), skill_id))

    async def delete_version(self, project: str, skill_id: str, version: int) -> VersionRecord:
        def hide(db: BaseDatabaseWrapper) -> tuple[VersionRecord, bool]:
            with transaction.atomic(using=db.alias):
                skill = _locked(db, self._mine(project), skill_id)
                row = _row_of(db, self._mine(project), skill_id, version)
                is_last = _versions(db, skill_id).count() == 1
                if version == skill.default_version and not is_last:
                    raise DefaultInUse
                _hide(db, skill if is_last else None, SkillVersion.objects.using(db.alias).filter(pk=row.pk))
                return _version(row), is_last

        gone, was_last = await self._threads.run(hide)
        await asyncio.shield(self._give_up([gone.id], skill_id if was_last else ""))
        return gone

    async def pieces(self, version: VersionRecord) -> AsyncIterator[bytes]:
        position = size = 0
        # Each with a query of its own: no transaction stays open while a client reads slowly.
        while size < version.bytes:
            piece = await self._threads.run(lambda db, at=position: piece_of(db, version.id, at))
            if piece is None:
                raise SkillGone(version.skill_id, version.version)
            yield piece
            position, size = position + 1, size + len(piece)

    async def _write(self, version_id: str, bundle: NewBundle) -> None:
        pieces = _cut(bundle.content)
        await write_pieces(self._threads, version_id, len(bundle.content), pieces, write=_write_piece)

    async def _give_up(self, version_ids: Sequence[str], skill_id: str = "") -> None:
        """Remove hidden versions, and the skill if it is named; later, where the database is away."""
        try:
            for version_id in version_ids:
                await _remove(self._threads, version_id)
            if skill_id:
                await self._threads.run(lambda db: _remove_empty(db, [skill_id]))
        except StoreError as problem:
            logger.warning("versions of a skill are removed later: %s", problem)

    # What follows runs on a thread.

    def _reserve(self, db: BaseDatabaseWrapper, row: SkillVersion) -> None:
        """Write the row of a version, which is hidden, where the project may have one more."""
        check_room(db, self._settings, row.project, row.bytes, self._now())
        most = self.bounds.skills_max_versions
        if most:
            one_at_a_time(db, CREATION_LOCK, row.project)
            kept = SkillVersion.objects.using(db.alias).filter(project=row.project).count()
            if kept >= most:
                raise SkillsFull(
                    f"This project has {kept} versions of skills, and may have no more (SKILLS_MAX_VERSIONS)"
                )
        row.save(using=db.alias, force_insert=True)


async def purge_skills(threads: DatabaseReaders, now: float) -> int:
    """Remove what versions that were broken off, or deleted, have left; return how many."""

    def left(db: BaseDatabaseWrapper) -> list[str]:
        rows = SkillVersion.objects.using(db.alias).filter(is_whole=False, created_at__lte=utc(now) - UNFINISHED)
        return list(rows.values_list("pk", flat=True)[:MAX_PURGED])

    gone = await threads.run(left)
    for version_id in gone:
        await _remove(threads, version_id)
    await threads.run(lambda db: _remove_unfinished(db, now))
    return len(gone)


@removes(Skill)
def _remove_some_of_skill(rows: "QuerySet[Skill]", ids: Sequence[str]) -> None:
    rows.update(is_whole=False)
    versions = SkillVersion.objects.using(rows.db).filter(skill_id=ids[0])
    versions.update(is_whole=False)
    version_id = versions.values_list("pk", flat=True).first()
    if version_id is None:
        rows.delete()
    else:
        remove_some_of_version(connections[rows.db], version_id)


@removes(SkillVersion)
def _remove_some_of(rows: "QuerySet[SkillVersion]", ids: Sequence[str]) -> None:
    rows.update(is_whole=False)
    remove_some_of_version(connections[rows.db], ids[0])


@writes_lines(SkillVersion)
def _lines(row: SkillVersion, head: Mapping[str, Any], using: str) -> Iterator[str]:
    about = {"id": row.skill_id, "version": row.version, "name": row.name, "description": row.description}
    yield json.dumps({"skill": about})
    whose = {"content_of": row.skill_id, "version": row.version}
    yield from written_pieces(connections[using], row.pk, row.bytes, **whose)


async def _remove(threads: DatabaseReaders, version_id: str) -> None:
    while not await threads.run(lambda db: remove_some_of_version(db, version_id)):
        pass


def remove_some_of_version(db: BaseDatabaseWrapper, version_id: str) -> bool:
    """Remove a few pieces of a version, or, with the last, the version; return whether nothing is left of it."""
    with transaction.atomic(using=db.alias):
        row = _locked_version(db, version_id)
        if not remove_some(db, [version_id]):
            return False
        if row is not None:
            row.delete(using=db.alias)
        return True


def _remove_empty(db: BaseDatabaseWrapper, skill_ids: Sequence[str]) -> None:
    """Remove those of these skills that are hidden."""
    Skill.objects.using(db.alias).filter(pk__in=skill_ids, is_whole=False).delete()


def _remove_unfinished(db: BaseDatabaseWrapper, now: float) -> None:
    rows = Skill.objects.using(db.alias).filter(is_whole=False, created_at__lte=utc(now) - UNFINISHED)
    # One with versions that are still written, or removed, goes with the last of them.
    rows.filter(versions__isnull=True).delete()


def _write_piece(db: BaseDatabaseWrapper, version_id: str, position: int, piece: bytes) -> None:
    """Write a piece of a version that is hidden still, once, however often this is called. Raises `SkillGone`."""
    with transaction.atomic(using=db.alias):
        if _locked_version(db, version_id) is None:
            raise SkillGone(version_id)
        add_piece(db, version_id, position, piece)


def _show(db: BaseDatabaseWrapper, version_id: str, skill_id: str) -> None:
    if not SkillVersion.objects.using(db.alias).filter(pk=version_id).update(is_whole=True):
        raise SkillGone(skill_id)


def _hide(db: BaseDatabaseWrapper, skill: Skill | None, rows: "QuerySet[SkillVersion]") -> list[str]:
    """Have nobody find them any more, in one transaction, however long their removal takes; return their ids."""
    ids = list(rows.values_list("pk", flat=True))
    rows.update(is_whole=False)
    if skill is not None:
        skill.is_whole = False
        skill.save(using=db.alias, update_fields=["is_whole"])
    return ids


def _cut(content: bytes) -> Iterator[bytes]:
    for begin in range(0, len(content), PIECE_BYTES):
        yield content[begin : begin + PIECE_BYTES]


def _skills(db: BaseDatabaseWrapper, mine: Mine) -> "QuerySet[Skill]":
    return Skill.objects.using(db.alias).filter(**mine, is_whole=True)


def _versions(db: BaseDatabaseWrapper, skill_id: str) -> "QuerySet[SkillVersion]":
    return SkillVersion.objects.using(db.alias).filter(skill_id=skill_id, is_whole=True)


def _found(rows: "QuerySet[Skill]", skill_id: str) -> Skill:
    row = rows.filter(pk=skill_id).first() if can_be_known(skill_id) else None
    if row is None:
        raise SkillGone(skill_id)
    return row


def _locked(db: BaseDatabaseWrapper, mine: Mine, skill_id: str) -> Skill:
    """Return a skill that nobody else changes until this transaction ends. Raises `SkillGone`."""
    return _found(_skills(db, mine).select_for_update(), skill_id)


def _locked_version(db: BaseDatabaseWrapper, version_id: str) -> SkillVersion | None:
    rows = SkillVersion.objects.using(db.alias).select_for_update().filter(pk=version_id)
    return next(iter(rows), None)


def _row_of(db: BaseDatabaseWrapper, mine: Mine, skill_id: str, version: int | None) -> SkillVersion:
    skill = _found(_skills(db, mine), skill_id)
    rows = _versions(db, skill_id).order_by("-version")
    number = skill.default_version if version is None else version
    row = (rows if number == LATEST else rows.filter(version=number)).first()
    if row is None:
        raise SkillGone(skill_id, version)
    return row


def _row(project: str, skill_id: str, version_id: str, version: int, bundle: NewBundle, at: int) -> SkillVersion:
    return SkillVersion(
        id=version_id,
        project=project,
        skill_id=skill_id,
        version=version,
        name=bundle.name,
        description=bundle.description,
        digest=bundle.digest,
        bytes=len(bundle.content),
        unpacked=bundle.unpacked,
        created_at=utc(at),
    )


def _record(db: BaseDatabaseWrapper, mine: Mine, skill_id: str) -> SkillRecord:
    (record,) = _records(db, [_found(_skills(db, mine), skill_id)])
    return record


def _records(db: BaseDatabaseWrapper, skills: Sequence[Skill]) -> list[SkillRecord]:
    rows = SkillVersion.objects.using(db.alias).filter(skill_id__in=[skill.pk for skill in skills], is_whole=True)
    latest = dict(rows.order_by().values_list("skill_id").annotate(Max("version")))
    defaults = {(row.skill_id, row.version): row for row in _defaults(rows, skills)}
    return [
        SkillRecord(
            id=skill.pk,
            created_at=unix(skill.created_at),
            default=_version(defaults[skill.pk, skill.default_version]),
            latest=latest[skill.pk],
        )
        for skill in skills
        # Without it the skill was deleted between the two queries.
        if (skill.pk, skill.default_version) in defaults
    ]


def _defaults(rows: "QuerySet[SkillVersion]", skills: Sequence[Skill]) -> "QuerySet[SkillVersion]":
    return rows.filter(version__in={skill.default_version for skill in skills})


def _version(row: SkillVersion) -> VersionRecord:
    return VersionRecord(
        id=row.pk,
        skill_id=row.skill_id,
        version=row.version,
        name=row.name,
        description=row.description,
        digest=row.digest,
        bytes=row.bytes,
        unpacked=row.unpacked,
        created_at=unix(row.created_at),
    )
