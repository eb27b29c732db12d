"""`/v1/files`: files that clients upload. `/v1/uploads`: those that come in parts.

Times are Unix seconds in both.
"""

from functools import partial
from typing import TYPE_CHECKING

from django.http.response import HttpResponseBase

from responses_app.kit.errors import StoreError
from responses_app.protocol import ids
from responses_app.protocol.api_keys import Area
from responses_app.protocol.fields import check_fields
from responses_app.protocol.requests.pages import page_of, parse_list_query
from responses_app.resources.files import fields
from responses_app.resources.files.fields import LISTED_PURPOSES, MAX_LISTED, PIECE_BYTES
from responses_app.web.endpoint import AFTER, BYTES, ORDER, Endpoint, Form, Parameter, Refusals, Size, limit_of, text
from responses_app.web.forms import sent_form
from responses_app.web.http import ApiRequest, or_raise, parse_noting, read_json
from responses_app.web.transfers import file_answer, form_schema, streamed
from responses_app.wiring.server_tools import file_search_of
from responses_app.wiring.site import get_site

if TYPE_CHECKING:
    from responses_app.resources.files.model import StoredFile

REFUSALS: Refusals = {
    fields.FileGone: lambda _, file_id="": fields.file_not_found(file_id),
    fields.FilesFull: lambda problem, *_: fields.files_full(str(problem)),
}


async def _create(request: ApiRequest) -> fields.UploadedFile:
    site = get_site()
    async with sent_form(request, fields.UploadFields) as form:
        parse = partial(fields.parse_upload, filename=form.file.name, size=form.file.size)
        file = parse_noting(request, parse, form.fields, site.reader)
        _bounds().check(file.bytes, file.purpose)
        pieces = form.file.pieces(PIECE_BYTES)
        return fields.shown(await site.files.create(request.project, site.new_id(ids.FILE), file, pieces))


def _bounds() -> fields.FileBounds:
    settings = get_site().settings
    return fields.FileBounds(settings.file_max_bytes, settings.batch_max_bytes)


async def _list(request: ApiRequest) -> fields.UploadedFileList:
    query = request.query
    page = parse_list_query(query, ids.FILE, most=MAX_LISTED, usual=MAX_LISTED)
    # Of a parameter that comes twice the last counts, as everywhere.
    purpose = (query.get("purpose") or [""])[-1] or None
    if purpose is not None:
        fields.check_purpose(purpose, LISTED_PURPOSES)
    rows = await get_site().files.listed(
        request.project, purpose, after=page.after, descending=page.descending, limit=page.limit + 1
    )
    return page_of(rows, page, fields.shown)


async def _get(request: ApiRequest, file_id: str) -> fields.UploadedFile:
    return fields.shown(await _found(request, file_id))


async def _delete(request: ApiRequest, file_id: str) -> fields.DeletedFile:
    if not await get_site().files.delete(request.project, file_id):
        raise fields.file_not_found(file_id)
    if get_site().settings.file_search:  # else its chunks are found nowhere
        await file_search_of(get_site().tools).forget(request.project, file_id)
    return {"id": file_id, "object": "file", "deleted": True}


async def _content(request: ApiRequest, file_id: str) -> HttpResponseBase:
    row = await _found(request, file_id)
    if request.method == "HEAD":
        return file_answer(row.filename, row.bytes, b"")
    pieces = get_site().files.pieces(request.project, file_id)
    first = await anext(pieces, b"")  # what fails by then is answered as an error
    if row.bytes <= PIECE_BYTES:  # of one that came in parts in several pieces still
        return file_answer(row.filename, row.bytes, b"".join([first, *[piece async for piece in pieces]]))
    return file_answer(row.filename, row.bytes, streamed(first, pieces, request.cut, _BROKEN))


_BROKEN = (fields.FileGone, StoreError)  # it is deleted meanwhile, or the store is away


async def _found(request: ApiRequest, file_id: str) -> "StoredFile":
    return or_raise(await get_site().files.get(request.project, file_id), fields.file_not_found(file_id))


UPLOAD_REFUSALS: Refusals = {
    fields.FilesFull: lambda problem, *_: fields.files_full(str(problem), param="bytes"),
    fields.UploadGone: lambda _, upload_id="": fields.upload_not_found(upload_id),
    fields.UploadClosed: lambda problem, *_: fields.upload_closed(str(problem)),
    fields.PartsWrong: lambda problem, *_: fields.parts_wrong(str(problem), problem.param),
}


async def _begin(request: ApiRequest) -> fields.PartUpload:
    site = get_site()
    file = await read_json(request, partial(fields.parse_new_upload, bounds=_bounds()), site.reader)
    return fields.shown_upload(await site.uploads.create(request.project, site.new_id(ids.UPLOAD), file))


async def _add(request: ApiRequest, upload_id: str) -> fields.UploadPart:
    site, project = get_site(), request.project
    await site.uploads.get(project, upload_id)  # before its body is read
    async with sent_form(request, fields.PartFields, name="data") as form:
        parse_noting(request, partial(check_fields, fields.PartFields), form.fields, site.reader)
        if form.file.size > fields.MAX_PART_BYTES:
            raise fields.part_too_large()
        pieces = form.file.pieces(PIECE_BYTES)
        part_id = site.new_id(ids.UPLOAD_PART)
        return fields.shown_part(await site.uploads.add(project, upload_id, part_id, form.file.size, pieces))


async def _complete(request: ApiRequest, upload_id: str) -> fields.PartUpload:
    site, project = get_site(), request.project
    await site.uploads.get(project, upload_id)  # before the body is judged: what is another project's does not exist
    sent = await read_json(request, fields.parse_completed, site.reader)
    row = await site.uploads.complete(project, upload_id, sent.part_ids, file_id=site.new_id(ids.FILE), md5=sent.md5)
    return fields.shown_upload(row)


async def _cancel(request: ApiRequest, upload_id: str) -> fields.PartUpload:
    return fields.shown_upload(await get_site().uploads.cancel(request.project, upload_id))


_FILES = "/v1/files"
_FILE = f"{_FILES}/{{file_id}}"
_LISTED = (
    Parameter("purpose", "Only files that are for this.", text(enum=list(LISTED_PURPOSES))),
    limit_of("files", maximum=MAX_LISTED, default=MAX_LISTED),
    *(ORDER, AFTER),
)
_UPLOAD = form_schema("A form with a file, and what it is for.", fields.FORM)
_endpoint = partial(Endpoint, tag="Files", scope=Area.FILES, refusals=REFUSALS)
_UPLOADS = "/v1/uploads"
_BEGUN = f"{_UPLOADS}/{{upload_id}}"
_PART = Form("NewPart", form_schema("A form with a part of a file.", name="data"), Size.PART)
_of_uploads = partial(Endpoint, tag="Files", scope=Area.FILES, refusals=UPLOAD_REFUSALS)

_FILE_KEPT = (
    "A file is kept until it is deleted",
    "Send what is in it with the request that needs it, as 'file_data' of an 'input_file'.",
)

ENDPOINTS = (
    _endpoint("GET", _FILES, _list, "listFiles", "List the files", takes=_LISTED),
    _endpoint(
        "POST",
        _FILES,
        _create,
        "createFile",
        "Upload a file",
        form=Form("NewFile", _UPLOAD, Size.FILE),
        keeps=_FILE_KEPT,
    ),
    _endpoint("GET", _FILE, _get, "retrieveFile", "Return a file's metadata"),
    _endpoint("DELETE", _FILE, _delete, "deleteFile", "Delete a file"),
    _endpoint("GET", f"{_FILE}/content", _content, "downloadFile", "Return a file's content", answers={BYTES: ""}),
    _of_uploads(
        "POST",
        _UPLOADS,
        _begin,
        "createUpload",
        "Begin a file that comes in parts",
        body=fields.NewUpload,
        keeps=_FILE_KEPT,
    ),
    _of_uploads("POST", f"{_BEGUN}/parts", _add, "addUploadPart", "Add a part", form=_PART),
    _of_uploads(
        "POST",
        f"{_BEGUN}/complete",
        _complete,
        "completeUpload",
        "Make a file of the parts",
        body=fields.CompletedUpload,
    ),
    _of_uploads("POST", f"{_BEGUN}/cancel", _cancel, "cancelUpload", "Give an upload up"),
)
