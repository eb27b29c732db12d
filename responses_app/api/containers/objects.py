"""Containers and their files, as clients read them. Times are Unix seconds."""

from typing import Literal

from typing_extensions import TypedDict

from responses_app.tools.sandbox.base import WORK_FOLDER
from responses_app.tools.sandbox.records import ContainerFile as FileRecord
from responses_app.tools.sandbox.records import ContainerRecord


class ContainerExpiry(TypedDict):
    """How long a container may do nothing."""

    anchor: Literal["last_active_at"]
    minutes: int


class ContainerNetwork(TypedDict):
    """What a container may reach: nothing."""

    type: Literal["disabled"]


class Container(TypedDict):
    """A container of the code interpreter."""

    id: str
    object: Literal["container"]
    created_at: int
    status: Literal["running"]
    expires_after: ContainerExpiry
    last_active_at: int
    memory_limit: Literal["1g", "4g", "16g", "64g"]
    name: str
    network_policy: ContainerNetwork


class ContainerFile(TypedDict):
    """A file of a container. A user has uploaded it, or code of the model has written it."""

    id: str
    object: Literal["container.file"]
    bytes: int
    container_id: str
    created_at: int
    path: str
    source: Literal["user", "assistant"]


class ContainerList(TypedDict):
    """A part of a list of containers. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[Container]
    first_id: str
    last_id: str
    has_more: bool


class ContainerFileList(TypedDict):
    """A part of a list of files. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[ContainerFile]
    first_id: str
    last_id: str
    has_more: bool


class DeletedContainer(TypedDict):
    """A container is gone, or a file of one."""

    id: str
    object: Literal["container.deleted", "container.file.deleted"]
    deleted: Literal[True]


def container_object(container: ContainerRecord) -> Container:
    """Return a container."""
    return {
        "id": container.id,
        "object": "container",
        "created_at": container.created_at,
        "status": "running",
        "expires_after": {"anchor": "last_active_at", "minutes": max(1, round(container.idle / 60))},
        "last_active_at": int(container.last_active),
        "memory_limit": container.memory,
        "name": container.name,
        "network_policy": {"type": "disabled"},
    }


def file_object(container_id: str, file: FileRecord) -> ContainerFile:
    """Return a file of a container."""
    return {
        "id": file.id,
        "object": "container.file",
        "bytes": file.size,
        "container_id": container_id,
        "created_at": file.created_at,
        "path": f"{WORK_FOLDER}/{file.path}",
        "source": file.source,
    }
