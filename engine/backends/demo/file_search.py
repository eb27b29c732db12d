"""How the demo engine searches files: `search the files for X` finds parts of files, and cites the first.

Only where the server has offered a search of files, which the developer message tells.
"""

import json
import re
from collections.abc import Iterable, Sequence

from engine.backends.demo.searches import MAX_QUOTE, DemoSearch
from engine.backends.transcript import TranscriptMessage

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
