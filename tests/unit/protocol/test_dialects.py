"""Dialects: sets of switches, and what they make of events."""

import re
from functools import lru_cache

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.formats.harmony.encoding import encode_harmony
from engine.types import FinishReason
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events.dialects import (
    OBFUSCATED_TO,
    OPENAI,
    PRESETS,
    RULES,
    CallNames,
    Dialect,
    EventPlace,
    Scene,
    Switch,
    parse_dialect,
    requested_dialect,
    wording,
)
from responses_app.protocol.events.events import Event, EventType
from responses_app.protocol.response.steps import Ended, Failed, RunStarted, Sampled, TurnBegan
from responses_app.protocol.usage import TurnUsage, usage
from responses_app.runs.log.journal import EventJournal, JournalReader
from tests.kit.server import ROOT
from tests.unit.protocol.machines import AT, BROKEN, told
from tests.unit.protocol.refusals import refusal
from tests.unit.protocol.wordings import RESPONSE_ID, in_dialect

RENAMED = {
    "response.reasoning_text.delta": "response.reasoning.delta",
    "response.reasoning_text.done": "response.reasoning.done",
}
CALLED = {"fc_1": CallNames("call_1", "get_weather"), "ctc_1": CallNames("call_2", "apply_patch")}
LIMITS: list[JsonObject] = [{"name": "requests", "limit": 60, "remaining": 59, "reset_seconds": 1.5}]


@pytest.mark.parametrize(
    ("text", "switches"),
    [
        ("openai", set()),
        ("open-responses", {"reasoning-names"}),
        ("ping-events", {"ping-events"}),
        ("usage-per-turn", {"usage-per-turn"}),
        (" Open-Responses , PING-EVENTS,", {"reasoning-names", "ping-events"}),
        ("reasoning-names,open-responses,openai", {"reasoning-names"}),
    ],
)
def test_a_dialect_is_a_set_of_switches(text: str, switches: set[str]) -> None:
    assert parse_dialect(text) == requested_dialect(text, OPENAI) == Dialect(frozenset(map(Switch, switches)))


@pytest.mark.parametrize("header", [None, "", " ", " , "])
def test_who_asks_for_none_gets_the_servers(header: str | None) -> None:
    default = parse_dialect("open-responses")
    assert requested_dialect(header, default) is default


def test_a_request_may_ask_for_less_than_the_server_has() -> None:
    assert requested_dialect("openai", parse_dialect("open-responses,ping-events")) == OPENAI


def test_lists_for_all_are_for_those_who_ask_for_something_else_too() -> None:
    for header in (None, "openai", "open-responses"):
        assert requested_dialect(header, OPENAI, usage_per_turn=True).usage_per_turn


@pytest.mark.parametrize("text", ["openai", "usage-per-turn"])
def test_a_response_has_the_usage_of_each_turn_where_that_is_asked_for(text: str) -> None:
    stored = {"id": "resp_1", "usage": usage([TurnUsage(7, 0, 3, 1)])}
    dialect = parse_dialect(text)
    assert ("_per_turn" in str(dialect.response(stored))) == dialect.usage_per_turn == (text != "openai")


@pytest.mark.parametrize("name", ["legacy", "nonsense", "x" * 500, "\xe4"])
def test_what_is_unknown_is_refused_with_what_is_known(name: str) -> None:
    error = refusal(requested_dialect, f"open-responses,{name}", OPENAI)
    assert (error.status, error.code, error.param) == (400, "invalid_value", "Respsite-Dialect")
    assert [known for known in (*PRESETS, *Switch) if known not in error.message] == []
    assert name[:80] in error.message
    assert len(error.message) < 600


def worded(names: str, type: str, number: int = 7, **fields: object) -> list[JsonObject]:
    """Return what an event is in a dialect; the line of each one's name agrees with its type."""
    reader = in_dialect(names, CALLED, limits=LIMITS)
    found = reader.of(type, number, Event(type, number, fields).as_json())  # type: ignore[arg-type]
    events = [orjson.loads(json) for _, json in found]
    assert [name for name, _ in found] == [event["type"] for event in events]
    return events


@pytest.mark.parametrize(
    "type", [type for type in EventType if type not in (EventType.PART_ADDED, EventType.PART_DONE)]
)
def test_an_event_keeps_everything_but_its_name(type: EventType) -> None:
    event = Event(type, 7, {"delta": "response.reasoning_text.delta", "type_of": {"type": "response.created"}})
    for names in ("open-responses", "reasoning-names,ping-events"):
        reader = in_dialect(names)
        [(name, json)] = reader.of(event.type, 7, event.as_json())
        assert name == RENAMED.get(type, type)
        assert orjson.loads(json) == {**orjson.loads(event.as_json()), "type": name}


@given(st.text(max_size=200))
def test_deltas_are_filled_up(text: str) -> None:
    [delta] = worded("obfuscation", "response.output_text.delta", delta=text)
    filling = delta.pop("obfuscation")
    assert delta == {"type": "response.output_text.delta", "delta": text, "sequence_number": 7}
    reader = in_dialect("obfuscation,reasoning-names")
    sizes = set()
    for type in ("response.reasoning_text.delta", "response.function_call_arguments.delta"):
        event = Event(type, 7, {"delta": text})  # type: ignore[arg-type]
        [(_, json)] = reader.of(type, 7, event.as_json())
        assert json == reader.of(type, 7, event.as_json())[0][1]
        sizes.add(len(json) % OBFUSCATED_TO)
    assert isinstance(filling, str)
    assert 1 <= len(filling) <= OBFUSCATED_TO
    assert len(sizes) == 1
    [done] = worded("obfuscation", "response.output_text.done", text=text)
    assert "obfuscation" not in done


@pytest.mark.parametrize("text", ["openai", "ping-events", "turn-id"])
def test_what_words_no_event_otherwise_costs_none_a_look(text: str) -> None:
    assert in_dialect(text) is None


def test_parts_of_reasoning_are_called_so_and_no_others() -> None:
    for end in ("added", "done"):
        for part, name in (("reasoning_text", "reasoning_part"), ("output_text", "content_part")):
            fields = {"item_id": "rs_1", "content_index": 0, "part": {"type": part, "text": "Hm"}}
            [event] = worded("reasoning-parts", f"response.content_part.{end}", **fields)
            assert event == {"type": f"response.{name}.{end}", **fields, "sequence_number": 7}


def test_summaries_by_their_older_names() -> None:
    delta = {"item_id": "rs_1", "output_index": 0, "summary_index": 0, "delta": "It thinks"}
    [event] = worded("summary-names", "response.reasoning_summary_text.delta", **delta)
    assert event == {"type": "response.reasoning.summary.delta", **delta, "sequence_number": 7}
    [event] = worded("summary-names", "response.reasoning_summary_part.added", item_id="rs_1")
    assert event["type"] == "response.reasoning.summary.added"
    assert worded("open-responses", "response.reasoning_summary_text.delta", **delta)[0]["type"] == (
        "response.reasoning_summary_text.delta"
    ), "the Open Responses specification has today's names for summaries"


@pytest.mark.parametrize(("names", "as_object"), [("tool-deltas", False), ("tool-delta-objects,tool-deltas", True)])
@pytest.mark.parametrize(
    ("type", "item_id"),
    [("function_call_arguments", "fc_1"), ("custom_tool_call_input", "ctc_1")],
)
def test_a_call_is_told_in_deltas_of_its_own(names: str, as_object: bool, type: str, item_id: str) -> None:
    fields = {"item_id": item_id, "output_index": 1, "delta": '{"city"'}
    added, same = worded(names, f"response.{type}.delta", **fields)
    assert same == {"type": f"response.{type}.delta", **fields, "sequence_number": 7}
    assert {key: added[key] for key in ("type", "response", "sequence_number")} == {
        "type": "response.tool_call.delta",
        "response": {"id": RESPONSE_ID},
        "sequence_number": 6,
    }
    [entry] = added["delta"]["content"]  # type: ignore[index]
    assert isinstance(entry, dict) == as_object
    call = CALLED[item_id]
    assert (entry if as_object else orjson.loads(entry)) == {
        "type": "tool_call",
        "id": item_id,
        "call_id": call.call_id,
        "name": call.name,
        "arguments": '{"city"',
    }


def test_a_call_without_arguments_is_told_at_its_end_and_one_with_some_not_again() -> None:
    done = {"item_id": "fc_1", "output_index": 1, "name": "get_weather"}
    assert len(worded("tool-deltas", "response.function_call_arguments.done", arguments="{}", **done)) == 1
    added, _ = worded("tool-deltas", "response.function_call_arguments.done", arguments="", **done)
    assert orjson.loads(added["delta"]["content"][0])["arguments"] == ""  # type: ignore[index]


@pytest.mark.parametrize(
    ("code", "type"), [("server_error", "server_error"), ("rate_limit_exceeded", "rate_limit_error")]
)
def test_an_error_goes_before_the_failure(code: str, type: str) -> None:
    failed = {"response": {"id": RESPONSE_ID, "status": "failed", "error": {"code": code, "message": "It broke."}}}
    error, same = worded("error-events", "response.failed", **failed)
    assert error == {
        "type": "response.error",
        "error": {"message": "It broke.", "type": type, "code": code},
        "sequence_number": 6,
    }
    assert same == {"type": "response.failed", **failed, "sequence_number": 7}
    assert len(worded("error-events", "response.completed", response={"error": None})) == 1


@pytest.mark.parametrize(
    ("item", "context"),
    [
        ({"id": "rs_1", "type": "reasoning", "encrypted_content": "gAAA"}, {"encrypted_content": "gAAA"}),
        (
            {
                "id": "ws_1",
                "type": "web_search_call",
                "action": {"type": "search", "sources": [{"url": "https://a.b"}]},
            },
            {"sources": [{"url": "https://a.b"}]},
        ),
        ({"id": "rs_1", "type": "reasoning"}, None),
        ({"id": "ws_1", "type": "web_search_call", "action": {"type": "search"}}, None),
        ({"id": "cmp_1", "type": "compaction", "encrypted_content": "gAAA"}, None),
        ({"id": "sh_1", "type": "shell_call", "action": {"commands": ["ls"]}}, None),
    ],
)
def test_what_an_item_carries_beside_its_text_is_told_before_its_end(
    item: JsonObject, context: JsonObject | None
) -> None:
    *added, same = worded("context-events", "response.output_item.done", output_index=0, item=item)
    assert same["item"] == item
    told = {"type": "response.additional_context", "item_id": item["id"], "context": context, "sequence_number": 6}
    assert added == ([] if context is None else [told])


@pytest.mark.parametrize("end", ["completed", "incomplete", "failed"])
def test_limits_are_told_behind_the_start_and_before_the_end(end: str) -> None:
    told = {"type": "response.rate_limits.updated", "rate_limits": LIMITS}
    response = {"response": {"id": RESPONSE_ID, "error": None}}
    assert worded("rate-limit-events", "response.in_progress", 1, **response)[1:] == [{**told, "sequence_number": 1}]
    assert worded("rate-limit-events", f"response.{end}", 9, **response)[:-1] == [{**told, "sequence_number": 8}]


def test_images_of_the_input_are_told_behind_the_start() -> None:
    urls = ["https://a.b/c.png", "data:image/png;base64,AA=="]
    scene = Scene(RESPONSE_ID, {}, lambda: LIMITS, urls)
    event = Event(EventType.IN_PROGRESS, 1, {"response": {}})
    reader = wording(parse_dialect("context-events"), scene)
    _, (name, told) = reader.of(event.type, 1, event.as_json())
    assert orjson.loads(told) == {"type": name, "context": {"image_urls": urls}, "sequence_number": 1}
    assert len(worded("context-events", "response.in_progress", 1, response={})) == 1, "there are none"


def test_without_limits_nothing_is_told_of_them() -> None:
    reader = in_dialect("rate-limit-events")
    event = Event(EventType.IN_PROGRESS, 1, {"response": {}})
    assert reader.of(event.type, 1, event.as_json()) == ((event.type, event.as_json()),)


SAID = (
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>So.<|end|>"
    '<|start|>assistant<|channel|>commentary to=functions.f<|message|>{"a":1}<|call|>'
)


@lru_cache
def events_of(*, fails: bool) -> list[Event]:
    """Return the events of a response that thinks, speaks and calls; or that fails in the middle of the call."""
    turn = [Sampled((token,), None) for token in encode_harmony(SAID)]
    end = [Failed(BROKEN), Ended(AT)] if fails else [Sampled((), FinishReason.STOP), Ended(AT)]
    driver, _ = told(RunStarted(), TurnBegan(9), *(turn[:-4] if fails else turn), *end)
    return driver.events


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("switches", [*PRESETS.values(), frozenset(Switch)])
def test_cut_behind_any_event_nothing_is_lost(switches: frozenset[Switch], fails: bool) -> None:
    """What comes twice has the type and the number that it had before, and is what it was."""
    journal = EventJournal(max_lag_bytes=10**6, kept=True)
    journal.extend(events_of(fails=fails))

    def heard(starting_after: int) -> list[tuple[str, int, bytes]]:
        scene = Scene(RESPONSE_ID, journal.calls, lambda: LIMITS, ["https://a.b/c.png"])
        reader = JournalReader(
            journal,
            lambda: None,
            lambda: None,
            starting_after=starting_after,
            wording=wording(Dialect(switches), scene),
        )
        entries = reader.take(1000)
        return [(each.type, orjson.loads(each.json)["sequence_number"], each.json) for each in entries]

    whole = heard(-1)
    assert len({entry[:2] for entry in whole}) == len(whole), "each is known by its type and number"
    for cut in range(len(whole)):
        had = whole[: cut + 1]
        again = heard(had[-1][1])
        assert [*had, *(entry for entry in again if entry not in had)] == whole
        put = {rule.becomes for rule in RULES if rule.place is not EventPlace.INSTEAD}
        assert {entry[0] for entry in again if entry in had} <= put
        calls = [entry for entry in again if entry in had and entry[0] == "response.tool_call.delta"]
        assert calls in ([], had[-1:]), "twice comes only what was cut off from the event that it tells of"


@settings(deadline=None)
@given(st.sets(st.sampled_from(Switch)), st.booleans(), st.integers(0, 30))
def test_any_switches_together_keep_the_journals_events_and_numbers(
    switches: set[Switch], fails: bool, start: int
) -> None:
    events = events_of(fails=fails)
    journal = EventJournal(max_lag_bytes=10**6, kept=True)
    journal.extend(events)
    dialect = Dialect(frozenset(switches))
    words = wording(dialect, Scene(RESPONSE_ID, journal.calls, lambda: LIMITS))
    start = min(start, len(events))
    plain = JournalReader(journal, lambda: None, lambda: None, starting_after=start - 1)
    other = JournalReader(journal, lambda: None, lambda: None, starting_after=start - 1, wording=words)
    had, heard = plain.take(1000), other.take(1000)
    added = {rule.becomes for rule in RULES if rule.place is not EventPlace.INSTEAD and rule.switch in switches}
    names = {rule.event: rule.becomes for rule in RULES if rule.place is EventPlace.INSTEAD}
    kept = [orjson.loads(entry.json) for entry in heard if entry.type not in added]
    for before, after in zip((orjson.loads(entry.json) for entry in had), kept, strict=True):
        assert after["type"] in (before["type"], names.get(before["type"]))
        for event in (after, before):
            del event["type"]
            event.get("response", {}).pop("usage", None)  # which is another switch's
            event.pop("obfuscation", None)  # and so is this
        assert after == before
    numbers = [orjson.loads(entry.json)["sequence_number"] for entry in heard]
    assert numbers == sorted(numbers)
    assert all(entry.type == orjson.loads(entry.json)["type"] for entry in heard)
    assert all(start - 1 <= number < len(events) for number in numbers)


def test_the_docs_say_what_each_preset_is() -> None:
    rows = (ROOT / "docs/reference/dialects.md").read_text().splitlines()
    for name, switches in PRESETS.items():
        [row] = [row for row in rows if re.match(rf"\| `{name}`[^|]* \| ", row)]
        assert {switch for switch in Switch if f"`{switch}`" in row} == switches
