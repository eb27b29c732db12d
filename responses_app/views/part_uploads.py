"""The Uploads API: `/v1/uploads`, files that come in parts."""

import asyncio
from functools import partial

from django.http import HttpRequest, HttpResponse

from responses_app.http import json_response, project_of, read_json
from responses_app.protocol import ids
from responses_app.protocol.body_errors import FORM_TYPE, unsupported_media_type
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.files import files_full
from responses_app.protocol.uploads import (
    MAX_PART_BYTES,
    UPLOAD_SECONDS,
    parse_completed,
    parse_new_upload,
    part_too_large,
    parts_wrong,
    upload_closed,
    upload_not_found,
)
from responses_app.stores.files import PIECE_BYTES, FilesFull
from responses_app.stores.uploads import PartRecord, PartsWrong, UploadClosed, UploadGone, UploadRecord
from responses_app.views.dispatching import Refusals, dispatched
from responses_app.views.files import file_answer
from responses_app.views.uploads import is_form, read_upload
from responses_app.wiring import get_site


def _wrong_parts(problem: PartsWrong, *_: str) -> ApiError:
    return parts_wrong(str(problem), problem.param)


REFUSALS: Refusals = {
    FilesFull: lambda problem, *_: files_full(str(problem), param="bytes"),
    UploadGone: lambda _, upload_id="": upload_not_found(upload_id),
    UploadClosed: lambda problem, *_: upload_closed(str(problem)),
    PartsWrong: _wrong_parts,
}


async def index(request: HttpRequest) -> HttpResponse:
    """Begin an upload (POST)."""
    return await dispatched(request, {"POST": _create}, REFUSALS)


async def parts(request: HttpRequest, upload_id: str) -> HttpResponse:
    """Add a part (POST)."""
    return await dispatched(request, {"POST": _add}, REFUSALS, upload_id)


async def complete(request: HttpRequest, upload_id: str) -> HttpResponse:
    """Make a file of the parts (POST)."""
    return await dispatched(request, {"POST": _complete}, REFUSALS, upload_id)


async def cancel(request: HttpRequest, upload_id: str) -> HttpResponse:
    """Give an upload up (POST)."""
    return await dispatched(request, {"POST": _cancel}, REFUSALS, upload_id)


async def _create(request: HttpRequest) -> HttpResponse:
    site = get_site()
    parse = partial(parse_new_upload, max_bytes=site.settings.file_max_bytes)
    wanted = await read_json(request, parse, site.reader)
    now = int(site.service.now())
    upload = UploadRecord(
        id=site.new_id(ids.UPLOAD),
        filename=wanted.name,
        purpose=wanted.purpose,
        bytes=wanted.bytes,
        created_at=now,
        expires_at=now + UPLOAD_SECONDS,
        file_seconds=wanted.seconds,
    )
    await site.uploads.create(project_of(request), upload)
    return json_response(_object(upload))


async def _add(request: HttpRequest, upload_id: str) -> HttpResponse:
    site, project = get_site(), project_of(request)
    await site.uploads.get(project, upload_id)  # before its body is read
    if not is_form(request):
        raise unsupported_media_type(request.content_type, FORM_TYPE)
    data = await read_upload(request, name="data")
    try:
        if data.size > MAX_PART_BYTES:
            raise part_too_large()
        now = int(site.service.now())
        part = PartRecord(id=site.new_id(ids.UPLOAD_PART), upload_id=upload_id, bytes=data.size, created_at=now)
        await site.uploads.add(project, part, data.pieces(PIECE_BYTES))
    finally:
        await asyncio.to_thread(data.close)
    return json_response({"id": part.id, "object": "upload.part", "created_at": now, "upload_id": upload_id})


async def _complete(request: HttpRequest, upload_id: str) -> HttpResponse:
    site, project = get_site(), project_of(request)
    await site.uploads.get(project, upload_id)  # before the body is judged: what is another project's does not exist
    wanted = await read_json(request, parse_completed, site.reader)
    upload = await site.uploads.complete(
        project, upload_id, wanted.part_ids, file_id=site.new_id(ids.FILE), md5=wanted.md5
    )
    return json_response(_object(upload))


async def _cancel(request: HttpRequest, upload_id: str) -> HttpResponse:
    return json_response(_object(await get_site().uploads.cancel(project_of(request), upload_id)))


def _object(upload: UploadRecord) -> JsonObject:
    """Return an upload as clients read it."""
    return {
        "id": upload.id,
        "object": "upload",
        "bytes": upload.bytes,
        "created_at": upload.created_at,
        "expires_at": upload.expires_at,
        "filename": upload.filename,
        "purpose": upload.purpose,
        "status": upload.status.value,
        "file": None if upload.file is None else file_answer(upload.file),
    }
