"""Files that clients download, part by part: a slow reader costs one part, not the file."""

from collections.abc import AsyncIterator

from responses_app.web.http import Cut


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
