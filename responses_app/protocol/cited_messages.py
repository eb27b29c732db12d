"""A message that cites pages of the web: its citations become links, with an annotation for each (`citations`)."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

from engine.formats.base import TextLogprob
from responses_app.protocol.builders import MessageBuilder, PendingEvents
from responses_app.protocol.citations import CitationReader, SourceOf, annotation
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events import EventType


class CitedMessageBuilder(MessageBuilder):
    """A message whose text is held back from the beginning of a citation to its end."""

    holds_back: ClassVar[bool] = True

    def __init__(
        self, new_id: Callable[[str], str], phase: Literal["commentary", "final_answer"], source_of: SourceOf
    ) -> None:
        super().__init__(new_id, phase)
        self._reader = CitationReader(source_of)
        self._length = 0  # of the text that was told
        self._annotations: list[JsonObject] = []
        self._said_annotations = 0
        self._unsaid_logprobs: list[TextLogprob] = []

    def told(self, text: str) -> str:
        told = []
        for piece in self._reader.read(text):
            if piece.source is not None:
                self._annotations.append(annotation(self._length, piece))
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
        new = range(self._said_annotations, len(self._annotations))
        self._said_annotations = len(self._annotations)
        return [
            (
                EventType.ANNOTATION_ADDED,
                {"content_index": 0, "annotation_index": index, "annotation": self._annotations[index]},
            )
            for index in new
        ]

    def rest(self) -> str:
        return self._reader.rest()

    def _part(self) -> JsonObject:
        return {**super()._part(), "annotations": list(self._annotations)}
