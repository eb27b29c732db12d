"""What a document says: HTML or plain text in, numbered lines and links out. Runs as a process of its own.

    python -m responses_app.tools.reading.extraction

Headers have `url`, `content_type` and `charset`, answers `title`, `lines`, `links` and `truncated`, or `error` (see
`reading_process`). `PageReader` has such processes. A document of 200 KB takes about 20 ms.
"""

import re
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

from responses_app.tools.reading.pages import MAX_TITLE, domain_of, escaped, lines_of, link, one_line
from responses_app.tools.reading_process import serve

if TYPE_CHECKING:
    from resiliparse.parse.html import HTMLTree

MAX_LINES = 20_000
MAX_LINKS = 2000
MAX_LINK_URL = 2048  # characters
MAX_LINK_TEXT = 300  # characters
CPU_SECONDS = 15  # for one document
MEMORY_BYTES = 2 * 1024**3  # of address space
_MIN_TEXT = 250  # characters: a page that says less is read with what stands around its text
_AROUND = ["nav", "footer", "dialog", "[role=navigation]", "[role=contentinfo]", "[aria-hidden=true]"]
_BEGINNING = 1024  # bytes that are looked at where nothing says what a document is
_HTML = ("text/html", "application/xhtml+xml")
_TEXT = ("application/json", "application/xml", "application/javascript", "application/x-ndjson", "application/yaml")
_NO_KIND = ("", "application/octet-stream")  # told nothing: then the document itself is looked at


class Unreadable(Exception):
    """A document is nothing that can be shown as text; the text says what it is."""


@dataclass(frozen=True, slots=True)
class Document:
    """What a document says."""

    title: str
    lines: list[str]
    links: list[str] = field(default_factory=list)
    truncated: bool = False


def read_document(body: bytes, *, url: str, content_type: str = "", charset: str | None = None) -> Document:
    """Return what a document says. Raises `Unreadable`."""
    is_html = _is_html(content_type, body)
    text = decoded(body, charset, is_html=is_html)
    if is_html:
        return _read_html(text, url)
    lines, truncated = lines_of(escaped(text.replace("\r\n", "\n").replace("\t", "    ")), max_lines=MAX_LINES)
    return Document(domain_of(url), lines, truncated=truncated)


def _is_html(content_type: str, body: bytes) -> bool:
    if content_type in _HTML:
        return True
    if content_type.startswith("text/") or content_type in _TEXT or content_type.endswith(("+json", "+xml")):
        return False
    if content_type not in _NO_KIND or b"\x00" in body[:_BEGINNING]:
        raise Unreadable(f"It is {content_type[:80] or 'binary'}, which is not text.")
    beginning = body[:_BEGINNING].lower()
    return b"<html" in beginning or b"<!doctype html" in beginning


def decoded(body: bytes, charset: str | None = None, *, is_html: bool = False) -> str:
    """Return the text of a document."""
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding

    with suppress(UnicodeDecodeError, LookupError):  # what is UTF-8 is so by no chance; what is told may be wrong
        return body.decode(charset or "utf-8")
    known = detect_encoding(body, from_html_meta=is_html) or "utf-8"
    return str(bytes_to_str(body, known, errors="replace"))


def _read_html(text: str, url: str) -> Document:
    from resiliparse.parse.html import HTMLTree

    tree = HTMLTree.parse(text)
    title = escaped(one_line(tree.title or ""))[:MAX_TITLE] or domain_of(url)
    links = _Links(url)
    links.mark(tree)
    lines, truncated = lines_of(links.shown(escaped(said_by(tree))), max_lines=MAX_LINES)
    return Document(title, lines, links.urls, truncated)


def said_by(tree: "HTMLTree") -> str:
    """Return the text of a page, without what stands around it."""
    from resiliparse.extract.html2text import extract_plain_text

    # The library can also look for the main part, but leaves out lists and tables of it.
    said = str(extract_plain_text(tree, skip_elements=_AROUND))
    return said if len(said) >= _MIN_TEXT else str(extract_plain_text(tree))  # else a page of links


class _Links:
    """The links of a page: marked in its tree, and shown in what is read of that.

    The marks are chosen by chance, since a page may hold anything, the model's own brackets included.
    """

    def __init__(self, url: str) -> None:
        self.urls: list[str] = []
        self._numbers: dict[str, int] = {}
        self._url = url
        self._domain = domain_of(url)
        mark = secrets.token_hex(6)
        self._open, self._end = f"<{mark}:", f":{mark}>"

    def mark(self, tree: "HTMLTree") -> None:
        """Put marks around what links show."""
        # In one walk: the tree's own queries look for the nth element by counting from the first.
        nodes = [node for node in tree.document if node.tag in ("a", "base") and node.getattr("href")]
        base = next((node.getattr("href") for node in nodes if node.tag == "base"), "")
        where = _joined(self._url, base) or self._url
        for node in nodes:
            text, target = one_line(node.text)[:MAX_LINK_TEXT], _joined(where, node.getattr("href"))
            number = self._number(target) if text and target else None
            if number is not None:
                node.text = f"{self._open}{number}:{text}{self._end}"

    def shown(self, text: str) -> str:
        """Return a text with its links as the model reads them."""
        marked = re.compile(f"{re.escape(self._open)}([0-9]+):(.*?){re.escape(self._end)}", re.DOTALL)
        return marked.sub(self._show, text)

    def _show(self, found: re.Match[str]) -> str:
        number = int(found[1])
        domain = domain_of(self.urls[number])
        return link(number, one_line(found[2]), "" if domain == self._domain else domain)

    def _number(self, target: str) -> int | None:
        if target not in self._numbers:
            if len(self.urls) == MAX_LINKS:
                return None
            self._numbers[target] = len(self.urls)
            self.urls.append(target)
        return self._numbers[target]


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
        return asdict(read_document(body, **header))
    except Unreadable as problem:
        return {"error": str(problem)}
    except Exception:  # noqa: BLE001 - whatever a parser raises, the next document is to be read
        return {"error": "It cannot be read."}


if __name__ == "__main__":
    serve(answer, cpu_seconds=CPU_SECONDS, memory=MEMORY_BYTES)
