"""How the demo engine searches files: `search the files for X` finds parts of files, and cites the first.

Only where the server has offered a search of files, which the developer message tells.
"""

import json
import re
from collections.abc import Sequence

from engine.backends.transcript import Transcript, TranscriptMessage

SEARCH = "file_search.msearch"
MAX_QUERY = 200  # characters
MAX_QUOTE = 300  # characters of a file
_DECLARED = "namespace file_search {"
_SEARCH = re.compile(r"\bsearch (?:the|my|our) (?:files?|documents?) for ([^\n.?!]{1,200})", re.IGNORECASE)
_RESULT = re.compile(r"\[(\d+:\d+)\] (.*)\n((?:.*\n?)*)")


class FileSearching:
    """What a conversation is at: a search, or what it has found."""

    def __init__(self, transcript: Transcript, text: str) -> None:
        """Read what is wanted; `text` is the user's."""
        found = _SEARCH.search(text)
        self.query = found[1].strip()[:MAX_QUERY] if found else ""
        self._transcript = transcript

    @property
    def wanted(self) -> bool:
        """Whether the user wants it, and it can be had."""
        return bool(self.query) and any(_DECLARED in message.text() for message in self._transcript.of_developer())

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
