"""Which of the server's own tools the demo engine calls, and with what: the user's text says it in so many words.

How the demo engine browses: `search for X` searches the web, opens the first page that was found, and cites it.

Only where the server has offered a browser, which the system message tells.

How the demo engine searches files: `search the files for X` finds parts of files, and cites the first.

Only where the server has offered a search of files, which the developer message tells.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence

from engine.backends.demo.arguments import read_server_tools
from engine.backends.transcript import PromptTranscript, TranscriptMessage

_PYTHON = re.compile(
    r"(?:^|\n)\s*python:\s*(?:```(?:python)?\n(?P<fenced>.*?)```|(?P<plain>.+))", re.DOTALL | re.IGNORECASE
)
_DRAW = re.compile(r"\bdraw(?: me)? ([^\n.?!]{1,500})", re.IGNORECASE)
_IMAGES = "image_generation"  # the namespace


def python_code(transcript: PromptTranscript, text: str) -> str | None:
    """Return the code behind `python:`, the rest of the text or what is fenced there; None where it is not to be run.

    It is run once, and only where the prompt tells of the tool.
    """
    found = _PYTHON.search(text)
    if found is None or not _has_python(transcript) or "python" in _called(transcript):
        return None
    return (found["fenced"] or found["plain"] or "").strip()


def image_call(transcript: PromptTranscript, text: str) -> tuple[str, str] | None:
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


def _served(transcript: PromptTranscript) -> list[str]:
    return [name for message in transcript.of_developer() for name, _ in read_server_tools(message.text())]


def _has_python(transcript: PromptTranscript) -> bool:
    return any("\n## python\n" in message.text() for message in transcript.of_system())


def _called(transcript: PromptTranscript) -> Collection[str | None]:
    return {message.called for message in transcript.since_last_user()}


MAX_QUERY = 200  # characters
MAX_QUOTE = 300  # characters of what was found


class DemoSearch(ABC):
    """What a conversation is at. `asked` finds the query in the user's text, `declared` is what offers the tool."""

    asked: "re.Pattern[str]"
    declared: str

    def __init__(self, transcript: PromptTranscript, text: str) -> None:
        """Read what is wanted; `text` is the user's."""
        found = self.asked.search(text)
        self.query = found[1].strip()[:MAX_QUERY] if found else ""
        self._transcript = transcript

    @property
    def wanted(self) -> bool:
        """Whether the user wants it, and it can be had."""
        return bool(self.query) and any(self.declared in message.text() for message in self._offering())

    @abstractmethod
    def _offering(self) -> Iterable[TranscriptMessage]:
        """Return the messages that tell of the server's tools."""


_CURSOR = re.compile(r"\[(\d+)\] ")
_LINE = re.compile(r"^L(\d+): (.*\S)", re.MULTILINE)
_FIRST_LINK = "【0†"


class Browsing(DemoSearch):
    """What a conversation is at: a call of `browser.search` or `browser.open`, or what they have given."""

    asked = re.compile(r"\bsearch(?: the web)? for ([^\n.?!]{1,200})", re.IGNORECASE)
    declared = "\nnamespace browser {"

    def _offering(self) -> Iterable[TranscriptMessage]:
        return self._transcript.of_system()

    def next_call(self) -> tuple[str, dict[str, object]] | None:
        """Return what is to be called now, and with what; None for nothing more."""
        shown = self._shown()
        if not shown:
            return "browser.search", {"query": self.query}
        if len(shown) == 1 and _FIRST_LINK in shown[0].text():
            return "browser.open", {"id": 0}
        return None

    def answer(self) -> str:
        """Say what was found, and cite it."""
        page = self._shown()[-1].text()
        cursor, lines = _CURSOR.match(page), _LINE.findall(page)
        if cursor is None or not lines:
            return f'The demo engine searched for "{self.query}", and was told: {page[:MAX_QUOTE]}'
        title = page[cursor.end() :].partition("\n")[0]
        said = " ".join(text for _, text in lines)[:MAX_QUOTE].replace("【", "[").replace("】", "]")
        cited = f"【{cursor[1]}†L{lines[0][0]}-L{lines[min(len(lines), 3) - 1][0]}】"
        return f'The demo engine searched for "{self.query}" and opened {title}. It says: {said}{cited}'

    def _shown(self) -> Sequence[TranscriptMessage]:
        since = self._transcript.since_last_user()
        return [message for message in since if message.role.startswith("browser.")]


SEARCH = "file_search.msearch"
_RESULT = re.compile(r"\[(\d+:\d+)\] (.*)\n((?:.*\n?)*)")


class FileSearching(DemoSearch):
    """What a conversation is at: a search, or what it has found."""

    asked = re.compile(r"\bsearch (?:the|my|our) (?:files?|documents?) for ([^\n.?!]{1,200})", re.IGNORECASE)
    declared = "namespace file_search {"

    def _offering(self) -> Iterable[TranscriptMessage]:
        return self._transcript.of_developer()

    @property
    def has_searched(self) -> bool:
        """Whether there is an answer."""
        return bool(self._shown())

    def arguments(self) -> str:
        """Return what a search is called with."""
        return json.dumps({"queries": [self.query]}, ensure_ascii=False)

    def answer(self) -> str:
        """Say what was found, and cite it."""
        shown = self._shown()[-1].text()
        first = _RESULT.match(shown)
        if first is None:
            return f'The demo engine searched the files for "{self.query}", and was told: {shown[:MAX_QUOTE]}'
        mark, name, text = first.groups()
        said = text.partition("\n\n[")[0].strip()[:MAX_QUOTE]
        return f'The demo engine searched the files for "{self.query}". {name} says: {said}【{mark}†{name}】'

    def _shown(self) -> Sequence[TranscriptMessage]:
        return [message for message in self._transcript.since_last_user() if message.role == SEARCH]
