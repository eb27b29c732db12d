"""A timeline as a trace for Perfetto: what stands in which row, and that its events are of the form that it reads."""

import json

from responses_app.extensions.console.watch.drawing import ROWS, trace_of
from responses_app.protocol.response.timeline import Phase, PhaseKind, Timeline, TurnTokens

AT = 1_700_000_000_000


def timeline(*, ended: int | None) -> Timeline:
    kinds = [
        (PhaseKind.QUEUE, 1, 0, 10, ""),
        (PhaseKind.PREFILL, 1, 10, 30, ""),
        (PhaseKind.CALL, 1, 30, 40, "search"),
        (PhaseKind.TOOL, 1, 40, 90, "search"),
        (PhaseKind.QUEUE, 2, 90, 91, ""),
        (PhaseKind.ANSWER, 2, 91, ended, ""),
    ]
    phases = [
        Phase(kind, turn, AT + began, None if end is None else AT + end, name) for kind, turn, began, end, name in kinds
    ]
    turns = [TurnTokens(70, 10, 5, AT + 30), TurnTokens(90, 75, 8, AT + 91)]
    return Timeline(AT, phases, turns, None if ended is None else AT + ended)


def test_each_phase_stands_in_its_row_and_times_are_microseconds() -> None:
    events = json.loads(json.dumps(trace_of(timeline(ended=120), name="resp_1", now=AT + 500)))["traceEvents"]
    assert {each["args"]["name"] for each in events if each["ph"] == "M"} == {"resp_1", *ROWS.values()}
    lasting = [each for each in events if each["ph"] == "X"]
    assert [
        (each["cat"], each["name"], each["ts"] // 1000 - AT, each["dur"] // 1000) for each in lasting
    ] == [
        ("turns", "turn 1", 0, 90),
        ("turns", "turn 2", 90, 30),
        ("engine", "queue", 0, 10),
        ("engine", "prefill", 10, 20),
        ("engine", "call search", 30, 10),
        ("tools", "tool search", 40, 50),
        ("engine", "queue", 90, 1),
        ("engine", "answer", 91, 29),
    ]  # fmt: skip
    assert lasting[1]["args"] == {"input_tokens": 90, "cached_tokens": 75, "output_tokens": 8}
    firsts = [each for each in events if each["ph"] == "i"]
    assert [(each["name"], each["ts"] // 1000 - AT, each["s"]) for each in firsts] == [
        ("first token", 30, "t"),
        ("first token", 91, "t"),
    ]
    for each in events:
        assert isinstance(each["pid"], int)
        assert isinstance(each["tid"], int)


def test_events_of_a_row_do_not_overlap_and_what_lasts_ends_now() -> None:
    events = trace_of(timeline(ended=None), name="resp_1", now=AT + 500)["traceEvents"]
    rows: dict[int, int] = {}
    for each in events:  # type: ignore[attr-defined]
        if each["ph"] == "X":
            assert each["ts"] >= rows.get(each["tid"], 0)
            rows[each["tid"]] = each["ts"] + each["dur"]
    assert max(rows.values()) == (AT + 500) * 1000


def test_a_timeline_of_which_nothing_is_known_is_a_trace_too() -> None:
    unknown = Timeline(AT, [Phase(PhaseKind.UNKNOWN, 1, AT, AT + 9)], [TurnTokens(3, 0, 2)], AT + 9, is_timed=False)
    events = trace_of(unknown, name="resp_1", now=AT + 500)["traceEvents"]
    assert [each["name"] for each in events if each["ph"] == "X"] == ["turn 1", "unknown"]  # type: ignore[attr-defined]


def test_a_response_of_thousands_of_turns_looks_at_each_phase_a_few_times_only() -> None:
    looks = 0

    class Counted(Phase):
        def __getattribute__(self, name: str) -> object:
            nonlocal looks
            looks += name == "turn"
            return super().__getattribute__(name)

    turns = 500
    phases = [Counted(PhaseKind.ANSWER, number, AT + number, AT + number + 1) for number in range(1, turns + 1)]
    whole = Timeline(AT, list(phases), [TurnTokens() for _ in range(turns)], AT + turns + 1)
    events = trace_of(whole, name="resp_1", now=AT)["traceEvents"]
    assert sum(each["ph"] == "X" for each in events) == 2 * turns  # type: ignore[attr-defined]
    assert looks <= 4 * turns
