"""What `image_generation` takes of a request, and which images a conversation has for it to edit."""

import pytest

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.requests.server_tools import SentImage, newest_images, parse_server_tool, sent_images
from tests.unit.protocol.refusals import refusal

DRAW: JsonObject = {"type": "image_generation"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("size", "big"),
        ("size", "0x10"),
        ("quality", "best"),
        ("output_format", "bmp"),
        ("output_format", "svg"),
        ("background", 1),
        ("partial_images", 4),
        ("partial_images", True),
        ("output_compression", 101),
        ("action", "draw"),
        ("frame_count", 3),
        ("svg", {"model": "m"}),
        ("complexity", "low"),
        ("input_image_mask", {"file_id": 1}),
        ("input_image_mask", {}),
        ("input_image_mask", {"image_url": "https://example.com/a.png"}),
    ],
)
def test_what_it_does_not_take_is_named(field: str, value: object) -> None:
    error = refusal(parse_server_tool, {**DRAW, field: value}, "tools[0]")
    assert (error.param or "").startswith(f"tools[0].{field}")
    assert error.status == 400


def test_the_newest_images_come_first_and_what_has_none_is_passed_over() -> None:
    made: JsonObject = {"type": "image_generation_call", "id": "ig_1"}
    failed: JsonObject = {"type": "image_generation_call", "id": "ig_2", "status": "failed"}
    part = {"type": "input_image", "image_url": "DATA:image/PNG;base64,AAAA"}
    elsewhere = {"type": "input_image", "image_url": "https://a.example/a.png"}
    sent: JsonObject = {
        "role": "user",
        "content": [part, elsewhere, {"type": "input_image", "file_id": "file_1"}, None],
    }
    others: list[JsonObject] = [{"role": "user", "content": "text"}, {"role": "user", "content": [elsewhere]}, {}]
    assert list(newest_images([made, failed, sent, *others])) == [sent, made]
    assert sent_images(sent) == [SentImage(data="AAAA"), SentImage(file_id="file_1")]
