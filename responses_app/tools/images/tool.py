"""`ImageTool`: the `image_generation` tool of requests, which makes images, and edits those that a conversation has.

The model says what is to be seen; everything else of an image is the request's to say. It reads a short note: the image
itself is for the client, in the call's item.
"""

from collections.abc import Mapping
from typing import ClassVar

import orjson

from engine.formats.base import FunctionTool, ToolNamespace
from engine.grammar import JsonSchema
from responses_app.protocol.errors import JsonObject, invalid_request
from responses_app.protocol.items.offers import Offer, OfferedTool
from responses_app.protocol.requests.image_tools import newest_images, sent_image
from responses_app.protocol.requests.server_tools import ITEMS
from responses_app.tools.base import BaseTool, ToolCall, ToolFailed, ToolResult, ToolUse
from responses_app.tools.images.answers import Image, ImageFailed, base64_size
from responses_app.tools.images.earlier import EarlierImages
from responses_app.tools.images.service import ImageRequest, ImageService, Partial

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
_PARAMETERS = ("size", "quality", "background", "moderation", "output_format", "output_compression")


class ImageTool(BaseTool):
    """Makes images at a service."""

    kinds: ClassVar = ("image_generation",)

    def __init__(self, service: ImageService, earlier: EarlierImages) -> None:
        self._service = service
        self._earlier = earlier
        self._model = service.settings.image_service_model
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
                param="tools",
                code="invalid_value",
            )
        names = [name for name in _FUNCTIONS if action in ("auto", name)]
        schema = orjson.dumps(SCHEMA).decode()
        functions = tuple(FunctionTool(name, _FUNCTIONS[name], schema) for name in names)
        tools = [OfferedTool(name=f"{NAMESPACE}.{name}", item=ITEMS[NAMESPACE]) for name in names]
        contents = {tool.name: JsonSchema(schema) for tool in tools}
        return Offer(ToolNamespace(NAMESPACE, _ABOUT, functions), tools, contents)

    async def call(self, call: ToolCall) -> ToolResult:
        made = _made_here(call)
        try:
            prompt = _prompt(call.arguments)
            if len(made) >= MAX_IMAGES:
                raise ImageFailed(f"A response has at most {MAX_IMAGES} images.", code="too_many_images")
            request = await self._request(call, prompt, made)
            image = await self._service.make(call.use.project, request, _teller(call))
        except ImageFailed as failed:
            raise ToolFailed(str(failed), shown={"error": failed.error}) from None
        self._earlier.keep(call.use.project, call.item_id, image)
        state: JsonObject = {"response_id": call.use.response_id, "made": [*made, call.item_id]}
        shown = {**_settings(call.use.declared), **image.fields, "result": image.base64}
        return ToolResult(f"[The image was made, and is shown to the user{_told_size(image)}.]", shown, state=state)

    async def _request(self, call: ToolCall, prompt: str, made: list[str]) -> ImageRequest:
        declared = call.use.declared
        parameters = {"model": self._model or declared.get("model"), "prompt": prompt}
        parameters |= {name: declared.get(name) for name in _PARAMETERS}
        images, mask = [], None
        if call.name == f"{NAMESPACE}.edit":
            own: list[JsonObject] = [{"type": ITEMS[NAMESPACE], "id": item_id} for item_id in made]
            images = await self._earlier.newest(call.use.project, [*call.use.items, *own])
            if not images:
                raise ImageFailed("There is no image to edit. Make one first.", code="no_image")
            parameters["input_fidelity"] = declared.get("input_fidelity")
            mask = await self._mask(call.use)
        return ImageRequest(
            {name: value for name, value in parameters.items() if value is not None},
            images,
            mask,
            _whole_number(declared.get("partial_images")),
            call.confirm,
        )

    async def _mask(self, use: ToolUse) -> Image | None:
        mask = use.declared.get("input_image_mask")
        sent = sent_image(mask) if isinstance(mask, dict) else None
        return None if sent is None else await self._earlier.read(use.project, sent)


def _made_here(call: ToolCall) -> list[str]:
    """Return the ids of the images that this response has made before."""
    state = call.state or {}
    made = state.get("made")
    return (
        [str(each) for each in made]
        if state.get("response_id") == call.use.response_id and isinstance(made, list)
        else []
    )


def _prompt(arguments: str) -> str:
    try:
        asked = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        asked = None
    prompt = asked.get("prompt") if isinstance(asked, dict) else None
    if not isinstance(prompt, str) or not prompt.strip():
        raise ImageFailed("The arguments should be a JSON object with a 'prompt'.", code="invalid_arguments")
    if len(prompt) > MAX_PROMPT:
        raise ImageFailed(f"The prompt has more than {MAX_PROMPT} characters.", code="invalid_arguments")
    return prompt


def _settings(declared: Mapping[str, object]) -> JsonObject:
    """Return what an item says of how its image was to be made, where its service does not say it."""
    return {name: declared.get(name) or "auto" for name in ("background", "quality", "size")}


def _teller(call: ToolCall) -> Partial:
    def tell(index: int, image: Image) -> None:
        told = {name: image.fields[name] for name in image.fields if name != "revised_prompt"}
        call.report({"partial_image_index": index, "partial_image_b64": image.base64, **told})

    return tell


def _told_size(image: Image) -> str:
    size = image.fields.get("size")
    return f": {image.format}, {size}" if isinstance(size, str) else f": {image.format}"


def _whole_number(value: object) -> int:
    return value if isinstance(value, int) else 0
