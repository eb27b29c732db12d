"""The Files API: `/v1/files`, and what is in them."""

import asyncio
from functools import partial

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.http import content_disposition_header

from responses_app.api.files.objects import DeletedFile, UploadedFile, UploadedFileList, file_object
from responses_app.protocol import ids
from responses_app.protocol.api_keys import Area
from responses_app.protocol.body_errors import FORM_TYPE, unsupported_media_type
from responses_app.protocol.files.files import (
    MAX_LISTED,
    MAX_SECONDS,
    MIN_SECONDS,
    PURPOSES,
    NewFile,
    check_purpose,
    file_not_found,
    file_too_large,
    files_full,
    parse_upload,
)
from responses_app.protocol.requests.pages import list_page, parse_list_query, unknown_cursor
from responses_app.stores.base import StoreError
from responses_app.stores.files import PIECE_BYTES, FileGone, FileRecord, FilesFull
from responses_app.web.downloads import streamed
from responses_app.web.endpoint import BYTES, Endpoint, Form, Refusals, Size
from responses_app.web.http import cut_of, parse_noting, project_of
from responses_app.web.parameters import AFTER, ORDER, Parameter, limit_of, text
from responses_app.web.queries import query_of
from responses_app.web.uploads import Upload, form_schema, is_form, read_upload
from responses_app.wiring.server_tools import file_search_of
from responses_app.wiring.wiring import get_site

REFUSALS: Refusals = {
    FileGone: lambda _, file_id="": file_not_found(file_id),
    FilesFull: lambda problem, *_: files_full(str(problem)),
}


async def _create(request: HttpRequest) -> UploadedFile:
    if not is_form(request):
        raise unsupported_media_type(request.content_type, FORM_TYPE)
    upload = await read_upload(request)
    try:
        wanted = parse_noting(request, parse_upload, upload.fields, get_site().reader)
        return file_object(await _kept(project_of(request), upload, wanted))
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


async def _list(request: HttpRequest) -> UploadedFileList:
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
    page = [file_object(record) for record in found[: wanted.limit]]
    return list_page(page, has_more=len(found) > wanted.limit)


async def _get(request: HttpRequest, file_id: str) -> UploadedFile:
    return file_object(await _found(request, file_id))


async def _delete(request: HttpRequest, file_id: str) -> DeletedFile:
    if not await get_site().files.delete(project_of(request), file_id):
        raise file_not_found(file_id)
    if get_site().settings.file_search:  # else its chunks are found nowhere
        await file_search_of(get_site().tools).forget(project_of(request), file_id)
    return {"id": file_id, "object": "file", "deleted": True}


async def _content(request: HttpRequest, file_id: str) -> HttpResponseBase:
    record = await _found(request, file_id)
    headers = {
        "content-length": str(record.bytes),
        # Never shown by a browser: anybody may have written it.
        "content-disposition": str(content_disposition_header(True, record.filename)),
        "x-content-type-options": "nosniff",
    }
    if request.method == "HEAD":
        return HttpResponse(b"", content_type=BYTES, headers=headers)
    pieces = get_site().files.pieces(project_of(request), file_id)
    first = await anext(pieces, b"")  # what fails by then is answered as an error
    if record.bytes <= PIECE_BYTES:  # of one that came in parts in several pieces still
        return HttpResponse(b"".join([first, *[piece async for piece in pieces]]), content_type=BYTES, headers=headers)
    body = streamed(first, pieces, cut_of(request), _BROKEN)
    return StreamingHttpResponse(body, content_type=BYTES, headers=headers)


_BROKEN = (FileGone, StoreError)  # it is deleted meanwhile, or the store is away


async def _found(request: HttpRequest, file_id: str) -> FileRecord:
    record = await get_site().files.get(project_of(request), file_id)
    if record is None:
        raise file_not_found(file_id)
    return record


_FILES = "/v1/files"
_FILE = f"{_FILES}/{{file_id}}"
_LISTED = (
    Parameter("purpose", "Only files that are for this.", text(enum=list(PURPOSES))),
    limit_of("files", maximum=MAX_LISTED, default=MAX_LISTED),
    *(ORDER, AFTER),
)
_UPLOAD = form_schema(
    "A form with a file, and what it is for.",
    {
        "purpose": text(enum=list(PURPOSES)),
        "expires_after[anchor]": text(enum=["created_at"]),
        "expires_after[seconds]": {"type": "integer", "minimum": MIN_SECONDS, "maximum": MAX_SECONDS},
    },
)
_endpoint = partial(Endpoint, tag="Files", scope=Area.FILES, refusals=REFUSALS)

ENDPOINTS = (
    _endpoint("GET", _FILES, _list, "listFiles", "List the files", takes=_LISTED),
    _endpoint("POST", _FILES, _create, "createFile", "Upload a file", form=Form("NewFile", _UPLOAD, Size.FILE)),
    _endpoint("GET", _FILE, _get, "retrieveFile", "Return a file's metadata"),
    _endpoint("DELETE", _FILE, _delete, "deleteFile", "Delete a file"),
    _endpoint(*("GET", f"{_FILE}/content", _content, "downloadFile", "Return a file's content"), answers={BYTES: ""}),
)
