"""Citations in what the model says: `【3†L9-L11】` becomes a link that people can read, and an annotation.

    The shell is bone【3†L9-L11】.       ->   The shell is bone ([example.com](https://example.com/turtles)).
    The shell is bone【0:2†shells.pdf】.  ->   The shell is bone.

A page's annotation covers the link, in characters of the message's text; a file's stands at the place of the citation.
Text is held back from `【` on, until it is a citation or cannot be one any more. A citation of what was never shown
stays as it was written.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from responses_app.protocol.errors import JsonObject

MAX_CITATION = 256  # characters between the brackets
SourceOf = Callable[[int, int], tuple[str, str] | None]

_REST = rf"[^【】\n]{{0,{MAX_CITATION}}}"
_CITATION = re.compile(rf"【(\d{{1,9}})(?:†(?:L(\d{{1,9}}))?{_REST}|:(\d{{1,9}})(?:†{_REST})?)】")
_BEGINNING = re.compile(rf"【(?:\d{{0,9}}|\d{{1,9}}:\d{{0,9}}|\d{{1,9}}(?::\d{{1,9}})?†{_REST})\Z")
# What would end a link of Markdown, or the string of an answer that is JSON.
_QUOTED = {ord(each): f"%{ord(each):02X}" for each in '() <>"\\'}
_HOST = re.compile(r"https?://(?:[^/?#@]*@)?(\[[^\]/]*\]|[^/?#:]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Sources:
    """What messages may cite: of a page by its cursor and a line, address and title; of a file by the numbers of a
    search and a result, its id and name."""

    page: SourceOf
    file: SourceOf


class Piece(NamedTuple):
    """Text to be said; `page` is the address and the title, or `file` the id and the name, of what it cites."""

    text: str
    page: tuple[str, str] | None = None
    file: tuple[str, str] | None = None

    @property
    def cites(self) -> bool:
        """Whether it is a citation."""
        return self.page is not None or self.file is not None


class CitationReader:
    """Reads one message as it is written."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
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
            is_file = found[3] is not None
            source_of = self._sources.file if is_file else self._sources.page
            source = source_of(int(found[1]), int(found[3] or found[2] or 0))
            if source is None:
                continue
            if found.start() > said:
                yield self._said(text[said : found.start()])
            said = found.end()
            if is_file:
                yield Piece("", file=source)
            else:
                yield self._said(f"{'' if self._last.isspace() else ' '}{_link(source[0])}", source)
        if said < len(text):
            yield self._said(text[said:])

    def _said(self, text: str, page: tuple[str, str] | None = None) -> Piece:
        self._last = text[-1]
        return Piece(text, page)


def annotation(text_before: int, piece: Piece) -> JsonObject:
    """Return the annotation of a piece that cites, behind so many characters of the message."""
    if piece.file is not None:
        file_id, filename = piece.file
        return {"type": "file_citation", "file_id": file_id, "filename": filename, "index": text_before}
    assert piece.page is not None
    url, title = piece.page
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
