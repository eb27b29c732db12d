"""`Skills`: skills in Django's database, SQLite or PostgreSQL, so that every host finds them.

A version is written, and goes, as `kit.pieces` says. A skill is hidden until its first version is whole.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial
from typing import Any

from django.db.models import Max, QuerySet

from responses_app.kit.clock import utc
from responses_app.kit.errors import StoreError
from responses_app.kit.pieces import MAX_PURGED, UNFINISHED, read_pieces, remove_all, write_pieces
from responses_app.kit.places import place_of
from responses_app.kit.sql import one_at_a_time
from responses_app.kit.table import Store, can_be_known, part_of, reads, writes
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.files.skills import LATEST, VERSION
from responses_app.resources.files.fields import PIECE_BYTES, UNLIMITED, FileSettings
from responses_app.resources.files.keeping import CREATION_LOCK, check_room
from responses_app.resources.skills import fields
from responses_app.resources.skills.bundles import Bundle
from responses_app.resources.skills.fields import DefaultInUse, SkillGone, SkillSettings, SkillsFull
from responses_app.resources.skills.keeping import remove_some_of_version
from responses_app.resources.skills.model import Skill, SkillVersion

logger = logging.getLogger("respsite.stores")


class Skills(Store[FileSettings]):
    """The skills of projects, as `bounds` has them. A version is found from the moment its bundle is whole.

    Their bytes are bytes of the project's files, so `settings` are those of files. A version is named as in requests:
    by its number, or as "latest"; None is the default one. Every method raises `StoreError`, and all that name a skill
    `SkillGone`.
    """

    unlimited = UNLIMITED

    def __init__(self, bounds: SkillSettings, **parts: Any) -> None:
        super().__init__(**parts)
        self.bounds = bounds

    async def create(self, project: str, skill_id: str, version_id: str, bundle: Bundle, at: int) -> Skill:
        """Keep a new skill with its first version; `at` is the Unix time. Raises `SkillsFull` and `FilesFull`."""
        skill = Skill(id=skill_id, project=project, created_at=utc(at), next_version=2)
        await self._keep(skill, version_id, bundle, at, is_first=True)
        return await self.get(project, skill_id)

    async def add(
        self, project: str, skill_id: str, version_id: str, bundle: Bundle, at: int, *, default: bool
    ) -> SkillVersion:
        """Keep a further version, and make it the `default`. Raises `SkillsFull` and `FilesFull`."""
        return await self._keep(Skill(id=skill_id, project=project), version_id, bundle, at, default=default)

    async def _keep(
        self, skill: Skill, version_id: str, bundle: Bundle, at: int, *, is_first: bool = False, default: bool = False
    ) -> SkillVersion:
        """Write a version, and its skill where it is the first. Where that fails, nothing of them is kept."""
        version = SkillVersion(
            id=version_id,
            project=skill.project,
            skill_id=skill.pk,
            version=1,
            created_at=utc(at),
            **bundle.columns(),
        )
        await self._begin(version, skill if is_first else None)
        try:
            content = bundle.content
            pieces = (content[begin : begin + PIECE_BYTES] for begin in range(0, len(content), PIECE_BYTES))
            await write_pieces(self._threads, version, pieces, gone=SkillGone(skill.pk))
            await self._show(version, is_first=is_first, default=default)
        # A cancellation, too: the client has broken off its upload.
        except BaseException:
            await asyncio.shield(self._give_up([version_id], skill.pk if is_first else ""))
            raise
        return version

    @reads
    def get(self, project: str, skill_id: str) -> Skill:
        """Return a skill."""
        return self._known(project, skill_id)

    @reads
    def version(self, project: str, skill_id: str, version: str | None) -> SkillVersion:
        """Return a version."""
        return self._known_version(project, skill_id, version)

    async def referenced(self, project: str, reference: JsonObject, at: str) -> SkillVersion:
        """Return the version that a reference means, which stands at this place of a request. Raises `ApiError`."""
        skill_id, version = str(reference["skill_id"]), reference.get("version")
        try:
            return await self.version(project, skill_id, None if version is None else str(version))
        except SkillGone as gone:
            if gone.version is None:
                raise fields.skill_not_found(skill_id, param=f"{at}.skill_id") from None
            raise fields.skill_version_not_found(skill_id, gone.version, param=f"{at}.version") from None

    @reads
    def page(self, project: str, *, after: str | None, descending: bool, limit: int) -> Sequence[Skill]:
        """Return up to `limit` skills behind the skill `after`, which may be gone."""
        return self._with_versions(part_of(self._rows(project), after=after, descending=descending, limit=limit))

    @reads
    def versions(
        self, project: str, skill_id: str, *, after: str | None, descending: bool, limit: int
    ) -> Sequence[SkillVersion]:
        """Return up to `limit` versions behind the one with the id `after`, which may be gone."""
        _found(self._rows(project), skill_id)
        every = SkillVersion.objects.using(self._using).filter(skill_id=skill_id)
        place = place_of(every, after, named="pk", key="version")
        rows = every.filter(is_whole=True)
        return part_of(rows, after=place, descending=descending, limit=limit, key="version")

    @writes
    def set_default(self, project: str, skill_id: str, version: str) -> Skill:
        """Make a version the default."""
        skill = self._locked(project, skill_id)
        skill.default_version = self._known_version(project, skill_id, version).version
        skill.save(using=self._using, update_fields=["default_version"])
        return self._known(project, skill_id)

    async def delete(self, project: str, skill_id: str) -> None:
        """Forget a skill with all its versions."""
        await asyncio.shield(self._give_up(await self._hide(project, skill_id), skill_id))

    async def delete_version(self, project: str, skill_id: str, version: str) -> SkillVersion:
        """Forget a version, and with its last one the skill; return the version. Raises `DefaultInUse`."""
        gone, was_last = await self._hide_version(project, skill_id, version)
        await asyncio.shield(self._give_up([gone.pk], skill_id if was_last else ""))
        return gone

    def pieces(self, version: SkillVersion) -> AsyncIterator[bytes]:
        """Yield the bundle of a version, a piece at a time. Raises `SkillGone` where it goes meanwhile."""
        gone = SkillGone(version.skill_id, str(version.version))
        return read_pieces(self._threads, version.pk, version.bytes, gone=gone)

    async def content(self, version: SkillVersion) -> bytes:
        """Return the bundle of a version."""
        return b"".join([piece async for piece in self.pieces(version)])

    async def purge(self) -> int:
        """Remove what is left of versions that were broken off, or deleted; return of how many."""
        gone = await self._unfinished()
        for version_id in gone:
            await remove_all(self._threads, partial(remove_some_of_version, version_id=version_id))
        await self._remove_unfinished()
        return len(gone)

    async def _give_up(self, version_ids: Iterable[str], skill_id: str = "") -> None:
        """Remove hidden versions, and the skill if it is named; later, where the database is away."""
        try:
            for version_id in version_ids:
                await remove_all(self._threads, partial(remove_some_of_version, version_id=version_id))
            if skill_id:
                await self._remove_hidden(skill_id)
        except StoreError as problem:
            logger.warning("versions of a skill are removed later: %s", problem)

    @writes
    def _begin(self, version: SkillVersion, new: Skill | None) -> None:
        """Write the row of a version, which is hidden, and before it that of a skill that is new."""
        rows = SkillVersion.objects.using(self._using)
        if rows.filter(pk=version.pk).exists():
            return  # an earlier attempt was committed after all
        if new is not None:
            new.save(using=self._using, force_insert=True)
        else:
            skill = self._locked(version.project, version.skill_id)
            version.version = skill.next_version
            skill.next_version += 1
            skill.save(using=self._using, update_fields=["next_version"])
        check_room(self._db, self._settings, version.project, version.bytes, self._now())
        if most := self.bounds.skills_max_versions:
            one_at_a_time(self._db, CREATION_LOCK, version.project)
            if (kept := rows.filter(project=version.project).count()) >= most:
                raise SkillsFull(
                    f"This project has {kept} versions of skills, and may have no more (SKILLS_MAX_VERSIONS)"
                )
        version.save(using=self._using, force_insert=True)

    @writes
    def _show(self, version: SkillVersion, *, is_first: bool, default: bool) -> None:
        # A skill is locked before its versions, as everywhere. Nobody knows that of a first version yet.
        skill = None if is_first else self._locked(version.project, version.skill_id)
        if not SkillVersion.objects.using(self._using).filter(pk=version.pk).update(is_whole=True):
            raise SkillGone(version.skill_id)
        if skill is None:
            Skill.objects.using(self._using).filter(pk=version.skill_id).update(is_whole=True)
        elif default:
            skill.default_version = version.version
            skill.save(using=self._using, update_fields=["default_version"])

    @writes
    def _hide(self, project: str, skill_id: str) -> list[str]:
        """Have nobody find a skill any more, however long its removal takes; return the ids of its versions."""
        skill = self._locked(project, skill_id)
        versions = SkillVersion.objects.using(self._using).filter(skill_id=skill_id)
        self._hide_rows(versions, skill)
        return list(versions.values_list("pk", flat=True))

    @writes
    def _hide_version(self, project: str, skill_id: str, version: str) -> tuple[SkillVersion, bool]:
        """Have nobody find a version any more, and the skill where it was its last; return it, and whether it was."""
        skill = self._locked(project, skill_id)
        row = self._known_version(project, skill_id, version)
        is_last = self._versions([skill_id]).count() == 1
        if row.version == skill.default_version and not is_last:
            raise DefaultInUse
        self._hide_rows(SkillVersion.objects.using(self._using).filter(pk=row.pk), skill if is_last else None)
        return row, is_last

    @writes
    def _remove_hidden(self, skill_id: str) -> None:
        Skill.objects.using(self._using).filter(pk=skill_id, is_whole=False).delete()

    @reads
    def _unfinished(self) -> list[str]:
        rows = SkillVersion.objects.using(self._using)
        left = rows.filter(is_whole=False, created_at__lte=self._at() - UNFINISHED)
        return list(left.values_list("pk", flat=True)[:MAX_PURGED])

    @writes
    def _remove_unfinished(self) -> None:
        rows = Skill.objects.using(self._using).filter(is_whole=False, created_at__lte=self._at() - UNFINISHED)
        # One with versions that are still written, or removed, goes with the last of them.
        rows.filter(versions__isnull=True).delete()

    # What follows runs on a thread.

    def _rows(self, project: str) -> "QuerySet[Skill]":
        return Skill.objects.using(self._using).filter(**self._mine(project), is_whole=True)

    def _versions(self, skill_ids: Sequence[str]) -> "QuerySet[SkillVersion]":
        return SkillVersion.objects.using(self._using).filter(skill_id__in=skill_ids, is_whole=True)

    def _locked(self, project: str, skill_id: str) -> Skill:
        """Return a skill that nobody else changes until this transaction ends. Raises `SkillGone`."""
        return _found(self._rows(project).select_for_update(), skill_id)

    def _known(self, project: str, skill_id: str) -> Skill:
        found = self._with_versions([_found(self._rows(project), skill_id)])
        if not found:
            raise SkillGone(skill_id)
        return found[0]

    def _known_version(self, project: str, skill_id: str, version: str | None) -> SkillVersion:
        skill = _found(self._rows(project), skill_id)
        rows = self._versions([skill_id]).order_by("-version")
        if version != LATEST:
            number = skill.default_version if version is None else VERSION.fullmatch(version) and int(version)
            rows = rows.filter(version=number or 0)  # there is no version 0
        row = rows.first()
        if row is None:
            raise SkillGone(skill_id, version)
        return row

    def _with_versions(self, skills: Sequence[Skill]) -> list[Skill]:
        """Return skills with their default versions and the numbers of their latest."""
        rows = self._versions([skill.pk for skill in skills])
        latest = dict(rows.order_by().values_list("skill_id").annotate(Max("version")))
        numbers = {skill.default_version for skill in skills}
        defaults = {(row.skill_id, row.version): row for row in rows.filter(version__in=numbers)}
        # Without a default it was deleted between the queries.
        skills = [skill for skill in skills if (skill.pk, skill.default_version) in defaults]
        for skill in skills:
            skill.default, skill.latest = defaults[skill.pk, skill.default_version], latest[skill.pk]
        return skills

    def _hide_rows(self, versions: "QuerySet[SkillVersion]", skill: Skill | None) -> None:
        versions.update(is_whole=False)
        if skill is not None:
            skill.is_whole = False
            skill.save(using=self._using, update_fields=["is_whole"])


def _found(rows: "QuerySet[Skill]", skill_id: str) -> Skill:
    row = rows.filter(pk=skill_id).first() if can_be_known(skill_id) else None
    if row is None:
        raise SkillGone(skill_id)
    return row
