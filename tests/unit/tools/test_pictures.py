"""Pictures, read in this process and in that of a `PictureReader`: good ones, and such as are made to do harm."""

import asyncio
import io
import os
import re
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
from PIL import Image

from responses_app.protocol.pictures import PictureUnreadable
from responses_app.tools.reading import pictures
from responses_app.tools.reading import processes as reader_module
from responses_app.tools.reading.pictures import UnreadablePicture, picture_of
from responses_app.tools.reading.processes import PictureReader
from tests.kit.pictures import animation, opened, picture, png_bomb, png_head

MOST = 50_000_000


def read(body: bytes, *, low: bool = False, most: int = MOST) -> dict[str, Any]:
    """Return the fields of a picture, and check that they are those of its bytes."""
    made = picture_of(body, low=low, max_pixels=most)
    shown = opened(made["content"])
    assert (shown.width, shown.height) == (made["width"], made["height"])
    assert made["media_type"] == f"image/{str(shown.format).lower()}"
    assert not {"exif", "icc_profile", "comment", "dpi", "Comment", "xmp"} & shown.info.keys()
    return made


@pytest.mark.parametrize(
    ("made_as", "media_type"),
    [("PNG", "image/png"), ("JPEG", "image/jpeg"), ("WEBP", "image/webp"), ("GIF", "image/png")],
)
def test_formats_are_told_by_content_and_written_anew(made_as: str, media_type: str) -> None:
    made = read(picture("#3366ff", (20, 10), made_as))
    assert (made["media_type"], made["width"], made["height"]) == (media_type, 20, 10)
    red, green, blue = opened(made["content"]).convert("RGB").getpixel((5, 5))  # type: ignore[misc]
    assert abs(red - 0x33) + abs(green - 0x66) + abs(blue - 0xFF) < 12
    assert read(picture("#3366ff", (20, 10), made_as))["content"] == made["content"], "the same bytes each time"


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16", "CMYK"])
def test_pixels_of_any_kind_become_plain_ones(mode: str) -> None:
    source = Image.new("I;16", (4, 4), 65535) if mode == "I;16" else Image.new("RGBA", (4, 4), "#ffffff").convert(mode)
    target = io.BytesIO()
    source.save(target, "JPEG" if mode == "CMYK" else "PNG")
    shown = opened(read(target.getvalue())["content"])
    assert shown.mode == ("RGBA" if mode in ("LA", "P", "RGBA") else "RGB")
    assert shown.convert("RGB").getpixel((0, 0)) == (255, 255, 255)


def test_what_stands_beside_the_pixels_is_dropped_and_the_picture_is_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    exif[0x010F] = "a camera of somebody"
    for made_as in ("JPEG", "PNG", "WEBP"):
        made = read(picture(size=(20, 10), made_as=made_as, exif=exif))
        assert (made["width"], made["height"]) == (10, 20)
        assert b"camera" not in made["content"]
    commented = picture(made_as="JPEG", comment=b"secret", icc_profile=b"profile" * 10, dpi=(300, 300))
    assert b"secret" not in read(commented)["content"]
    assert read(picture(made_as="JPEG", exif=b"Exif\0\0nothing that can be read"))["width"] == 8


def test_low_detail_scales_down_and_nothing_else_does() -> None:
    wide = picture(size=(2048, 1024), made_as="JPEG")
    assert (read(wide)["width"], read(wide, low=True)["width"], read(wide, low=True)["height"]) == (2048, 512, 256)
    assert read(picture(size=(100, 600)), low=True)["height"] == 512
    assert read(picture(), low=True)["content"] == read(picture())["content"]


def test_one_pixel_transparency_and_the_first_of_ten_thousand_frames() -> None:
    assert read(picture(size=(1, 1)))["width"] == 1
    clear = picture("#00ff0000", mode="RGBA")
    assert opened(read(clear)["content"]).getpixel((0, 0)) == (0, 255, 0, 0)
    film = animation(10_000)
    assert opened(read(film)["content"]).convert("RGB").getpixel((0, 0)) == (255, 0, 0)


@pytest.mark.parametrize("made_as", ["PNG", "GIF"])
@pytest.mark.parametrize("mode", ["P", "L", "RGB"])
def test_a_colour_that_is_transparent_stays_so(mode: str, made_as: str) -> None:
    source, target = Image.new("RGB", (4, 4), "#000000").convert(mode), io.BytesIO()
    source.save(target, made_as, transparency=(0, 0, 0) if (mode, made_as) == ("RGB", "PNG") else 0)
    assert opened(read(target.getvalue())["content"]).getpixel((0, 0))[3] == 0  # type: ignore[index]


def test_of_the_pictures_that_a_phone_writes_into_one_jpeg_the_first_is_seen() -> None:
    target = io.BytesIO()
    more = [Image.new("RGB", (6, 4), "#00ff00")]
    Image.new("RGB", (12, 8), "#ff0000").save(target, "MPO", save_all=True, append_images=more)
    for low in (True, False):
        made = read(target.getvalue(), low=low)
        assert (made["media_type"], made["width"], made["height"]) == ("image/jpeg", 12, 8)
        assert opened(made["content"]).getpixel((1, 1))[0] > 250  # type: ignore[index]


def test_what_hides_behind_or_before_a_picture_is_gone_or_refused() -> None:
    page = b"<html><script>alert(1)</script></html>PK\x03\x04"
    assert page not in read(picture() + page)["content"]
    with pytest.raises(UnreadablePicture, match="not an image"):
        read(b"%PDF-1.7\n" + picture())


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not an image"),
        (b"no picture at all", "not an image"),
        (b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00", "HEIC"),
        (b"\x00\x00\x00\x18ftypavif\x00\x00\x00\x00", "AVIF"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
        (b"\xef\xbb\xbf\n<?xml version='1.0'?><svg/>", "SVG"),
        (picture(made_as="BMP"), "not an image"),
        (picture(made_as="TIFF"), "not an image"),
        (png_head(20_000, 20_000), "20,000 × 20,000 pixels, and this server reads at most 50,000,000"),
        (png_head(0x7FFFFFFF, 0x7FFFFFFF), "at most 50,000,000"),
        (picture(size=(64, 64))[:60], "damaged, or incomplete"),
        (picture(size=(64, 64), made_as="JPEG")[:400], "damaged, or incomplete"),
        (picture(size=(64, 64), made_as="WEBP")[:30], "damaged, or incomplete"),
        (png_head(64, 64), "damaged, or incomplete"),
        (b"GIF89a\xff\xff\xff\xff", "damaged, or incomplete|at most|not an image"),
    ],
    ids=lambda value: value[:16] if isinstance(value, str) else "",
)
def test_what_cannot_be_read_says_why(body: bytes, reason: str) -> None:
    said = pictures.answer({"low": False, "max_pixels": MOST}, body)
    assert set(said) == {"message"}
    assert re.search(reason, said["message"]), said["message"]
    assert "/" not in said["message"], "nothing of this machine"


@pytest.fixture
async def reader() -> AsyncIterator[PictureReader]:
    reader = PictureReader(max_pixels=MOST)
    yield reader
    await reader.aclose()


async def test_a_process_reads_one_picture_after_the_other(reader: PictureReader) -> None:
    made = await reader.read(picture(), low=False)
    assert (made.media_type, made.width, made.height) == ("image/png", 8, 8)
    with pytest.raises(PictureUnreadable, match="SVG"):
        await reader.read(b"<svg/>", low=False)
    first = reader.pids
    both = await asyncio.gather(*(reader.read(picture(size=(9, 9)), low=low) for low in (True, False)))
    assert [each.width for each in both] == [9, 9]
    assert set(first) < set(reader.pids)


async def test_the_end_of_a_process_is_not_the_fault_of_the_next_picture(reader: PictureReader) -> None:
    await reader.read(picture(), low=False)
    [pid] = reader.pids
    os.kill(pid, signal.SIGKILL)
    # Nothing is awaited in between: nobody has noticed.
    assert (await reader.read(picture(), low=False)).width == 8
    assert reader.pids != [pid]


async def test_a_bomb_takes_bounded_memory_and_time(reader: PictureReader, monkeypatch: pytest.MonkeyPatch) -> None:
    # 1.2 GB of pixels in 1.2 MB: more than the process may take, and refused by its head with the usual bound.
    bomb = png_bomb(20_000, 2_500)
    reader._max_pixels = MOST - 1
    with pytest.raises(PictureUnreadable, match="scale it down"):
        await reader.read(bomb, low=False)
    slow = PictureReader(max_pixels=MOST, seconds=0.01)
    monkeypatch.setattr(reader_module, "START_SECONDS", 0.0)
    with pytest.raises(PictureUnreadable, match="in time"):
        await slow.read(bomb, low=True)
    assert slow.pids == [], "its process is gone"


async def test_a_process_that_breaks_or_has_taken_all_memory_harms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "PICTURES", "tests.unit.tools.documents.greedy")
    reader = PictureReader(max_pixels=MOST)
    with pytest.raises(PictureUnreadable, match="broke the program"):
        await reader.read(b"crash", low=False)
    with pytest.raises(PictureUnreadable, match="more memory"):
        await reader.read(b"memory", low=False)
    await reader.aclose()
