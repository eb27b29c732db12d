"""Whatever requests bring into containers: files of the Files API, skills, and a policy for the network.

`GivenFiles` copies a file once: which one lies where is remembered by the chain (see `copied_in`), and one that is not
there any more, as its container has begun anew, is copied again. They are the `file_ids` of a request, or of a
container's own.

`GivenSkills` brings the skills that requests name or bring. The text about them for the model
depends on them alone, not on the container: so it is the same again, on whatever worker its response goes on.
"""

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from responses_app.extensions.containers.egress.base import NetworkRecord
from responses_app.extensions.containers.egress.policy import EgressPolicy
from responses_app.extensions.containers.sandbox.records import ContainerFileRecord, FileUnknown, SandboxError
from responses_app.extensions.containers.sandbox.settings import SKILLS_FOLDER
from responses_app.extensions.containers.sandbox.sharing import SharedContainers
from responses_app.extensions.containers.sandbox.skills import MountedSkill
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.files.files import name_in_container
from responses_app.protocol.files.skills import MANIFEST, MAX_SKILLS, ToldSkill, folder_of, told
from responses_app.resources.files.fields import FileGone
from responses_app.resources.skills.bundles import BadBundle, one_line, read_zip
from responses_app.resources.skills.fields import invalid_skill
from responses_app.tools.base import ToolUse

if TYPE_CHECKING:
    from responses_app.resources.files.store import Files
    from responses_app.resources.skills.store import Skills

COPIED = "copied"  # in a chain's state: [[file id, path], …]
MAX_COPIED = 50  # of a chain that are remembered


@dataclass(frozen=True, slots=True)
class GivenFile:
    """A file of the Files API that a container is to have."""

    id: str
    path: str  # under the work folder


class GivenFiles:
    """Copies files of the Files API into containers. A file of more than `max_bytes` does not fit into a container."""

    def __init__(self, files: "Files", containers: SharedContainers, *, max_bytes: int) -> None:
        self._files = files
        self._containers = containers
        self._max_bytes = max_bytes

    async def find(
        self, project: str, file_ids: Sequence[str], copied: Mapping[str, str] | None = None
    ) -> list[GivenFile]:
        """Return files with the paths that they have, or are to have, beside those that are `copied`, by their ids.

        Raises `FileUnknown`, `SandboxError` for one that is too large, and `StoreError`.
        """
        # By their ids; the paths of those that are new must not be among them.
        paths = dict(copied or {})
        records = {record.id: record for record in await self._files.some(project, file_ids)}
        for file_id in file_ids:
            if file_id in paths:
                continue
            if file_id not in records:
                raise FileUnknown(file_id)
            if records[file_id].bytes > self._max_bytes:
                raise SandboxError(f"{file_id} has more than the {self._max_bytes} bytes that a container may have")
            paths[file_id] = name_in_container(records[file_id].filename, set(paths.values()))
        # `dict.fromkeys`: a file that is named twice is copied once.
        return [GivenFile(file_id, paths[file_id]) for file_id in dict.fromkeys(file_ids)]

    async def copy(self, project: str, container_id: str, files: Sequence[GivenFile]) -> list[ContainerFileRecord]:
        """Write files into a container. Raises `FileUnknown`, `ContainerNotFound`, `SandboxError` and `StoreError`."""
        return [await self._copy(project, container_id, each) for each in files]

    async def provide(self, project: str, container_id: str, files: Sequence[GivenFile]) -> list[GivenFile]:
        """Copy those that do not lie in a container yet; return those that do then: one may have been deleted since.

        Raises as `copy` does, but for `FileUnknown`.
        """
        there = {file.path for file in await self._containers.files_of(project, container_id)} if files else set()
        provided = []
        for each in files:
            try:
                if each.path not in there:
                    await self._copy(project, container_id, each)
            except FileUnknown:
                continue
            provided.append(each)
        return provided

    async def _copy(self, project: str, container_id: str, file: GivenFile) -> ContainerFileRecord:
        try:
            pieces = self._files.pieces(project, file.id)
            return await self._containers.put_file(project, container_id, file.path, pieces)
        except FileGone:
            raise FileUnknown(file.id) from None


def copied_in(state: JsonObject | None, container_id: str) -> dict[str, str]:
    """Return the paths of the files that a chain's state says were copied into this container, by their ids."""
    if state is None or state.get("container_id") != container_id:
        return {}
    paths: dict[str, str] = {}
    copied = state.get(COPIED)
    for each in copied if isinstance(copied, list) else ():
        match each:
            case [str(file_id), str(path)]:
                paths[file_id] = path
    return paths


def with_copied(state: JsonObject, copied: Mapping[str, str]) -> JsonObject:
    """Return a chain's state with where files were copied to, by their ids."""
    # The newest are kept, as the last ones of the dictionary.
    return {**state, COPIED: [list(each) for each in copied.items()][-MAX_COPIED:]} if copied else state


AT_ONCE = 2  # bundles that are on their way in one process: each is in memory


@dataclass(frozen=True, slots=True)
class GivenSkill:
    """A skill that a container is to have."""

    mounted: MountedSkill  # as it will be there
    content: Callable[[], Awaitable[bytes]]  # its bundle


class GivenSkills:
    """Brings skills into containers."""

    def __init__(self, skills: "Skills", containers: SharedContainers) -> None:
        self._skills = skills
        self._containers = containers
        self._room = asyncio.Semaphore(AT_ONCE)

    async def find(self, project: str, declared: Sequence[JsonObject], *, at: str) -> list[GivenSkill]:
        """Return the skills that a request declares in the field `at`. Raises `ApiError` and `StoreError`."""
        skills: dict[str, GivenSkill] = {}
        for index, each in enumerate(declared):
            if each["type"] == "inline":
                skill = await self._inline(each, f"{at}[{index}]")
            else:
                record = await self._skills.referenced(project, each, f"{at}[{index}]")
                mounted = MountedSkill(folder_of(record.name, record.digest), record.name, record.description)
                skill = GivenSkill(mounted, partial(self._skills.content, record))
            # One that is declared twice lies there once.
            skills.setdefault(skill.mounted.folder, skill)
        return list(skills.values())

    async def provide(self, project: str, container_id: str, skills: Sequence[GivenSkill]) -> None:
        """Have a container see these skills. Raises `ContainerNotFound`, `SandboxError`, `SkillGone`, `StoreError`."""
        there = {each.folder for each in await self._containers.skills_of(project, container_id)} if skills else set()
        if len(there.union(each.mounted.folder for each in skills)) > MAX_SKILLS:
            raise SandboxError(f"a container has at most {MAX_SKILLS} skills")
        for each in skills:
            if each.mounted.folder not in there:
                async with self._room:
                    await self._containers.add_skill(project, container_id, each.mounted, await each.content())

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


def skills_text(skills: Iterable[MountedSkill]) -> str:
    """Return the text for the model about the skills of its container; "" for none."""
    return told(ToldSkill(each.name, each.description, f"{SKILLS_FOLDER}/{each.folder}/{MANIFEST}") for each in skills)


_REACHED = (
    " Of the internet these domains alone can be reached, by http:// and https://: {domains}. Programs find the proxy "
    "for that in the variables HTTP_PROXY and HTTPS_PROXY."
)
_SECRET = (
    " The variable {name} holds what stands for a secret of {domain}: sent there in a header or in the URL, the secret "
    "takes its place."
)


def network_of(use: ToolUse) -> EgressPolicy | None:
    """Return the network policy of a request's container; None where it is to reach nothing."""
    container = use.declared.get("container")
    policy = container.get("network_policy") if isinstance(container, dict) else None
    if not isinstance(policy, dict) or policy.get("type") != "allowlist":
        return None
    return EgressPolicy.read(policy, values_of(use))


def values_of(use: ToolUse) -> Sequence[JsonObject]:
    """Return the secrets of a request with their values; none where another worker has read it."""
    secrets = use.private.get("domain_secrets")
    return [each for each in secrets if isinstance(each, dict)] if isinstance(secrets, list) else ()


def network_text(network: NetworkRecord | None, offline: str) -> str:
    """Return the text for the model about the network of its container; `offline` where it has none."""
    if network is None:
        return offline
    secrets = (_SECRET.format(name=each.name, domain=each.domain) for each in network.secrets)
    return _REACHED.format(domains=", ".join(network.allowed_domains)) + "".join(secrets)
