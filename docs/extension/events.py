"""The events and frames, as `responses_app/protocol/` has them, with what is said of them there."""

from docs.extension.tables import code, table
from responses_app.protocol.events.events import EVENTS, FRAMES


def events() -> str:
    """Return the table of a response's events."""
    return table(("event", "when", "beside `type` and `sequence_number`"), map(_row, EVENTS.items()))


def frames() -> str:
    """Return the table of frames that are not events of a response."""
    return table(("frame", "when", "beside `type`"), map(_row, FRAMES.items()))


def _row(entry: tuple[str, tuple[str, str]]) -> tuple[str, str, str]:
    name, (about, holds) = entry
    return code(name), about, holds
