"""Clients of the Responses API that keep the history and leave thoughts out, or write the JSON of calls again.

The model reads what it said as it said it, over each transport, and no other project is told of it.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import httpx
import pytest

from engine.formats.harmony.encoding import decode_tokens
from tests.kit.clients import Socket
from tests.kit.closed import bearer
from tests.kit.fixtures import module_server
from tests.kit.inprocess import ClosedServer, Server
from tests.kit.scripts import WEATHER, as_history, journal

Item = dict[str, Any]

ASIDE = "<|channel|>analysis<|message|>Hm, {}.<|end|><|start|>assistant"
PREAMBLE = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
CALL = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{}"
NEXT = "<|call|>"
WRITTEN = (  # as models write: white space, escapes, keys in any order, numbers
    '{"city": "Paris", "days": 3}',
    '{\n  "days": 1.0,\n  "city": "K\\u00f6ln\\/\\u00c4"\n}',
    '{"z": [1e2, {"b": 0.10, "a": null}], "city": "Rio", "id": 9007199254740993}',
)
SCRIPT = [
    {"after_calls": 0, "say": ASIDE.format("Paris") + PREAMBLE + CALL.format(WRITTEN[0]) + NEXT},
    {"after_calls": 1, "say": ASIDE.format("Cologne") + CALL.format(WRITTEN[1]) + NEXT},
    {"after_calls": 2, "say": ASIDE.format("Rio") + CALL.format(WRITTEN[2]) + NEXT},
    {"after_calls": 3, "say": "<|channel|>final<|message|>Rain.<|return|>"},
]
SAID = [{"type": "output_text", "text": "I look."}]
PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
USER = {"type": "message", "role": "user", "content": "?"}

closed = module_server("replayed", ClosedServer, auth="on", script=SCRIPT, model_name="m", journal=True)

forgetful = module_server("forgetful", Server, script=SCRIPT, model_name="m", journal=True, responses_session_ttl=0)


@pytest.fixture
def key(closed: ClosedServer) -> str:
    """A key of a project that nobody else has, so that each test begins anew."""
    count = len(journal(closed))
    return closed.new_key("--project", f"p{count}")


def fields_of(items: Sequence[Item], **fields: Any) -> dict[str, Any]:
    return {"model": "m", "store": False, "tools": [WEATHER], **fields, "input": list(items)}


def ask(server: ClosedServer, key: str, items: Sequence[Item], **fields: Any) -> dict[str, Any]:
    """Return a response, asked for as JSON or as a stream."""
    asked = fields_of(items, **fields)
    answer = httpx.post(f"{server.base_url}/responses", json=asked, headers=bearer(key), verify=False, timeout=30)
    assert answer.status_code == 200, answer.text
    if not fields.get("stream"):
        return dict(answer.json())
    data = [json.loads(line[len("data: ") :]) for line in answer.text.splitlines() if line.startswith("data: {")]
    return dict(data[-1]["response"])


def ask_socket(server: ClosedServer, key: str, items: Sequence[Item], **fields: Any) -> dict[str, Any]:
    """Return a response that was asked for over a WebSocket of its own."""

    async def asked() -> dict[str, Any]:
        async with await Socket.open(server.ws_url, additional_headers=bearer(key)) as socket:
            wanted = fields_of(items, **fields)
            return dict(await socket.ask(wanted.pop("input"), **wanted))

    return asyncio.run(asked())


def respelled(item: Item) -> Item:
    """Return a call as JavaScript or Python writes it again."""
    if item["type"] != "function_call":
        return item
    return {**item, "arguments": json.dumps(json.loads(item["arguments"]), separators=(",", ":"), sort_keys=True)}


def without_id(item: Item) -> Item:
    return {name: value for name, value in item.items() if name != "id"}


def as_message(item: Item) -> Item:
    """Return a thought as a message of the assistant."""
    if item["type"] != "reasoning":
        return item
    texts = [{"type": "output_text", "text": part["text"]} for part in item["content"]]
    return {"type": "message", "role": "assistant", "content": texts}


def given_back(output: Sequence[Item]) -> list[Item]:
    """Return a response's items as clients give them back that know neither thoughts nor ids."""
    kept = [item for item in output if item["type"] != "reasoning"]
    return [respelled(without_id(item)) for item in kept]


def outputs(output: Sequence[Item]) -> list[Item]:
    calls = [item for item in output if item["type"] == "function_call"]
    return [{"type": "function_call_output", "call_id": call["call_id"], "output": "rain"} for call in calls]


def goes_on(before: Item, after: Item) -> bool:
    """Whether a prompt begins with an earlier one and all that was sampled then."""
    history = as_history(before)
    return bool(after["prompt_tokens"][: len(history)] == history)


@pytest.mark.parametrize(
    ("asking", "fields"),
    [
        (ask, {}),
        (ask, {"store": True}),
        (ask, {"stream": True}),
        (ask, {"include": ["reasoning.encrypted_content"]}),
        (ask_socket, {}),
    ],
)
def test_a_loop_goes_on_with_all_that_was_sampled(
    closed: ClosedServer, key: str, asking: Callable[..., dict[str, Any]], fields: dict[str, Any]
) -> None:
    assert_a_loop_goes_on(closed, lambda history: asking(closed, key, history, **fields), given_back)


def test_a_loop_goes_on_where_thoughts_come_back_as_texts(closed: ClosedServer, key: str) -> None:
    """A client that knows of no reasoning items may make messages of them."""

    def as_texts(output: Sequence[Item]) -> list[Item]:
        return [as_message(without_id(item)) for item in output]

    assert_a_loop_goes_on(closed, lambda history: ask(closed, key, history), as_texts)


def test_a_loop_goes_on_by_what_its_client_keeps(forgetful: Server) -> None:
    """What was sealed is known for ever, in whatever spelling a call comes back."""

    def sealed(history: Sequence[Item]) -> Item:
        return dict(forgetful.post("/responses", **fields_of(history, include=["reasoning.encrypted_content"])).json())

    assert_a_loop_goes_on(forgetful, sealed, lambda output: [without_id(respelled(item)) for item in output])


def assert_a_loop_goes_on(
    server: Server, ask: Callable[[list[Item]], Item], give_back: Callable[[Sequence[Item]], list[Item]]
) -> None:
    """Check that each turn of a loop begins with the one before, where its client gives back what it keeps."""
    begin, history = len(journal(server)), [USER]
    for _ in range(4):
        output = ask(history)["output"]
        history += [*give_back(output), *outputs(output)]
    assert [goes_on(*pair) for pair in pairwise(journal(server)[begin:])] == [True] * 3


def test_what_a_chain_has_is_not_read_twice(closed: ClosedServer, key: str) -> None:
    """Its client gives back what stands behind the response that it continues, or all of it."""
    begin = len(journal(closed))
    first = ask(closed, key, [USER], store=True)
    before = [*given_back(first["output"]), *outputs(first["output"])]
    second = ask(closed, key, [USER, *before])["output"]
    behind = [*given_back(second), *outputs(second)]
    for items in ([*outputs(first["output"]), *behind], [*before[1:], *behind]):
        ask(closed, key, items, previous_response_id=first["id"])
    _, then, *both = journal(closed)[begin:]
    assert [goes_on(then, each) for each in both] == [True, True]
    assert both[0]["prompt_tokens"] == both[1]["prompt_tokens"]


def edited(item: Item, kind: str, **changes: Any) -> Item:
    return {**item, **changes} if item["type"] == kind else item


@pytest.mark.parametrize(
    "change",
    [
        lambda item: edited(item, "function_call", arguments='{"city":"Paris","days":4}'),
        lambda item: edited(item, "function_call", arguments='{"city":"Paris","days":3,"days":3}'),
        lambda item: edited(item, "message", content="I look it up."),
        lambda item: edited(item, "message", content=[*SAID, PICTURE]),
        lambda item: edited(item, "message", content=[{"type": "refusal", "refusal": "I will not."}]),
        lambda item: edited(item, "reasoning", content=[{"type": "reasoning_text", "text": "Another thought."}]),
    ],
)
@pytest.mark.parametrize("store", [True, False])
def test_what_its_client_has_changed_is_read_as_it_is_now(
    closed: ClosedServer, key: str, change: Callable[[Item], Item], store: bool
) -> None:
    begin = len(journal(closed))
    output = ask(closed, key, [USER], store=store)["output"]
    ask(closed, key, [USER, *map(change, output), *outputs(output)])
    assert not goes_on(*journal(closed)[begin:])


def test_an_answer_is_read_as_it_was_told_where_a_stop_string_has_cut_it(closed: ClosedServer, key: str) -> None:
    """Also in other chats, which may say the same."""
    calls = [{"type": "function_call", "call_id": f"c{n}", "name": "get_weather", "arguments": "{}"} for n in range(3)]
    history = [USER, *calls, *outputs(calls)]
    (cut,) = ask(closed, key, history, stop=["n."])["output"]
    ask(closed, key, [*history, without_id(cut), USER])
    assert "final<|message|>Rai<|end|>" in decode_tokens(journal(closed)[-1]["prompt_tokens"])
