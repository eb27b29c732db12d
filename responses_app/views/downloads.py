"""Files that clients download, part by part: a slow reader costs one part, not the file."""

from collections.abc import AsyncIterator

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest

from responses_app.http import Cut
from responses_app.servers.backpressure import CUT


def cut_of(request: HttpRequest) -> Cut | None:
    """Return what breaks the answer to a request off, where its server can do so."""
    return request.scope.get(CUT) if isinstance(request, ASGIRequest) else None


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
        await cut()
