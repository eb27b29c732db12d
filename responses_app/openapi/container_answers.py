"""What the Containers API answers with, as types."""

from typing import Literal

from pydantic import BaseModel


class ContainerExpiry(BaseModel):
    """How long a container may do nothing."""

    anchor: Literal["last_active_at"]
    minutes: int


class ContainerNetwork(BaseModel):
    """What a container may reach: nothing."""

    type: Literal["disabled"]


class Container(BaseModel):
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


class ContainerFile(BaseModel):
    """A file of a container. A user has uploaded it, or code of the model has written it."""

    id: str
    object: Literal["container.file"]
    bytes: int
    container_id: str
    created_at: int
    path: str
    source: Literal["user", "assistant"]


class ContainerList(BaseModel):
    """A part of a list of containers. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[Container]
    first_id: str
    last_id: str
    has_more: bool


class ContainerFileList(BaseModel):
    """A part of a list of files. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[ContainerFile]
    first_id: str
    last_id: str
    has_more: bool


class DeletedContainer(BaseModel):
    """A container is gone, or a file of one."""

    id: str
    object: Literal["container.deleted", "container.file.deleted"]
    deleted: Literal[True]


CONTAINERS = (Container, ContainerFile, ContainerList, ContainerFileList, DeletedContainer)
