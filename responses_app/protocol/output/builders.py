"""The items that the model says, as they are written: messages, those that cite something, and thoughts.

One `ItemBuilder` per item type: what is said when it opens, grows and closes, and the item itself.

The order of events inside an item is OpenAI's: added, content_part.added, deltas, text.done, content_part.done, done.

`ReasoningBuilder`: what the model thinks, as an item; with a summary of it, where one is asked for.

    added, content_part.added, deltas, reasoning_text.done, content_part.done         what it thinks
    summary_part.added, deltas, summary_text.done, summary_part.done                  and, if asked for, its summary
    done

A summary comes from the model, in a turn of its own (see `turns`), or else is the text itself: all of a short one,
and the first sentences of a longer one. So one that is asked for is always there, and never says what was not thought.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import ClassVar, Literal, TypeVar, cast

from engine.formats.base import ItemKind, TextLogprob
from responses_app.protocol import ids
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events.events import DeltaTemplate, EventType, PendingEvents
from responses_app.protocol.items.resources import (
    CompactionItem,
    ItemStatus,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
)
from responses_app.protocol.output.citations import CitationReader, ProducedFiles, Sources, annotation

NewId = Callable[[str], str]  # makes an id from a prefix
_Written = TypeVar("_Written", bound=Mapping[str, object])


class ItemBuilder(ABC):
    """An output item that is being written."""

    prefix: ClassVar[str]  # of its id
    delta_type: ClassVar[EventType]  # of the events of its text; not set where the text has none
    delta_before: ClassVar[JsonObject] = {}  # fields of a delta before its text, and behind it
    delta_after: ClassVar[JsonObject] = {}
    holds_back: ClassVar[bool] = False  # `told` decides what of a text is said now
    at_once: ClassVar[bool] = False  # nothing is said of it until it has ended
    events_name_it: ClassVar[bool] = True  # by `item_id`

    def __init__(self, new_id: NewId) -> None:
        # Ids are made in the order of the items, so that each worker makes the same ones.
        self.id = new_id(self.prefix)
        self.texts: list[str] = []  # everything written so far

    @property
    def text(self) -> str:
        """Everything written so far."""
        return "".join(self.texts)

    def opened(self) -> PendingEvents:
        """Return what follows `output_item.added`."""
        return []

    def grow(self, text: str, logprobs: Sequence[TextLogprob] = ()) -> JsonObject | None:
        """Take more text, with the log probabilities of its tokens; return what its delta has beside the template.

        Text that has none, of an item that holds nothing back, is added to `texts` without this call.
        """
        self.texts.append(text)
        return None

    def told(self, text: str) -> str:
        """Take more text, and return what `grow` is to get of it now."""
        return text

    def noted(self) -> PendingEvents:
        """Return what is said of the text that `told` has given last, behind its delta."""
        return []

    def heard(self) -> PendingEvents:
        """Return what is said of text that `told` has kept to itself."""
        return []

    def rest(self) -> str:
        """Return what `told` has held back; the item ends."""
        return ""

    def settled(self, status: ItemStatus) -> "ItemBuilder":
        """Return what writes the item, which ends, where that is known at its end only."""
        return self

    def delta_template(self, output_index: int) -> DeltaTemplate:
        """Return what the deltas of this item are written with."""
        place = {"item_id": self.id, "output_index": output_index}
        return DeltaTemplate(self.delta_type, self.delta_before, {**self.delta_after, **place})

    @abstractmethod
    def closed(self) -> PendingEvents:
        """Return what comes before `output_item.done`."""

    @abstractmethod
    def item(self, status: ItemStatus) -> OutputItem:
        """Return the item as it stands."""


class SilentInput(ItemBuilder):
    """An item whose text has no events of its own: it is kept, and shown when the item is whole."""

    holds_back: ClassVar[bool] = True

    def told(self, text: str) -> str:
        self.texts.append(text)
        return ""


class MessageBuilder(ItemBuilder):
    """The final answer, or a preamble before a tool call (`phase: commentary`)."""

    prefix = ids.MESSAGE
    delta_type = EventType.TEXT_DELTA
    delta_before: ClassVar[JsonObject] = {"content_index": 0}
    delta_after: ClassVar[JsonObject] = {"logprobs": []}

    def __init__(self, new_id: NewId, phase: Literal["commentary", "final_answer"]) -> None:
        super().__init__(new_id)
        self._phase = phase
        self._logprobs: list[TextLogprob] = []  # of the whole text
        self.files: ProducedFiles | None = None  # that it may cite
        self._annotations: list[JsonObject] = []  # in the order in which they were said

    def opened(self) -> PendingEvents:
        return [(EventType.PART_ADDED, {"content_index": 0, "part": _output_text("")})]

    def grow(self, text: str, logprobs: Sequence[TextLogprob] = ()) -> JsonObject | None:
        self.texts.append(text)
        if not logprobs:
            return None
        self._logprobs.extend(logprobs)
        return {"logprobs": event_logprobs(logprobs)}

    def closed(self) -> PendingEvents:
        done = {"content_index": 0, "text": self.text, "logprobs": event_logprobs(self._logprobs)}
        cited = [] if self.files is None else self.files.cite(self.text, is_last=self._phase == "final_answer")
        return [
            *map(self.annotated, cited),
            (EventType.TEXT_DONE, done),
            (EventType.PART_DONE, {"content_index": 0, "part": self._part()}),
        ]

    def item(self, status: ItemStatus) -> OutputMessage:
        content = [] if status == "in_progress" else [self._part()]
        return {
            "id": self.id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "phase": self._phase,
            "content": content,
        }

    def annotated(self, annotation: JsonObject) -> tuple[EventType, JsonObject]:
        """Add an annotation, and return how it is said."""
        self._annotations.append(annotation)
        place = {"content_index": 0, "annotation_index": len(self._annotations) - 1}
        return EventType.ANNOTATION_ADDED, {**place, "annotation": annotation}

    def _part(self) -> OutputText:
        part = _output_text(self.text)
        part["annotations"] = list(self._annotations)
        if self._logprobs:
            part["logprobs"] = item_logprobs(self._logprobs)
        return part


LOWEST = -9999.0  # stands for minus infinity, as in OpenAI's answers: JSON has no number for it


def event_logprobs(entries: Iterable[TextLogprob]) -> list[JsonObject]:
    """Return the `logprobs` of `output_text.delta` and `output_text.done`."""
    return [
        {
            **_token(entry.token, entry.logprob),
            "top_logprobs": [_token(token, logprob) for token, logprob in entry.top],
        }
        for entry in entries
    ]


def item_logprobs(entries: Iterable[TextLogprob]) -> list[JsonObject]:
    """Return the `logprobs` of an item's `output_text` part."""
    return [
        {
            **_token_with_bytes(entry.token, entry.logprob),
            "top_logprobs": [_token_with_bytes(token, logprob) for token, logprob in entry.top],
        }
        for entry in entries
    ]


def _token(token: bytes, logprob: float) -> JsonObject:
    return {"token": token.decode(errors="replace"), "logprob": max(logprob, LOWEST)}


def _token_with_bytes(token: bytes, logprob: float) -> JsonObject:
    return {**_token(token, logprob), "bytes": list(token)}


class CompactionBuilder(ItemBuilder):
    """A summary that this server has made; clients see it when it is sealed."""

    prefix = ids.COMPACTION

    def __init__(self, new_id: NewId) -> None:
        super().__init__(new_id)
        self.sealed = ""

    def opened(self) -> PendingEvents:
        return [(EventType.COMPACTING, {})]

    def closed(self) -> PendingEvents:
        return []

    def item(self, status: ItemStatus) -> CompactionItem:
        return {"id": self.id, "type": "compaction", "encrypted_content": self.sealed}


def _output_text(text: str) -> OutputText:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


# Fields that OpenAI's types always have, and have as null where nothing is set. All others are absent then: some SDKs
# take no null there.
_NULL_UNLESS_SET: Mapping[str, Collection[str]] = {
    "code_interpreter_call": ("outputs",),
    "image_generation_call": ("result",),
    "shell_call": ("environment",),
    "shell_call_output": ("max_output_length",),
}


def with_fields(item: _Written, fields: JsonObject) -> _Written:
    """Return an item with further fields, of which its type says nothing: those of a tool, or of a declaration.

    Fields that are None are left out, but for those that OpenAI's types always have.
    """
    nullable = _NULL_UNLESS_SET.get(str(item["type"]), ())
    shown = {name: value for name, value in fields.items() if value is not None or name in nullable}
    return cast(_Written, {**item, **shown})


def message_builder(
    new_id: NewId, kind: ItemKind, sources: Sources | None, files: ProducedFiles | None
) -> MessageBuilder:
    """Return what writes a message; it may cite `sources`, and `files` that code has written, where there are any."""
    phase: Literal["commentary", "final_answer"] = "commentary" if kind is ItemKind.PREAMBLE else "final_answer"
    made = MessageBuilder(new_id, phase) if sources is None else CitedMessageBuilder(new_id, phase, sources)
    made.files = files
    return made


class CitedMessageBuilder(MessageBuilder):
    """A message whose text is held back from the beginning of a citation to its end."""

    holds_back: ClassVar[bool] = True

    def __init__(self, new_id: NewId, phase: Literal["commentary", "final_answer"], sources: Sources) -> None:
        super().__init__(new_id, phase)
        self._reader = CitationReader(sources)
        self._length = 0  # of the text that was told
        self._unsaid: list[JsonObject] = []  # annotations
        self._unsaid_logprobs: list[TextLogprob] = []  # of text that is held back

    def told(self, text: str) -> str:
        texts = []
        for piece in self._reader.read(text):
            if piece.cites:
                self._unsaid.append(annotation(self._length, piece))
            self._length += len(piece.text)
            texts.append(piece.text)
        return "".join(texts)

    def grow(self, text: str, logprobs: Sequence[TextLogprob] = ()) -> JsonObject | None:
        # Nothing is said of these tokens yet: their log probabilities come with the text that does.
        if not text:
            self._unsaid_logprobs.extend(logprobs)
            return None
        logprobs = [*self._unsaid_logprobs, *logprobs]
        self._unsaid_logprobs.clear()
        return super().grow(text, logprobs)

    def noted(self) -> PendingEvents:
        unsaid, self._unsaid = self._unsaid, []
        return [self.annotated(each) for each in unsaid]

    def closed(self) -> PendingEvents:
        return [*self.noted(), *super().closed()]  # of a citation with which the message ends

    def rest(self) -> str:
        return self._reader.rest()


MAX_SENTENCES = 400  # characters of a text that is its own summary, and of the sentences taken from a longer one

# A mark before a blank (`3.5` has none), a full-width mark anywhere, or the end of a line.
_SENTENCE_END = re.compile(r"[.!?…](?=\s)|[。！？]|\n")
_PLACE: JsonObject = {"summary_index": 0}


class ReasoningBuilder(ItemBuilder):
    """What the model thinks; also a call to a tool that this request does not have. `summarised`: it has a summary."""

    prefix = ids.REASONING
    delta_type = EventType.REASONING_DELTA
    delta_before: ClassVar[JsonObject] = {"content_index": 0}

    def __init__(self, new_id: NewId, *, summarised: bool = False) -> None:
        super().__init__(new_id)
        self._summarised = summarised
        self._summary: list[str] = []  # its texts; none: there is no summary yet
        self._is_said = False  # its own text has ended

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
    ends = [match.end() for match in _SENTENCE_END.finditer(text, 0, MAX_SENTENCES)]
    if ends:
        return text[: ends[-1]].rstrip()
    # Not even one sentence fits: it is cut, and says so.
    return f"{text[: MAX_SENTENCES - 1].rstrip()}…"


def _reasoning_text(text: str) -> ReasoningText:
    return {"type": "reasoning_text", "text": text}


def _summary_text(text: str) -> ReasoningText:
    return {"type": "summary_text", "text": text}
