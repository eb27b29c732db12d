"""What spans say of a request and of its tokens, and how much of its contents."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor

from responses_app.observing import contents, gen_ai
from responses_app.observing.traces import NO_SPAN, Traces
from responses_app.runs.driving.spans import shows_contents, tells_contents
from tests.kit.gen_ai_conventions import SCHEMAS, errors_of

ITEMS: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be short."},
    {"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, {"type": "input_image"}]},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
    {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"a": 1}'},
    {"type": "function_call_output", "call_id": "c1", "output": "a turtle"},
    {"type": "custom_tool_call", "call_id": "c2", "name": "sql", "input": "SELECT 1"},
    {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "1"}]},
    {"type": "web_search_call", "id": "ws_1"},
    {"type": "item_reference", "id": "msg_1"},
]  # fmt: skip


def shown_of(arguments: str) -> Any:
    """Return what is shown of the arguments of a call."""
    item = {"type": "function_call", "call_id": "c", "name": "look", "arguments": arguments}
    (message,) = json.loads(contents.input_messages([item]), parse_constant=pytest.fail)
    return message["parts"][0]["arguments"]


def test_items_become_messages() -> None:
    messages = json.loads(contents.input_messages(ITEMS))
    assert not errors_of(messages, SCHEMAS["gen_ai.input.messages"])
    assert [(each["role"], [part["type"] for part in each["parts"]]) for each in messages] == [
        ("system", ["text"]),
        ("user", ["text", "input_image"]),
        ("assistant", ["reasoning"]),
        ("assistant", ["tool_call"]),
        ("tool", ["tool_call_response"]),
        ("assistant", ["tool_call"]),
        ("tool", ["tool_call_response"]),
        ("assistant", ["server_tool_call"]),
        ("assistant", ["server_tool_call"]),
    ]
    assert messages[2]["parts"][0]["content"] == "Hm."
    assert messages[3]["parts"][0]["arguments"] == {"a": 1}
    assert messages[5]["parts"][0]["arguments"] == "SELECT 1"
    (answer,) = json.loads(contents.output_messages([ITEMS[4], *ITEMS[2:4]], "tool_call"))
    assert (answer["role"], answer["finish_reason"], len(answer["parts"])) == ("assistant", "tool_call", 2)


def test_what_has_no_room_is_left_out_from_the_oldest_on() -> None:
    items = [{"role": "user", "content": f"{number} " * 2000} for number in range(100)]
    whole = contents.input_messages(items)
    assert len(whole) < contents.MAX_CHARACTERS * 1.2
    messages = json.loads(whole)
    assert messages[-1]["parts"][0]["content"] == items[-1]["content"]
    assert "more characters]" in messages[0]["parts"][0]["content"]
    many = [{"type": "input_text", "text": ""}] * 10_000
    assert len(json.loads(contents.input_messages([{"role": "user", "content": many}]))[0]["parts"]) <= 256


@pytest.mark.parametrize(
    "item", [{}, {"content": 5}, {"content": [None, "x", {}]}, {"type": "function_call"}, {"type": 1}]
)
def test_an_item_of_any_form_becomes_a_message(item: dict[str, Any]) -> None:
    assert not errors_of(json.loads(contents.input_messages([item])), SCHEMAS["gen_ai.input.messages"])


@pytest.mark.parametrize("depth", [1, contents.MAX_SHOWN_DEPTH, contents.MAX_SHOWN_DEPTH + 1, 2000, 200_000])
def test_a_value_that_is_no_text_is_shown_as_json_to_a_depth(depth: int) -> None:
    nested: list[object] = []
    for _ in range(depth - 1):
        nested = [nested]
    item = {"role": "user", "content": [{"type": "text", "text": nested}]}
    shown = json.loads(contents.input_messages([item]))[0]["parts"][0]["content"]
    assert shown == ("[" * depth + "]" * depth if depth <= contents.MAX_SHOWN_DEPTH else "[list]")


@pytest.mark.parametrize("depth", [1, contents.MAX_DEPTH, contents.MAX_DEPTH + 1, 30, 40, 60, 250])
@pytest.mark.parametrize(("opens", "closes"), [('{"a":', "}"), ("[", "]")], ids=["objects", "lists"])
def test_no_arguments_are_nested_so_deep_that_no_event_can_be_exported(depth: int, opens: str, closes: str) -> None:
    arguments = f'{{"a": {opens * (depth - 1)}1{closes * (depth - 1)}}}'
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}
    text = contents.input_messages([item])
    shown = json.loads(text)[0]["parts"][0]["arguments"]
    assert shown == (json.loads(arguments) if depth <= contents.MAX_DEPTH else arguments)
    exported, provider = InMemoryLogRecordExporter(), LoggerProvider()
    provider.add_log_record_processor(SimpleLogRecordProcessor(exported))
    whole = gen_ai.details({}, {"gen_ai.input.messages": text, "gen_ai.output.messages": text}, None)
    provider.get_logger("tests").emit(event_name="details", attributes=whole)
    sent = ExportLogsServiceRequest.FromString(encode_logs(exported.get_finished_logs()).SerializeToString())
    assert len(sent.resource_logs[0].scope_logs[0].log_records[0].attributes) == 2


def test_of_a_screenshot_only_its_type_is_shown() -> None:
    shown = {"type": "computer_screenshot", "image_url": "data:image/png;base64,iVBORw0KGgo"}
    whole = contents.input_messages([{"type": "computer_call_output", "call_id": "c", "output": shown}])
    assert json.loads(whole)[0]["parts"][0]["response"] == [{"type": "computer_screenshot"}]


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": []},
        {"role": "user", "content": [{"type": "x" * 10_000}]},
        {"type": "function_call", "call_id": "c" * 10_000, "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "c", "name": "f" * 10_000, "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c" * 10_000, "output": ""},
        {"type": "item_reference", "id": "i" * 10_000},
    ],
    ids=["nothing", "a type", "a call's id", "a name", "an output's id", "an id"],
)
def test_whatever_many_items_are_of_one_attribute_stays_small(item: dict[str, Any]) -> None:
    whole = contents.input_messages([item] * 2000)
    assert len(whole) < 2 * contents.MAX_CHARACTERS
    assert len(json.loads(whole)) <= contents.MAX_PARTS


@pytest.mark.parametrize(
    "arguments",
    ["[" * 16_000, *('{"a":' * deep + "1" + "}" * deep for deep in (40, 990)), '{"a": NaN}', '{"a": 1e999}',
     f'{{"a": {2**63}}}'],
    ids=["lists", "deep", "deeper", "NaN", "infinite", "large"],
)  # fmt: skip
def test_arguments_that_not_every_reader_can_read_stay_a_text(arguments: str) -> None:
    """A model writes them, or a client: what becomes of the response does not depend on them."""
    assert shown_of(arguments) == arguments


def test_arguments_with_all_kinds_of_values_are_an_object() -> None:
    given = {"a": [1, 2.5, True, None, "x", {"b": []}], "big": 2**63 - 1}
    assert shown_of(json.dumps(given)) == given


def test_a_lone_surrogate_can_be_exported() -> None:
    for text in (contents.cut("a\ud800"), contents.input_messages([{"role": "user", "content": "\ud800"}])):
        assert text.encode()


def test_a_request_says_what_it_has_and_nothing_else() -> None:
    request = SimpleNamespace(temperature=0, top_p=None, seed=3, max_output_tokens=9)
    assert gen_ai.sampling(request) == {
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.seed": 3,
        "gen_ai.request.max_tokens": 9,
    }
    assert gen_ai.sampling(SimpleNamespace(seed=2**63, max_output_tokens=10**400, top_k=3)) == {
        "gen_ai.request.top_k": 3.0
    }, "no exporter writes those"
    assert gen_ai.usage(input=5, cached=4, output=3, reasoning=2) == {
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.reasoning.output_tokens": 2,
    }


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ({"status": "completed", "output": [{"type": "message"}]}, "stop"),
        ({"status": "completed", "output": []}, "stop"),
        ({"status": "completed", "output": [{"type": "function_call"}]}, "tool_call"),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "length"),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "content_filter"),
        ({"status": "failed"}, "error"),
        ({"status": "cancelled"}, None),
    ],
)
def test_why_it_ended(response: dict[str, Any], reason: str | None) -> None:
    assert gen_ai.finish_reason(response) == reason


def test_without_traces_no_project_shows_its_contents() -> None:
    assert not NO_SPAN.shows("default")
    assert not NO_SPAN.tells("default")


@pytest.mark.parametrize("place", ["spans", "events"])
async def test_contents_stand_in_one_place_and_never_those_of_a_project_that_keeps_nothing(place: str) -> None:
    traces = Traces(enabled=True, content=["open"], content_in=place)
    traces.start()
    try:
        for parent in (traces.under(None), traces.under(None).child("a")):
            for project, unkept in (("open", False), ("open", True), ("other", False)):
                plan: Any = SimpleNamespace(unkept=unkept, origin=SimpleNamespace(span=parent, project=project))
                there = (shows_contents(plan), tells_contents(plan))
                wanted = (place == "spans", place == "events") if project == "open" and not unkept else (False, False)
                assert there == wanted
    finally:
        await traces.aclose()
