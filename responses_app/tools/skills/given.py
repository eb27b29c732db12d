"""`GivenSkills`: skills that requests name or bring, on their way into containers.

What the model is told of them depends on what they are alone, not on the container: so it is told the same again, on
whatever worker its response goes on.
"""

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.files.skills import (
    MANIFEST,
    MAX_SKILLS,
    ToldSkill,
    folder_of,
    invalid_skill,
    told,
)
from responses_app.stores.skills import BaseSkills, VersionRecord, found_version
from responses_app.tools.sandbox.records import SandboxError
from responses_app.tools.sandbox.settings import SKILLS_FOLDER
from responses_app.tools.sandbox.sharing import SharedContainers
from responses_app.tools.sandbox.skills import MountedSkill
from responses_app.tools.skills.bundles import BadBundle, one_line, read_zip

AT_ONCE = 2  # bundles that are on their way in one process: each is in memory


@dataclass(frozen=True, slots=True)
class GivenSkill:
    """A skill that a container is to have."""

    mounted: MountedSkill  # as it will be there
    content: Callable[[], Awaitable[bytes]]  # its bundle


class GivenSkills:
    """Brings skills into containers."""

    def __init__(self, skills: BaseSkills, containers: SharedContainers) -> None:
        self._skills = skills
        self._containers = containers
        self._room = asyncio.Semaphore(AT_ONCE)

    async def find(self, project: str, declared: Sequence[JsonObject], *, at: str) -> list[GivenSkill]:
        """Return the skills that a request declares in the field `at`. Raises `ApiError` and `StoreError`."""
        found: dict[str, GivenSkill] = {}
        for index, each in enumerate(declared):
            if each["type"] == "inline":
                given = await self._inline(each, f"{at}[{index}]")
            else:
                given = await self._kept(project, each, f"{at}[{index}]")
            # One that is declared twice lies there once.
            found.setdefault(given.mounted.folder, given)
        return list(found.values())

    async def provide(self, project: str, container_id: str, given: Sequence[GivenSkill]) -> None:
        """Have a container see these skills. Raises `ContainerNotFound`, `SandboxError`, `SkillGone`, `StoreError`."""
        there = {each.folder for each in await self._containers.skills_of(project, container_id)} if given else set()
        if len(there.union(each.mounted.folder for each in given)) > MAX_SKILLS:
            raise SandboxError(f"a container has at most {MAX_SKILLS} skills")
        for each in given:
            if each.mounted.folder not in there:
                async with self._room:
                    await self._containers.add_skill(project, container_id, each.mounted, await each.content())

    async def of_container(self, project: str, container_id: str) -> Sequence[MountedSkill]:
        """Return the skills that a container has. Raises `ContainerNotFound` and `SandboxError`."""
        return await self._containers.skills_of(project, container_id)

    async def _kept(self, project: str, declared: JsonObject, at: str) -> GivenSkill:
        record = await found_version(self._skills, project, declared, at)
        return GivenSkill(_mounted(record), partial(self._skills.content, record))

    async def _inline(self, declared: JsonObject, at: str) -> GivenSkill:
        source = declared["source"]
        assert isinstance(source, dict), "it was validated"
        try:
            content = base64.b64decode(str(source.get("data")), validate=True)
            async with self._room:
                bundle = await asyncio.to_thread(read_zip, content, self._skills.bounds)
        except binascii.Error:
            raise invalid_skill("it is not base64", param=f"{at}.source.data") from None
        except BadBundle as problem:
            raise invalid_skill(str(problem), param=f"{at}.source.data") from None

        async def packed() -> bytes:
            return bundle.content

        name, description = str(declared["name"]), one_line(str(declared["description"]))
        return GivenSkill(MountedSkill(folder_of(name, bundle.digest), name, description), packed)


def told_of(skills: Iterable[MountedSkill]) -> str:
    """Return what the model is told of the skills of its container; "" for none."""
    return told(ToldSkill(each.name, each.description, f"{SKILLS_FOLDER}/{each.folder}/{MANIFEST}") for each in skills)


def _mounted(record: VersionRecord) -> MountedSkill:
    return MountedSkill(folder_of(record.name, record.digest), record.name, record.description)
