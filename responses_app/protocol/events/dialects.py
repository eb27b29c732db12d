"""Dialects: how this server words what it sends, for clients that want it otherwise than today's spec.

A dialect is a set of independent switches; presets are sets with a name. `RESPONSES_DIALECT` chooses one for the
server, the header `Respsite-Dialect` one for a request or a connection. What the switches make of each event stands in
`wording`. Events keep their numbers and their order, so a stream can be picked up again in another dialect.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from responses_app.protocol.errors import ApiError, invalid_request
from responses_app.protocol.usage import as_read

DIALECT_HEADER = "Respsite-Dialect"


class Switch(StrEnum):
    """What can be had otherwise, each by itself."""

    TURN_ID = "turn-id"  # one response id for a whole turn, tool outputs included
    COMPLETED_CALLS = "completed-calls"  # a call that comes back `completed` and without an output gave nothing back
    REASONING_NAMES = "reasoning-names"  # `response.reasoning.*` for `response.reasoning_text.*`
    SUMMARY_NAMES = "summary-names"  # `response.reasoning.summary.*` for `response.reasoning_summary_*`
    REASONING_PARTS = "reasoning-parts"  # `response.reasoning_part.*` for a reasoning item's `content_part.*`
    TOOL_DELTAS = "tool-deltas"  # `response.tool_call.delta` besides the deltas of a call
    TOOL_DELTA_OBJECTS = "tool-delta-objects"  # the same with objects, where `tool-deltas` has JSON in strings
    ERROR_EVENTS = "error-events"  # `response.error` before `response.failed`
    CONTEXT_EVENTS = "context-events"  # `response.additional_context` behind items that carry sealed content or sources
    RATE_LIMIT_EVENTS = "rate-limit-events"  # `response.rate_limits.updated`, where there are limits
    PING_EVENTS = "ping-events"  # heartbeats are events, for clients that count nothing else as a sign of life
    USAGE_PER_TURN = "usage-per-turn"  # lists of each turn's tokens beside the sums


PRESETS: Mapping[str, frozenset[Switch]] = {
    "openai": frozenset(),
    "open-responses": frozenset((Switch.REASONING_NAMES,)),
    "codex-turn": frozenset((Switch.TURN_ID, Switch.COMPLETED_CALLS, Switch.REASONING_NAMES)),
    "legacy-events": frozenset(
        (
            Switch.REASONING_NAMES,
            Switch.SUMMARY_NAMES,
            Switch.REASONING_PARTS,
            Switch.TOOL_DELTAS,
            Switch.ERROR_EVENTS,
            Switch.CONTEXT_EVENTS,
            Switch.RATE_LIMIT_EVENTS,
        )
    ),
}
KNOWN = f"the presets {', '.join(PRESETS)}; the switches {', '.join(Switch)}"


@dataclass(frozen=True, slots=True)
class Dialect:
    """A set of switches."""

    switches: frozenset[Switch] = frozenset()

    @property
    def pings_are_events(self) -> bool:
        """Whether a heartbeat is an event; else it is what every client ignores by itself."""
        return Switch.PING_EVENTS in self.switches

    @property
    def one_id_a_turn(self) -> bool:
        """Whether a response that goes on with a turn has the id of the one before it."""
        return Switch.TURN_ID in self.switches

    @property
    def completed_calls_are_answered(self) -> bool:
        """Whether a call that comes back `completed` and without an output gave nothing back; else it is an echo."""
        return Switch.COMPLETED_CALLS in self.switches

    @property
    def usage_per_turn(self) -> bool:
        """Whether a response's usage has lists of each turn's tokens."""
        return Switch.USAGE_PER_TURN in self.switches

    def response(self, response: Mapping[str, object]) -> Mapping[str, object]:
        """Return a response object as this dialect has it, of one as it is stored."""
        return as_read(response, usage_per_turn=self.usage_per_turn)


OPENAI = Dialect()


def parse_dialect(text: str) -> Dialect:
    """Return the dialect that names of presets and switches, separated by commas, make together.

    Raises `ValueError` with the first name that is not known, "" where there is no name at all.
    """
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError("")
    return _dialect_of(frozenset(_switches(names)))


def requested_dialect(header: str | None, default: Dialect, *, usage_per_turn: bool = False) -> Dialect:
    """Return the dialect that a request's header asks for, else the default; `usage_per_turn`: in any case with that.

    Raises `ApiError` (400) for one that is not known.
    """
    asked = default
    if header is not None and header.strip(" ,"):
        try:
            asked = parse_dialect(header)
        except ValueError as error:
            raise unknown_dialect(str(error)) from None
    return _dialect_of(asked.switches | {Switch.USAGE_PER_TURN}) if usage_per_turn else asked


def unknown_dialect(name: str) -> ApiError:
    """A request asks for a dialect that this server does not have (400)."""
    return invalid_request(
        f"Unknown value in the header '{DIALECT_HEADER}': {name[:80]!r}. Known are {KNOWN}; separate several by "
        "commas.",
        param=DIALECT_HEADER,
        code="invalid_value",
    )


def _switches(names: Iterable[str]) -> Iterable[Switch]:
    for name in names:
        if name in PRESETS:
            yield from PRESETS[name]
        else:
            try:
                yield Switch(name)
            except ValueError:
                raise ValueError(name) from None


@lru_cache(maxsize=64)
def _dialect_of(switches: frozenset[Switch]) -> Dialect:
    """Return the one object of a set."""
    return Dialect(switches)
