"""What the demo engine's searches, of the web and of files, have in common: a user who asks for one, and a tool."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable

from engine.backends.transcript import Transcript, TranscriptMessage

MAX_QUERY = 200  # characters
MAX_QUOTE = 300  # characters of what was found


class DemoSearch(ABC):
    """What a conversation is at. `asked` finds the query in the user's text, `declared` is what offers the tool."""

    asked: "re.Pattern[str]"
    declared: str

    def __init__(self, transcript: Transcript, text: str) -> None:
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
