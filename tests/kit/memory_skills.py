"""`MemorySkills`: skills of this process; it keeps the contract of `contracts/skills.py`."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

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


@dataclass
class _Kept:
    project: str
    created_at: int
    default: int = 1
    given: int = 0  # the number that was given last
    versions: dict[int, VersionRecord] = field(default_factory=dict)


class MemorySkills(BaseSkills):
    """Keeps them in dictionaries."""

    def __init__(self, bounds: SkillSettings = SkillSettings()) -> None:  # noqa: B008, RUF100
        self.bounds = bounds
        self._kept: dict[str, _Kept] = {}
        self._bundles: dict[str, bytes] = {}  # by the ids of their versions

    async def create(self, project: str, skill_id: str, version_id: str, bundle: NewBundle, at: int) -> SkillRecord:
        kept = _Kept(project, at)
        self._add(kept, skill_id, version_id, bundle, at)
        self._kept[skill_id] = kept
        return await self.get(project, skill_id)

    async def add(
        self, project: str, skill_id: str, version_id: str, bundle: NewBundle, at: int, *, default: bool
    ) -> VersionRecord:
        kept = self._found(project, skill_id)
        record = self._add(kept, skill_id, version_id, bundle, at)
        kept.default = record.version if default else kept.default
        return record

    def _add(self, kept: _Kept, skill_id: str, version_id: str, bundle: NewBundle, at: int) -> VersionRecord:
        own = sum(len(each.versions) for each in self._kept.values() if each.project == kept.project)
        if 0 < self.bounds.skills_max_versions <= own:
            raise SkillsFull("too many (SKILLS_MAX_VERSIONS)")
        kept.given += 1
        record = VersionRecord(
            id=version_id,
            skill_id=skill_id,
            version=kept.given,
            name=bundle.name,
            description=bundle.description,
            digest=bundle.digest,
            bytes=len(bundle.content),
            unpacked=bundle.unpacked,
            created_at=at,
        )
        kept.versions[kept.given] = record
        self._bundles[version_id] = bundle.content
        return record

    async def get(self, project: str, skill_id: str) -> SkillRecord:
        kept = self._found(project, skill_id)
        default = kept.versions[kept.default]
        return SkillRecord(id=skill_id, created_at=kept.created_at, default=default, latest=max(kept.versions))

    async def version(self, project: str, skill_id: str, version: int | None) -> VersionRecord:
        kept = self._found(project, skill_id)
        number = kept.default if version is None else version or max(kept.versions)
        if number not in kept.versions:
            raise SkillGone(skill_id, version)
        return kept.versions[number]

    async def listed(
        self, project: str, *, after: str | None, descending: bool, limit: int
    ) -> Sequence[SkillRecord] | None:
        ids = sorted((id for id, each in self._kept.items() if each.project == project), reverse=descending)
        if after is not None and after not in ids:
            return None
        behind = ids[ids.index(after) + 1 :] if after is not None else ids
        return [await self.get(project, id) for id in behind[:limit]]

    async def versions(
        self, project: str, skill_id: str, *, after: str | None, descending: bool, limit: int
    ) -> Sequence[VersionRecord] | None:
        kept = self._found(project, skill_id)
        every = [kept.versions[number] for number in sorted(kept.versions, reverse=descending)]
        ids = [each.id for each in every]
        if after is not None and after not in ids:
            return None
        return (every[ids.index(after) + 1 :] if after is not None else every)[:limit]

    async def set_default(self, project: str, skill_id: str, version: int) -> SkillRecord:
        self._found(project, skill_id).default = (await self.version(project, skill_id, version)).version
        return await self.get(project, skill_id)

    async def delete(self, project: str, skill_id: str) -> None:
        self._found(project, skill_id)
        del self._kept[skill_id]

    async def delete_version(self, project: str, skill_id: str, version: int) -> VersionRecord:
        kept, record = self._found(project, skill_id), await self.version(project, skill_id, version)
        if version == kept.default and len(kept.versions) > 1:
            raise DefaultInUse
        del kept.versions[version]
        if not kept.versions:
            del self._kept[skill_id]
        return record

    async def pieces(self, version: VersionRecord) -> AsyncIterator[bytes]:
        kept = self._kept.get(version.skill_id)
        if kept is None or version.version not in kept.versions:
            raise SkillGone(version.skill_id, version.version)
        yield self._bundles[version.id]

    async def aclose(self) -> None:
        """Nothing is open."""

    def _found(self, project: str, skill_id: str) -> _Kept:
        kept = self._kept.get(skill_id)
        if kept is None or kept.project != project:
            raise SkillGone(skill_id)
        return kept
