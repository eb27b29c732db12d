"""A call of a tool that this server runs, as its item is written: `HostedBuilder`, and `HostedCall`.

What each tool's item looks like stands in `hosted_items`, and that of the shell in `shell_items`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events.events import EventType
from responses_app.protocol.items.offers import OfferedTool
from responses_app.protocol.output.builders import ItemBuilder, PendingEvents

NewId = Callable[[str], str]


class HostedBuilder(ItemBuilder):
    """A call of a tool that the server runs: its text is its input, and it stays open until the tool has returned.

    Its methods are called in this order: `opened`, `called`, `progressed` any number of times, `returned`, `closed`.
    """

    first_event: ClassVar[EventType | None] = None  # behind `added`
    working_event: ClassVar[EventType | None] = None  # when the tool begins
    done_event: ClassVar[EventType | None] = None  # when the tool has returned
    failed_event: ClassVar[EventType | None] = None  # in place of `done_event`, where the tool has failed

    def __init__(self, new_id: NewId, offered: OfferedTool) -> None:
        super().__init__(new_id)
        self._offered = offered  # the tool
        self.unserved: JsonObject | None = None  # why nothing runs it, as the error of its item
        self.shown: JsonObject = {}  # fields of the item that the tool gives: its output, or a typed error
        self.failed = False
        self._is_called = False  # the input is complete
        self._has_returned = False

    def opened(self) -> PendingEvents:
        return _without_fields(self.first_event)

    def called(self) -> PendingEvents:
        """Return what is said once the input is complete and the tool begins."""
        self._is_called = True
        return [*self.input_done(), *_without_fields(self.working_event)]

    def output_builder(self) -> "HostedBuilder | None":
        """Return what writes an item of its own for what comes of the call; None: the call's item has it, too."""
        return None

    def progressed(self, fields: JsonObject) -> PendingEvents:
        """Return what is said of the tool's progress."""
        return []

    def returned(self, shown: JsonObject, *, failed: bool) -> None:
        """Take what the tool shows of what it gave back, or of why it failed."""
        self.shown, self.failed, self._has_returned = shown, failed, True

    def closed(self) -> PendingEvents:
        """Return what comes before `output_item.done`; of a call that was cut that is neither success nor failure."""
        return [*([] if self._is_called else self.input_done()), *(self.ended() if self._has_returned else [])]

    def input_done(self) -> PendingEvents:
        """Return what is said once the input is complete."""
        return []

    def ended(self) -> PendingEvents:
        """Return what is said when the tool has returned."""
        return _without_fields(self.failed_event if self.failed else self.done_event)


def _without_fields(type: EventType | None) -> PendingEvents:
    return [] if type is None else [(type, {})]


@dataclass(frozen=True, slots=True)
class HostedCall:
    """A call of a tool that the server runs; its item is open until the tool has returned."""

    name: str  # of the tool, as the model calls it
    arguments: str  # all that the model said; JSON, for most tools
    item_id: str
    sampled: bool = True  # the model said it in this response; else it was approved, and said in an earlier one
