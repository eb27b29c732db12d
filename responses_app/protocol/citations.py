"""Citations in what the model says: `【3†L9-L11】` becomes a link that people can read, and an annotation.

    The shell is bone【3†L9-L11】.   ->   The shell is bone ([example.com](https://example.com/turtles)).

The annotation covers the link, in characters of the message's text. Text is held back from `【` on, until it is a
citation or cannot be one any more. A citation of a page that was never shown stays as it was written.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from responses_app.protocol.errors import JsonObject

MAX_CITATION = 128  # characters between the brackets
SourceOf = Callable[[int, int], tuple[str, str] | None]  # cursor and line -> address and title

_CITATION = re.compile(rf"【(\d{{1,9}})†(?:L(\d{{1,9}}))?[^【】\n]{{0,{MAX_CITATION}}}】")
_BEGINNING = re.compile(rf"【(?:\d{{0,9}}|\d{{1,9}}†[^【】\n]{{0,{MAX_CITATION}}})\Z")
# What would end a link of Markdown, or the string of an answer that is JSON.
_QUOTED = {ord(each): f"%{ord(each):02X}" for each in '() <>"\\'}
_HOST = re.compile(r"https?://(?:[^/?#@]*@)?(\[[^\]/]*\]|[^/?#:]+)", re.IGNORECASE)


class Piece(NamedTuple):
    """Text to be said; `source` is the address and the title of what it cites."""

    text: str
    source: tuple[str, str] | None = None


class CitationReader:
    """Reads one message as it is written. `source_of` knows what was shown."""

    def __init__(self, source_of: SourceOf) -> None:
        self._source_of = source_of
        self._held = ""
        self._last = " "  # the last character that was said

    def read(self, text: str) -> list[Piece]:
        """Take more text, and return what can be said now."""
        if not self._held and "【" not in text:  # nearly always
            self._last = text[-1:] or self._last
            return [Piece(text)] if text else []
        whole = self._held + text
        beginning = _BEGINNING.search(whole, max(0, whole.rfind("【")))
        self._held = beginning[0] if beginning else ""
        return list(self._pieces(whole[: len(whole) - len(self._held)]))

    def rest(self) -> str:
        """Return what was held back: the message ends inside of it."""
        held, self._held = self._held, ""
        return held

    def _pieces(self, text: str) -> Iterator[Piece]:
        said = 0
        for found in _CITATION.finditer(text):
            source = self._source_of(int(found[1]), int(found[2] or 0))
            if source is None:
                continue
            if found.start() > said:
                yield self._said(text[said : found.start()])
            said = found.end()
            yield self._said(f"{'' if self._last.isspace() else ' '}{_link(source[0])}", source)
        if said < len(text):
            yield self._said(text[said:])

    def _said(self, text: str, source: tuple[str, str] | None = None) -> Piece:
        self._last = text[-1]
        return Piece(text, source)


def annotation(text_before: int, piece: Piece) -> JsonObject:
    """Return the annotation of a piece that cites, behind so many characters of the message."""
    assert piece.source is not None
    url, title = piece.source
    start = text_before + len(piece.text) - len(piece.text.lstrip())
    return {
        "type": "url_citation",
        "start_index": start,
        "end_index": text_before + len(piece.text),
        "url": url,
        "title": title,
    }


def _link(url: str) -> str:
    """Return a link in Markdown that shows where it leads."""
    return f"([{_domain(url)}]({url.translate(_QUOTED)}))"


def _domain(url: str) -> str:
    found = _HOST.match(url)
    return found[1] if found else url
