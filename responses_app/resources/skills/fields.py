"""The settings of skills, the fields of requests and answers of `/v1/skills`, and the errors that are theirs alone."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field
from typing_extensions import TypedDict

from responses_app.kit.clock import unix
from responses_app.protocol.errors import ApiError, JsonObject, invalid_request, not_found
from responses_app.protocol.fields import ClientModel
from responses_app.protocol.files.skills import VERSION
from responses_app.protocol.setting import MIB, RoomSettings, setting, whole

if TYPE_CHECKING:
    from responses_app.resources.skills import model


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


class ChangedSkill(ClientModel):
    """The body of an update."""

    default_version: str = Field(pattern=rf"^{VERSION.pattern}$")


class NewVersion(ClientModel):
    """The fields of a form with a bundle; those of a new skill, too, for which `default` says nothing."""

    default: Literal["true", "false"] | None = None

    beside: ClassVar = ("files",)


FORM: dict[str, JsonObject] = {"default": {"type": "string", "enum": ["true", "false"]}}  # the schemas of these


class Skill(TypedDict):
    """A skill. Its name and its description are those of its default version."""

    id: str
    object: Literal["skill"]
    created_at: int
    default_version: str
    latest_version: str
    name: str
    description: str


class SkillVersion(TypedDict):
    """A version of a skill, which nobody changes."""

    id: str
    object: Literal["skill.version"]
    created_at: int
    skill_id: str
    version: str
    name: str
    description: str


class SkillList(TypedDict):
    """A part of a list of skills. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[Skill]
    first_id: str
    last_id: str
    has_more: bool


class SkillVersionList(TypedDict):
    """A part of a list of versions. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[SkillVersion]
    first_id: str
    last_id: str
    has_more: bool


class DeletedSkill(TypedDict):
    """A skill is gone, with all its versions."""

    id: str
    object: Literal["skill.deleted"]
    deleted: Literal[True]


class DeletedSkillVersion(TypedDict):
    """A version is gone, and with the last one its skill."""

    id: str
    object: Literal["skill.version.deleted"]
    deleted: Literal[True]
    version: str


def shown(row: "model.Skill") -> Skill:
    """Return a skill as clients see it."""
    return {
        "id": row.pk,
        "object": "skill",
        "created_at": unix(row.created_at),
        "default_version": str(row.default_version),
        "latest_version": str(row.latest),
        "name": row.default.name,
        "description": row.default.description,
    }


def shown_version(row: "model.SkillVersion") -> SkillVersion:
    """Return a version as clients see it."""
    return {
        "id": row.pk,
        "object": "skill.version",
        "created_at": unix(row.created_at),
        "skill_id": row.skill_id,
        "version": str(row.version),
        "name": row.name,
        "description": row.description,
    }


class SkillsFull(Exception):
    """The project keeps as many versions as it may; the message says so."""


class SkillGone(Exception):
    """The project has no such skill, or no such version of it; the message says which."""

    def __init__(self, skill_id: str, version: str | None = None) -> None:
        super().__init__(skill_id if version is None else f"{skill_id} {version}")
        self.skill_id = skill_id
        self.version = version  # None: the skill itself is not there


class DefaultInUse(Exception):
    """The default version of a skill that has others, too."""


def skill_not_found(skill_id: str, *, param: str | None = None) -> ApiError:
    """The project has no such skill, or not any more (404)."""
    return not_found(f"Skill with id '{skill_id[:80]}' not found.", param=param, code="skill_not_found")


def skill_version_not_found(skill_id: str, version: str, *, param: str | None = None) -> ApiError:
    """The skill has no such version, or not any more (404)."""
    message = f"Version '{version[:80]}' not found in skill '{skill_id[:80]}'."
    return not_found(message, param=param, code="skill_version_not_found")


def invalid_skill(why: str, *, param: str = "files") -> ApiError:
    """A bundle is none, or has something that a skill may not have (400)."""
    return invalid_request(f"Invalid skill: {why}.", param=param, code="invalid_skill")


def skill_too_large(limit: int) -> ApiError:
    """A form with a skill has more bytes than any skill may have (413)."""
    message = f"The skill is larger than {limit} bytes (SKILL_MAX_BYTES, SKILL_MAX_UNPACKED_BYTES)."
    return ApiError(message, status=413, code="request_too_large", param="files")


def skills_full(why: str) -> ApiError:
    """The project keeps as many skills, or as much, as it may (400)."""
    return invalid_request(f"{why}. Delete some first.", param="files", code="skills_full")


def default_in_use(skill_id: str, version: str) -> ApiError:
    """The default version of a skill cannot be deleted while there are others (400)."""
    message = (
        f"Version {version} is the default of skill '{skill_id[:80]}'. Make another version the default first, or "
        "delete the skill."
    )
    return invalid_request(message, param="version", code="default_version_in_use")
