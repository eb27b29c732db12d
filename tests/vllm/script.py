"""What the forced model says: completions by the text of the last message, in a JSON file.

The file's entries are those of the scripted engine (`engine/backends/script.py`), of which `when`, `say` and `tokens`
count here. vLLM's worker process looks the file up, so one file speaks for an engine in process and for real servers.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.backends.script import ScriptEntry, read_script, read_script_file
from engine.backends.transcript import Transcript

SCRIPT_VARIABLE = "FORCED_TOKENS_SCRIPT"  # names the file; set it where vLLM runs


def write_script(path: Path, entries: Sequence[Mapping[str, object]]) -> None:
    """Write a script; a process that uses the file reads it again at its next request.

    Raises `EngineConfigurationError` for an entry that is none.
    """
    read_script(entries)
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(list(entries)), encoding="utf-8")
    draft.replace(path)


class Completions:
    """The entries of a script file, as they are now."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_at = -1
        self._entries: list[tuple[str | None, tuple[int, ...]]] = []

    @classmethod
    def from_environ(cls) -> "Completions | None":
        """Return those of the file that the environment names, None where it names none."""
        path = os.environ.get(SCRIPT_VARIABLE)
        return cls(Path(path)) if path else None

    def find(self, prompt: Sequence[int]) -> tuple[int, ...] | None:
        """Return the completion of the first entry whose `when` occurs in the last message; None: sample freely."""
        self._refresh()
        last = Transcript(prompt).last
        text = last.text() if last else ""
        return next((tokens for when, tokens in self._entries if when is None or when in text), None)

    def _refresh(self) -> None:
        changed_at = self._path.stat().st_mtime_ns
        if changed_at != self._read_at:
            entries: list[ScriptEntry] = read_script(read_script_file(self._path))
            self._entries = [(entry.when, entry.completion()) for entry in entries]
            self._read_at = changed_at
