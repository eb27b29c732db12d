"""Skills as requests name them, and the text for the model about those that it has.

A skill is a folder with a file SKILL.md, which says how to do something, and whatever that needs. A request names one
that is kept (`skill_reference`), or brings it (`inline`); it lies in the container then.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, StringConstraints

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.fields import ClientModel

MANIFEST = "SKILL.md"
MAX_SKILLS = 20  # of a container
MAX_NAME, MAX_DESCRIPTION = 64, 1024  # characters, as the Agent Skills standard has them
NAME = r"^[a-z0-9]+(-[a-z0-9]+)*$"
LATEST = "latest"
VERSION = re.compile(r"[1-9][0-9]{0,8}")  # as a path or a reference writes one


class SkillReference(ClientModel):
    """A skill that the project keeps."""

    type: Literal["skill_reference"]
    skill_id: str = Field(min_length=1, max_length=256)
    # A number, or "latest"; None: the default version
    version: Annotated[str, StringConstraints(pattern=rf"^({VERSION.pattern}|{LATEST})$")] | None = None


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


class ToldSkill(NamedTuple):
    """A skill as the model is told of it."""

    name: str
    description: str
    path: str  # where it lies


def told(skills: Iterable[ToldSkill]) -> str:
    """Return the text for the model about the skills that it has; "" for none."""
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
