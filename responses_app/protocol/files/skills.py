"""Skills: as requests name them, as the Skills API's bodies have them, and what the model is told of them.

A skill is a folder with a file SKILL.md, which says how to do something, and whatever that needs. A request names one
that is kept (`skill_reference`), or brings it (`inline`); it lies in the container then.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, StringConstraints

from responses_app.protocol.errors import ApiError, JsonObject, invalid_request, not_found
from responses_app.protocol.fields import ClientModel, validate

MANIFEST = "SKILL.md"
MAX_SKILLS = 20  # of a container
MAX_NAME, MAX_DESCRIPTION = 64, 1024  # characters, as the Agent Skills standard has them
NAME = r"^[a-z0-9]+(-[a-z0-9]+)*$"
LATEST = "latest"
_VERSION = re.compile(r"[1-9][0-9]{0,8}")  # as a path or a reference writes one


class SkillReference(ClientModel):
    """A skill that the project keeps."""

    type: Literal["skill_reference"]
    skill_id: str = Field(min_length=1, max_length=256)
    # A number, or "latest"; None: the default version
    version: Annotated[str, StringConstraints(pattern=rf"^({_VERSION.pattern}|{LATEST})$")] | None = None


class InlineSource(ClientModel):
    """A zip file."""

    type: Literal["base64"]
    media_type: Literal["application/zip"]
    data: str = Field(min_length=1, repr=False)


class InlineSkill(ClientModel):
    """A skill that a request brings."""

    type: Literal["inline"]
    name: str = Field(pattern=NAME, max_length=MAX_NAME)
    description: str = Field(min_length=1, max_length=MAX_DESCRIPTION)
    source: InlineSource


NamedSkill = Annotated[SkillReference | InlineSkill, Field(discriminator="type")]
NamedSkills = Annotated[list[NamedSkill], Field(max_length=MAX_SKILLS)]


class ChangedSkill(ClientModel):
    """The body of an update."""

    default_version: str = Field(pattern=rf"^{_VERSION.pattern}$")


class NewVersion(ClientModel):
    """The fields of a form with a bundle; those of a new skill, too, for which `default` says nothing."""

    default: Literal["true", "false"] | None = None

    beside: ClassVar = ("files",)


def parse_change(data: Mapping[str, object]) -> int:
    """Return the version that is to be the default. Raises `ApiError`."""
    return int(validate(ChangedSkill, data).default_version)


def version_number(version: str) -> int | None:
    """Return the number of a version as a path has it; None for one that there cannot be."""
    return int(version) if _VERSION.fullmatch(version) else None


class ToldSkill(NamedTuple):
    """What the model is told of a skill."""

    name: str
    description: str
    path: str  # where it lies


def told(skills: Iterable[ToldSkill]) -> str:
    """Return what the model is told of the skills that it has; "" for none."""
    lines = [f"- {name} ({path}): {description}" for name, description, path in skills]
    head = "It has skills; the file SKILL.md in the folder of one says how to do what it is for:"
    return "\n".join([head, *lines]) if lines else ""


def folder_of(name: str, digest: str) -> str:
    """Return the name of a skill's folder: of the same bundle the same one, on whatever machine."""
    return f"{name}-{digest[:32]}"


def skills_in(tool: Mapping[str, Any]) -> tuple[str, Sequence[JsonObject]]:
    """Return the skills that a declared tool names for its container, and the field that its container is in."""
    for field in ("container", "environment"):
        place = tool.get(field)
        skills = place.get("skills") if isinstance(place, dict) else None
        # Those of a local shell are in the client's files, and have no type.
        if isinstance(place, dict) and isinstance(skills, list) and place.get("type") != "local":
            return field, skills
    return "", ()


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


def default_in_use(skill_id: str, version: int) -> ApiError:
    """The default version of a skill cannot be deleted while there are others (400)."""
    message = (
        f"Version {version} is the default of skill '{skill_id[:80]}'. Make another version the default first, or "
        "delete the skill."
    )
    return invalid_request(message, param="version", code="default_version_in_use")
