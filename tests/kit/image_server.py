"""`ImageServer`: a service with OpenAI's Images API on loopback, which paints every prompt in a colour of its own."""

import asyncio
import base64
import json
import struct
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aiohttp import web

from responses_app.protocol.errors import JsonObject
from responses_app.tools.image_service import ImageService
from responses_app.tools.image_tool import EarlierImages, FindItems, ImageTool
from responses_app.tools.settings import ImageSettings

if TYPE_CHECKING:
    from responses_app.resources.files.store import Files

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Asked:
    """A request that came: where, with which parameters, and which files by their field and content."""

    path: str
    parameters: dict[str, str | int | bool]
    files: list[tuple[str, bytes]]
    key: str | None


@dataclass
class ImageServer:
    """`refuses` are parameters that it does not know. `answer`, where it is set, answers in its place."""

    url: str = ""
    refuses: set[str] = field(default_factory=set)
    asked: list[Asked] = field(default_factory=list)
    answer: Answer | None = None

    async def serve(self, request: web.Request) -> web.StreamResponse:
        asked = await _read(request)
        self.asked.append(asked)
        if self.answer is not None:
            return await self.answer(request)
        unknown = next((name for name in asked.parameters if name in self.refuses), None)
        if unknown:
            return refusal(f"Unknown parameter: '{unknown}'.", param=unknown)
        prompt = str(asked.parameters["prompt"])
        if prompt == "slow":
            await asyncio.sleep(60)
        if "forbidden" in prompt:
            return refusal("Your request was rejected by the safety system.", code="moderation_blocked")
        if asked.parameters.get("stream"):
            return await self._streamed(request, asked)
        told = {"b64_json": as_base64(prompt), "revised_prompt": f"{prompt}, in oil"}
        return web.json_response({"created": 1, "size": "1024x1024", "quality": "low", "data": [told]})

    async def _streamed(self, request: web.Request, asked: Asked) -> web.StreamResponse:
        kind = "image_edit" if asked.path.endswith("edits") else "image_generation"
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        prompt = str(asked.parameters["prompt"])
        for index in range(int(asked.parameters["partial_images"])):
            told = {"partial_image_index": index, "b64_json": as_base64(f"{prompt} {index}"), "size": "1024x1024"}
            await answer.write(event({"type": f"{kind}.partial_image", **told}))
        await answer.write(event({"type": f"{kind}.completed", "b64_json": as_base64(prompt), "size": "1024x1024"}))
        return answer


def image_tool(
    images: ImageServer,
    *,
    stored: FindItems | None = None,
    files: "Files | None" = None,
    seconds: float = 20.0,
    max_bytes: int = 64 * 1024,
) -> ImageTool:
    """Return the tool that asks a service."""

    async def nothing(project: str, item_ids: Collection[str]) -> dict[str, JsonObject]:
        return {}

    settings = ImageSettings(
        image_service_url=images.url,
        image_service_key="sk-of-the-service",
        image_service_seconds=seconds,
        image_max_bytes=max_bytes,
    )
    earlier = EarlierImages(stored or nothing, files, settings)  # type: ignore[arg-type]
    return ImageTool(ImageService(settings), earlier)


def png(text: str) -> bytes:
    """Return an image of one pixel, whose colour a text decides."""
    pixel = b"\0" + zlib.crc32(text.encode()).to_bytes(4, "big")[:3]
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(pixel)),
        (b"IEND", b""),
    )
    written = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(written)


def as_base64(text: str) -> str:
    """Return the image of a text as JSON has it."""
    return base64.b64encode(png(text)).decode()


def event(data: object) -> bytes:
    return f"event: x\r\ndata: {json.dumps(data)}\r\n\r\n".encode()


def refusal(message: str, *, status: int = 400, **fields: str) -> web.Response:
    """Return an error as OpenAI writes it."""
    return web.json_response({"error": {"message": message, "type": "x", **fields}}, status=status)


@asynccontextmanager
async def image_server() -> AsyncIterator[ImageServer]:
    """Run one on a free port."""
    server = ImageServer()
    application = web.Application(client_max_size=64 * 1024 * 1024)
    application.router.add_post("/v1/images/{what}", server.serve)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield server
    finally:
        await runner.cleanup()


async def _read(request: web.Request) -> Asked:
    key = request.headers.get("Authorization")
    if request.content_type == "application/json":
        return Asked(request.path, await request.json(), [], key)
    parameters: dict[str, str | int | bool] = {}
    files = []
    async for part in await request.multipart():
        content = bytes(await part.read())
        if part.filename:
            files.append((str(part.name), content))
        else:
            parameters[str(part.name)] = content.decode()
    return Asked(request.path, parameters, files, key)
