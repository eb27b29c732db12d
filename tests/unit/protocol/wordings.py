"""Dialects as tests of journals and events use them."""

from collections.abc import Mapping, Sequence

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events.dialects import CallNames, Scene, Wording, no_limits, parse_dialect, wording

RESPONSE_ID = "resp_1"


def in_dialect(
    names: str, calls: Mapping[str, CallNames] | None = None, *, limits: Sequence[JsonObject] | None = None
) -> Wording | None:
    """Return how a reader of `resp_1` hears it in a dialect; `calls` are known, `limits` are those there are."""
    scene = Scene(RESPONSE_ID, calls or {}, (lambda: limits) if limits is not None else no_limits)
    return wording(parse_dialect(names), scene)
