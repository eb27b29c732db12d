"""What tools of this server show: their images as pictures, where the model sees; else their text says that there are.

The pictures are kept before the model is shown them: the log has their digests alone, and another worker may go on.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from engine.formats.base import PicturePart
from responses_app.protocol.items.media import as_reason, decoded
from responses_app.protocol.pictures import PictureUnreadable
from responses_app.runs.plan.plan import RunPlan
from responses_app.stores.base import StoreError
from responses_app.tools.base import ToolImage

logger = logging.getLogger("respsite.runs")

MAX_SHOWN = 20  # images of one call; the model is told of the others
LOOK_SECONDS = 60.0  # for the images of one call, together
Look = Callable[[Sequence[str | ToolImage]], Awaitable[Sequence[str | PicturePart]]]


async def blind(seen: Sequence[str | ToolImage]) -> Sequence[str | PicturePart]:
    """See nothing: the model reads the output's text."""
    return ()


def look_of(plan: RunPlan) -> Look:
    """Return what shows the model of a plan what a tool has shown."""
    if not plan.format.sees:
        return blind

    async def look(seen: Sequence[str | ToolImage]) -> Sequence[str | PicturePart]:
        if not any(isinstance(each, ToolImage) for each in seen):
            return ()
        left = MAX_SHOWN
        body: list[str | PicturePart] = []
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                for each in seen:
                    if isinstance(each, str):
                        body.append(each)
                        continue
                    left -= 1
                    body.append(await _picture(plan, each) if left >= 0 else _note("there are too many"))
        except TimeoutError:
            body.append(_note("it took too long to read"))
        return body

    return look


async def _picture(plan: RunPlan, image: ToolImage) -> str | PicturePart:
    """Return the picture that an image is, which is kept for the response, or a note."""
    try:
        content = image.data if isinstance(image.data, bytes) else await asyncio.to_thread(decoded, image.data)
        if content is None:
            return _note("its data is not base64")
        return PicturePart(await plan.pictures.show(content, owner=plan.response_id, stored=plan.stored))
    except PictureUnreadable as problem:
        return _note(as_reason(problem))
    except StoreError as problem:
        logger.warning("response %s: an image of a tool is not kept: %s", plan.response_id, problem)
        return _note("it cannot be kept now")


def _note(why: str) -> str:
    return f"[image omitted: {why}]"
