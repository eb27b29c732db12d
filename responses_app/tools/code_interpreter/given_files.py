"""`GivenFiles`: files of the Files API on their way into containers: `file_ids` of a request, or of a container's own.

A file is copied once: which one lies where is remembered by the chain (see `copied_in`), and one that is not there any
more, as its container has begun anew, is copied again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.files.files import name_in_container
from responses_app.stores.files import BaseFileStore, FileGone
from responses_app.tools.sandbox.base import SandboxError
from responses_app.tools.sandbox.records import ContainerFile, FileUnknown
from responses_app.tools.sandbox.shared.sharing import SharedContainers

COPIED = "copied"  # in a chain's state: [[file id, path], …]
MAX_COPIED = 50  # of a chain that are remembered


@dataclass(frozen=True, slots=True)
class GivenFile:
    """A file, and its path under the work folder."""

    id: str
    path: str


class GivenFiles:
    """Of one process. A file of more than `max_bytes` does not fit into a container."""

    def __init__(self, files: BaseFileStore, containers: SharedContainers, *, max_bytes: int) -> None:
        self._files = files
        self._containers = containers
        self._max_bytes = max_bytes

    async def find(
        self, project: str, file_ids: Sequence[str], copied: Mapping[str, str] | None = None
    ) -> list[GivenFile]:
        """Return files with the paths that they have, or are to have, beside those that are `copied`, by their ids.

        Raises `FileUnknown`, `SandboxError` for one that is too large, and `StoreError`.
        """
        paths = dict(copied or {})
        known = {record.id: record for record in await self._files.some(project, file_ids)}
        for file_id in file_ids:
            if file_id in paths:
                continue
            if file_id not in known:
                raise FileUnknown(file_id)
            if known[file_id].bytes > self._max_bytes:
                raise SandboxError(f"{file_id} has more than the {self._max_bytes} bytes that a container may have")
            paths[file_id] = name_in_container(known[file_id].filename, set(paths.values()))
        return [GivenFile(file_id, paths[file_id]) for file_id in dict.fromkeys(file_ids)]

    async def copy(self, project: str, container_id: str, given: Sequence[GivenFile]) -> list[ContainerFile]:
        """Write files into a container. Raises `FileUnknown`, `ContainerNotFound`, `SandboxError` and `StoreError`."""
        return [await self._copy(project, container_id, each) for each in given]

    async def provide(self, project: str, container_id: str, given: Sequence[GivenFile]) -> list[GivenFile]:
        """Copy those that do not lie in a container yet; return those that do then: one may have been deleted since.

        Raises as `copy` does, but for `FileUnknown`.
        """
        there = {file.path for file in await self._containers.files_of(project, container_id)} if given else set()
        provided = []
        for each in given:
            try:
                if each.path not in there:
                    await self._copy(project, container_id, each)
            except FileUnknown:
                continue
            provided.append(each)
        return provided

    async def _copy(self, project: str, container_id: str, given: GivenFile) -> ContainerFile:
        try:
            pieces = self._files.pieces(project, given.id)
            return await self._containers.put_file(project, container_id, given.path, pieces)
        except FileGone:
            raise FileUnknown(given.id) from None


def copied_in(state: JsonObject | None, container_id: str) -> dict[str, str]:
    """Return the paths of the files that a chain's state says were copied into this container, by their ids."""
    if state is None or state.get("container_id") != container_id:
        return {}
    return dict(_pairs(state.get(COPIED)))


def with_copied(state: JsonObject, copied: Mapping[str, str]) -> JsonObject:
    """Return a chain's state with where files were copied to, by their ids."""
    return {**state, COPIED: [list(each) for each in copied.items()][-MAX_COPIED:]} if copied else state


def _pairs(told: object) -> Iterator[tuple[str, str]]:
    for each in told if isinstance(told, list) else ():
        match each:
            case [str(file_id), str(path)]:
                yield file_id, path
