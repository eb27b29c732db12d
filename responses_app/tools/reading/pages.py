"""`WebPage`: what the model sees of the web: numbered lines, links by number, and where on the page it is.

The words are those that gpt-oss was trained on:

    [3] Turtles (https://example.com/turtles)
    **viewing lines [0 - 41] of 120**

    L0: # Turtles
    L1: Turtles are 【0†reptiles†en.wikipedia.org】 with a shell.

`[3]` is the cursor: how many pages were shown before this one in the chain, results of searches and of `find` included.
The model opens a link by its number, and cites a page as `【3†L0-L1】`.

What a document says: HTML or plain text in, numbered lines and links out. Runs as a process of its own.

    python -m responses_app.tools.reading.pages

Headers have `url`, `content_type` and `charset`, answers `title`, `lines`, `links` and `truncated`, or `error` (see
`reading_process`). `PageReader` has such processes. A document of 200 KB takes about 20 ms.
"""

import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urljoin, urlsplit

from responses_app.tools.reading.processes import serve

if TYPE_CHECKING:
    from resiliparse.parse.html import ElementNode, HTMLTree

WIDTH = 80  # columns of a line
BYTES_PER_TOKEN = 4  # of UTF-8, about: a view is bounded by bytes, so that no tokeniser is needed
MAX_MATCHES = 50  # that `find` shows
MATCH_LINES = 4  # that it shows of each
MAX_TITLE = 200  # characters
MAX_SHOWN_URL = 1024  # characters
# `【3†text†domain】` or `【3†text】`: the text is the first group.
_LINK = re.compile(r"【\d+†([^†】]*)(?:†[^†】]*)?】")
_CUT_BEFORE = re.compile(r"^[^【】]*】")  # the end of a link that began on the line before
_CUT_BEHIND = re.compile(r"【(?:\d+(?:†([^†】]*)(?:†[^†】]*)?)?)?$")  # the beginning of one that goes on
# Control characters, characters without width, and half characters.
_INVISIBLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u2060\ufeff\ud800-\udfff]")
_BLANKS = re.compile(r"\n{3,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WebPage:
    """Something that was read of the web; its lines are numbered from 0."""

    url: str  # its address behind all redirects; "" for results of a search
    title: str
    lines: Sequence[str]  # of at most `WIDTH` columns, links in them by number
    links: Sequence[str] = ()  # URLs, by the numbers under which the lines show them
    truncated: bool = False  # it goes on, but nobody has read further
    is_list: bool = False  # it lists results of a search, or matches of `find`
    matches: Sequence[int] = ()  # of `find`: the lines of the matches, on the page that they were found on

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

    def find(self, pattern: str) -> "WebPage":
        """Return a page with the places where a text stands, whatever its case."""
        text = pattern.lower()
        matches: list[str] = []
        places: list[int] = []
        plain = [without_links(line) for line in self.lines]
        number = 0
        while number < len(plain) and len(places) < MAX_MATCHES:
            if text not in plain[number].lower():
                number += 1
                continue
            matches += ["", f"# 【{len(places)}†match at L{number}】", *plain[number : number + MATCH_LINES]]
            places.append(number)
            # Behind what was shown: two matches within a few lines are one.
            number += MATCH_LINES
        lines = matches[1:] or wrapped(f"No `find` results for pattern: `{escaped(pattern)}`")
        title = f"Find results for text: `{escaped(pattern)}` in `{self.title}`"
        links = [self.url] * len(places)
        return WebPage(url=self.url, title=one_line(title), lines=lines, links=links, is_list=True, matches=places)


def escaped(text: str) -> str:
    """Return a text as a page may show it: without what the model reads as links and citations."""
    # Replaced one after the other: `translate` looks each character of a page up, and takes a hundred times as long.
    return _INVISIBLE.sub("", text.replace("【", "〖").replace("】", "〗"))


def one_line(text: str) -> str:
    """Return a text as one short line."""
    words = " ".join(text.split())
    return words if len(words) <= MAX_TITLE + MAX_SHOWN_URL else words[: MAX_TITLE + MAX_SHOWN_URL - 1] + "…"


def link(number: int, text: str, domain: str = "") -> str:
    """Return how a link is shown; `domain` is where it leads, if that is elsewhere."""
    # `†` separates the parts of a link.
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
    # A link may be cut by a line end: what is left of it on this line is text.
    line = _CUT_BEHIND.sub(lambda cut: cut[1] or "", _CUT_BEFORE.sub("", line))
    return _LINK.sub(lambda whole: whole[1], line)


def _wrapped_lines(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        if len(stripped := line.rstrip()) <= WIDTH:
            yield stripped
        else:
            yield from _wrapped(stripped)


def _wrapped(line: str) -> Iterator[str]:
    start = 0
    while len(line) - start > WIDTH:
        # The last space that still leaves the line narrow enough; without one a word is cut.
        space = line.rfind(" ", start + 1, start + WIDTH + 1)
        end = space if space > 0 else start + WIDTH
        yield line[start:end]
        start = end + (space > 0)
    yield line[start:]


MAX_LINES = 20_000  # of one document; more are not read
MAX_LINKS = 2000  # of one document; more are shown as text
MAX_LINK_URL = 2048  # characters
MAX_LINK_TEXT = 300  # characters
CPU_SECONDS = 15  # for one document
MEMORY_BYTES = 2 * 1024**3  # of address space
_MIN_TEXT = 250  # characters: a page that says less is read with what stands around its text
_AROUND = ["nav", "footer", "dialog", "[role=navigation]", "[role=contentinfo]", "[aria-hidden=true]"]
_BEGINNING = 1024  # bytes that are looked at where nothing says what a document is
_HTML = ("text/html", "application/xhtml+xml")
_TEXT = ("application/json", "application/xml", "application/javascript", "application/x-ndjson", "application/yaml")
_NO_KIND = ("", "application/octet-stream")  # the server says nothing: then the document itself is looked at


class Unreadable(Exception):
    """A document is nothing that can be shown as text; the text says what it is."""


@dataclass(frozen=True, slots=True)
class Document:
    """What a document says."""

    title: str
    lines: list[str]
    links: list[str] = field(default_factory=list)  # URLs, by the numbers that the lines show
    truncated: bool = False  # it goes on behind the last line


def read_document(body: bytes, *, url: str, content_type: str = "", charset: str | None = None) -> Document:
    """Return what a document says. Raises `Unreadable`."""
    is_html = _is_html(content_type, body)
    text = decoded(body, charset, is_html=is_html)
    if is_html:
        from resiliparse.parse.html import HTMLTree

        tree = HTMLTree.parse(text)
        title = escaped(one_line(tree.title or ""))[:MAX_TITLE] or domain_of(url)
        links = _Links(url)
        links.mark(tree)
        lines, truncated = lines_of(links.shown(escaped(said_by(tree))), max_lines=MAX_LINES)
        return Document(title, lines, links.urls, truncated)
    lines, truncated = lines_of(escaped(text.replace("\r\n", "\n").replace("\t", "    ")), max_lines=MAX_LINES)
    return Document(domain_of(url), lines, truncated=truncated)


def _is_html(content_type: str, body: bytes) -> bool:
    if content_type in _HTML:
        return True
    # `application/ld+json` and its like are text.
    if content_type.startswith("text/") or content_type in _TEXT or content_type.endswith(("+json", "+xml")):
        return False
    if content_type not in _NO_KIND or b"\x00" in body[:_BEGINNING]:
        raise Unreadable(f"It is {content_type[:80] or 'binary'}, which is not text.")
    beginning = body[:_BEGINNING].lower()
    return b"<html" in beginning or b"<!doctype html" in beginning


def decoded(body: bytes, charset: str | None = None, *, is_html: bool = False) -> str:
    """Return the text of a document."""
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding

    with suppress(UnicodeDecodeError, LookupError):  # what is UTF-8 is so by no chance; the server may be wrong
        return body.decode(charset or "utf-8")
    known = detect_encoding(body, from_html_meta=is_html) or "utf-8"
    return str(bytes_to_str(body, known, errors="replace"))


def said_by(tree: "HTMLTree") -> str:
    """Return the text of a page, without what stands around it."""
    from resiliparse.extract.html2text import extract_plain_text

    # The library can also look for the main part, but leaves out lists and tables of it.
    text = str(extract_plain_text(tree, skip_elements=_AROUND))
    return text if len(text) >= _MIN_TEXT else str(extract_plain_text(tree))  # else a page of links


class _Links:
    """The links of a page: marked in its tree, and shown in what is read of that.

    The marks are chosen by chance, since a page may hold anything, the model's own brackets included.
    """

    def __init__(self, url: str) -> None:
        self.urls: list[str] = []  # by the numbers under which they are shown
        self._numbers: dict[str, int] = {}  # of the URLs, so that each has one number
        self._url = url
        self._domain = domain_of(url)
        mark = secrets.token_hex(6)
        self._open, self._end = f"<{mark}:", f":{mark}>"

    def mark(self, tree: "HTMLTree") -> None:
        """Put marks around what links show."""
        # A page may say from where its links are to be read.
        base = next((str(node.getattr("href")) for node in _with_href(tree, "base")), "")
        where = _joined(self._url, base) or self._url
        targets: dict[str, str] = {}  # of what links say: pages lead to the same place again and again
        for node in _with_href(tree, "a"):
            text, href = one_line(node.text)[:MAX_LINK_TEXT], str(node.getattr("href"))
            if href not in targets:
                targets[href] = _joined(where, href)
            number = self._number(targets[href]) if text and targets[href] else None
            if number is not None:
                node.text = f"{self._open}{number}:{text}{self._end}"

    def shown(self, text: str) -> str:
        """Return a text with its links as the model reads them."""
        marked = re.compile(f"{re.escape(self._open)}([0-9]+):(.*?){re.escape(self._end)}", re.DOTALL)
        return marked.sub(self._show, text)

    def _show(self, match: re.Match[str]) -> str:
        number = int(match[1])
        domain = domain_of(self.urls[number])
        return link(number, one_line(match[2]), "" if domain == self._domain else domain)

    def _number(self, target: str) -> int | None:
        if target not in self._numbers:
            if len(self.urls) == MAX_LINKS:
                return None
            self._numbers[target] = len(self.urls)
            self.urls.append(target)
        return self._numbers[target]


def _with_href(tree: "HTMLTree", tag: str) -> "list[ElementNode]":
    """Return the elements of this tag that have an `href`, in the order of the document."""
    # All at once: the library finds the nth by counting from the first, and a walk over all nodes takes 4 µs for each.
    return [node for node in tree.document.get_elements_by_tag_name(tag).values() if node.getattr("href")]


def _joined(base: str, target: str) -> str:
    """Return where a link leads, "" where that is nowhere in the web, or on the same page."""
    if not target or target.startswith("#"):
        return ""
    try:
        url = urljoin(base, target.strip())
    except ValueError:
        return ""
    return url if url.startswith(("http://", "https://")) and len(url) <= MAX_LINK_URL else ""


def answer(header: dict[str, Any], body: bytes) -> dict[str, Any]:
    """Return what a document says, or why it cannot be read, as JSON."""
    try:
        document = read_document(body, **header)
    except Unreadable as problem:
        return {"error": str(problem)}
    except Exception:  # noqa: BLE001 - whatever a parser raises, the next document is to be read
        return {"error": "It cannot be read."}
    # Not by `asdict`, which copies each line of a document.
    return {each.name: getattr(document, each.name) for each in fields(document)}


if __name__ == "__main__":
    serve(answer, cpu_seconds=CPU_SECONDS, memory=MEMORY_BYTES)
