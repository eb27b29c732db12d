"""What the forced model says: completions by the prompt they are said to, in a JSON file.

The file's entries are those of the scripted engine (`engine/backends/scripted.py`), of which `when`, `told`,
`after_calls`, `say` and `tokens` count here, and beside them `behind`: what follows the completion. vLLM's worker
process looks the file up, so one file speaks for an engine in process and for real servers.

    behind     what follows the forced tokens
    "return"   <|return|>, and so nothing; this where an entry says nothing of it
    "sampled"  what the model samples
    "brief"    the same, but it ends as soon as it may: with <|call|>
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from engine.backends.scripted import ScriptEntry, read_script, read_script_file
from engine.backends.simulated import PromptTranscript, turn_beginnings
from engine.errors import EngineConfigurationError
from engine.formats.harmony.encoding import CALL, RETURN

SCRIPT_VARIABLE = "FORCED_TOKENS_SCRIPT"  # names the file; set it where vLLM runs
Behind = Literal["return", "sampled", "brief"]


@dataclass(frozen=True, slots=True)
class Completion:
    """Tokens that are forced, and what follows them."""

    tokens: tuple[int, ...]
    behind: Behind = "return"

    def token(self, position: int, is_allowed: Callable[[int], bool]) -> int | None:
        """Return the token that is forced at a position; None: it is sampled."""
        if position < len(self.tokens):
            return self.tokens[position]
        if self.behind == "return":
            return RETURN
        return CALL if self.behind == "brief" and is_allowed(CALL) else None


def write_script(path: Path, entries: Sequence[Mapping[str, object]]) -> None:
    """Write a script; a process that uses the file reads it again at its next request.

    Raises `EngineConfigurationError` for what is not an entry.
    """
    _read(entries)
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(list(entries)), encoding="utf-8")
    draft.replace(path)


class Completions:
    """The entries of a script file, as they are now."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_at = -1
        self._entries: list[tuple[ScriptEntry, Completion]] = []

    @classmethod
    def from_environ(cls) -> "Completions | None":
        """Return those of the file that the environment names, None where it names none."""
        path = os.environ.get(SCRIPT_VARIABLE)
        return cls(Path(path)) if path else None

    def find(self, prompt: Sequence[int]) -> Completion | None:
        """Return the completion of the first entry that fits the prompt; None: sample freely.

        Of a turn that goes on, whose prompt ends with what it has said, it is what is left.
        """
        self._refresh()
        for begin in turn_beginnings(prompt):
            transcript, said = PromptTranscript(prompt[:begin]), tuple(prompt[begin:])
            text = transcript.last.text() if transcript.last else ""
            found = next((completion for entry, completion in self._entries if entry.fits(text, transcript)), None)
            if found is not None and found.tokens[: len(said)] == said:
                return replace(found, tokens=found.tokens[len(said) :])
        return None

    def _refresh(self) -> None:
        changed_at = self._path.stat().st_mtime_ns
        if changed_at != self._read_at:
            self._entries = _read(read_script_file(self._path))
            self._read_at = changed_at


def _read(script: Sequence[object]) -> list[tuple[ScriptEntry, Completion]]:
    """Return each entry and its completion; raises `EngineConfigurationError` for what is not an entry."""
    behind: list[Behind] = []
    bare: list[object] = []
    for entry in script:
        own = dict(entry) if isinstance(entry, Mapping) else {}
        behind.append(own.pop("behind", "return"))
        bare.append(own if isinstance(entry, Mapping) else entry)
    if set(behind) - set(get_args(Behind)):
        raise EngineConfigurationError(f"What follows a completion is one of {', '.join(get_args(Behind))}.")
    read = zip(read_script(bare), behind, strict=True)
    return [(entry, Completion(entry.completion(), follows)) for entry, follows in read]
