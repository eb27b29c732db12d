"""One stream of the events of several agents.

Each agent has a `ResponseStream` of its own, which knows nothing of the others and numbers its events and items by
itself. Here they become one stream: the numbers run over all agents, an item has its place in the order in which the
items of all began, and every event says whose it is. The same events in the same order give the same stream, so a
replay of the log makes it again.

    /root           added 0, delta, done                      added 1, …
    /root/berlin                           added 0, delta, …             delta, …
    the stream      added 0, delta, done   added 1, delta, …  added 2, … delta, …
"""

from collections.abc import Iterable, Sequence
from itertools import count
from typing import cast

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events.events import Delta, DeltaTemplate, Event, EventType

_INDEX = "output_index"


class Chorus:
    """What all agents of a response have said."""

    def __init__(self) -> None:
        self.numbers, self.places = count(), count()  # of the next events and items; there are no gaps
        self.done: dict[int, JsonObject] = {}  # items that are done, by their places

    @property
    def output(self) -> list[JsonObject]:
        """The items that are done, in their order."""
        return [self.done[place] for place in sorted(self.done)]


class Voice:
    """What one agent says, as the stream of all has it."""

    def __init__(self, chorus: Chorus, name: str) -> None:
        self._chorus = chorus
        self.agent: JsonObject = {"agent_name": name}
        self._places: dict[object, int] = {}  # of its items in the stream of all, by their own
        self._template: tuple[DeltaTemplate, DeltaTemplate] | None = None  # of its open item, and what stands for it

    def said(self, events: Iterable[Event]) -> Sequence[Event]:
        """Return events of its own stream as those of the stream of all."""
        return [self._moved(event) for event in events]

    def _moved(self, event: Event) -> Event:
        number = next(self._chorus.numbers)
        if isinstance(event, Delta):  # nearly always
            return event.moved(self._template_for(event.template), number)
        fields = event.fields
        if _INDEX in fields:
            place = self._place(fields[_INDEX])
            fields = {**fields, _INDEX: place}
            if event.type is EventType.ITEM_DONE:
                self._chorus.done[place] = cast(JsonObject, fields["item"])
        return Event(event.type, number, {**fields, "agent": self.agent})

    def _place(self, own: object) -> int:
        """Return the place of one of its items; `own` is the one that it has in its own stream."""
        if own not in self._places:
            self._places[own] = next(self._chorus.places)
        return self._places[own]

    def _template_for(self, own: DeltaTemplate) -> DeltaTemplate:
        if self._template is None or self._template[0] is not own:
            after = {**own.after, _INDEX: self._place(own.after[_INDEX]), "agent": self.agent}
            self._template = own, DeltaTemplate(own.type, own.before, after)
        return self._template[1]
