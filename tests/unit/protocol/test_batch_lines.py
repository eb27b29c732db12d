"""The input of a batch is read as it comes, in pieces of any size, in bounded memory."""

import json
import random

import orjson
import pytest

from responses_app.protocol.errors import model_not_found
from responses_app.resources.batches.lines import InputLines, NewLine


def lines_of(max_lines: int = 100, max_line_bytes: int = 1000) -> InputLines:
    def check(model: str | None) -> None:
        if model == "none":
            raise model_not_found(model, [])

    return InputLines(
        "/v1/responses", max_lines=max_lines, max_line_bytes=max_line_bytes, loads=orjson.loads, check_model=check
    )


def raw(custom_id: str, **body: object) -> bytes:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/responses", "body": body}).encode()


def read(lines: InputLines, content: bytes, seed: int | None = None) -> list[NewLine]:
    """Return the lines of an input that comes in pieces."""
    pieces, chance = list[bytes](), random.Random(seed)
    while content:
        size = len(content) if seed is None else chance.randrange(1, 50)
        pieces.append(content[:size])
        content = content[size:]
    return [line for piece in pieces for line in lines.feed(piece)] + lines.end()


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n\n \n"])
def test_any_pieces_give_the_same_lines(seed: int | None, end: bytes) -> None:
    content = (
        b"\xef\xbb\xbf" + b"\r\n\n".join(raw(f"{number} \u00e9", input="x" * number) for number in range(20)) + end
    )
    lines = lines_of()
    found = read(lines, content, seed)
    assert not lines.errors
    assert lines.total == 20
    assert [line.custom_id for line in found] == [f"{number} \u00e9" for number in range(20)]
    assert [line.number for line in found] == [1 + 2 * number for number in range(20)], "empty lines count"
    assert orjson.loads(found[3].body) == {"input": "xxx"}


def test_a_line_that_never_ends_is_not_kept() -> None:
    lines = lines_of(max_line_bytes=1000)
    for _ in range(1000):
        assert lines.feed(b"x" * 1000) == []
        if lines.is_over:
            break
    assert len(lines.rest) < 3000
    assert [(error["code"], error["line"]) for error in lines.errors] == [("line_too_long", 1)]


@pytest.mark.parametrize("size", [1, 1000, 1 << 20])
def test_empty_lines_are_bounded(size: int) -> None:
    lines = lines_of(max_lines=100)
    looked = 0
    for _ in range(0, 20 << 20, size):
        assert lines.feed(b"\n" * size) == []
        looked += 1
        if lines.is_over:
            break
    assert looked <= 101
    assert lines._number <= 101
    assert lines.end() == []
    assert [(error["code"], error["line"]) for error in lines.errors] == [("too_many_tasks", 101)]


def test_so_many_errors_are_told() -> None:
    lines = lines_of(max_lines=1000)
    assert read(lines, b"nonsense\n" * 500) == []
    assert (len(lines.errors), lines.is_over) == (100, True)


@pytest.mark.parametrize(
    ("content", "found", "told"),
    [
        ([raw("a"), b"{", raw("b"), raw("a")], ["a"], ["2 invalid_json_line None", "4 duplicate_custom_id custom_id"]),
        (
            [b"{", raw("a", model=7), raw("b", model="m"), raw("c", model="m"), raw("d", model="n")],
            *([], ["1 invalid_json_line None", "2 invalid_value body.model", "5 model_mismatch body.model"]),
        ),
        ([raw("a", input="X").replace(b'"X"', b"[" * 400 + b"]" * 400)], [], ["1 invalid_value body"]),
    ],
    ids=["no line is given behind a wrong one", "the model is that of the first line", "nested too deeply"],
)
def test_what_is_wrong_is_told(content: list[bytes], found: list[str], told: list[str]) -> None:
    lines = lines_of(max_line_bytes=10_000)
    assert [line.custom_id for line in read(lines, b"\n".join(content))] == found
    assert [f"{error['line']} {error['code']} {error['param']}" for error in lines.errors] == told
