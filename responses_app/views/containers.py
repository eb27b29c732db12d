"""The Containers API: `/v1/containers`, their files, and what is in them."""

import asyncio
import mimetypes
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.http import content_disposition_header

from responses_app.auth.scopes import check_named
from responses_app.http import caller_of, cut_of, handler_of, json_response, parse_noting, project_of, read_json
from responses_app.protocol.containers import (
    check_form,
    container_file_not_found,
    container_file_object,
    container_object,
    parse_container,
    parse_copied,
    too_many_containers,
)
from responses_app.protocol.errors import JsonObject, container_not_found, invalid_request
from responses_app.protocol.files import file_not_found
from responses_app.protocol.named import files_named
from responses_app.protocol.pages import deleted_object, page_behind, parse_list_query
from responses_app.runs.history import store_away
from responses_app.server_tools import interpreter_of
from responses_app.stores.base import StoreError
from responses_app.stores.files import PIECE_BYTES
from responses_app.tools.sandbox.base import WORK_FOLDER, SandboxError
from responses_app.tools.sandbox.records import (
    ContainerFile,
    ContainerNotFound,
    ContainerRecord,
    FileUnknown,
    TooManyContainers,
    TooManyTransfers,
)
from responses_app.views.downloads import streamed
from responses_app.views.queries import query_of
from responses_app.views.uploads import is_form, read_upload
from responses_app.wiring import get_site

if TYPE_CHECKING:
    from responses_app.tools.sandbox.given_files import GivenFiles
    from responses_app.tools.sandbox.sharing import SharedContainers

Handler = Callable[..., Awaitable[HttpResponseBase]]


async def index(request: HttpRequest) -> HttpResponseBase:
    """List (GET) or create (POST) containers."""
    return await _dispatched(request, {"GET": _list, "POST": _create})


async def detail(request: HttpRequest, container_id: str) -> HttpResponseBase:
    """Return (GET) or end (DELETE) a container."""
    return await _dispatched(request, {"GET": _get, "DELETE": _delete}, container_id)


async def files(request: HttpRequest, container_id: str) -> HttpResponseBase:
    """List (GET) or upload (POST) files of a container."""
    return await _dispatched(request, {"GET": _list_files, "POST": _upload}, container_id)


async def file(request: HttpRequest, container_id: str, file_id: str) -> HttpResponseBase:
    """Return (GET) what is known of a file, or remove it (DELETE)."""
    return await _dispatched(request, {"GET": _get_file, "DELETE": _remove_file}, container_id, file_id)


async def content(request: HttpRequest, container_id: str, file_id: str) -> HttpResponseBase:
    """Return what is in a file (GET)."""
    return await _dispatched(request, {"GET": _content}, container_id, file_id)


async def _dispatched(request: HttpRequest, handlers: Mapping[str, Handler], *named: str) -> HttpResponseBase:
    handler = handler_of(request, handlers)
    with _errors(*named):
        return await handler(request, await _containers(), *named)


async def _containers() -> "SharedContainers":
    interpreter = interpreter_of(get_site().tools)
    if interpreter is None:
        raise invalid_request("This server has no code interpreter (SANDBOX=off).", code="unsupported_parameter")
    return (await interpreter.tool()).containers


@contextmanager
def _errors(container_id: str = "", file_id: str = "") -> Iterator[None]:
    try:
        yield
    except ContainerNotFound as unknown:
        if str(unknown) == file_id:
            raise container_file_not_found(container_id, file_id) from None
        raise container_not_found(container_id) from None
    except (TooManyContainers, TooManyTransfers) as problem:
        raise too_many_containers(str(problem)) from None
    except SandboxError as problem:
        raise invalid_request(f"The container cannot do that: {problem}.") from None


async def _create(request: HttpRequest, containers: "SharedContainers") -> HttpResponse:
    wanted = await read_json(request, parse_container, get_site().reader)
    check_named(caller_of(request).scopes, files_named(wanted.file_ids, at="file_ids"))
    await containers.sandbox()
    project, files = project_of(request), await _given_files()
    with _given_errors("file_ids"):
        given = await files.find(project, wanted.file_ids or ())
        container = await containers.create(
            project, name=wanted.name, idle=wanted.idle_seconds, memory=wanted.memory_limit
        )
        await files.copy(project, container.id, given)
    return json_response(_object(container))


async def _list(request: HttpRequest, containers: "SharedContainers") -> HttpResponse:
    found = await containers.all_of(project_of(request))
    shown = [_object(each) for each in found]
    return json_response(page_behind(shown, parse_list_query(query_of(request))))


async def _get(request: HttpRequest, containers: "SharedContainers", container_id: str) -> HttpResponse:
    return json_response(_object(await containers.find(project_of(request), container_id)))


async def _delete(request: HttpRequest, containers: "SharedContainers", container_id: str) -> HttpResponse:
    await containers.delete(project_of(request), container_id)
    return json_response(deleted_object(container_id, "container"))


async def _list_files(request: HttpRequest, containers: "SharedContainers", container_id: str) -> HttpResponse:
    found = await containers.files_of(project_of(request), container_id)
    return json_response(
        page_behind([_file(container_id, each) for each in found], parse_list_query(query_of(request)))
    )


async def _upload(request: HttpRequest, containers: "SharedContainers", container_id: str) -> HttpResponse:
    await containers.find(project_of(request), container_id)  # before its body is read
    if not is_form(request):
        return await _copy(request, container_id)
    upload = await read_upload(request)
    try:
        parse_noting(request, check_form, upload.fields, get_site().reader)
        pieces = upload.arriving(PIECE_BYTES)
        put = await containers.put_file(project_of(request), container_id, upload.name, pieces)
    finally:
        await asyncio.to_thread(upload.close)
    return json_response(_file(container_id, put))


async def _copy(request: HttpRequest, container_id: str) -> HttpResponse:
    """Copy a file of the Files API into a container."""
    wanted = await read_json(request, parse_copied, get_site().reader)
    check_named(caller_of(request).scopes, files_named([wanted.file_id], at="file_id"))
    project, files = project_of(request), await _given_files()
    with _given_errors("file_id"):
        (copied,) = await files.copy(project, container_id, await files.find(project, [wanted.file_id]))
    return json_response(_file(container_id, copied))


async def _given_files() -> "GivenFiles":
    interpreter = interpreter_of(get_site().tools)
    assert interpreter is not None, "there are containers"
    return (await interpreter.tool()).given_files


@contextmanager
def _given_errors(param: str) -> Iterator[None]:
    try:
        yield
    except FileUnknown as unknown:
        raise file_not_found(str(unknown), param=param) from None
    except StoreError as error:
        raise store_away(error) from error


async def _get_file(
    request: HttpRequest, containers: "SharedContainers", container_id: str, file_id: str
) -> HttpResponse:
    return json_response(_file(container_id, await containers.file(project_of(request), container_id, file_id)))


async def _remove_file(
    request: HttpRequest, containers: "SharedContainers", container_id: str, file_id: str
) -> HttpResponse:
    await containers.remove_file(project_of(request), container_id, file_id)
    return json_response(deleted_object(file_id, "container.file"))


async def _content(
    request: HttpRequest, containers: "SharedContainers", container_id: str, file_id: str
) -> HttpResponseBase:
    about = await containers.file(project_of(request), container_id, file_id)
    headers = {
        "content-length": str(about.size),
        # Never shown by a browser: a model or a user wrote it.
        "content-disposition": str(content_disposition_header(True, about.path.rpartition("/")[2])),
        "x-content-type-options": "nosniff",
    }
    kind = content_type_of(about.path)
    if request.method == "HEAD":
        return HttpResponse(b"", content_type=kind, headers=headers)
    parts = containers.content(project_of(request), container_id, file_id)
    first = await anext(parts)  # what fails by then is answered as an error
    headers["content-length"] = str(first.size)
    if len(first.content) == first.size:
        await parts.aclose()
        return HttpResponse(first.content, content_type=kind, headers=headers)
    body = streamed(first.content, (part.content async for part in parts), cut_of(request), _BROKEN)
    return StreamingHttpResponse(body, content_type=kind, headers=headers)


_BROKEN = (ContainerNotFound, SandboxError)


def content_type_of(path: str) -> str:
    """Return the media type of a file by its name: not what its name says in the form of a `data:` URL."""
    return mimetypes.guess_type(f"{WORK_FOLDER}/{path}")[0] or "application/octet-stream"


def _object(container: ContainerRecord) -> JsonObject:
    return container_object(
        container.id,
        name=container.name,
        created_at=container.created_at,
        last_active_at=int(container.last_active),
        idle_seconds=container.idle,
        memory_limit=container.memory,
    )


def _file(container_id: str, file: ContainerFile) -> JsonObject:
    return container_file_object(
        file.id,
        container_id=container_id,
        created_at=file.created_at,
        path=f"{WORK_FOLDER}/{file.path}",
        size=file.size,
        source=file.source,
    )
