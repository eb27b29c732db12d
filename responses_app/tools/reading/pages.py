"""`Page`: what the model sees of the web: numbered lines, links by number, and where on the page it is.

The words are those that gpt-oss was trained on:

    [3] Turtles (https://example.com/turtles)
    **viewing lines [0 - 41] of 120**

    L0: # Turtles
    L1: Turtles are 【0†reptiles†en.wikipedia.org】 with a shell.

`[3]` is the cursor: how many pages were shown before this one in the chain, results of searches and of `find` included.
The model opens a link by its number, and cites a page as `【3†L0-L1】`.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

WIDTH = 80  # columns of a line
BYTES_PER_TOKEN = 4  # of UTF-8, about: a view is bounded by bytes, so that no tokeniser is needed
MAX_MATCHES = 50  # that `find` shows
MATCH_LINES = 4  # that it shows of each
MAX_TITLE = 200  # characters
MAX_SHOWN_URL = 1024  # characters
_LINK = re.compile(r"【\d+†([^†】]*)(?:†[^†】]*)?】")
_CUT_BEFORE = re.compile(r"^[^【】]*】")  # the end of a link that began on the line before
_CUT_BEHIND = re.compile(r"【(?:\d+(?:†([^†】]*)(?:†[^†】]*)?)?)?$")  # the beginning of one that goes on
_BRACKETS = str.maketrans({"【": "〖", "】": "〗"})  # a page cannot forge links, nor the model's citations
_INVISIBLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u2060\ufeff\ud800-\udfff]")
_BLANKS = re.compile(r"\n{3,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Something that was read of the web. `links` are URLs by the numbers under which its lines show them.

    `truncated`: it goes on, but nobody has read further. `is_list`: it lists results of a search or matches of `find`;
    `matches` are the lines of those, on the page that they were found on.
    """

    url: str
    title: str
    lines: Sequence[str]
    links: Sequence[str] = ()
    truncated: bool = False
    is_list: bool = False
    matches: Sequence[int] = ()

    def view(self, cursor: int, *, start: int = 0, count: int = 0, max_bytes: int) -> str:
        """Return what the model reads from line `start` on: `count` lines, or without one as many as `max_bytes` hold.

        More than `max_bytes` is never shown, but one line always is. `start` is on the page.
        """
        shown: list[str] = []
        left = max_bytes
        for number in range(start, min(len(self.lines), start + count) if count > 0 else len(self.lines)):
            line = f"L{number}: {self.lines[number]}"
            left -= len(line.encode()) + 1
            if left < 0 and shown:
                break
            shown.append(line)
        place = f"**viewing lines [{start} - {start + len(shown) - 1}] of {len(self.lines) - 1}**"
        return "\n".join([f"[{cursor}] {self.headline}", place, "", *shown])

    @property
    def headline(self) -> str:
        """Its title and its address, in one line."""
        address = unquote(self.url)[:MAX_SHOWN_URL] if self.url else ""
        return one_line(f"{self.title} ({address})" if address else self.title)

    def find(self, pattern: str) -> "Page":
        """Return a page with the places where a text stands, whatever its case."""
        wanted = pattern.lower()
        matches: list[str] = []
        found: list[int] = []
        plain = [without_links(line) for line in self.lines]
        number = 0
        while number < len(plain) and len(found) < MAX_MATCHES:
            if wanted not in plain[number].lower():
                number += 1
                continue
            matches += ["", f"# 【{len(found)}†match at L{number}】", *plain[number : number + MATCH_LINES]]
            found.append(number)
            number += MATCH_LINES
        lines = matches[1:] or wrapped(f"No `find` results for pattern: `{escaped(pattern)}`")
        title = f"Find results for text: `{escaped(pattern)}` in `{self.title}`"
        links = [self.url] * len(found)
        return Page(url=self.url, title=one_line(title), lines=lines, links=links, is_list=True, matches=found)


def escaped(text: str) -> str:
    """Return a text as a page may show it: without what the model reads as links and citations."""
    return _INVISIBLE.sub("", text.translate(_BRACKETS))


def one_line(text: str) -> str:
    """Return a text as one short line."""
    words = " ".join(text.split())
    return words if len(words) <= MAX_TITLE + MAX_SHOWN_URL else words[: MAX_TITLE + MAX_SHOWN_URL - 1] + "…"


def link(number: int, text: str, domain: str = "") -> str:
    """Return how a link is shown; `domain` is where it leads, if that is elsewhere."""
    shown = escaped(text).replace("†", "‡")
    return f"【{number}†{shown}†{domain}】" if domain else f"【{number}†{shown}】"


def domain_of(url: str) -> str:
    """Return the host of a URL, "" where it has none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def lines_of(text: str, *, max_lines: int) -> tuple[list[str], bool]:
    """Return a text as lines of at most `WIDTH` columns, and whether there were more than `max_lines`."""
    lines: list[str] = []
    for line in _wrapped_lines(_BLANKS.sub("\n\n", text)):
        if len(lines) == max_lines:
            return lines, True
        lines.append(line)
    return lines or [""], False


def wrapped(line: str) -> list[str]:
    """Return one line as lines of at most `WIDTH` columns; words are cut only where they are longer."""
    return list(_wrapped(line))


def without_links(line: str) -> str:
    """Return a line with links as the text that they show."""
    line = _CUT_BEHIND.sub(lambda cut: cut[1] or "", _CUT_BEFORE.sub("", line))
    return _LINK.sub(lambda whole: whole[1], line)


def _wrapped_lines(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        yield from _wrapped(line.rstrip())


def _wrapped(line: str) -> Iterator[str]:
    start = 0
    while len(line) - start > WIDTH:
        space = line.rfind(" ", start + 1, start + WIDTH + 1)
        end = space if space > 0 else start + WIDTH
        yield line[start:end]
        start = end + (space > 0)
    yield line[start:]
