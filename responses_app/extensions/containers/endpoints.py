"""`/v1/containers`: containers of the code interpreter, and their files. Times are Unix seconds."""

import mimetypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal, NotRequired

from django.http.response import HttpResponseBase
from typing_extensions import TypedDict

from responses_app.auth.scopes import check_named, files_named, skills_named
from responses_app.extensions.containers.egress.base import NetworkRecord
from responses_app.extensions.containers.egress.policy import policy_of
from responses_app.extensions.containers.sandbox.records import ContainerFileRecord as FileRecord
from responses_app.extensions.containers.sandbox.records import (
    ContainerNotFound,
    ContainerRecord,
    FileUnknown,
    HostGone,
    NetworkRefused,
    SandboxError,
    TooManyContainers,
    TooManyTransfers,
)
from responses_app.extensions.containers.sandbox.settings import WORK_FOLDER
from responses_app.extensions.containers.tools import interpreter_of
from responses_app.protocol import ids
from responses_app.protocol.api_keys import Area
from responses_app.protocol.errors import (
    ApiError,
    container_not_found,
    invalid_request,
    overloaded,
    unsupported_parameter,
)
from responses_app.protocol.fields import check_fields
from responses_app.protocol.files.containers import (
    CopiedFile,
    NewContainer,
    container_file_not_found,
    parse_container,
    parse_copied,
    too_many_containers,
)
from responses_app.protocol.files.files import name_on_disk
from responses_app.protocol.requests.pages import page_behind, parse_list_query
from responses_app.resources.files.fields import PIECE_BYTES, file_not_found
from responses_app.resources.skills.fields import SkillGone, skill_not_found
from responses_app.web.endpoint import BYTES, PAGED, Endpoint, Form, Parameter, Refusals, Size, text
from responses_app.web.forms import is_form, sent_form
from responses_app.web.http import ApiRequest, parse_noting, read_json
from responses_app.web.transfers import file_answer, form_schema, streamed
from responses_app.wiring.site import get_site

if TYPE_CHECKING:
    from responses_app.extensions.containers.code_interpreter import CodeInterpreterTool
    from responses_app.extensions.containers.sandbox.sharing import SharedContainers


class ContainerExpiry(TypedDict):
    """How long a container may do nothing."""

    anchor: Literal["last_active_at"]
    minutes: int  # without a call or a transfer of files


class ContainerNetwork(TypedDict):
    """What a container may reach."""

    type: Literal["disabled", "allowlist"]
    allowed_domains: NotRequired[list[str]]  # of an allowlist


class Container(TypedDict):
    """A container of the code interpreter."""

    id: str
    object: Literal["container"]
    created_at: int  # Unix seconds, as all times here
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
    path: str  # absolute, inside the container
    source: Literal["user", "assistant"]  # who made it


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
        "network_policy": _network(container.network),
    }


def _network(network: NetworkRecord | None) -> ContainerNetwork:
    if network is None:
        return {"type": "disabled"}
    return {"type": "allowlist", "allowed_domains": list(network.allowed_domains)}


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


async def _interpreter() -> "CodeInterpreterTool":
    interpreter = interpreter_of(get_site().tools)
    if interpreter is None:
        raise invalid_request("This server has no code interpreter (SANDBOX=off).", code="unsupported_parameter")
    return await interpreter.tool()


async def _containers() -> "SharedContainers":
    return (await _interpreter()).containers


def _not_found(unknown: Exception, container_id: str = "", file_id: str = "") -> ApiError:
    # The exception names what is not there: the file, or else the container.
    if str(unknown) == file_id:
        return container_file_not_found(container_id, file_id)
    return container_not_found(container_id)


def _too_many(problem: Exception, *_: str) -> ApiError:
    return too_many_containers(str(problem))


def _gone(problem: Exception, *_: str) -> ApiError:
    return overloaded(f"The containers cannot be used now: {problem}.", retry_after=2)


def _unmade(problem: Exception) -> str:
    return f"The container cannot be made: {problem}."


REFUSALS: Refusals = {
    ContainerNotFound: _not_found,
    TooManyContainers: _too_many,
    TooManyTransfers: _too_many,
    HostGone: _gone,
    NetworkRefused: lambda problem, *_: unsupported_parameter("network_policy", _unmade(problem)),
    SandboxError: lambda problem, *_: invalid_request(f"The container cannot do that: {problem}."),
}


async def _create(request: ApiRequest) -> Container:
    interpreter = await _interpreter()
    containers, files, skills = interpreter.containers, interpreter.given_files, interpreter.given_skills
    fields = await read_json(request, parse_container, get_site().reader)
    declared = [each.model_dump(exclude_none=True) for each in fields.skills or ()]
    named = (*files_named(fields.file_ids, at="file_ids"), *skills_named(declared, at="skills"))
    check_named(request.caller.scopes, named)
    # Before the files are looked up: a server whose sandbox cannot start says so first.
    await containers.check()
    project, policy = request.project, policy_of(fields.network_policy)
    with _given_errors("file_ids"):
        # All of them are there before a container is made.
        records = await files.find(project, fields.file_ids or ())
        given = await skills.find(project, declared, at="skills")
        container = await containers.create(
            project, name=fields.name, idle=fields.idle_seconds, memory=fields.memory_limit, network=policy
        )
        await files.copy(project, container.id, records)
        await skills.provide(project, container.id, given)
    return container_object(container)


async def _list(request: ApiRequest) -> ContainerList:
    records = await (await _containers()).all_of(request.project)
    name = (request.query.get("name") or [""])[-1]
    shown = [container_object(each) for each in records if not name or each.name == name]
    return page_behind(shown, parse_list_query(request.query, ids.CONTAINER))


async def _get(request: ApiRequest, container_id: str) -> Container:
    return container_object(await (await _containers()).find(request.project, container_id))


async def _delete(request: ApiRequest, container_id: str) -> DeletedContainer:
    await (await _containers()).delete(request.project, container_id)
    return {"id": container_id, "object": "container.deleted", "deleted": True}


async def _list_files(request: ApiRequest, container_id: str) -> ContainerFileList:
    records = await (await _containers()).files_of(request.project, container_id)
    shown = [file_object(container_id, each) for each in records]
    # Their ids are the order in which cursors are places; which of two has come first may be told otherwise.
    return page_behind(sorted(shown, key=lambda each: each["id"]), parse_list_query(request.query, ids.CONTAINER_FILE))


async def _upload(request: ApiRequest, container_id: str) -> ContainerFile:
    containers = await _containers()
    await containers.find(request.project, container_id)  # before its body is read
    if not is_form(request):
        return await _copy(request, container_id)
    async with sent_form(request, CopiedFile) as form:
        parse_noting(request, partial(check_fields, CopiedFile), form.fields, get_site().reader)
        pieces = form.file.arriving(PIECE_BYTES)
        put = await containers.put_file(request.project, container_id, name_on_disk(form.file.name), pieces)
    return file_object(container_id, put)


async def _copy(request: ApiRequest, container_id: str) -> ContainerFile:
    """Copy a file of the Files API into a container."""
    fields = await read_json(request, parse_copied, get_site().reader)
    check_named(request.caller.scopes, files_named([fields.file_id], at="file_id"))
    project, files = request.project, (await _interpreter()).given_files
    with _given_errors("file_id"):
        (copied,) = await files.copy(project, container_id, await files.find(project, [fields.file_id]))
    return file_object(container_id, copied)


@contextmanager
def _given_errors(param: str) -> Iterator[None]:
    try:
        yield
    except FileUnknown as unknown:
        raise file_not_found(str(unknown), param=param) from None
    except SkillGone as gone:
        raise skill_not_found(gone.skill_id, param="skills") from None


async def _get_file(request: ApiRequest, container_id: str, file_id: str) -> ContainerFile:
    return file_object(container_id, await (await _containers()).file(request.project, container_id, file_id))


async def _remove_file(request: ApiRequest, container_id: str, file_id: str) -> DeletedContainer:
    await (await _containers()).remove_file(request.project, container_id, file_id)
    return {"id": file_id, "object": "container.file.deleted", "deleted": True}


async def _content(request: ApiRequest, container_id: str, file_id: str) -> HttpResponseBase:
    containers = await _containers()
    about = await containers.file(request.project, container_id, file_id)
    name, kind = about.path.rpartition("/")[2], content_type_of(about.path)
    if request.method == "HEAD":
        return file_answer(name, about.size, b"", kind=kind)
    parts = containers.content(request.project, container_id, file_id)
    first = await anext(parts)  # what fails by then is answered as an error
    if len(first.content) == first.size:
        await parts.aclose()
        return file_answer(name, first.size, first.content, kind=kind)
    body = streamed(first.content, (part.content async for part in parts), request.cut, _BROKEN)
    return file_answer(name, first.size, body, kind=kind)


_BROKEN = (ContainerNotFound, SandboxError)


def content_type_of(path: str) -> str:
    """Return the media type of a file by its name: not what its name says in the form of a `data:` URL."""
    # Behind a folder, a name like "data:text/html,x" is no URL to `mimetypes`.
    return mimetypes.guess_type(f"{WORK_FOLDER}/{path}")[0] or "application/octet-stream"


_CONTAINERS = "/v1/containers"
_CONTAINER = f"{_CONTAINERS}/{{container_id}}"
_FILES = f"{_CONTAINER}/files"
_FILE = f"{_FILES}/{{file_id}}"
_BUSY = (429,)
_NAME = Parameter("name", "Only containers that have this name.", text())
_UPLOAD = Form("Upload", form_schema("A form with a file."), Size.AS_JSON)
_endpoint = partial(Endpoint, tag="Containers", scope=Area.CONTAINERS, refusals=REFUSALS)

_KEPT = (
    "A container keeps its files between requests",
    "Declare the tool with a container of type 'auto': each response has one of its own, which goes with it.",
)

ENDPOINTS = (
    _endpoint("GET", _CONTAINERS, _list, "ListContainers", "List the containers", takes=(*PAGED, _NAME)),
    _endpoint(
        "POST", _CONTAINERS, _create, "CreateContainer", "Create a container",
        body=NewContainer, errors=(404, 429), keeps=_KEPT,
    ),
    _endpoint("GET", _CONTAINER, _get, "RetrieveContainer", "Return a container"),
    _endpoint("DELETE", _CONTAINER, _delete, "DeleteContainer", "End a container"),
    _endpoint(
        "GET", _FILES, _list_files, "ListContainerFiles", "List a container's files", takes=PAGED, errors=_BUSY
    ),
    _endpoint(
        "POST", _FILES, _upload, "CreateContainerFile",
        "Upload a file to a container, or copy one of the Files API there",
        form=_UPLOAD, body=CopiedFile, errors=_BUSY,
    ),
    _endpoint("GET", _FILE, _get_file, "RetrieveContainerFile", "Return a file", errors=_BUSY),
    _endpoint("DELETE", _FILE, _remove_file, "DeleteContainerFile", "Remove a file", errors=_BUSY),
    _endpoint(
        "GET", f"{_FILE}/content", _content, "RetrieveContainerFileContent", "Return a file's content",
        answers={BYTES: ""}, errors=_BUSY,
    ),
)  # fmt: skip
