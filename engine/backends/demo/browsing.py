"""How the demo engine browses: `search for X` searches the web, opens the first page that was found, and cites it.

Only where the server has offered a browser, which the system message tells.
"""

import re
from collections.abc import Iterable, Sequence

from engine.backends.demo.searches import MAX_QUOTE, DemoSearch
from engine.backends.transcript import TranscriptMessage

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
