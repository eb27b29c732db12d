"""`ProducedFiles`: files that code of the model has written, and the annotations by which messages cite them.

    The table is in sandbox:/mnt/data/table.csv.   ->   container_file_citation over `sandbox:/mnt/data/table.csv`

The models were trained to name files so, in links. A file that was written in this response and that its answer does
not name is cited all the same, at the answer's end and with an empty range: clients find files by their citations only.
What is known of the files is the interpreter's state, so it holds along a chain: `{"container_id", "files": [[path,
id], …], "written": [path, …]}`, the newest last; `written` are those of the last call.
"""

import re
from collections.abc import Iterator, Sequence

import orjson

from responses_app.protocol.errors import JsonObject

FILES = "code_interpreter_call"  # the type of items whose tool keeps them
MAX_FILES = 200  # of a chain that are remembered
MAX_BYTES = 24 * 1024  # of what is remembered of them, as JSON; `written` may take as much again
MAX_CITATIONS = 50  # of one message
FOLDER = "/mnt/data/"
_NAMED = re.compile(rf"(?:sandbox:)?{re.escape(FOLDER)}([^\s()\[\]<>\"'`*]+)")


class ProducedFiles:
    """Of one response, with what the chain had before."""

    def __init__(self) -> None:
        self._container_id = ""
        self._ids: dict[str, str] = {}  # by path
        self._uncited: dict[str, None] = {}  # paths of this response, in order

    def know(self, state: JsonObject) -> None:
        """Take what the chain had before."""
        self._container_id, self._ids = str(state.get("container_id", "")), dict(_files(state))

    def learn(self, state: JsonObject) -> None:
        """Take what a call has left: what it names last is what it has written."""
        before = {} if state.get("container_id") != self._container_id else self._ids
        self.know(state)
        written = state.get("written")
        for path, file_id in self._ids.items():
            if before.get(path) != file_id or (isinstance(written, list) and path in written):
                self._uncited[path] = None

    def cite(self, text: str, *, is_last: bool) -> list[JsonObject]:
        """Return the annotations of a message; the last one of a response also has the files that nothing has named."""
        found = [*self._named(text)]
        if is_last:
            found += [self._annotation(path, len(text), len(text)) for path in self._uncited if path in self._ids]
            self._uncited.clear()
        return found[:MAX_CITATIONS]

    def _named(self, text: str) -> Iterator[JsonObject]:
        for named in _NAMED.finditer(text):
            path = named[1].rstrip(".,;:!?")
            if path in self._ids:
                self._uncited.pop(path, None)
                yield self._annotation(path, named.start(), named.start(1) + len(path))

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
    left = MAX_BYTES
    for entry in reversed([*files.items()][-MAX_FILES:]):
        left -= len(orjson.dumps(entry))
        if left < 0:
            break
        kept.append(entry)
    return dict(reversed(kept))


def _files(state: JsonObject) -> Iterator[tuple[str, str]]:
    told = state.get("files")
    for each in told if isinstance(told, list) else ():
        match each:
            case [str(path), str(file_id)]:
                yield path, file_id
