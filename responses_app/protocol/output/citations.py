"""What messages cite: pages of the web, files that were found, and files that code has written.

`CitationReader`: `【3†L9-L11】` becomes a link that people can read, and an annotation.

    The shell is bone【3†L9-L11】.       ->   The shell is bone ([example.com](https://example.com/turtles)).
    The shell is bone【0:2†shells.pdf】.  ->   The shell is bone.

A page's annotation covers the link, in characters of the message's text; a file's stands at the place of the citation.
Text is held back from `【` on, until it is a citation or cannot be one any more. A citation of what was never shown
stays as it was written.

`ProducedFiles`: files that code of the model has written, and the annotations by which messages cite them.

    The table is in sandbox:/mnt/data/table.csv.   ->   container_file_citation over `sandbox:/mnt/data/table.csv`

The models were trained to name files so, in links. A file that was written in this response and that its answer does
not name is cited all the same, at the answer's end and with an empty range: clients find files by their citations only.
What is known of the files is the interpreter's state, so it holds along a chain: `{"container_id", "files": [[path,
id], …], "written": [path, …]}`, the newest last; `written` are those of the last call.

`PageStack`: the pages of the web that a chain was shown, by their cursors. It is state of the chain, kept as JSON.

What a page says is not kept, only how to have it again: so a chain goes on after a restart, and on other workers.
Citations need nothing else: which page, and what stood in that line of a list of results.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from engine import orjson
from responses_app.protocol.errors import JsonObject

MAX_CITATION = 256  # characters between the brackets
# Cursor and line, or search and result, to address and title, or id and name; None for what was never shown.
SourceOf = Callable[[int, int], tuple[str, str] | None]

_REST = rf"[^【】\n]{{0,{MAX_CITATION}}}"  # what a citation says beyond the numbers; never read
# Groups: 1 cursor or search, 2 line, 3 result. `【3†L9-L11】` has 1 and 2, `【0:2†shells.pdf】` has 1 and 3.
_CITATION = re.compile(rf"【(\d{{1,9}})(?:†(?:L(\d{{1,9}}))?{_REST}|:(\d{{1,9}})(?:†{_REST})?)】")
# What may become a citation with more text, such as `【`, `【3`, `【0:` or `【3†L`; only at the end of a text.
_BEGINNING = re.compile(rf"【(?:\d{{0,9}}|\d{{1,9}}:\d{{0,9}}|\d{{1,9}}(?::\d{{1,9}})?†{_REST})\Z")
# What would end a link of Markdown, or the string of an answer that is JSON.
_QUOTED = {ord(each): f"%{ord(each):02X}" for each in '() <>"\\'}
# Without `user:password@`, which a link must not show; with the brackets of an IPv6 address.
_HOST = re.compile(r"https?://(?:[^/?#@]*@)?(\[[^\]/]*\]|[^/?#:]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Sources:
    """What messages may cite."""

    page: SourceOf  # by cursor and line: a page's address and title
    file: SourceOf  # by the numbers of a search and a result: a file's id and name


class Piece(NamedTuple):
    """Text to be said, with what it cites."""

    text: str
    page: tuple[str, str] | None = None  # address and title
    file: tuple[str, str] | None = None  # id and name

    @property
    def cites(self) -> bool:
        """Whether it is a citation."""
        return self.page is not None or self.file is not None


class CitationReader:
    """Reads one message as it is written."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._held = ""  # from a `【` on that may begin a citation
        self._last = " "  # the last character that was said

    def read(self, text: str) -> list[Piece]:
        """Take more text, and return what can be said now."""
        if not self._held and "【" not in text:  # nearly always
            self._last = text[-1:] or self._last
            return [Piece(text)] if text else []
        whole = self._held + text
        # From the last `【` on: an earlier one is a citation by now, or can never be.
        beginning = _BEGINNING.search(whole, max(0, whole.rfind("【")))
        self._held = beginning[0] if beginning else ""
        return list(self._pieces(whole[: len(whole) - len(self._held)]))

    def rest(self) -> str:
        """Return what was held back: the message ends inside of it."""
        held, self._held = self._held, ""
        return held

    def _pieces(self, text: str) -> Iterator[Piece]:
        end = 0  # of what was given back
        for match in _CITATION.finditer(text):
            is_file = match[3] is not None
            source_of = self._sources.file if is_file else self._sources.page
            # A page without a line is cited as a whole: line 0 stands for it.
            source = source_of(int(match[1]), int(match[3] or match[2] or 0))
            if source is None:
                continue
            if match.start() > end:
                yield self._piece(text[end : match.start()])
            end = match.end()
            if is_file:
                yield Piece("", file=source)
            else:
                host = _HOST.match(source[0])  # a link in Markdown shows where it leads
                link = f"([{host[1] if host else source[0]}]({source[0].translate(_QUOTED)}))"
                yield self._piece(f"{'' if self._last.isspace() else ' '}{link}", source)
        if end < len(text):
            yield self._piece(text[end:])

    def _piece(self, text: str, page: tuple[str, str] | None = None) -> Piece:
        self._last = text[-1]
        return Piece(text, page)


def annotation(text_before: int, piece: Piece) -> JsonObject:
    """Return the annotation of a piece that cites, behind so many characters of the message."""
    if piece.file is not None:
        file_id, filename = piece.file
        return {"type": "file_citation", "file_id": file_id, "filename": filename, "index": text_before}
    assert piece.page is not None
    url, title = piece.page
    # The blank before a link belongs to the sentence, not to the link.
    start = text_before + len(piece.text) - len(piece.text.lstrip())
    return {
        "type": "url_citation",
        "start_index": start,
        "end_index": text_before + len(piece.text),
        "url": url,
        "title": title,
    }


FILES = "code_interpreter_call"  # the type of items whose tool keeps them
MAX_FILES = 200  # of a chain that are remembered
MAX_FILES_BYTES = 24 * 1024  # of what is remembered of them, as JSON; `written` may take as much again
MAX_CITATIONS = 50  # of one message
FOLDER = "/mnt/data/"
# `sandbox:/mnt/data/a.csv` or `/mnt/data/a.csv`; group 1 is the path in the folder, up to what ends a link or a word.
_NAMED = re.compile(rf"(?:sandbox:)?{re.escape(FOLDER)}([^\s()\[\]<>\"'`*]+)")


class ProducedFiles:
    """The files that code of one response has written, and those that the chain had before."""

    def __init__(self) -> None:
        self._container_id = ""  # "": no code has run
        self._ids: dict[str, str] = {}  # by path
        self._uncited: dict[str, None] = {}  # paths of this response, in order

    def know(self, state: JsonObject) -> None:
        """Take what the chain had before."""
        self._container_id, self._ids = str(state.get("container_id", "")), dict(_files(state))

    def learn(self, state: JsonObject) -> None:
        """Take what a call has left: what it names last is what it has written."""
        # Files of another container are other files, even under the same names.
        before = {} if state.get("container_id") != self._container_id else self._ids
        self.know(state)
        written = state.get("written")
        for path, file_id in self._ids.items():
            if before.get(path) != file_id or (isinstance(written, list) and path in written):
                self._uncited[path] = None

    def cite(self, text: str, *, is_last: bool) -> list[JsonObject]:
        """Return the annotations of a message; the last one of a response also has the files that nothing has named."""
        annotations: list[JsonObject] = []
        for named in _NAMED.finditer(text):
            # The sentence may end behind the name.
            path = named[1].rstrip(".,;:!?")
            if path in self._ids:
                self._uncited.pop(path, None)
                annotations.append(self._annotation(path, named.start(), named.start(1) + len(path)))
        if is_last:
            annotations += [self._annotation(path, len(text), len(text)) for path in self._uncited if path in self._ids]
            self._uncited.clear()
        return annotations[:MAX_CITATIONS]

    def _annotation(self, path: str, start: int, end: int) -> JsonObject:
        return {
            "type": "container_file_citation",
            "container_id": self._container_id,
            "file_id": self._ids[path],
            "filename": path.rpartition("/")[2],
            "start_index": start,
            "end_index": end,
        }


def state_of(container_id: str, before: JsonObject | None, written: Sequence[tuple[str, str]]) -> JsonObject:
    """Return the state behind a call that has written these files, each with its path and id."""
    known = dict(_files(before)) if before is not None and before.get("container_id") == container_id else {}
    for path, file_id in written:
        # Out and in again, so that a dictionary's order has the newest last.
        known.pop(path, None)
        known[path] = file_id
    kept = _newest(known)
    return {
        "container_id": container_id,
        "files": [[path, file_id] for path, file_id in kept.items()],
        "written": list(dict.fromkeys(path for path, _ in written if path in kept)),
    }


def _newest(files: dict[str, str]) -> dict[str, str]:
    """Return as many of the newest files as are remembered, in their order."""
    kept: list[tuple[str, str]] = []
    left = MAX_FILES_BYTES
    # From the newest on, as long as there is room.
    for entry in reversed([*files.items()][-MAX_FILES:]):
        left -= len(orjson.dumps(entry))
        if left < 0:
            break
        kept.append(entry)
    return dict(reversed(kept))


def _files(state: JsonObject) -> Iterator[tuple[str, str]]:
    listed = state.get("files")
    for each in listed if isinstance(listed, list) else ():
        match each:
            case [str(path), str(file_id)]:
                yield path, file_id


PAGES = "web_search_call"  # the type of items whose tool keeps it
MAX_PAGES_BYTES = 48 * 1024  # of the state, about: older pages are gone, and the results of older searches before them
MAX_TITLE = 200  # characters


class ListedPage(NamedTuple):
    """A result of a search."""

    line: int  # where it begins in the list
    url: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPage:
    """A page that was shown: one that was opened, what was found in one, or the results of a search.

    Results of a search keep their addresses as long as they are not too old: see `PageStack.as_json`.
    """

    kind: str  # "page", "source" (a page as it is written), "find" or "search"
    url: str  # "" for the results of a search
    title: str
    pattern: str = ""  # what was looked for in a page
    listed: Sequence[ListedPage] = ()  # the results, from the top of the list on

    def source(self, line: int) -> tuple[str, str] | None:
        """Return address and title of what a line shows, None where that is nothing in the web."""
        if self.url:
            return self.url, self.title
        # A result has all lines from its own to that of the next.
        above = [each for each in self.listed if each.line <= line]
        return (above[-1].url, above[-1].title) if above else None


@dataclass(slots=True)
class PageStack:
    """The pages that a chain was shown, the latest last."""

    pages: list[ShownPage] = field(default_factory=list)
    first: int = 0  # the cursor of the first of `pages`; those before it are forgotten

    @classmethod
    def from_json(cls, state: JsonObject | None) -> "PageStack":
        """Read what `as_json` has written."""
        known: dict[str, Any] = state or {"pages": [], "first": 0}
        pages = [
            ShownPage(
                kind=kind, url=url, title=title, pattern=pattern, listed=tuple(ListedPage(*each) for each in listed)
            )
            for kind, url, title, pattern, listed in known["pages"]
        ]
        return cls(pages, known["first"])

    def as_json(self) -> JsonObject:
        """Return it as it is kept: the latest pages, as many as `MAX_PAGES_BYTES` hold."""
        pages: list[object] = []
        left = MAX_PAGES_BYTES
        for each in reversed(self.pages):
            # Half of the room is for the newest results: an old page needs its address only.
            listed = [list(one) for one in each.listed] if left > MAX_PAGES_BYTES // 2 else []
            page: list[object] = [each.kind, each.url, each.title, each.pattern, listed]
            left -= len(str(page).encode())
            # The latest page is kept whatever its size.
            if left < 0 and pages:
                break
            pages.append(page)
        return {"pages": pages[::-1], "first": self.next_cursor - len(pages)}

    @property
    def next_cursor(self) -> int:
        """The cursor of the page that is shown next."""
        return self.first + len(self.pages)

    def push(self, shown: ShownPage) -> None:
        """Show a page."""
        self.pages.append(replace(shown, title=shown.title[:MAX_TITLE]))

    def at(self, cursor: int) -> ShownPage | None:
        """Return the page of a cursor; -1 is the latest. None where there is none, or none any more."""
        if cursor == -1:
            return self.pages[-1] if self.pages else None
        place = cursor - self.first
        return self.pages[place] if 0 <= place < len(self.pages) else None

    def source(self, cursor: int, line: int) -> tuple[str, str] | None:
        """Return address and title of what a citation names."""
        shown = self.at(cursor) if cursor >= 0 else None
        return shown.source(line) if shown else None
