"""A timeline as a trace that https://ui.perfetto.dev and chrome://tracing open: Chrome's trace events, as JSON.

    turns    │ turn 1                                     │ turn 2           │
    engine   │ queue │ prefill ▼ reasoning │ call │       │ queue │ answer   │
    tools                                         │ tool  │

A process of the trace is a response, a thread is one of these rows; ▼ is the first token of a turn. Times are Unix
microseconds, so traces of several responses can be put together. The format:
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from collections.abc import Iterator

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.response.timeline import Phase, PhaseKind, Timeline

TURNS, ENGINE, TOOLS, CLIENT, SERVER = range(1, 6)  # rows, by their numbers
ROWS = {TURNS: "turns", ENGINE: "engine", TOOLS: "tools", CLIENT: "client", SERVER: "server"}
_ROW_OF = {
    PhaseKind.TOOL: TOOLS,
    PhaseKind.CLIENT: CLIENT,
    PhaseKind.SAVING: SERVER,
    PhaseKind.UNKNOWN: SERVER,
}  # all others are the engine's
_PROCESS = 1


def trace_of(timeline: Timeline, *, name: str, now: int) -> JsonObject:
    """Return the trace of the response that is called `name`; what lasts ends `now` (Unix milliseconds)."""
    events = [_named("process_name", name), *(_named("thread_name", row, number) for number, row in ROWS.items())]
    return {"displayTimeUnit": "ms", "traceEvents": [*events, *_turns(timeline, now), *_phases(timeline, now)]}


def _named(kind: str, name: str, row: int = 0) -> JsonObject:
    return {"ph": "M", "name": kind, "pid": _PROCESS, "tid": row, "args": {"name": name}}


def _lasting(name: str, row: int, began: int, ended: int, **args: object) -> JsonObject:
    """Return an event that lasts; times are Unix milliseconds."""
    at = {"ts": began * 1000, "dur": max(0, ended - began) * 1000}
    return {"ph": "X", "name": name, "cat": ROWS[row], "pid": _PROCESS, "tid": row, **at, "args": args}


def _turns(timeline: Timeline, now: int) -> Iterator[JsonObject]:
    # By the numbers of turns, their first and last phases: a response may have thousands of both.
    edges: dict[int, tuple[Phase, Phase]] = {}
    for phase in timeline.phases:
        edges[phase.turn] = edges.get(phase.turn, (phase, phase))[0], phase
    for number, tokens in enumerate(timeline.turns, start=1):
        if number in edges:
            first, last = edges[number]
            counts = {"input_tokens": tokens.input, "cached_tokens": tokens.cached, "output_tokens": tokens.output}
            yield _lasting(f"turn {number}", TURNS, first.began, now if last.ended is None else last.ended, **counts)
        if tokens.first_token is not None:
            instant = {"ts": tokens.first_token * 1000, "s": "t", "args": {"turn": number}}
            yield {"ph": "i", "name": "first token", "cat": "engine", "pid": _PROCESS, "tid": ENGINE, **instant}


def _phases(timeline: Timeline, now: int) -> Iterator[JsonObject]:
    for phase in timeline.phases:
        row, ended = _ROW_OF.get(phase.kind, ENGINE), now if phase.ended is None else phase.ended
        name = f"{phase.kind} {phase.name}" if phase.name else str(phase.kind)
        yield _lasting(name, row, phase.began, ended, turn=phase.turn)
