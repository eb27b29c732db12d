"""`ReasoningBuilder`: what the model thinks, as an item; with a summary of it, where one is asked for.

    added, content_part.added, deltas, reasoning_text.done, content_part.done         what it thinks
    summary_part.added, deltas, summary_text.done, summary_part.done                  and, if asked for, its summary
    done

A summary comes from the model, in a turn of its own (see `summaries`), or else is the text itself: all of a short one,
and the first sentences of a longer one. So one that is asked for is always there, and never says what was not thought.
"""

import re
from collections.abc import Callable
from typing import ClassVar

from responses_app.protocol import ids
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events.events import EventType
from responses_app.protocol.items.output_items import ItemStatus, ReasoningItem, ReasoningText
from responses_app.protocol.output.builders import ItemBuilder, PendingEvents

MAX_SENTENCES = 400  # characters of a text that is its own summary, and of the sentences taken from a longer one

_SENTENCE_END = re.compile(r"[.!?…](?=\s)|[。！？]|\n")
_PLACE: JsonObject = {"summary_index": 0}


class ReasoningBuilder(ItemBuilder):
    """What the model thinks; also a call to a tool that this request does not have. `summarised`: it has a summary."""

    prefix = ids.REASONING
    delta_type = EventType.REASONING_DELTA
    delta_before: ClassVar[JsonObject] = {"content_index": 0}

    def __init__(self, new_id: Callable[[str], str], *, summarised: bool = False) -> None:
        super().__init__(new_id)
        self._summarised = summarised
        self._summary: list[str] = []
        self._is_said = False

    def opened(self) -> PendingEvents:
        return [(EventType.PART_ADDED, {"content_index": 0, "part": _reasoning_text("")})]

    def said(self) -> PendingEvents:
        """Return what ends the text; a summary may follow."""
        self._is_said = True
        return [
            (EventType.REASONING_DONE, {"content_index": 0, "text": self.text}),
            (EventType.PART_DONE, {"content_index": 0, "part": _reasoning_text(self.text)}),
        ]

    def sum_up(self, text: str) -> PendingEvents:
        """Take text of the summary, once the item's own text has ended; never empty."""
        begun = [] if self._summary else [(EventType.SUMMARY_ADDED, {**_PLACE, "part": _summary_text("")})]
        self._summary.append(text)
        return [*begun, (EventType.SUMMARY_DELTA, {**_PLACE, "delta": text})]

    def closed(self) -> PendingEvents:
        return [*([] if self._is_said else self.said()), *(self._summed_up() if self._summarised else [])]

    def item(self, status: ItemStatus) -> ReasoningItem:
        summary = [_summary_text("".join(self._summary))] if self._summary and status != "in_progress" else []
        item: ReasoningItem = {"id": self.id, "type": "reasoning", "status": status, "summary": summary}
        if status != "in_progress":
            item["content"] = [_reasoning_text(self.text)]
        return item

    def _summed_up(self) -> PendingEvents:
        """Return what ends the summary, which is made of the text itself if there is none; no text has no summary."""
        own = "" if self._summary else first_sentences(self.text)
        before = self.sum_up(own) if own else []
        if not self._summary:
            return []
        text = "".join(self._summary)
        return [
            *before,
            (EventType.SUMMARY_TEXT_DONE, {**_PLACE, "text": text}),
            (EventType.SUMMARY_DONE, {**_PLACE, "part": _summary_text(text)}),
        ]


class SilentReasoningBuilder(ItemBuilder):
    """A reasoning item that shows nothing: there is one for what only its seal carries."""

    prefix = ids.REASONING

    def closed(self) -> PendingEvents:
        return []

    def item(self, status: ItemStatus) -> ReasoningItem:
        return {"id": self.id, "type": "reasoning", "status": status, "summary": []}


def first_sentences(text: str) -> str:
    """Return a text, or as many of its first sentences as `MAX_SENTENCES` characters hold; a longer one is cut."""
    text = text.strip()
    if len(text) <= MAX_SENTENCES:
        return text
    ends = [found.end() for found in _SENTENCE_END.finditer(text, 0, MAX_SENTENCES)]
    if ends:
        return text[: ends[-1]].rstrip()
    return f"{text[: MAX_SENTENCES - 1].rstrip()}…"


def _reasoning_text(text: str) -> ReasoningText:
    return {"type": "reasoning_text", "text": text}


def _summary_text(text: str) -> ReasoningText:
    return {"type": "summary_text", "text": text}
