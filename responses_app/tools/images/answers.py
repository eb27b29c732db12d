"""What an image service answers, as images: its JSON, the events of its stream, and its errors in OpenAI's form.

Nothing of it is believed: an image is base64 of a file that begins as an image does, and what is told of it is of the
words that OpenAI's item has, or is left out.
"""

import base64
import binascii
from dataclasses import dataclass, field

from engine import orjson
from responses_app.protocol.errors import JsonObject

MAX_TOLD = 300  # characters of a service's own words that are passed on
MAX_REVISED = 32_000  # characters of the prompt that it says it has used
_QUALITIES = ("low", "medium", "high", "xhigh", "max", "auto")  # what OpenAI's item may say
_BACKGROUNDS = ("transparent", "opaque", "auto")


class ImageFailed(Exception):
    """No image came; the text is for the model and the client. `code` and `type` are those of the item's error.

    `parameter` is what the service says is wrong, and `said` its own words.
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
        """What is in its file, as JSON has it."""
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
    known = _format(content)
    return None if known is None else MadeImage(content, known)


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
    return told_of(image_of(made.get("b64_json"), max_bytes=max_bytes), {**answer, **made})


def told_of(image: MadeImage, values: JsonObject) -> MadeImage:
    """Return an image with what its service tells of it."""
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
    """Return what an answer with another status than 200 means; `path` is what was asked."""
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
    """Return what an event `error` of a stream means."""
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
    """The answer is not what OpenAI's Images API gives."""
    return ImageFailed(f"The image service cannot be understood: {why}.", code="image_service_invalid")


def too_large(max_bytes: int) -> ImageFailed:
    """An image has more than it may."""
    return ImageFailed(f"The image has more than {max_bytes} bytes (IMAGE_MAX_BYTES).", code="image_too_large")


def _format(content: bytes) -> str | None:
    """Return the format of a file by how it begins."""
    # The first bytes of each format (RFC 2083, JFIF, RFC 9649).
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if content.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    return "webp" if content[:4] == b"RIFF" and content[8:12] == b"WEBP" else None
