"""Base64 of clients: as it should be, in lines, and such as is made to take memory and time."""

import tracemalloc
from base64 import b64encode

import pytest

from responses_app.protocol.items import media
from responses_app.protocol.items.media import decoded


@pytest.mark.parametrize("size", [0, 1, 2, 3, 11, 12, 13, 50])
def test_it_is_decoded_piece_by_piece_and_may_be_broken_into_lines(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(media, "_PIECE", 8)
    content = bytes(range(200, 200 + size))
    text = b64encode(content).decode()
    assert decoded(text) == content
    assert decoded("".join(f"{each}\r\n" for each in text)) == content
    # Its end within what it says.
    assert decoded("AAAAAA==AAAA") is None
    assert [decoded(each) for each in ("%89PNG", "A", "ÄAAA", "\ud800AAA")] == [None] * 4


def test_white_space_without_end_takes_no_more_memory_than_other_data() -> None:
    text = "AB " * 1_000_000
    tracemalloc.start()
    try:
        assert decoded(text) is not None
        assert tracemalloc.get_traced_memory()[1] < 3 * len(text)
    finally:
        tracemalloc.stop()
