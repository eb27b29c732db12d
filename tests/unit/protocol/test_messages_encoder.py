"""A message of Anthropic's API, with calls as blocks: the same in events and whole, and read as sampled."""

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import orjson
from anthropic.types import Message
from anthropic.types.beta import BetaMessage
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from engine.formats.base import RenderedMessage
from engine.formats.harmony.encoding import encode_harmony, encode_text
from engine.formats.harmony.format import HarmonyFormat
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.ids import DerivedIds
from responses_app.protocol.items.offers import OfferedTool
from responses_app.protocol.messages.message import MessageObject, seen_turn_of, whole_message
from responses_app.protocol.output.hosted_items import builder_of
from responses_app.protocol.output.stream import ResponseStream
from responses_app.protocol.prompt.rendering import Items, render_items
from responses_app.protocol.prompt.replaying import SEAL_PURPOSE, ItemSeals
from responses_app.protocol.requests.requests import new_response, parse_create
from responses_app.protocol.requests.resources import Status
from responses_app.protocol.response.response import ResponseMachine
from responses_app.protocol.response.steps import OutputOptions, RunStarted, ToolReturned
from responses_app.runs.plan.reading import Unsealing
from tests.kit.laws import chunked, play, transcripts
from tests.kit.messages import THINKING, USER, encoded, message, put_together
from tests.unit.protocol.machines import KEY, RESPONSE_ID, SEALER, Driver, turn_of

SIZES = st.lists(st.integers(0, 4), min_size=1, max_size=3)
STOPS = st.lists(st.sampled_from(["a", "\n", " apple", "ive", '",', '"']), max_size=4)
THOUGHT = '<|channel|>analysis<|message|>Say "hi",\\ and ü.<|end|><|start|>assistant'
ANSWER = '<|channel|>final<|message|>He said: "a\\",", and left. 😀<|return|>'
PREAMBLE = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a":"\\"logprobs\\":["}<|call|>'
PROMISED = TypeAdapter(MessageObject)


def whole_of(events: Sequence[Any], asked: Any) -> dict[str, Any]:
    """Return the message that a response is as a whole."""
    response: Any = orjson.loads(events[-1].as_json())["response"]
    whole: Any = whole_message(response, asked)
    PROMISED.validate_python(whole, strict=True)
    Message.model_validate(whole)
    return whole


@given(transcripts().map(lambda transcript: transcript.tokens), SIZES, STOPS)
@example(encode_harmony(THOUGHT + ANSWER), [1], [])
@example(encode_harmony(THOUGHT + PREAMBLE + CALL), [2], ["logprobs"])
@example(encode_harmony(THOUGHT + CALL.replace("<|call|>", "<|end|><|start|>assistant") + CALL), [3], ["a"])
@example(encode_harmony(THOUGHT + PREAMBLE + ANSWER), [1, 3], ['",', "look.\n\nHe"])
@settings(max_examples=60, deadline=None)
def test_the_events_of_a_message_are_its_whole(tokens: Sequence[int], sizes: list[int], stops: list[str]) -> None:
    for asked in (
        message(stop_sequences=stops, thinking=THINKING),
        message(thinking={"type": "adaptive", "display": "omitted"}),
        message(stop_sequences=stops),
    ):
        played = play(chunked(tokens, sizes))
        encoder, events = encoded(played.events, asked)
        together = put_together(events)
        assert together == whole_of(played.events, asked)
        assert (encoder.matched, encoder.failed) == (together["stop_sequence"], False)
        assert put_together(encoded(play([tokens]).events, asked)[1]) == together


def test_thoughts_text_and_calls_are_blocks() -> None:
    played = play([[token] for token in encode_harmony(THOUGHT + PREAMBLE + CALL)])
    _, events = encoded(played.events, message(thinking=THINKING))
    assert [each["type"] for each in events[:3]] == ["message_start", "content_block_start", "content_block_delta"]
    assert events[0]["message"]["usage"]["input_tokens"] == 3
    together = put_together(events)
    thought, text, call = together["content"]
    assert thought == {"type": "thinking", "thinking": 'Say "hi",\\ and ü.', "signature": ""}
    assert text == {"type": "text", "text": "I look."}
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "f", {"a": '"logprobs":['})
    assert (together["stop_reason"], together["stop_sequence"]) == ("tool_use", None)
    assert together["usage"] == {
        "input_tokens": 8,
        "cache_read_input_tokens": 1,
        "cache_creation_input_tokens": 0,
        "output_tokens": 5,
        "output_tokens_details": {"thinking_tokens": 2},
        "service_tier": "standard",
    }


def test_thoughts_are_shown_where_they_are_asked_for() -> None:
    played = play([encode_harmony(THOUGHT + ANSWER)])
    for asked in (message(), message(thinking={"type": "disabled"})):
        assert [each["type"] for each in put_together(encoded(played.events, asked)[1])["content"]] == ["text"]


def test_how_a_message_ends() -> None:
    for asked in (message(thinking=THINKING), message()):
        together = put_together(encoded(play([]).events, asked)[1])
        assert (together["content"], together["stop_reason"]) == ([], "end_turn"), "there is no word"
    said = [encode_harmony("<|channel|>final<|message|>He said")]
    cut = play(said, status=Status.INCOMPLETE)
    assert put_together(encoded(cut.events, message())[1])["stop_reason"] == "max_tokens"
    encoder, events = encoded(play(said, status=Status.FAILED, close=False).events, message())
    assert encoder.failed
    assert "message_delta" not in [each["type"] for each in events]


def test_what_shows_nothing_is_redacted() -> None:
    """The seal that tells how other items were said stands in a reasoning item without a text."""
    asked = message(thinking=THINKING)
    played = play([encode_harmony(ANSWER)])
    encoder, _ = encoded(played.events[:1], asked)
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [], "encrypted_content": "a seal"}
    said = encoder.encode("response.output_item.done", orjson.dumps({"item": item}))
    assert b'"content_block":{"type":"redacted_thinking","data":"a seal"}' in said
    assert said.count(b"content_block_stop") == 2  # the event's name, and its data


HARMONY = HarmonyFormat()
TOOLS: Any = [
    {"name": "f", "input_schema": {"type": "object"}},
    {"type": "web_search_20250305", "name": "web_search"},
    {"type": "code_execution_20250522", "name": "code_execution"},
]
SERVERS: Any = [{"type": "url", "name": "tests", "url": "http://127.0.0.1/mcp"}]
OFFERED = {
    "python": OfferedTool(name="python", item="code_interpreter_call", fields={"container_id": "cntr_0123"}),
    "tests.add": OfferedTool(name="tests.add", item="mcp_call", server="tests", tool="add"),
    **{
        name: OfferedTool(name=name, item="web_search_call", repeatable=True)
        for name in ("browser.search", "browser.open", "browser.find")
    },
}
PAGE = {"url": "https://a.example/", "title": "A", "text": "Found."}
SHOWN: dict[str, Sequence[tuple[JsonObject, bool]]] = {  # what a tool shows of a call, and whether that has failed
    "python": (
        ({"outputs": [{"type": "logs", "logs": "ü\n"}, {"type": "files", "files": [{"file_id": "cfile_1"}]}]}, False),
        ({"outputs": []}, False),
        ({"outputs": [{"type": "logs", "logs": "too long"}]}, True),
        ({"outputs": None}, True),
    ),
    "tests.add": (
        ({"output": "42"}, False),
        ({"error": {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "a bad day"}]}}, True),
        ({"error": {"type": "http_error", "code": 500, "message": "It answered 500."}}, True),
    ),
    "browser.search": (
        ({"action": {"type": "search", "query": "a", "queries": ["a"]}, "results": [PAGE, PAGE]}, False),
        ({"error": {"type": "web_search_error", "message": "No."}}, True),
    ),
    "browser.open": (
        ({"action": {"type": "open_page", "url": "https://a.example/"}, "results": [PAGE]}, False),
        ({"action": {"type": "open_page", "url": None}, "error": {"type": "web_search_error", "message": "No."}}, True),
    ),
    "browser.find": (
        ({"action": {"type": "find_in_page", "pattern": "a", "url": PAGE["url"]}, "results": [PAGE]}, False),
    ),
}
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.builds(
    lambda value, indent, ascii: json.dumps(value, indent=indent, ensure_ascii=ascii),
    st.dictionaries(st.text(max_size=4), _VALUES, max_size=4),
    st.sampled_from([None, 0, 2]),
    st.booleans(),
)
CODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@st.composite
def turns(draw: st.DrawFn) -> tuple[list[list[int]], list[ToolReturned]]:
    """Draw calls of the server's tools, and an answer or a call of the client's at the end."""
    said: list[list[int]] = []
    returned: list[ToolReturned] = []
    for name in draw(st.lists(st.sampled_from(sorted(OFFERED)), max_size=3)):
        text = draw(CODE if name == "python" else ARGUMENTS)
        thought = draw(st.sampled_from(["", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"]))
        kind = "" if name == "python" else " <|constrain|>json"
        said.append(called(f"{thought}<|channel|>commentary to={name}{kind}<|message|>", text))
        shown, failed = draw(st.sampled_from(SHOWN[name]))
        returned.append(ToolReturned(draw(st.sampled_from(["It is so.", "ü\n42"])), failed=failed, shown=shown))
    if draw(st.booleans()):
        said.append(called("<|channel|>commentary to=functions.f <|constrain|>json<|message|>", draw(ARGUMENTS)))
    else:
        said.append(encode_harmony("<|channel|>final<|message|>That is all.<|return|>"))
    return said, returned


def called(head: str, text: str) -> list[int]:
    return [*encode_harmony(head), *encode_text(text), *encode_harmony("<|call|>")]


def run(said: Sequence[Sequence[int]], returned: Sequence[ToolReturned], sizes: Sequence[int]) -> Driver:
    """Return the driver of a message's response, which these turns are."""
    create = message(tools=TOOLS, mcp_servers=SERVERS, thinking=THINKING).create
    response = new_response(create, response_id=RESPONSE_ID, created_at=1_700_000_000, model="m", store=False)
    stream = ResponseStream(
        response,
        new_id=DerivedIds(RESPONSE_ID, created_ms=1_700_000_000_000, key=KEY),
        hosted={name: partial(_builder, offered) for name, offered in OFFERED.items()},
        seals=ItemSeals(
            HARMONY, seal=lambda place, data: SEALER.seal_again(SEAL_PURPOSE, "default", data, place=place)
        ),
    )
    driver = Driver(ResponseMachine(stream, HARMONY, functions=("f",)))
    driver.tell(OutputOptions(sealed=True, objects=True))
    driver.run(RunStarted(), [turn_of(turn, sizes) for turn in said], returned)
    return driver


def _builder(offered: OfferedTool, new_id: Any) -> Any:
    return builder_of(offered, new_id)


def through_a_client(value: Any, *, reverse: bool) -> Any:
    """Return a block as a client has kept it: in whatever order of its fields."""
    if isinstance(value, dict):
        fields = {name: through_a_client(each, reverse=reverse) for name, each in value.items()}
        return dict(reversed(fields.items())) if reverse else fields
    return [through_a_client(each, reverse=reverse) for each in value] if isinstance(value, list) else value


def read_again(content: Sequence[JsonObject]) -> tuple[list[RenderedMessage], Any]:
    """Return what the model reads of a message that a client gives back, and what its turn is known by."""
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": "x"}
        for block in content
        if block["type"] == "tool_use"
    ]
    behind = {"role": "user", "content": [*results, {"type": "text", "text": "on"}]}
    asked = message(messages=[USER, {"role": "assistant", "content": content}, behind], tools=TOOLS)
    [turn] = asked.turns
    items = Items(asked.create.input[turn.begin : turn.end], asked.create.input_json[turn.begin : turn.end])
    opened = Unsealing(SEALER, "default").opened(items, named=True)  # type: ignore[arg-type]
    return render_items(HARMONY, opened.parsed, opened.raw, parent=None, sampled={}), turn.seen


PYTHON = called("<|channel|>commentary to=python<|message|>", 'print("\\"ü😀")')
SEARCH = called("<|channel|>commentary to=browser.search<|message|>", '{"query" : "a"}')
SAID = encode_harmony("<|channel|>final<|message|>Hello.<|return|>")
RETURNED = [ToolReturned("x", shown=SHOWN[name][0][0]) for name in ("python", "browser.search")]


@given(turns(), st.lists(st.integers(1, 4), min_size=1, max_size=3), st.booleans())
@example(([PYTHON, SEARCH, SAID], RETURNED), [1], True)
@settings(max_examples=80, deadline=None)
def test_calls_are_blocks_in_events_and_whole_and_come_back_exactly(
    drawn: tuple[list[list[int]], list[ToolReturned]], sizes: list[int], reverse: bool
) -> None:
    driver = run(*drawn, sizes)
    response: Any = driver.seen[-1]["response"]
    for asked in (message(thinking=THINKING), message(tools=TOOLS)):
        whole: Any = whole_message(response, asked)
        BetaMessage.model_validate(orjson.loads(orjson.dumps(whole)))
        assert put_together(encoded(driver.events, asked)[1]) == whole
        read, seen = read_again(through_a_client(whole["content"], reverse=reverse))
        assert [each.tokens for each in read] == [each.tokens for each in driver.machine.stream.messages]
        assert seen.key == seen_turn_of(response).key


def test_a_call_that_is_cut_has_no_result() -> None:
    driver = run([PYTHON], [], [3])
    response: Any = driver.seen[-1]["response"]
    whole: Any = whole_message({**response, "output": [{**response["output"][0], "status": "incomplete"}]}, message())
    assert [block["type"] for block in whole["content"]] == ["server_tool_use"]
    assert parse_create({"model": "m", "input": read_items(whole["content"])}).input


BROKEN: list[tuple[str, Any, str, Any]] = [  # what no server of ours has said
    ("code_execution", {"code": {"a": 1}}, "code_execution", {"content": [1, {"file_id": 5}], "stdout": 7}),
    ("code_execution", {}, "code_execution", {"content": 5, "return_code": "x"}),
    ("code_execution", {}, "code_execution", [1]),
    ("web_fetch", {"pattern": 7, "url": [1]}, "web_fetch", {"content": {"source": 5}}),
    ("web_search", {"query": [1]}, "web_search", [1, {"url": 5}]),
    ("web_search", {"query": "a"}, "web_search", {"type": "web_search_tool_result_error"}),
    ("bash_code_execution", {"command": "ls"}, "bash_code_execution", {"stdout": "a.txt"}),
    ("tool_search_tool_regex", {"query": "a"}, "tool_search", {"tool_references": []}),
]


def test_blocks_that_others_have_written_are_read() -> None:
    for name, asked, kind, content in BROKEN:
        use = {"type": "server_tool_use", "id": "srvtoolu_1", "name": name, "input": asked}
        result = {"type": f"{kind}_tool_result", "tool_use_id": "srvtoolu_1", "content": content}
        read, _ = read_again([use, result])
        assert len(read) == 2
    use = {"type": "mcp_tool_use", "id": "m", "name": "x", "server_name": "y", "input": {}}
    for content in ([1, {"text": 5}], "text", None):
        assert len(read_again([use, {"type": "mcp_tool_result", "tool_use_id": "m", "content": content}])[0]) == 2


def read_items(content: Sequence[JsonObject]) -> list[JsonObject]:
    asked = message(messages=[USER, {"role": "assistant", "content": content}, USER], tools=TOOLS)
    return asked.create.input_json
