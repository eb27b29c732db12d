"""Dialects: sets of switches, and what they make of events."""

import orjson
import pytest

from responses_app.protocol.dialects import OPENAI, PRESETS, Dialect, Switch, parse_dialect, requested_dialect
from responses_app.protocol.errors import ApiError
from responses_app.protocol.events import Event, EventType
from responses_app.protocol.usage import TurnUsage, usage

RENAMED = {
    "response.reasoning_text.delta": "response.reasoning.delta",
    "response.reasoning_text.done": "response.reasoning.done",
}


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


@pytest.mark.parametrize("name", ["codex-turn", "legacy-events", "nonsense", "x" * 500, "\xe4"])
def test_what_is_unknown_is_refused_with_what_is_known(name: str) -> None:
    with pytest.raises(ApiError) as raised:
        requested_dialect(f"open-responses,{name}", OPENAI)
    error = raised.value
    assert (error.status, error.code, error.param) == (400, "invalid_value", "Respsite-Dialect")
    assert [known for known in (*PRESETS, *Switch) if known not in error.message] == []
    assert name[:80] in error.message
    assert len(error.message) < 400


@pytest.mark.parametrize("type", EventType)
def test_an_event_keeps_everything_but_its_name(type: EventType) -> None:
    event = Event(type, 7, {"delta": "response.reasoning_text.delta", "type_of": {"type": "response.created"}})
    for dialect in map(parse_dialect, ("open-responses", "reasoning-names,ping-events")):
        assert dialect.rewords_events
        name, json = dialect.event(event.type, event.as_json())
        assert name == RENAMED.get(type, type)
        assert orjson.loads(json) == {**orjson.loads(event.as_json()), "type": name}
    assert OPENAI.event(event.type, event.as_json()) == (type, event.as_json())


@pytest.mark.parametrize("text", ["openai", "ping-events"])
def test_what_words_no_event_otherwise_costs_none_a_look(text: str) -> None:
    assert not parse_dialect(text).rewords_events
