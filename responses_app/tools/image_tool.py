"""`ImageTool`: the `image_generation` tool of requests, which makes images, and edits those that a conversation has.

The model says what is to be seen; everything else of an image is the request's to say. It reads a short note: the image
itself is for the client, in the call's item.

`EarlierImages`: the images that an edit begins with: of the input, of the response itself, of what was made before.

The newest that the conversation has are meant: those that the user has sent in one message, or the one that was made.
What was made is found by its item's id: in this process while it is fresh, which is all there is of what is not stored,
else in the store.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from engine import orjson
from engine.formats.base import FunctionTool, ToolNamespace
from engine.types import JsonSchema
from responses_app.kit.errors import StoreError
from responses_app.protocol.errors import JsonObject, invalid_request
from responses_app.protocol.items.offers import Offer, OfferedTool
from responses_app.protocol.requests.server_tools import ITEMS, SentImage, newest_images, sent_image, sent_images
from responses_app.resources.files.fields import FileGone
from responses_app.tools.base import BaseTool, ToolCall, ToolFailed, ToolImage, ToolResult, ToolUse, json_object
from responses_app.tools.image_service import (
    ImageFailed,
    ImageRequest,
    ImageService,
    MadeImage,
    base64_size,
    image_in,
    image_of,
    too_large,
)
from responses_app.tools.settings import ImageSettings

if TYPE_CHECKING:
    from responses_app.resources.files.store import Files

MAX_BEGIN_WITH = 4  # images of one message that an edit begins with
MAX_KEPT_BYTES = 64 * 1024 * 1024  # of the images of a process, the newest
KEPT_SECONDS = 3600.0  # since it was made

FindItems = Callable[[str, Collection[str]], Awaitable[Mapping[str, JsonObject]]]  # of a project, by their ids


class EarlierImages:
    """The images of conversations that an edit can begin with.

    `stored` finds stored items, `files` are those of clients, `settings` bound an image.
    """

    def __init__(self, stored: FindItems, files: "Files", settings: ImageSettings) -> None:
        self._stored = stored
        self._files = files
        self._max_bytes = settings.image_max_bytes
        self._kept: OrderedDict[tuple[str, str], tuple[float, MadeImage]] = OrderedDict()  # by project and item
        self._unkept: dict[str, list[tuple[str, str]]] = {}  # by response: what goes with its end
        self._size = 0  # bytes of all of them

    def keep(self, project: str, item_id: str, image: MadeImage) -> None:
        """Keep an image that was made, for a while."""
        now = time.monotonic()
        # Taken out first, so that it is the newest when it is put back.
        _, before = self._kept.pop((project, item_id), (now, None))  # a call that was made again
        self._size -= len(before.content) if before is not None else 0
        self._kept[project, item_id] = now, image
        self._size += len(image.content)
        while self._kept:
            made_at, oldest = next(iter(self._kept.values()))
            if self._size <= MAX_KEPT_BYTES and now - made_at <= KEPT_SECONDS:
                break
            self._kept.popitem(last=False)
            self._size -= len(oldest.content)

    def keep_for(self, response_id: str, project: str, item_id: str, image: MadeImage) -> None:
        """Keep an image that was made until its response ends: `forget` has to be called then."""
        self.keep(project, item_id, image)
        self._unkept.setdefault(response_id, []).append((project, item_id))

    def forget(self, response_id: str) -> None:
        """Keep nothing any more of a response that has ended."""
        for key in self._unkept.pop(response_id, ()):
            _, image = self._kept.pop(key, (0.0, None))
            self._size -= len(image.content) if image is not None else 0

    async def newest(self, project: str, items: Sequence[JsonObject]) -> list[MadeImage]:
        """Return the newest images of items, none where there are none. Raises `ImageFailed` where one is broken."""
        # The newest message with images counts, whoever it is of.
        for item in newest_images(items):
            if item.get("type") == "image_generation_call":
                made = await self._made(project, item)
                # One that was made may be gone; the next older one is meant then.
                if made is not None:
                    return [made]
                continue
            return [await self.read(project, sent) for sent in sent_images(item)[-MAX_BEGIN_WITH:]]
        return []

    async def read(self, project: str, sent: SentImage) -> MadeImage:
        """Return an image that a client has sent. Raises `ImageFailed`."""
        return await self._of_file(project, sent.file_id) if sent.file_id else await self._of_data(sent.data)

    async def _of_file(self, project: str, file_id: str) -> MadeImage:
        try:
            content = await self._files.content(project, file_id, max_bytes=self._max_bytes)
        except FileGone:
            raise ImageFailed(
                "The file of an image of the input is gone, or never was.", code="file_not_found"
            ) from None
        except StoreError:
            raise _away() from None
        if content is None:
            raise too_large(self._max_bytes)
        image = image_in(content)
        if image is None:
            raise ImageFailed(_NO_IMAGE, code="invalid_image")
        return image

    async def _of_data(self, data: str) -> MadeImage:
        try:
            return await asyncio.to_thread(image_of, data, max_bytes=self._max_bytes)
        except ImageFailed as broken:
            is_large = broken.code == "image_too_large"
            message = str(broken) if is_large else _NO_IMAGE
            raise ImageFailed(message, code=broken.code if is_large else "invalid_image") from None

    async def _made(self, project: str, item: JsonObject) -> MadeImage | None:
        # Where the client sent the image itself back.
        if isinstance(item.get("result"), str):
            return await self._of_data(str(item["result"]))
        item_id = str(item["id"])
        _, image = self._kept.get((project, item_id), (0.0, None))
        if image is not None:
            return image
        try:
            stored = (await self._stored(project, [item_id])).get(item_id, {})
        except StoreError:
            raise _away() from None
        return await self._of_data(str(stored["result"])) if isinstance(stored.get("result"), str) else None


_NO_IMAGE = "An image of the input is neither PNG, nor JPEG, nor WebP."


def _away() -> ImageFailed:
    return ImageFailed("The image to begin with cannot be read now: the store is away.", code="store_unavailable")


NAMESPACE = "image_generation"
MAX_IMAGES = 8  # of one response
MAX_PROMPT = 32_000  # characters, as OpenAI has it
MAX_BESIDE = 256 * 1024  # bytes of an item beside its image
GRACE_SECONDS = 5.0  # for what is done with an image when it has come
_ABOUT = """Makes images, which are shown to the user. You cannot see them.
Describe in `prompt` all that is to be seen: nothing else of the conversation is known where the image is made."""
_FUNCTIONS = {
    "generate": "Makes a new image.",
    "edit": "Edits the newest image of the conversation, one that the user has sent or that was made before: "
    "`prompt` says what is to be changed.",
}
SCHEMA = {
    "type": "object",
    "properties": {"prompt": {"type": "string"}},
    "required": ["prompt"],
    "additionalProperties": False,
}
# What a request may say of its images, passed on as it is.
_PARAMETERS = ("size", "quality", "background", "moderation", "output_format", "output_compression")


class ImageTool(BaseTool):
    """Makes images at a service."""

    kinds: ClassVar = ("image_generation",)

    def __init__(self, service: ImageService, earlier: EarlierImages) -> None:
        self._service = service
        self._earlier = earlier
        self._model = service.settings.image_service_model
        # The service has its own time; the image is then kept and shown.
        self.max_seconds = self.idle_seconds = service.settings.image_service_seconds + GRACE_SECONDS
        self.max_shown_bytes = base64_size(service.settings.image_max_bytes) + MAX_BESIDE

    async def aclose(self) -> None:
        await self._service.aclose()

    async def offer(self, use: ToolUse) -> Offer:
        action = use.declared.get("action") or "auto"
        if action == "edit" and next(newest_images(use.items), None) is None:
            raise invalid_request(
                "'action' is 'edit', and there is no image to edit. Send one as an 'input_image' with a data URL or a "
                "'file_id', or continue a response that has made one.",
                param=f"{use.at}.action",
                code="invalid_value",
            )
        names = [name for name in _FUNCTIONS if action in ("auto", name)]
        schema = orjson.dumps(SCHEMA).decode()
        functions = tuple(FunctionTool(name, _FUNCTIONS[name], schema) for name in names)
        tools = [OfferedTool(name=f"{NAMESPACE}.{name}", item=ITEMS[NAMESPACE]) for name in names]
        contents = {tool.name: JsonSchema(schema) for tool in tools}
        return Offer(ToolNamespace(NAMESPACE, _ABOUT, functions), tools, contents)

    async def call(self, call: ToolCall) -> ToolResult:
        made, declared = _made_here(call), call.use.declared

        def tell(index: int, image: MadeImage) -> None:
            fields = {name: image.fields[name] for name in image.fields if name != "revised_prompt"}
            call.report({"partial_image_index": index, "partial_image_b64": image.base64, **fields})

        try:
            prompt = (json_object(call.arguments) or {}).get("prompt")
            if not isinstance(prompt, str) or not prompt.strip():
                raise ImageFailed("The arguments should be a JSON object with a 'prompt'.", code="invalid_arguments")
            if len(prompt) > MAX_PROMPT:
                raise ImageFailed(f"The prompt has more than {MAX_PROMPT} characters.", code="invalid_arguments")
            # Counted by the state: the calls of one response know each other's images by it.
            if len(made) >= MAX_IMAGES:
                raise ImageFailed(f"A response has at most {MAX_IMAGES} images.", code="too_many_images")
            request = await self._request(call, prompt, made)
            image = await self._service.make(call.use.project, request, tell)
        except ImageFailed as failed:
            raise ToolFailed(str(failed), shown={"error": failed.error}) from None
        if call.use.unkept:
            self._earlier.keep_for(call.use.response_id, call.use.project, call.item_id, image)
        else:
            self._earlier.keep(call.use.project, call.item_id, image)
        state: JsonObject = {"response_id": call.use.response_id, "made": [*made, call.item_id]}
        # How it was to be made, where the service does not say it.
        wished = {name: declared.get(name) or "auto" for name in ("background", "quality", "size")}
        shown = {**wished, **image.fields, "result": image.base64}
        size = image.fields.get("size")
        text = f"[The image was made, and is shown to the user: {image.format}{f', {size}' if size else ''}.]"
        return ToolResult(text, shown, state=state, seen=[text, ToolImage(image.content)])

    async def forget_response(self, use: ToolUse) -> None:
        self._earlier.forget(use.response_id)

    async def _request(self, call: ToolCall, prompt: str, made: list[str]) -> ImageRequest:
        declared = call.use.declared
        parameters = {"model": self._model or declared.get("model"), "prompt": prompt}
        parameters |= {name: declared.get(name) for name in _PARAMETERS}
        images, mask = [], None
        if call.name == f"{NAMESPACE}.edit":
            # Its own images behind those of the conversation: they are newer.
            own: list[JsonObject] = [{"type": ITEMS[NAMESPACE], "id": item_id} for item_id in made]
            images = await self._earlier.newest(call.use.project, [*call.use.items, *own])
            if not images:
                raise ImageFailed("There is no image to edit. Make one first.", code="no_image")
            parameters["input_fidelity"] = declared.get("input_fidelity")
            mask_sent = declared.get("input_image_mask")
            sent = sent_image(mask_sent) if isinstance(mask_sent, dict) else None
            mask = None if sent is None else await self._earlier.read(call.use.project, sent)
        partial_images = declared.get("partial_images")
        return ImageRequest(
            {name: value for name, value in parameters.items() if value is not None},
            images,
            mask,
            partial_images if isinstance(partial_images, int) else 0,
            call.confirm,
        )


def _made_here(call: ToolCall) -> list[str]:
    """Return the ids of the images that this response has made before."""
    state = call.state or {}
    made = state.get("made")
    return (
        [str(each) for each in made]
        if state.get("response_id") == call.use.response_id and isinstance(made, list)
        else []
    )
