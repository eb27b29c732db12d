"""What a picture shows: PNG, JPEG, WebP or GIF in, plain PNG, JPEG or WebP out. Runs as a process of its own.

    python -m responses_app.tools.reading.pictures

Headers have `low` (scale it down) and `max_pixels`, and answers `media_type`, `width` and `height`, and behind them the
picture; or a `message` where there is none (see `processes`). What a picture is, its content says: no name and no media
type counts.

Of an animation the first frame is taken, turned upright as its EXIF says; then it is written anew, so that nothing is
left of what stood beside the pixels: no place, no camera, no profile, no text, nothing behind the end. The same picture
always gives the same bytes.
"""

import io
from typing import TYPE_CHECKING, Any

from responses_app.tools.reading.processes import serve

if TYPE_CHECKING:
    from PIL import Image

LOW_SIDE = 512  # pixels of the longer side of a picture that is scaled down
MAX_MADE_BYTES = 32 * 1024 * 1024  # of a picture as it is kept
CPU_SECONDS = 30  # for one picture; it ends a process whose server is gone
MEMORY_BYTES = 2 * 1024**3  # of address space: 50 million pixels take a quarter of it
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
_ORIENTATION = 0x0112  # the tag of EXIF
_BEGINNING = 512  # bytes in which formats are told apart
_SUPPORTED = "Send it as PNG, JPEG, WebP or GIF."


class UnreadablePicture(Exception):
    """A picture cannot be shown to a model; the message is for its owner."""


def picture_of(body: bytes, *, low: bool, max_pixels: int) -> dict[str, Any]:
    """Return a picture's fields, with its bytes as `content`. Raises `UnreadablePicture`, and whatever Pillow does."""
    from PIL import Image, UnidentifiedImageError

    # Ours is checked below, with a sentence of its own.
    Image.MAX_IMAGE_PIXELS = None
    refusal = _refusal(body[:_BEGINNING])
    if refusal is not None:
        raise UnreadablePicture(refusal)
    try:
        # This reads the head alone: nothing is unpacked yet.
        opened = Image.open(io.BytesIO(body), formats=_FORMATS)
    except UnidentifiedImageError:
        raise UnreadablePicture(f"It is not an image that this server reads. {_SUPPORTED}") from None
    width, height = opened.size
    if width * height > max_pixels:
        raise UnreadablePicture(
            f"It has {width:,} × {height:,} pixels, and this server reads at most {max_pixels:,}: scale it down."
        )
    # MPO is a JPEG with further ones behind it, as many phones and cameras write them.
    made_as = {"GIF": "PNG", "MPO": "JPEG"}.get(str(opened.format), str(opened.format))
    picture = _upright(opened)
    small = low and max(picture.size) > LOW_SIDE
    # JPEG is written with its own tables where its pixels are as they were: so it loses next to nothing.
    as_it_is = opened.format == "JPEG" and picture is opened and picture.mode in ("L", "RGB") and not small
    if not as_it_is:
        picture = _plain(picture)
    # What the file says beside its pixels: it would be written again.
    picture.info.clear()
    if small:
        picture.thumbnail((LOW_SIDE, LOW_SIDE))
    content = _written(picture, made_as, as_it_is=as_it_is, lossless=b"VP8L" in body[:_BEGINNING])
    if len(content) > MAX_MADE_BYTES:
        raise UnreadablePicture(f"It takes more than {MAX_MADE_BYTES // 2**20} MiB: scale it down.")
    width, height = picture.size
    return {"media_type": f"image/{made_as.lower()}", "width": width, "height": height, "content": content}


def _refusal(beginning: bytes) -> str | None:
    """Return why a picture of this beginning is not read, where that can be said better than in general."""
    # ISO base media: the length of a box, "ftyp", and the brand.
    if beginning[4:8] == b"ftyp" and beginning[8:12] in (b"heic", b"heix", b"hevc", b"heim", b"mif1", b"msf1", b"avif"):
        return f"It is a HEIC or AVIF image, which this server does not read. {_SUPPORTED}"
    text = beginning.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<svg", b"<?xml", b"<!doctype svg", b"<!--")):
        return f"It is an SVG image, or a page: this server draws none. {_SUPPORTED}"
    return None


def _upright(opened: "Image.Image") -> "Image.Image":
    """Return the picture as it is to be looked at: cameras turn the pixels by a note alone."""
    from PIL import Image

    turns = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }
    opened.load()
    try:
        turn = turns.get(opened.getexif().get(_ORIENTATION, 1))
    # A note that cannot be read turns nothing, as in browsers: the pixels are good.
    except (ValueError, TypeError, SyntaxError, OSError, ArithmeticError, LookupError):
        turn = None
    return opened if turn is None else opened.transpose(turn)


def _plain(picture: "Image.Image") -> "Image.Image":
    """Return a picture of red, green and blue, and its transparency if it has one."""
    # One colour of it may be what is transparent; `convert` reads that there, too.
    transparent = "transparency" in picture.info
    if picture.mode.startswith("I"):  # 16 bits of grey; `convert` alone would make all that is bright white
        picture = picture.convert("I").point(lambda value: value * (1 / 256)).convert("L")
    has_alpha = transparent or picture.mode in ("RGBA", "LA", "PA", "La", "RGBa")
    return picture.convert("RGBA" if has_alpha else "RGB")


def _written(picture: "Image.Image", made_as: str, *, as_it_is: bool, lossless: bool) -> bytes:
    options: dict[str, Any] = {
        # Three times as fast as the usual level, and a tenth larger.
        "PNG": {"compress_level": 3},
        "JPEG": {"quality": "keep"} if as_it_is else {"quality": 92},
        "WEBP": {"lossless": True, "method": 1} if lossless else {"quality": 92, "method": 2},
    }[made_as]
    target = io.BytesIO()
    picture.save(target, made_as, **options)
    return target.getvalue()


def answer(header: dict[str, Any], body: bytes) -> dict[str, Any]:
    """Return a picture's fields and its `content`, or why there is none."""
    try:
        return picture_of(body, low=header["low"], max_pixels=header["max_pixels"])
    except UnreadablePicture as problem:
        return {"message": str(problem)}
    except MemoryError:
        return {"message": "It takes more memory to read than this server gives."}
    except Exception:  # noqa: BLE001 - whatever the parser raises is about the picture
        return {"message": "It is damaged, or incomplete."}


if __name__ == "__main__":
    serve(answer, cpu_seconds=CPU_SECONDS, memory=MEMORY_BYTES)
