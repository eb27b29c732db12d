"""Pictures that tests send: good ones, and such as are made to be hard to read."""

import io
import os
import struct
import zlib
from base64 import b64encode

from PIL import Image


def picture(
    colour: str = "#ff0000", size: tuple[int, int] = (8, 8), made_as: str = "PNG", mode: str = "RGB", **options: object
) -> bytes:
    target = io.BytesIO()
    Image.new(mode, size, colour).save(target, made_as, **options)  # type: ignore[arg-type]
    return target.getvalue()


def data_url(content: bytes, media_type: str = "image/png") -> str:
    """Return a picture as requests carry it."""
    return f"data:{media_type};base64,{b64encode(content).decode()}"


def opened(content: bytes) -> Image.Image:
    """Return a picture with its pixels."""
    made = Image.open(io.BytesIO(content))
    made.load()
    return made


def png_head(width: int, height: int, *, rows: bytes = b"") -> bytes:
    """Return a PNG that says that it is so large, with these compressed rows."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", rows), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def png_bomb(width: int, height: int) -> bytes:
    """Return a PNG of so many black pixels, in a thousandth of their size."""
    packer = zlib.compressobj(9)
    row = b"\0" * (1 + 3 * width)
    return png_head(width, height, rows=b"".join([*(packer.compress(row) for _ in range(height)), packer.flush()]))


def animation(frames: int) -> bytes:
    """Return a GIF whose first frame is red, with so many blue ones behind it."""
    target = io.BytesIO()
    first, second, third = (Image.new("P", (4, 4), number) for number in range(3))
    for each in (first, second, third):
        each.putpalette([255, 0, 0, 0, 0, 255, 0, 255, 0] + [0] * 759)
    first.save(target, "GIF", save_all=True, append_images=[second, third], duration=20)
    made = target.getvalue()
    # A frame begins with its graphic control extension; the second one is repeated.
    starts = [place for place in range(len(made)) if made.startswith(b"\x21\xf9\x04", place)]
    second_frame = made[starts[1] : starts[2]]
    return made[: starts[1]] + second_frame * (frames - 1) + b"\x3b"


def noise(size: int) -> bytes:
    """Return a PNG of about so many bytes, which no compression makes smaller."""
    side = int((size / 3) ** 0.5)
    target = io.BytesIO()
    Image.frombytes("RGB", (side, side), os.urandom(3 * side * side)).save(target, "PNG", compress_level=0)
    return target.getvalue()
