"""Citations become links and annotations, however the text is cut; what only looks like one stays as it is."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_app.protocol.output.citations import (
    MAX_PAGES_BYTES,
    CitationReader,
    ListedPage,
    PageStack,
    Piece,
    ShownPage,
    Sources,
    annotation,
)
from responses_app.protocol.requests.server_tools import FoundFiles

TURTLES = ("https://example.com/turtles_(animals)", "Turtles")
STACK = PageStack(
    [
        ShownPage(
            kind="search",
            url="",
            title="turtles",
            listed=[ListedPage(2, "https://a.example/", "A"), ListedPage(5, "https://b.example/", "B")],
        ),
        ShownPage(kind="page", url=TURTLES[0], title=TURTLES[1]),
    ]
)
NO_FILES = FoundFiles(None).file
LINK = "([example.com](https://example.com/turtles_%28animals%29))"


def read(*parts: str) -> list[Piece]:
    """Return the pieces of a text that comes in parts."""
    reader = CitationReader(Sources(STACK.source, NO_FILES))
    pieces = [piece for part in parts for piece in reader.read(part)]
    rest = reader.rest()
    return [*pieces, Piece(rest)] if rest else pieces


def annotations(pieces: list[Piece]) -> list[dict[str, object]]:
    found, length = [], 0
    for piece in pieces:
        if piece.cites:
            found.append(annotation(length, piece))
        length += len(piece.text)
    return found


def test_a_citation_is_a_link_and_its_annotation_covers_it() -> None:
    pieces = read("Bone【1†L9-L11】. And 【1†L3】")
    text = "".join(piece.text for piece in pieces)
    assert text == f"Bone {LINK}. And {LINK}"
    first, second = annotations(pieces)
    assert first == {
        "type": "url_citation",
        "start_index": 5,
        "end_index": 5 + len(LINK),
        "url": TURTLES[0],
        "title": TURTLES[1],
    }
    assert text[second["start_index"] : second["end_index"]] == LINK  # type: ignore[misc]


def test_a_link_ends_neither_markdown_nor_json() -> None:
    stack = PageStack([ShownPage(kind="page", url='https://user@a.example:81/x"y\\z?q=(1)<2> 3', title="T")])
    (piece,) = CitationReader(Sources(stack.source, NO_FILES)).read("【0†L1】")
    assert piece.text == "([a.example](https://user@a.example:81/x%22y%5Cz?q=%281%29%3C2%3E%203))"


@pytest.mark.parametrize(("line", "title"), [(2, "A"), (4, "A"), (5, "B"), (99, "B")])
def test_a_line_of_a_list_cites_its_result(line: int, title: str) -> None:
    (found,) = annotations(read(f"x【0†L{line}-L{line + 1}】"))
    assert found["title"] == title


@pytest.mark.parametrize(
    "text",
    [
        "【】",
        "【0†L0】",  # above the first result
        "【7†L1】",  # never shown
        "【1†",
        "a【b】c",
        "【1】",
        "【1†L1\n】",
        "【" * 50,
        "【1†" + "x" * 300 + "】",
        "【999999999999†L1】",
        "日本【注】",
    ],
)
def test_everything_else_stays_as_it_was_written(text: str) -> None:
    for parts in ([text], list(text)):
        pieces = read(*parts)
        assert "".join(piece.text for piece in pieces) == text
        assert annotations(pieces) == []


def test_text_is_held_back_only_where_it_may_be_a_citation() -> None:
    reader = CitationReader(Sources(STACK.source, NO_FILES))
    assert reader.read("see 【1") == [Piece("see ")]
    assert reader.read("†L2") == []
    assert reader.read("】 now") == [Piece(LINK, TURTLES), Piece(" now")]
    assert reader.read("【x") == [Piece("【x")]
    assert reader.read("【") == []
    assert reader.read("【") == [Piece("【")]
    assert (reader.rest(), reader.rest()) == ("【", "")


@given(
    st.lists(st.sampled_from(["a", " ", "【", "1", "0", "†", "L3", "-L4", "】", "【1†L1】", "é", "\n"]), max_size=30)
)
def test_how_a_text_is_cut_changes_nothing(parts: list[str]) -> None:
    cut, whole = read(*parts), read("".join(parts))
    assert "".join(piece.text for piece in cut) == "".join(piece.text for piece in whole)
    assert annotations(cut) == annotations(whole)


def test_a_stack_is_kept_as_json_and_forgets_what_is_old() -> None:
    stack = PageStack.from_json(None)
    assert (stack.next_cursor, stack.at(-1), stack.at(0), stack.source(0, 0)) == (0, None, None, None)
    for number in range(500):
        results = [ListedPage(2 + place, f"https://{number}.example/{place}", "T" * 50) for place in range(20)]
        stack.push(ShownPage(kind="search", url="", title="q" * 500, listed=tuple(results)))
        stack.push(ShownPage(kind="find", url="https://x.example/", title="X", pattern="p"))
    again = PageStack.from_json(stack.as_json())
    assert len(orjson.dumps(stack.as_json())) < MAX_PAGES_BYTES
    assert again.next_cursor == stack.next_cursor == 1000
    assert again.at(5) is None
    assert again.at(999) == again.at(-1) == stack.at(-1)
    assert again.at(998) == stack.at(998)
    assert again.source(998, 3) == ("https://499.example/1", "T" * 50)
    kept = [bool(each.listed) for each in again.pages if each.kind == "search"]
    assert kept == sorted(kept)
    assert 5 < sum(kept) < len(kept)
    assert PageStack.from_json(again.as_json()) == again
    assert again.source(-1, 0) is None
