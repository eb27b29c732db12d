"""Which of the server's own tools the demo engine calls, and with what: the user's text says it in so many words."""

import re
from collections.abc import Collection

from engine.backends.demo.functions import read_server_tools
from engine.backends.transcript import Transcript

_PYTHON = re.compile(
    r"(?:^|\n)\s*python:\s*(?:```(?:python)?\n(?P<fenced>.*?)```|(?P<plain>.+))", re.DOTALL | re.IGNORECASE
)
_DRAW = re.compile(r"\bdraw(?: me)? ([^\n.?!]{1,500})", re.IGNORECASE)
_IMAGES = "image_generation"  # the namespace


def python_code(transcript: Transcript, text: str) -> str | None:
    """Return the code behind `python:`, the rest of the text or what is fenced there; None where it is not to be run.

    It is run once, and only where the prompt tells of the tool.
    """
    found = _PYTHON.search(text)
    if found is None or not _has_python(transcript) or "python" in _called(transcript):
        return None
    return (found["fenced"] or found["plain"] or "").strip()


def image_call(transcript: Transcript, text: str) -> tuple[str, str] | None:
    """Return what is called for an image, and its prompt; None where none is wanted, or can be made.

    One is wanted behind `draw`, or where the user names the tool. It is made once.
    """
    found = _DRAW.search(text)
    if found is None and not re.search(rf"\b{_IMAGES}\b(?!\.)", text):
        return None
    made = any((name or "").startswith(f"{_IMAGES}.") for name in _called(transcript))
    offered = next((name for name in _served(transcript) if name.startswith(f"{_IMAGES}.")), None)
    if made or offered is None:
        return None
    return offered, " ".join((found[1] if found else text).split())[:500]


def _served(transcript: Transcript) -> list[str]:
    return [name for message in transcript.of_developer() for name, _ in read_server_tools(message.text())]


def _has_python(transcript: Transcript) -> bool:
    return any("\n## python\n" in message.text() for message in transcript.of_system())


def _called(transcript: Transcript) -> Collection[str | None]:
    return {message.called for message in transcript.since_last_user()}
