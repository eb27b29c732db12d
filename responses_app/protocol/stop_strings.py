"""`StopStrings`: ends a text where one of some strings comes, which is not part of it any more.

Text that may be the beginning of a stop string is held back until that is decided, so no reader ever has part of one.
Of several the one counts that is complete first; of two that are complete at the same place, the longer one. So what is
said does not depend on how the text was cut into chunks. Example, with `["\\n\\n", "END"]`:

    feed("Hi E")  -> "Hi "      "E" may begin "END"
    feed("VE")    -> "EV"       it did not; and now the last "E" may
    feed("ND!")   -> ""         `matched` is "END"
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from responses_app.protocol.fields import or_text

MAX_STOPS = 4  # OpenAI's bound
MAX_STOP = 256  # characters of one: so much text may be held back


_Stops = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_STOP)]], Field(max_length=MAX_STOPS, fail_fast=True)
]
# What a request says of them: one, or a list.
Stops = Annotated[_Stops, or_text(lambda stop: [stop], _Stops, "text_or_list")]


class StopStrings:
    """The stop strings of one text; none of them is empty."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.matched: str | None = None  # the one that has ended the text
        self._stops = tuple(stops)
        self._held = ""  # the end of the text so far, which may begin a stop string

    def feed(self, text: str) -> str:
        """Take more text, and return the part that can be said now; nothing once a stop string has come."""
        if self.matched is not None:
            return ""
        text = self._held + text
        places = ((start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0)
        first = min(places, default=None)  # the one that ends first, and of these the longest
        if first is not None:
            _, start, self.matched = first
            self._held = ""
            return text[:start]
        undecided = min(_undecided(text, stop) for stop in self._stops) if self._stops else len(text)
        self._held = text[undecided:]
        return text[:undecided]

    def rest(self) -> str:
        """Return the text that was held back: it ends here, so nothing completes a stop string."""
        held, self._held = self._held, ""
        return held


def _undecided(text: str, stop: str) -> int:
    """Return where the end of a text begins that may be the beginning of a stop string."""
    # Only the last len(stop) - 1 characters can begin one that is not complete.
    start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while start >= 0:
        if stop.startswith(text[start:]):
            return start
        start = text.find(stop[0], start + 1)
    return len(text)
