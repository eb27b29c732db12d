"""A message that cites pages of the web, or files: there is an annotation for each citation (`citations`)."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

from engine.formats.base import ItemKind, TextLogprob
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.output.builders import MessageBuilder, PendingEvents
from responses_app.protocol.output.citations import CitationReader, Sources, annotation
from responses_app.protocol.output.produced_files import ProducedFiles


def message_builder(
    new_id: Callable[[str], str], kind: ItemKind, sources: Sources | None, files: ProducedFiles | None
) -> MessageBuilder:
    """Return what writes a message; it may cite `sources`, and `files` that code has written, where there are any."""
    phase: Literal["commentary", "final_answer"] = "commentary" if kind is ItemKind.PREAMBLE else "final_answer"
    made = MessageBuilder(new_id, phase) if sources is None else CitedMessageBuilder(new_id, phase, sources)
    made.files = files
    return made


class CitedMessageBuilder(MessageBuilder):
    """A message whose text is held back from the beginning of a citation to its end."""

    holds_back: ClassVar[bool] = True

    def __init__(
        self, new_id: Callable[[str], str], phase: Literal["commentary", "final_answer"], sources: Sources
    ) -> None:
        super().__init__(new_id, phase)
        self._reader = CitationReader(sources)
        self._length = 0  # of the text that was told
        self._unsaid: list[JsonObject] = []  # annotations
        self._unsaid_logprobs: list[TextLogprob] = []

    def told(self, text: str) -> str:
        told = []
        for piece in self._reader.read(text):
            if piece.cites:
                self._unsaid.append(annotation(self._length, piece))
            self._length += len(piece.text)
            told.append(piece.text)
        return "".join(told)

    def grow(self, text: str, logprobs: Sequence[TextLogprob] = ()) -> JsonObject | None:
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
