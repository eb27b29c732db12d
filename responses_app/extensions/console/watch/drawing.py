"""A timeline as a picture: phases become bars here, in percent of the width, and a template draws them as SVG.

At the end it becomes a trace that https://ui.perfetto.dev and chrome://tracing open: Chrome's trace events, as JSON.

    turns    │ turn 1                                     │ turn 2           │
    engine   │ queue │ prefill ▼ reasoning │ call │       │ queue │ answer   │
    tools                                         │ tool  │

A process of the trace is a response, a thread is one of these rows; ▼ is the first token of a turn. Times are Unix
microseconds, so traces of several responses can be put together. The format:
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from responses_app.extensions.console.watch.text import milliseconds, visible
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.response.timeline import Phase, PhaseKind, Timeline

LABELS = {
    PhaseKind.QUEUE: "waiting",
    PhaseKind.PREFILL: "prefill",
    PhaseKind.REASONING: "reasoning",
    PhaseKind.ANSWER: "answer",
    PhaseKind.CALL: "writing a call",
    PhaseKind.TOOL: "tool",
    PhaseKind.CLIENT: "waiting for the client",
    PhaseKind.SUMMARY: "summing up",
    PhaseKind.SAVING: "saving",
    PhaseKind.UNKNOWN: "not known",
}
SHORT = {PhaseKind.CALL: "call", PhaseKind.CLIENT: "client"}  # in a bar
MAX_ROWS = 40  # turns that are drawn: the first and the last ones
MAX_PHASES = 400  # in the table; the JSON has all
MIN_WIDTH = 0.25  # percent: what was short is seen, too
TEXT_WIDTH = 9.0  # percent from which on a bar says what it is
ROW, TOP, BAR = 46, 26, 18  # pixels: a turn's height, where the first begins, a bar's height
TICKS = 5  # at most, beside 0


@dataclass(frozen=True, slots=True)
class PhaseBar:
    """A phase."""

    kind: str
    x: float  # in percent of the picture's width, as `width`
    width: float
    text: str  # what the pointer shows
    inside: str  # what stands in it; "" where there is no room
    lasts: bool  # it has not ended


@dataclass(frozen=True, slots=True)
class TurnRow:
    """A turn."""

    name: str
    tokens: str  # how many it read and said
    y: int  # where its text stands, in pixels
    bars: Sequence[PhaseBar]
    first_token: float | None  # in percent of the width

    @property
    def bar_y(self) -> int:
        """Where its bars begin, in pixels."""
        return self.y + 7


@dataclass(frozen=True, slots=True)
class PhaseLine:
    """A phase in the table."""

    turn: int  # from 1 on
    kind: str  # names its colour
    label: str  # the kind, in words
    name: str  # of the tool, if it is one's
    began: str  # since the response was created
    lasted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelinePicture:
    """All the template needs."""

    key: str  # what the ids in the page begin with
    summary: str
    height: int  # in pixels
    ticks: Sequence[tuple[float, str]]  # where, in percent of the width, and the time
    rows: Sequence[TurnRow]
    legend: Sequence[tuple[str, str, str, str]]  # each kind of phase, its label, its time in all and its share
    lines: Sequence[PhaseLine]
    left_out: int  # turns that are not drawn
    lines_left_out: int
    is_timed: bool
    bar: int = BAR


def draw(timeline: Timeline, *, now: int, key: str, scale: int = 0) -> TimelinePicture:
    """Return the picture of a timeline at `now` (Unix milliseconds).

    `key` makes the ids in the page its own. `scale` is how many milliseconds the whole width is; 0: as many as needed.
    """
    took = timeline.milliseconds(now)
    span = max(scale, took, 1)
    turns = sorted({phase.turn for phase in timeline.phases} | set(range(1, len(timeline.turns) + 1)))
    # The first and the last ones: the middle of a long loop looks like them.
    shown = turns if len(turns) <= MAX_ROWS else [*turns[: MAX_ROWS // 2], *turns[-MAX_ROWS // 2 :]]
    rows = [_row(timeline, turn, place, span=span, now=now) for place, turn in enumerate(shown)]
    return TimelinePicture(
        key=key,
        summary=_summary(timeline, took),
        height=TOP + ROW * len(rows),
        ticks=_ticks(span),
        rows=rows,
        legend=_legend(timeline, took, now),
        lines=[_line(timeline, phase, now) for phase in timeline.phases[:MAX_PHASES]],
        left_out=len(turns) - len(shown),
        lines_left_out=max(0, len(timeline.phases) - MAX_PHASES),
        is_timed=timeline.is_timed,
    )


def _row(timeline: Timeline, turn: int, place: int, *, span: int, now: int) -> TurnRow:
    def percent(at: int) -> float:
        # Clocks of two workers may differ: what seems to be before the beginning is drawn at it.
        return round(min(100.0, max(0, at - timeline.created) / span * 100), 3)

    bars = []
    for phase in timeline.phases:
        if phase.turn != turn:
            continue
        end = now if phase.ended is None else phase.ended
        x, width = percent(phase.began), round(percent(max(end, phase.began)) - percent(phase.began), 3)
        # Over within a millisecond.
        if not width and phase.ended is not None:
            continue
        width = max(width, MIN_WIDTH)
        label = SHORT.get(phase.kind, LABELS[phase.kind])
        inside = label if width >= TEXT_WIDTH and phase.kind is not PhaseKind.UNKNOWN else ""
        name = f" {visible(phase.name)[:80]}" if phase.name else ""
        text = f"{LABELS[phase.kind]}{name}: {milliseconds(end - phase.began)}"
        bars.append(PhaseBar(phase.kind.value, min(x, 100 - MIN_WIDTH), width, text, inside, phase.ended is None))
    tokens = timeline.turns[turn - 1] if turn <= len(timeline.turns) else None
    first = None if tokens is None or tokens.first_token is None else percent(tokens.first_token)
    counted = ""
    if tokens is not None:
        cached = f" ({tokens.cached:,} cached)" if tokens.cached else ""
        counted = f"{tokens.input:,} in{cached} → {tokens.output:,} out"
    return TurnRow(f"Turn {turn}", counted, TOP + ROW * place + 12, bars, first)


def _line(timeline: Timeline, phase: Phase, now: int) -> PhaseLine:
    end = now if phase.ended is None else phase.ended
    return PhaseLine(
        turn=phase.turn,
        kind=phase.kind.value,
        label=LABELS[phase.kind],
        name=visible(phase.name)[:80],
        began=milliseconds(phase.began - timeline.created),
        lasted=milliseconds(max(0, end - phase.began)) + (" so far" if phase.ended is None else ""),
    )


def _legend(timeline: Timeline, took: int, now: int) -> list[tuple[str, str, str, str]]:
    spent: dict[PhaseKind, int] = {}
    for phase in timeline.phases:
        end = now if phase.ended is None else phase.ended
        spent[phase.kind] = spent.get(phase.kind, 0) + max(0, end - phase.began)
    return [
        (kind.value, LABELS[kind], milliseconds(spent[kind]), f"{spent[kind] / max(took, 1):.0%}")
        for kind in PhaseKind
        if spent.get(kind)
    ]


def _summary(timeline: Timeline, took: int) -> str:
    turns = max(1, len(timeline.turns))
    counted = f"{turns} turn{'s' if turns > 1 else ''}"
    if timeline.ended is None:
        return f"{counted} so far, {milliseconds(took)} since it was created."
    return f"{counted} in {milliseconds(took)}."


def _ticks(span: int) -> list[tuple[float, str]]:
    """Return marks at round times."""
    size = 1
    while span / size > TICKS:
        # 1, 2, 5, 10, 20, 50, … milliseconds: the first that gives few enough marks.
        size = next(size * step for step in (2, 5, 10) if span / (size * step) <= TICKS or step == 10)
    marks = range(0, span + 1, size)
    return [(round(mark / span * 100, 3), milliseconds(mark) if mark else "0") for mark in marks]


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
