"""The contract of stores of skills, by projects; `tests/contracts/adapters/test_skill_store.py` is its suite.

A skill has versions, numbered from 1 on; none is ever changed, and no number is given twice. Each is a bundle: a zip
file. Their bytes count as those of the project's files.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.files.skills import LATEST, skill_not_found, skill_version_not_found, version_number
from responses_app.protocol.setting import MIB, RoomSettings, setting, whole


@dataclass(frozen=True, kw_only=True)
class SkillSettings(RoomSettings):
    """How large a skill may be, and how many one project may keep."""

    skill_max_bytes: int = setting(
        50 * MIB, whole(1, 64 * MIB), "largest bundle of a skill, as a zip file; it is in memory while it is looked at"
    )
    skill_max_unpacked_bytes: int = setting(
        100 * MIB, whole(1), "maximum size of all files of a skill together; also bounded by SANDBOX_DISK_BYTES"
    )
    skills_max_versions: int = setting(
        1000, whole(), "versions of skills that one project may have, all skills together; 0 = no limit"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRecord:
    """What is known of a version."""

    id: str  # "skillver_…"
    skill_id: str
    version: int
    name: str
    description: str
    digest: str  # SHA-256 of the files in it and their paths, in hex
    bytes: int  # of the bundle
    unpacked: int  # bytes of the files in it
    created_at: int  # Unix seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillRecord:
    """What is known of a skill."""

    id: str  # "skill_…"
    created_at: int  # Unix seconds
    default: VersionRecord
    latest: int  # the highest version that there is


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBundle:
    """A bundle that is to be kept."""

    name: str
    description: str
    digest: str
    unpacked: int
    content: bytes


class SkillsFull(Exception):
    """The project keeps as many versions as it may; the message says so."""


class SkillGone(Exception):
    """The project has no such skill, or no such version of it; the message says which."""

    def __init__(self, skill_id: str, version: int | None = None) -> None:
        super().__init__(skill_id if version is None else f"{skill_id} {version}")
        self.skill_id = skill_id
        self.version = version  # None: the skill itself is not there


class DefaultInUse(Exception):
    """The default version of a skill that has others, too."""


class BaseSkills(ABC):
    """Keeps skills of projects. A version is found from the moment its bundle is whole.

    Every method raises `StoreError` where the store is away, and all that name a skill `SkillGone`. A version of None
    is the default one, and one of 0 the latest. One object serves one worker process.
    """

    bounds: SkillSettings  # how large a skill may be

    @abstractmethod
    async def create(self, project: str, skill_id: str, version_id: str, bundle: NewBundle, at: int) -> SkillRecord:
        """Keep a new skill with its first version. Raises `SkillsFull` and `FilesFull`."""

    @abstractmethod
    async def add(
        self, project: str, skill_id: str, version_id: str, bundle: NewBundle, at: int, *, default: bool
    ) -> VersionRecord:
        """Keep a further version, and make it the `default`. Raises `SkillsFull` and `FilesFull`."""

    @abstractmethod
    async def get(self, project: str, skill_id: str) -> SkillRecord:
        """Return what is known of a skill."""

    @abstractmethod
    async def version(self, project: str, skill_id: str, version: int | None) -> VersionRecord:
        """Return what is known of a version."""

    @abstractmethod
    async def listed(self, project: str, *, after: str | None, descending: bool, limit: int) -> Sequence[SkillRecord]:
        """Return up to `limit` skills behind the skill `after`, which may be gone."""

    @abstractmethod
    async def versions(
        self, project: str, skill_id: str, *, after: str | None, descending: bool, limit: int
    ) -> Sequence[VersionRecord]:
        """Return up to `limit` versions behind the one with the id `after`, which may be gone."""

    @abstractmethod
    async def set_default(self, project: str, skill_id: str, version: int) -> SkillRecord:
        """Make a version the default."""

    @abstractmethod
    async def delete(self, project: str, skill_id: str) -> None:
        """Forget a skill with all its versions."""

    @abstractmethod
    async def delete_version(self, project: str, skill_id: str, version: int) -> VersionRecord:
        """Forget a version, and with its last one the skill; return what it was. Raises `DefaultInUse`."""

    @abstractmethod
    def pieces(self, version: VersionRecord) -> AsyncIterator[bytes]:
        """Yield the bundle of a version, a piece at a time. Raises `SkillGone` where it goes meanwhile."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of everything. Safe to call twice."""

    async def content(self, version: VersionRecord) -> bytes:
        """Return the bundle of a version. Raises `SkillGone`."""
        return b"".join([piece async for piece in self.pieces(version)])


async def found_version(skills: BaseSkills, project: str, declared: JsonObject, at: str) -> VersionRecord:
    """Return the version that the reference at a place of a request means. Raises `ApiError` and `StoreError`."""
    version = declared.get("version")
    wanted = 0 if version == LATEST else None if version is None else version_number(str(version))
    try:
        return await skills.version(project, str(declared["skill_id"]), wanted)
    except SkillGone as gone:
        if gone.version is None:
            raise skill_not_found(gone.skill_id, param=f"{at}.skill_id") from None
        raise skill_version_not_found(gone.skill_id, str(version), param=f"{at}.version") from None
