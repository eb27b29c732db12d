"""`/v1/files`: files that clients upload. `/v1/uploads`: those that come in parts.

Times are Unix seconds in both.
"""

from functools import partial
from typing import Literal

from django.http.response import HttpResponseBase
from typing_extensions import TypedDict

from responses_app.kit.errors import StoreError
from responses_app.protocol import ids
from responses_app.protocol.api_keys import Area
from responses_app.protocol.errors import ApiError
from responses_app.protocol.fields import check_fields
from responses_app.protocol.files.files import (
    LISTED_PURPOSES,
    MAX_LISTED,
    MAX_PART_BYTES,
    MAX_SECONDS,
    MIN_SECONDS,
    PURPOSES,
    UPLOAD_SECONDS,
    CompletedUpload,
    FileBounds,
    NewFile,
    NewUpload,
    PartFields,
    UploadFields,
    check_purpose,
    file_not_found,
    files_full,
    parse_completed,
    parse_new_upload,
    parse_upload,
    part_too_large,
    parts_wrong,
    upload_closed,
    upload_not_found,
)
from responses_app.protocol.requests.pages import page_of, parse_list_query
from responses_app.stores.files import (
    PIECE_BYTES,
    FileGone,
    FileRecord,
    FilesFull,
    PartRecord,
    PartsWrong,
    UploadClosed,
    UploadGone,
    UploadRecord,
)
from responses_app.web.endpoint import AFTER, BYTES, ORDER, Endpoint, Form, Parameter, Refusals, Size, limit_of, text
from responses_app.web.forms import FormFile, sent_form
from responses_app.web.http import ApiRequest, or_raise, parse_noting, read_json
from responses_app.web.transfers import file_answer, form_schema, streamed
from responses_app.wiring.server_tools import file_search_of
from responses_app.wiring.site import get_site


class UploadedFile(TypedDict):
    """A file that a client uploaded. `expires_at` is when it goes by itself, null for never."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int  # Unix seconds, as all times here
    expires_at: int | None  # when it goes by itself; null for never
    filename: str
    purpose: str
    status: Literal["processed"]
    status_details: None


class UploadedFileList(TypedDict):
    """A part of a list of files. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[UploadedFile]
    first_id: str
    last_id: str
    has_more: bool


class DeletedFile(TypedDict):
    """A file is gone."""

    id: str
    object: Literal["file"]
    deleted: Literal[True]


class PartUpload(TypedDict):
    """A file that comes in parts. `file` is there once it is completed."""

    id: str
    object: Literal["upload"]
    bytes: int  # that the file is to have
    created_at: int
    expires_at: int  # until then it takes parts
    filename: str
    purpose: str
    status: Literal["pending", "completed", "cancelled", "expired"]
    file: UploadedFile | None  # once it is completed


class UploadPart(TypedDict):
    """A part of such a file."""

    id: str
    object: Literal["upload.part"]
    created_at: int
    upload_id: str


def file_object(record: FileRecord) -> UploadedFile:
    """Return a file."""
    return {
        "id": record.id,
        "object": "file",
        "bytes": record.bytes,
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "filename": record.filename,
        "purpose": record.purpose,
        "status": "processed",
        "status_details": None,
    }


def upload_object(upload: UploadRecord) -> PartUpload:
    """Return a file that comes in parts."""
    return {
        "id": upload.id,
        "object": "upload",
        "bytes": upload.bytes,
        "created_at": upload.created_at,
        "expires_at": upload.expires_at,
        "filename": upload.filename,
        "purpose": upload.purpose,
        "status": upload.status.value,
        "file": None if upload.file is None else file_object(upload.file),
    }


REFUSALS: Refusals = {
    FileGone: lambda _, file_id="": file_not_found(file_id),
    FilesFull: lambda problem, *_: files_full(str(problem)),
}


async def _create(request: ApiRequest) -> UploadedFile:
    async with sent_form(request, UploadFields) as form:
        fields = parse_noting(request, parse_upload, form.fields, get_site().reader)
        return file_object(await _kept(request.project, form.file, fields))


async def _kept(project: str, upload: FormFile, fields: NewFile) -> FileRecord:
    site = get_site()
    _bounds().check(upload.size, fields.purpose)
    now = int(site.service.now())
    record = FileRecord(
        id=site.new_id(ids.FILE),
        filename=upload.name,
        purpose=fields.purpose,
        bytes=upload.size,
        created_at=now,
        expires_at=None if fields.seconds is None else now + fields.seconds,
    )
    await site.files.create(project, record, upload.pieces(PIECE_BYTES))
    return record


def _bounds() -> FileBounds:
    settings = get_site().settings
    return FileBounds(settings.file_max_bytes, settings.batch_max_bytes)


async def _list(request: ApiRequest) -> UploadedFileList:
    query = request.query
    page = parse_list_query(query, ids.FILE, most=MAX_LISTED, usual=MAX_LISTED)
    # Of a parameter that comes twice the last counts, as everywhere.
    purpose = (query.get("purpose") or [""])[-1] or None
    if purpose is not None:
        check_purpose(purpose, LISTED_PURPOSES)
    rows = await get_site().files.listed(
        request.project,
        purpose=purpose,
        after=page.after,
        descending=page.descending,
        limit=page.limit + 1,
    )
    return page_of(rows, page, file_object)


async def _get(request: ApiRequest, file_id: str) -> UploadedFile:
    return file_object(await _found(request, file_id))


async def _delete(request: ApiRequest, file_id: str) -> DeletedFile:
    if not await get_site().files.delete(request.project, file_id):
        raise file_not_found(file_id)
    if get_site().settings.file_search:  # else its chunks are found nowhere
        await file_search_of(get_site().tools).forget(request.project, file_id)
    return {"id": file_id, "object": "file", "deleted": True}


async def _content(request: ApiRequest, file_id: str) -> HttpResponseBase:
    record = await _found(request, file_id)
    if request.method == "HEAD":
        return file_answer(record.filename, record.bytes, b"")
    pieces = get_site().files.pieces(request.project, file_id)
    first = await anext(pieces, b"")  # what fails by then is answered as an error
    if record.bytes <= PIECE_BYTES:  # of one that came in parts in several pieces still
        return file_answer(record.filename, record.bytes, b"".join([first, *[piece async for piece in pieces]]))
    return file_answer(record.filename, record.bytes, streamed(first, pieces, request.cut, _BROKEN))


_BROKEN = (FileGone, StoreError)  # it is deleted meanwhile, or the store is away


async def _found(request: ApiRequest, file_id: str) -> FileRecord:
    return or_raise(await get_site().files.get(request.project, file_id), file_not_found(file_id))


def _wrong_parts(problem: PartsWrong, *_: str) -> ApiError:
    return parts_wrong(str(problem), problem.param)


UPLOAD_REFUSALS: Refusals = {
    FilesFull: lambda problem, *_: files_full(str(problem), param="bytes"),
    UploadGone: lambda _, upload_id="": upload_not_found(upload_id),
    UploadClosed: lambda problem, *_: upload_closed(str(problem)),
    PartsWrong: _wrong_parts,
}


async def _begin(request: ApiRequest) -> PartUpload:
    site = get_site()
    parse = partial(parse_new_upload, bounds=_bounds())
    fields = await read_json(request, parse, site.reader)
    now = int(site.service.now())
    upload = UploadRecord(
        id=site.new_id(ids.UPLOAD),
        filename=fields.name,
        purpose=fields.purpose,
        bytes=fields.bytes,
        created_at=now,
        expires_at=now + UPLOAD_SECONDS,
        file_seconds=fields.seconds,
    )
    await site.uploads.create(request.project, upload)
    return upload_object(upload)


async def _add(request: ApiRequest, upload_id: str) -> UploadPart:
    site, project = get_site(), request.project
    await site.uploads.get(project, upload_id)  # before its body is read
    async with sent_form(request, PartFields, name="data") as form:
        parse_noting(request, partial(check_fields, PartFields), form.fields, site.reader)
        data = form.file
        if data.size > MAX_PART_BYTES:
            raise part_too_large()
        now = int(site.service.now())
        part = PartRecord(id=site.new_id(ids.UPLOAD_PART), upload_id=upload_id, bytes=data.size, created_at=now)
        await site.uploads.add(project, part, data.pieces(PIECE_BYTES))
    return {"id": part.id, "object": "upload.part", "created_at": now, "upload_id": upload_id}


async def _complete(request: ApiRequest, upload_id: str) -> PartUpload:
    site, project = get_site(), request.project
    await site.uploads.get(project, upload_id)  # before the body is judged: what is another project's does not exist
    fields = await read_json(request, parse_completed, site.reader)
    upload = await site.uploads.complete(
        project, upload_id, fields.part_ids, file_id=site.new_id(ids.FILE), md5=fields.md5
    )
    return upload_object(upload)


async def _cancel(request: ApiRequest, upload_id: str) -> PartUpload:
    return upload_object(await get_site().uploads.cancel(request.project, upload_id))


_FILES = "/v1/files"
_FILE = f"{_FILES}/{{file_id}}"
_LISTED = (
    Parameter("purpose", "Only files that are for this.", text(enum=list(LISTED_PURPOSES))),
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
        *("POST", _FILES, _create, "createFile", "Upload a file"),
        form=Form("NewFile", _UPLOAD, Size.FILE),
        keeps=_FILE_KEPT,
    ),
    _endpoint("GET", _FILE, _get, "retrieveFile", "Return a file's metadata"),
    _endpoint("DELETE", _FILE, _delete, "deleteFile", "Delete a file"),
    _endpoint(*("GET", f"{_FILE}/content", _content, "downloadFile", "Return a file's content"), answers={BYTES: ""}),
    _of_uploads(
        *("POST", _UPLOADS, _begin, "createUpload", "Begin a file that comes in parts"),
        body=NewUpload,
        keeps=_FILE_KEPT,
    ),
    _of_uploads("POST", f"{_BEGUN}/parts", _add, "addUploadPart", "Add a part", form=_PART),
    _of_uploads(
        *("POST", f"{_BEGUN}/complete", _complete, "completeUpload", "Make a file of the parts"), body=CompletedUpload
    ),
    _of_uploads("POST", f"{_BEGUN}/cancel", _cancel, "cancelUpload", "Give an upload up"),
)
