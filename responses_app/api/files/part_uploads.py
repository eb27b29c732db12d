"""The Uploads API: `/v1/uploads`, files that come in parts."""

import asyncio
from functools import partial

from django.http import HttpRequest

from responses_app.api.files.objects import PartUpload, UploadPart, upload_object
from responses_app.protocol import ids
from responses_app.protocol.api_keys import Area
from responses_app.protocol.body_errors import FORM_TYPE, unsupported_media_type
from responses_app.protocol.errors import ApiError
from responses_app.protocol.files.files import files_full
from responses_app.protocol.files.uploads import (
    MAX_PART_BYTES,
    UPLOAD_SECONDS,
    CompletedUpload,
    NewUpload,
    parse_completed,
    parse_new_upload,
    part_too_large,
    parts_wrong,
    upload_closed,
    upload_not_found,
)
from responses_app.stores.files import PIECE_BYTES, FilesFull
from responses_app.stores.uploads import PartRecord, PartsWrong, UploadClosed, UploadGone, UploadRecord
from responses_app.web.endpoint import Endpoint, Form, Refusals, Size
from responses_app.web.http import project_of, read_json
from responses_app.web.uploads import form_schema, is_form, read_upload
from responses_app.wiring.wiring import get_site


def _wrong_parts(problem: PartsWrong, *_: str) -> ApiError:
    return parts_wrong(str(problem), problem.param)


REFUSALS: Refusals = {
    FilesFull: lambda problem, *_: files_full(str(problem), param="bytes"),
    UploadGone: lambda _, upload_id="": upload_not_found(upload_id),
    UploadClosed: lambda problem, *_: upload_closed(str(problem)),
    PartsWrong: _wrong_parts,
}


async def _create(request: HttpRequest) -> PartUpload:
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
    return upload_object(upload)


async def _add(request: HttpRequest, upload_id: str) -> UploadPart:
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
    return {"id": part.id, "object": "upload.part", "created_at": now, "upload_id": upload_id}


async def _complete(request: HttpRequest, upload_id: str) -> PartUpload:
    site, project = get_site(), project_of(request)
    await site.uploads.get(project, upload_id)  # before the body is judged: what is another project's does not exist
    wanted = await read_json(request, parse_completed, site.reader)
    upload = await site.uploads.complete(
        project, upload_id, wanted.part_ids, file_id=site.new_id(ids.FILE), md5=wanted.md5
    )
    return upload_object(upload)


async def _cancel(request: HttpRequest, upload_id: str) -> PartUpload:
    return upload_object(await get_site().uploads.cancel(project_of(request), upload_id))


_UPLOADS = "/v1/uploads"
_UPLOAD = f"{_UPLOADS}/{{upload_id}}"
_PART = Form("NewPart", form_schema("A form with a part of a file.", name="data"), Size.PART)
_endpoint = partial(Endpoint, tag="Files", scope=Area.FILES, refusals=REFUSALS)

ENDPOINTS = (
    _endpoint("POST", _UPLOADS, _create, "createUpload", "Begin a file that comes in parts", body=NewUpload),
    _endpoint("POST", f"{_UPLOAD}/parts", _add, "addUploadPart", "Add a part", form=_PART),
    _endpoint(
        *("POST", f"{_UPLOAD}/complete", _complete, "completeUpload", "Make a file of the parts"), body=CompletedUpload
    ),
    _endpoint("POST", f"{_UPLOAD}/cancel", _cancel, "cancelUpload", "Give an upload up"),
)
