"""What the model sees of a page: lines, links, matches, in the words it was trained on."""

import pytest

from responses_app.tools.reading.pages import WebPage, escaped, lines_of, link, without_links, wrapped

PAGE = WebPage(
    url="https://example.com/a%20b",
    title="A  title\nof two lines",
    lines=["Turtles are 【0†reptiles†en.wikipedia.org】.", "", "A shell", "protects", "a turtle.", "The end"],
    links=["https://en.wikipedia.org/wiki/Reptile"],
)


def test_a_view_has_a_cursor_a_place_and_numbered_lines() -> None:
    assert PAGE.view(3, max_bytes=1000).split("\n") == [
        "[3] A title of two lines (https://example.com/a b)",
        "**viewing lines [0 - 5] of 5**",
        "",
        "L0: Turtles are 【0†reptiles†en.wikipedia.org】.",
        "L1: ",
        "L2: A shell",
        "L3: protects",
        "L4: a turtle.",
        "L5: The end",
    ]


@pytest.mark.parametrize(
    ("start", "count", "max_bytes", "shown"),
    [(2, 2, 1000, "2 - 3"), (4, 50, 1000, "4 - 5"), (2, 0, 30, "2 - 3"), (0, 0, 1, "0 - 0"), (5, 3, 1000, "5 - 5")],
)
def test_a_view_ends_with_its_lines_or_its_bytes(start: int, count: int, max_bytes: int, shown: str) -> None:
    view = PAGE.view(0, start=start, count=count, max_bytes=max_bytes)
    assert f"**viewing lines [{shown}] of 5**" in view


def test_find_shows_where_a_text_stands_whatever_its_case_and_without_links() -> None:
    found = PAGE.find("TURTLE")
    assert (found.url, found.links, found.is_list) == (PAGE.url, [PAGE.url] * 2, True)
    assert found.lines == [
        "# 【0†match at L0】",
        "Turtles are reptiles.",
        "",
        "A shell",
        "protects",
        "",
        "# 【1†match at L4】",
        "a turtle.",
        "The end",
    ]
    assert found.title == "Find results for text: `TURTLE` in `A title of two lines`"
    assert PAGE.find("【0†x】").lines == ["No `find` results for pattern: `〖0†x〗`"]
    assert PAGE.find("0†reptiles").lines[0].startswith("No `find` results")


def test_find_shows_no_more_than_fifty() -> None:
    page = WebPage(url="u", title="t", lines=["word"] * 1000)
    assert len(page.find("word").links) == 50


def test_long_lines_are_wrapped_at_words_and_nothing_is_lost() -> None:
    line = "word " * 100 + "x" * 200
    parts = wrapped(line)
    assert max(map(len, parts)) <= 80
    assert "".join(part + " " for part in parts).split()[:100] == ["word"] * 100
    assert "".join(parts).endswith("x" * 200)
    assert wrapped("") == [""]
    assert wrapped("y" * 80) == ["y" * 80]


def test_a_text_has_no_more_lines_than_allowed() -> None:
    assert lines_of("a\n\n\n\nb\nc", max_lines=10) == (["a", "", "b", "c"], False)
    assert lines_of("a\nb\nc", max_lines=2) == (["a", "b"], True)
    assert lines_of("", max_lines=2) == ([""], False)


def test_pages_cannot_forge_links() -> None:
    assert escaped("【0†x】\x00\u200b\ud800ok") == "〖0†x〗ok"
    assert link(2, "a†b【c】", "d.example") == "【2†a‡b〖c〗†d.example】"


@pytest.mark.parametrize(
    ("line", "plain"),
    [
        ("a 【0†b†c】 d 【12†e】", "a b d e"),
        ("end of one】 and 【3†the beginning", " and the beginning"),
        ("cut 【3", "cut "),
        ("【", ""),
    ],
)
def test_links_can_be_left_out(line: str, plain: str) -> None:
    assert without_links(line) == plain
