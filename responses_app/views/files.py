"""The Files API: `/v1/files`, and what is in them."""

import asyncio

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.http import content_disposition_header

from responses_app.http import cut_of, json_response, parse_noting, project_of
from responses_app.protocol import ids
from responses_app.protocol.body_errors import FORM_TYPE, unsupported_media_type
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.files import (
    MAX_LISTED,
    NewFile,
    check_purpose,
    deleted_file,
    file_not_found,
    file_object,
    file_too_large,
    files_full,
    parse_upload,
)
from responses_app.protocol.pages import list_page, parse_list_query, unknown_cursor
from responses_app.server_tools import file_search_of
from responses_app.stores.base import StoreError
from responses_app.stores.files import PIECE_BYTES, FileGone, FileRecord, FilesFull
from responses_app.views.dispatching import Refusals, dispatched
from responses_app.views.downloads import streamed
from responses_app.views.queries import query_of
from responses_app.views.uploads import Upload, is_form, read_upload
from responses_app.wiring import get_site

REFUSALS: Refusals = {
    FileGone: lambda _, file_id="": file_not_found(file_id),
    FilesFull: lambda problem, *_: files_full(str(problem)),
}


async def index(request: HttpRequest) -> HttpResponseBase:
    """List (GET) or upload (POST) files."""
    return await dispatched(request, {"GET": _list, "POST": _create}, REFUSALS)


async def detail(request: HttpRequest, file_id: str) -> HttpResponseBase:
    """Return (GET) what is known of a file, or delete it (DELETE)."""
    return await dispatched(request, {"GET": _get, "DELETE": _delete}, REFUSALS, file_id)


async def content(request: HttpRequest, file_id: str) -> HttpResponseBase:
    """Return what is in a file (GET)."""
    return await dispatched(request, {"GET": _content}, REFUSALS, file_id)


async def _create(request: HttpRequest) -> HttpResponse:
    if not is_form(request):
        raise unsupported_media_type(request.content_type, FORM_TYPE)
    upload = await read_upload(request)
    try:
        wanted = parse_noting(request, parse_upload, upload.fields, get_site().reader)
        return json_response(file_answer(await _kept(project_of(request), upload, wanted)))
    finally:
        await asyncio.to_thread(upload.close)


async def _kept(project: str, upload: Upload, wanted: NewFile) -> FileRecord:
    site = get_site()
    if upload.size > site.settings.file_max_bytes:
        raise file_too_large(site.settings.file_max_bytes)
    now = int(site.service.now())
    record = FileRecord(
        id=site.new_id(ids.FILE),
        filename=upload.name,
        purpose=wanted.purpose,
        bytes=upload.size,
        created_at=now,
        expires_at=None if wanted.seconds is None else now + wanted.seconds,
    )
    await site.files.create(project, record, upload.pieces(PIECE_BYTES))
    return record


async def _list(request: HttpRequest) -> HttpResponse:
    query = query_of(request)
    wanted = parse_list_query(query, most=MAX_LISTED, usual=MAX_LISTED)
    purpose = (query.get("purpose") or [""])[-1] or None
    if purpose is not None:
        check_purpose(purpose)
    found = await get_site().files.listed(
        project_of(request),
        purpose=purpose,
        after=wanted.after,
        descending=wanted.descending,
        limit=wanted.limit + 1,
    )
    if found is None:
        raise unknown_cursor(str(wanted.after))
    page = [file_answer(record) for record in found[: wanted.limit]]
    return json_response(list_page(page, has_more=len(found) > wanted.limit))


async def _get(request: HttpRequest, file_id: str) -> HttpResponse:
    return json_response(file_answer(await _found(request, file_id)))


async def _delete(request: HttpRequest, file_id: str) -> HttpResponse:
    if not await get_site().files.delete(project_of(request), file_id):
        raise file_not_found(file_id)
    if get_site().settings.file_search:  # else its chunks are found nowhere
        await file_search_of(get_site().tools).forget(project_of(request), file_id)
    return json_response(deleted_file(file_id))


async def _content(request: HttpRequest, file_id: str) -> HttpResponseBase:
    record = await _found(request, file_id)
    headers = {
        "content-length": str(record.bytes),
        # Never shown by a browser: anybody may have written it.
        "content-disposition": str(content_disposition_header(True, record.filename)),
        "x-content-type-options": "nosniff",
    }
    if request.method == "HEAD":
        return HttpResponse(b"", content_type=_BYTES, headers=headers)
    pieces = get_site().files.pieces(project_of(request), file_id)
    first = await anext(pieces, b"")  # what fails by then is answered as an error
    if record.bytes <= PIECE_BYTES:  # of one that came in parts in several pieces still
        return HttpResponse(b"".join([first, *[piece async for piece in pieces]]), content_type=_BYTES, headers=headers)
    body = streamed(first, pieces, cut_of(request), _BROKEN)
    return StreamingHttpResponse(body, content_type=_BYTES, headers=headers)


_BYTES = "application/octet-stream"
_BROKEN = (FileGone, StoreError)  # it is deleted meanwhile, or the store is away


async def _found(request: HttpRequest, file_id: str) -> FileRecord:
    record = await get_site().files.get(project_of(request), file_id)
    if record is None:
        raise file_not_found(file_id)
    return record


def file_answer(record: FileRecord) -> JsonObject:
    """Return a file as clients read it."""
    return file_object(
        record.id,
        filename=record.filename,
        purpose=record.purpose,
        bytes=record.bytes,
        created_at=record.created_at,
        expires_at=record.expires_at,
    )
