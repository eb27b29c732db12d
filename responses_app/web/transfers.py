"""Files that clients upload (`forms` reads them) and download.

Downloads go out part by part: a slow reader costs one part, not the file.
"""

from collections.abc import AsyncIterator, Mapping

from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.http import content_disposition_header

from responses_app.protocol.errors import JsonObject
from responses_app.web.endpoint import BYTES
from responses_app.web.http import Cut

NO_FIELDS: Mapping[str, JsonObject] = {}


def form_schema(description: str, fields: Mapping[str, JsonObject] = NO_FIELDS, *, name: str = "file") -> JsonObject:
    """Return the schema of a form with a file of this name, and other fields; `expires_after` may be missing."""
    content: JsonObject = {"type": "string", "contentMediaType": "application/octet-stream"}
    required = [name, *(each for each in fields if not each.startswith("expires_after"))]
    return {
        "type": "object",
        "description": description,
        "properties": {name: content, **fields},
        "required": required,
    }


def file_answer(name: str, size: int, body: bytes | AsyncIterator[bytes], *, kind: str = BYTES) -> HttpResponseBase:
    """Return a file's content, or nothing of it to a HEAD; `size` is in bytes either way."""
    headers = {
        "content-length": str(size),
        # Never shown by a browser: anybody may have written it, a model too.
        "content-disposition": str(content_disposition_header(True, name)),
        "x-content-type-options": "nosniff",
    }
    if isinstance(body, bytes):
        return HttpResponse(body, content_type=kind, headers=headers)
    return StreamingHttpResponse(body, content_type=kind, headers=headers)


async def streamed(
    first: bytes, rest: AsyncIterator[bytes], cut: Cut | None, broken: tuple[type[Exception], ...]
) -> AsyncIterator[bytes]:
    """Yield a file; where `rest` raises what is `broken`, the connection is cut, not ended."""
    yield first
    try:
        async for part in rest:
            yield part
    except broken:
        if cut is None:
            raise
        # The head has promised `size` bytes: a clean end would pass for the whole file to some clients.
        await cut()
