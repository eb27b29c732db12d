"""Which of the server's own tools the demo engine calls, and with what: the user's text says it in so many words."""

import re
from collections.abc import Collection

from engine.backends.transcript import Transcript

_PYTHON = re.compile(
    r"(?:^|\n)\s*python:\s*(?:```(?:python)?\n(?P<fenced>.*?)```|(?P<plain>.+))", re.DOTALL | re.IGNORECASE
)


def python_code(transcript: Transcript, text: str) -> str | None:
    """Return the code behind `python:`, the rest of the text or what is fenced there; None where it is not to be run.

    It is run once, and only where the prompt tells of the tool.
    """
    found = _PYTHON.search(text)
    if found is None or not _has_python(transcript) or "python" in _called(transcript):
        return None
    return (found["fenced"] or found["plain"] or "").strip()


def _has_python(transcript: Transcript) -> bool:
    return any("\n## python\n" in message.text() for message in transcript.of_system())


def _called(transcript: Transcript) -> Collection[str | None]:
    return {message.called for message in transcript.since_last_user()}
