"""The script of a scripted engine: entries, read from what a JSON file or a test gives."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from engine.backends.options import OptionReader
from engine.errors import EngineConfigurationError
from engine.formats.harmony.encoding import encode_harmony
from engine.types import FinishReason


class Fault(Enum):
    """What goes wrong in a generation."""

    UNAVAILABLE = "unavailable"
    OVERLOADED = "overloaded"
    FAILED = "failed"
    PROMPT_TOO_LONG = "prompt_too_long"
    CRASH = "crash"  # an exception that no engine raises on purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptEntry:
    """One completion, and when and how it is played.

    `when` must occur in the last message of the prompt. After `hang_after` tokens the generation waits until it is
    closed, or until `wait_for_file` exists. After `fault_after` tokens it raises `fault`. `delay` is in seconds before
    each chunk.
    """

    when: str | None = None
    say: str | None = None
    tokens: tuple[int, ...] | None = None
    times: int | None = None
    chunk_tokens: int = 1
    delay: float = 0.0
    finish: FinishReason = FinishReason.STOP
    hang_after: int | None = None
    wait_for_file: Path | None = None
    fault: Fault | None = None
    fault_after: int = 0
    cached_tokens: int | None = None

    @classmethod
    def read(cls, place: str, given: object) -> "ScriptEntry":
        """Read an entry; `place` is where it stands: `script[0]`.

        Raises `EngineConfigurationError`, which names the place and the field.
        """
        if not isinstance(given, Mapping):
            raise EngineConfigurationError(f"{place} is to be an object, not {type(given).__name__}.")
        options = OptionReader(place, given, known=cls.__slots__)
        finish = options.choice("finish", (FinishReason.STOP.value, FinishReason.LENGTH.value))
        fault = options.choice("fault", tuple(each.value for each in Fault))
        path = options.text("wait_for_file")
        entry = cls(
            when=options.text("when"),
            say=options.text("say"),
            tokens=options.token_ids("tokens"),
            times=options.whole_number("times", None, minimum=1),
            chunk_tokens=options.whole_number("chunk_tokens", 1, minimum=1),
            delay=options.seconds("delay"),
            finish=FinishReason(finish) if finish else FinishReason.STOP,
            hang_after=options.whole_number("hang_after", None, minimum=0),
            wait_for_file=Path(path) if path else None,
            fault=Fault(fault) if fault else None,
            fault_after=options.whole_number("fault_after", 0, minimum=0),
            cached_tokens=options.whole_number("cached_tokens", None, minimum=0),
        )
        entry._require_sense(place)
        return entry

    def completion(self) -> tuple[int, ...]:
        """Return all tokens of the completion."""
        if self.tokens is not None:
            return self.tokens
        return tuple(encode_harmony(self.say or ""))

    def _require_sense(self, place: str) -> None:
        if self.say is not None and self.tokens is not None:
            raise EngineConfigurationError(f"{place} has both say and tokens; it needs one of them.")
        if self.say is None and self.tokens is None and self.fault is None:
            raise EngineConfigurationError(f"{place} needs say, tokens or fault.")
        if self.wait_for_file is not None and self.hang_after is None:
            raise EngineConfigurationError(f"{place} has wait_for_file and needs hang_after with it.")
        if self.fault_after and self.fault is None:
            raise EngineConfigurationError(f"{place} has fault_after and needs fault with it.")


def read_script_file(path: Path) -> Sequence[object]:
    """Return the list in a JSON file; raises `EngineConfigurationError`."""
    try:
        script = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EngineConfigurationError(f"The script {path} cannot be read as JSON: {error}.") from error
    if not isinstance(script, list):
        raise EngineConfigurationError(f"The script {path} is to be a list of entries, not {type(script).__name__}.")
    return script


def read_script(script: Sequence[object]) -> list[ScriptEntry]:
    """Read all entries; raises `EngineConfigurationError`."""
    return [ScriptEntry.read(f"script[{index}]", entry) for index, entry in enumerate(script)]
