"""`ImageService`: asks a service with OpenAI's Images API for images, bounded in time, size and number.

    POST {IMAGE_SERVICE_URL}/images/generations   JSON
    POST {IMAGE_SERVICE_URL}/images/edits         multipart/form-data, with the images to begin with

Services know more or fewer of the parameters: OpenAI's own refuses `response_format`, without which others answer with
URLs; some cannot stream. What one refuses by name is left out; where that helps, it is not said again as long as the
process lives.

Nothing of what it answers is believed: an image is base64 of a file that begins as an image does, and what is told of
it is of the words that OpenAI's item has, or is left out.
"""

import asyncio
import base64
import binascii
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine import orjson
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.setting import KIB
from responses_app.tools.base import nothing_to_confirm
from responses_app.tools.network import AllowedHosts, Network, NetworkError
from responses_app.tools.places import SharedPlaces
from responses_app.tools.settings import ImageSettings

if TYPE_CHECKING:
    import httpx2

MAX_TOLD = 300  # characters of a service's own words that are passed on
MAX_REVISED = 32_000  # characters of the prompt that it says it has used
_QUALITIES = ("low", "medium", "high", "xhigh", "max", "auto")  # what OpenAI's item may say
_BACKGROUNDS = ("transparent", "opaque", "auto")


class ImageFailed(Exception):
    """No image came; the text is for the model and the client. `code` and `type` are those of the item's error.

    `parameter` is the one that the service calls wrong, and `said` its own words.
    """

    def __init__(
        self, message: str, *, code: str, type: str = "server_error", parameter: str = "", said: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code
        self.type = type
        self.parameter = parameter
        self.said = said

    @property
    def error(self) -> JsonObject:
        """The error of the item."""
        return {"type": self.type, "code": self.code, "message": str(self)}


@dataclass(frozen=True, slots=True)
class MadeImage:
    """An image of a known format."""

    content: bytes = field(repr=False)  # of its file
    format: str  # png, jpeg or webp
    fields: JsonObject = field(default_factory=dict)  # of the call's item, as the service says them: size, quality, …

    @property
    def media_type(self) -> str:
        """Its media type."""
        return f"image/{self.format}"

    @property
    def base64(self) -> str:
        """The content of its file, as JSON has it."""
        return base64.b64encode(self.content).decode()


def image_of(text: object, *, max_bytes: int) -> MadeImage:
    """Return the image that is written as base64. Raises `ImageFailed`."""
    if not isinstance(text, str) or not text:
        raise invalid("it answered without an image ('b64_json')")
    # Before it is decoded: the text is a third longer than the image.
    if len(text) > base64_size(max_bytes):
        raise too_large(max_bytes)
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise invalid("what it calls an image is not base64") from None
    image = image_in(content)
    if image is None:
        raise invalid("what it calls an image is none: it is neither PNG, nor JPEG, nor WebP")
    return image


def image_in(content: bytes) -> MadeImage | None:
    """Return the image that a file holds, None where it holds none."""
    # The first bytes of each format (RFC 2083, JFIF, RFC 9649).
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return MadeImage(content, "png")
    if content.startswith(b"\xff\xd8\xff"):
        return MadeImage(content, "jpeg")
    return MadeImage(content, "webp") if content[:4] == b"RIFF" and content[8:12] == b"WEBP" else None


def base64_size(size: int) -> int:
    """Return how many characters so many bytes are at most, written as base64."""
    # Three bytes are four characters, and the last group is filled up.
    return 4 * ((size + 2) // 3)


def answered(body: bytes, *, max_bytes: int) -> MadeImage:
    """Return the image of an answer. Raises `ImageFailed`."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise invalid("it did not answer with JSON") from None
    images = answer.get("data") if isinstance(answer, dict) else None
    made = images[0] if isinstance(images, list) and images else None
    if not isinstance(made, dict):
        raise invalid("its answer has no 'data' with an image")
    if made.get("b64_json") is None and made.get("url") is not None:
        raise invalid("it answered with a URL instead of the image ('b64_json')")
    # What is said of the image itself counts before what is said of the answer.
    return with_fields(image_of(made.get("b64_json"), max_bytes=max_bytes), {**answer, **made})


def with_fields(image: MadeImage, values: JsonObject) -> MadeImage:
    """Return an image with the fields that its service tells of it."""
    fields: JsonObject = {"output_format": image.format}
    if values.get("quality") in _QUALITIES:
        fields["quality"] = values["quality"]
    if values.get("background") in _BACKGROUNDS:
        fields["background"] = values["background"]
    size, revised = values.get("size"), values.get("revised_prompt")
    # `1024x1024`: two numbers with an `x` between them.
    if isinstance(size, str) and len(size) <= len("99999x99999") and size.replace("x", "", 1).isdecimal():
        fields["size"] = size
    if isinstance(revised, str) and revised:
        fields["revised_prompt"] = revised[:MAX_REVISED]
    return MadeImage(image.content, image.format, fields)


def refused(status: int, body: bytes, path: str) -> ImageFailed:
    """Return the failure of an answer with another status than 200; `path` is that of the request."""
    error = _error(body)
    if status in (400, 422):
        return _bad_request(error)
    if status in (401, 403):
        return ImageFailed(
            f"The image service refused this server (status {status}); its key is IMAGE_SERVICE_KEY.",
            code="image_service_refused",
        )
    if status == 429:
        return ImageFailed(
            "The image service takes no more requests now (status 429).",
            type="rate_limit_error",
            code="rate_limit_exceeded",
        )
    if 300 <= status < 400:
        return ImageFailed(
            f"The image service redirects (status {status}), which is not followed; IMAGE_SERVICE_URL is to be where "
            "it leads.",
            code="image_service_redirects",
        )
    if status in (404, 405, 501):
        return ImageFailed(f"The image service has no {path} (status {status}).", code="image_service_failed")
    return ImageFailed(f"The image service failed (status {status}).", code="image_service_failed")


def failed_in_stream(event: JsonObject) -> ImageFailed:
    """Return the failure of an event `error` of a stream."""
    error = event.get("error")
    return _bad_request(error if isinstance(error, dict) else event)


def _bad_request(error: JsonObject) -> ImageFailed:
    """Return the refusal of a prompt or a parameter. The service is the operator's, so its own words are passed on."""
    code, message, parameter = error.get("code"), error.get("message"), error.get("param")
    text = " ".join(message.split()) if isinstance(message, str) else ""
    return ImageFailed(
        f"The image service refused the request: {text[:MAX_TOLD] or 'it does not say why.'}",
        type="image_generation_user_error",
        code=code[:64] if isinstance(code, str) and code else "image_request_refused",
        parameter=parameter if isinstance(parameter, str) else "",
        # All of it: whoever looks for the parameter that is refused reads more than is shown.
        said=text,
    )


def _error(body: bytes) -> JsonObject:
    """Return the error of an answer: `{"error": {…}}`, or with some servers `{"detail": …}`."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    error = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(error, dict):
        return error
    text = error or (answer.get("detail") if isinstance(answer, dict) else None)
    return {} if text is None else {"message": text if isinstance(text, str) else orjson.dumps(text).decode()}


def invalid(why: str) -> ImageFailed:
    """Return the failure of an answer that OpenAI's Images API would not give."""
    return ImageFailed(f"The image service cannot be understood: {why}.", code="image_service_invalid")


def too_large(max_bytes: int) -> ImageFailed:
    """Return the failure of an image that has more bytes than it may."""
    return ImageFailed(f"The image has more than {max_bytes} bytes (IMAGE_MAX_BYTES).", code="image_too_large")


MAX_AT_ONCE = 16  # requests of this process; further ones wait, within their time
MAX_OF_PROJECT = 8  # of one project, of these
MAX_LINES = 10_000  # of a stream: it has some for each image, and may have one a second that says that it works
MAX_BESIDE = 64 * KIB  # bytes of an answer, or of an event, beside its image
MAX_REFUSAL = 64 * KIB  # bytes of an answer that says why there is no image
_STREAM = frozenset(("stream", "partial_images"))  # one is nothing without the other
# A refusal of streaming in a service's own words: "'stream' is not supported", "unknown parameter: stream".
_NO_STREAM = re.compile(
    r"['\"`]stream['\"`]|\bstreaming\b[^.]{0,40} not |(?:unknown|unsupported|unexpected)[^.]{0,40} stream\b",
    re.IGNORECASE,
)

Partial = Callable[[int, MadeImage], None]


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """An image that is to be made."""

    parameters: Mapping[str, object]  # of the API, without `None`
    begin_with: Sequence[MadeImage] = ()  # images that are edited; none: a new one is made
    mask: MadeImage | None = None  # where the first of them is edited
    partial_images: int = 0  # how many unfinished images may come before
    # Awaited right before the request is sent, which may have waited for its place.
    confirm: Callable[[], Awaitable[None]] = field(default=nothing_to_confirm, repr=False)


@dataclass(slots=True)
class ImageService:
    """The service that the settings name. Belongs to one event loop, which closes it."""

    settings: ImageSettings
    _unknown: set[str] = field(default_factory=set, init=False)  # parameters that the service was found not to know
    _places: SharedPlaces = field(init=False)  # how many requests there may be at once
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)  # so that calls at once open one client
    _client: "httpx2.AsyncClient | None" = field(default=None, init=False)  # made at the first request

    def __post_init__(self) -> None:
        self._places = SharedPlaces(most=MAX_AT_ONCE, share=MAX_OF_PROJECT)

    async def make(self, project: str, request: ImageRequest, partial: Partial) -> MadeImage:
        """Return the image, made for a project; `partial` is told those that come before it is done.

        Raises `ImageFailed`.
        """
        # Tells a service that is slow from a queue that is long.
        has_place = False
        try:
            async with asyncio.timeout(self.settings.image_service_seconds), self._places.taken(project):
                has_place = True
                return await self._make(request, partial)
        except TimeoutError:
            seconds = self.settings.image_service_seconds
            if has_place:
                message = f"The image service did not answer within {seconds:g} s."
                raise ImageFailed(message, code="image_service_timeout") from None
            message = (
                f"Too many images are being made now: none of them was done within {seconds:g} s. Try again later."
            )
            raise ImageFailed(message, code="image_service_busy") from None

    async def aclose(self) -> None:
        """Close all connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _make(self, request: ImageRequest, partial: Partial) -> MadeImage:
        left_out = set(self._unknown)
        # Each round leaves out something more, so it ends.
        while True:
            try:
                image = await self._ask(request, partial, left_out)
            except ImageFailed as failed:
                unknown = _unknown_to_service(failed) - left_out
                if not unknown:
                    raise
                left_out |= unknown
            else:  # only now: a refusal may repeat the words of a prompt
                self._unknown |= left_out
                return image

    async def _ask(self, request: ImageRequest, partial: Partial, left_out: Collection[str]) -> MadeImage:
        import httpx2

        client = await self._opened()
        # As late as can be: whoever asks may have waited for a place.
        await request.confirm()
        try:
            async with self._sent(client, request, left_out) as answer:
                if answer.status_code != 200:
                    raise refused(answer.status_code, await _start_of(answer, MAX_REFUSAL), answer.url.path)
                if answer.headers.get("content-type", "").lower().startswith("text/event-stream"):
                    return await self._streamed(answer, request.partial_images, partial)
                body = await self._whole(answer)
                # On a thread: decoding some megabytes takes a while.
                return await asyncio.to_thread(answered, body, max_bytes=self.settings.image_max_bytes)
        except (NetworkError, httpx2.ConnectError):
            message = "The image service cannot be reached (IMAGE_SERVICE_URL)."
            raise ImageFailed(message, code="image_service_unreachable") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError):
            raise ImageFailed(
                "The connection to the image service broke before the image was there.", code="image_service_broke"
            ) from None

    def _sent(
        self, client: "httpx2.AsyncClient", request: ImageRequest, left_out: Collection[str]
    ) -> "AbstractAsyncContextManager[httpx2.Response]":
        more: JsonObject = {"response_format": "b64_json"}
        if request.partial_images:
            more |= {"stream": True, "partial_images": request.partial_images}
        parameters = {**request.parameters, **{name: more[name] for name in more if name not in left_out}}
        if not request.begin_with:
            return client.stream("POST", f"{self.settings.image_service_url}/images/generations", json=parameters)
        # One image is a field of its own; several are an array, as OpenAI's API names it.
        name = "image" if len(request.begin_with) == 1 else "image[]"
        files = [(name, _file(f"image_{at}", each)) for at, each in enumerate(request.begin_with, 1)]
        files += [] if request.mask is None else [("mask", _file("mask", request.mask))]
        data = {
            name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in parameters.items()
        }
        return client.stream("POST", f"{self.settings.image_service_url}/images/edits", data=data, files=files)

    async def _opened(self) -> "httpx2.AsyncClient":
        async with self._opening:
            if self._client is None:
                self._client = await asyncio.to_thread(self._open)  # 30 ms, for TLS
            return self._client

    def _open(self) -> "httpx2.AsyncClient":
        import httpx2

        from responses_app.tools.httpx_network import CheckedTransport

        url, key = self.settings.image_service_url, self.settings.image_service_key
        transport = CheckedTransport(
            Network("IMAGE_SERVICE_URL", AllowedHosts.of_url(url)),
            # Beyond our own bound, which says why.
            max_body_bytes=base64_size(self.settings.image_max_bytes) + 16 * MAX_BESIDE,
            # Certificates take 100 ms to load; without TLS there are none to check.
            ssl_context=None if url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        )
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx2.AsyncClient(transport=transport, headers=headers, timeout=None, follow_redirects=False)

    async def _whole(self, answer: "httpx2.Response") -> bytes:
        most = base64_size(self.settings.image_max_bytes) + MAX_BESIDE
        # One byte more than allowed, which is how too much is known.
        body = await _start_of(answer, most + 1)
        if len(body) > most:
            raise too_large(self.settings.image_max_bytes)
        return body

    async def _streamed(self, answer: "httpx2.Response", most: int, partial: Partial) -> MadeImage:
        """Read a stream: partial images, of which `most` are passed on, then the image."""
        # Partial images beyond those asked for are passed over.
        async for event in self._events(answer, most):
            kind = str(event.get("type"))
            if kind == "error" or event.get("error") is not None:
                raise failed_in_stream(event)
            is_done = kind.endswith(".completed")
            if not is_done and not (kind.endswith(".partial_image") and most > 0):
                continue
            image = with_fields(
                await asyncio.to_thread(image_of, event.get("b64_json"), max_bytes=self.settings.image_max_bytes), event
            )
            if is_done:
                return image
            most -= 1
            index = event.get("partial_image_index")
            partial(index if isinstance(index, int) else 0, image)
        raise ImageFailed(
            "The connection to the image service broke before the image was there.", code="image_service_broke"
        )

    async def _events(self, answer: "httpx2.Response", partial_images: int) -> AsyncIterator[JsonObject]:
        """Yield the events of a stream, as JSON. Raises `ImageFailed` for too large ones, and where one is no JSON."""
        lines, most, read, count = _Lines(), base64_size(self.settings.image_max_bytes) + MAX_BESIDE, 0, 0
        async for part in answer.aiter_raw():
            read += len(part)
            whole = lines.feed(part)
            count += len(whole)
            if count > MAX_LINES:
                raise invalid(f"its stream has more than {MAX_LINES} lines")
            for line in whole:
                data = line.removeprefix(b"data:").strip()
                if line.startswith(b"data:") and data != b"[DONE]":
                    yield await asyncio.to_thread(_object, data)
            # `+ 2`: the image itself, and events that say other things.
            if lines.size > most or read > (partial_images + 2) * most:
                raise too_large(self.settings.image_max_bytes)


def _unknown_to_service(failed: ImageFailed) -> set[str]:
    """Return which parameters a refusal names that can be left out."""
    text = failed.parameter or failed.said
    named = {"response_format"} if "response_format" in text else set()
    if failed.parameter == "stream" or "partial_images" in text or _NO_STREAM.search(text):
        named |= _STREAM
    return named


class _Lines:
    """Cuts a stream of bytes into lines."""

    def __init__(self) -> None:
        self._kept: list[bytes] = []  # parts of the line that has not ended
        self.size = 0  # bytes of that line

    def feed(self, part: bytes) -> list[bytes]:
        """Return the lines that are whole now, without their ends."""
        *lines, rest = part.split(b"\n")
        if lines:
            # The first line of a part ends the one that was kept.
            lines[0] = b"".join((*self._kept, lines[0]))
            self._kept, self.size = [], 0
        self._kept.append(rest)
        self.size += len(rest)
        return [line.removesuffix(b"\r") for line in lines]


def _object(data: bytes) -> JsonObject:
    try:
        event = orjson.loads(data)
    except orjson.JSONDecodeError:
        event = None
    if not isinstance(event, dict):
        raise invalid("an event of its stream is not a JSON object")
    return event


async def _start_of(answer: "httpx2.Response", most: int) -> bytes:
    """Return the first `most` bytes of an answer, and leave the rest."""
    body = bytearray()
    async for part in answer.aiter_raw():
        body += part[: most - len(body)]
        if len(body) >= most:
            break
    return bytes(body)


def _file(name: str, image: MadeImage) -> tuple[str, bytes, str]:
    return f"{name}.{image.format}", image.content, image.media_type
