"""Items that a client gives back: what its SDK added counts for nothing, and an echo of a thought is not read."""

from collections.abc import Callable
from typing import Any

import pytest

from engine.formats.base import RenderedMessage
from engine.formats.harmony.encoding import decode_tokens
from engine.formats.harmony.format import HarmonyFormat
from responses_app.protocol.items.items import SampledMessage, fingerprint, parse_items
from responses_app.protocol.prompt.rendering import render_items
from responses_app.protocol.prompt.replaying import turn_of_output

MESSAGE = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "Hi"}],
}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"}
WRITTEN = {**CALL, "arguments": '{"b": 1, "a": "\\u00e4"}'}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]}


class TestReplayedItems:
    @pytest.mark.parametrize(
        ("item", "change", "same"),
        [
            (MESSAGE, lambda item: {**item, "status": "completed", "phase": None}, True),
            (MESSAGE, lambda item: {**item, "content": "Hi"}, True),
            (MESSAGE, lambda i: {**i, "content": [{"type": "output_text", "text": "Hi", "annotations": []}]}, True),
            (CALL, lambda item: {**item, "status": "completed"}, True),
            (WRITTEN, lambda item: item, True),
            (WRITTEN, lambda item: {**item, "arguments": '{"a":"ä","b":1.0}'}, True),
            (THOUGHT, lambda item: {**item, "content": None, "encrypted_content": "x"}, True),
            (THOUGHT, lambda item: item, True),
            (MESSAGE, lambda item: {**item, "content": "Ho"}, False),
            (MESSAGE, lambda item: {**item, "content": []}, False),
            (CALL, lambda item: {**item, "arguments": '{"a":1}'}, False),
            (WRITTEN, lambda item: {**item, "arguments": '{"b": 2, "a": "ä"}'}, False),
            (CALL, lambda item: {**item, "name": "g"}, False),
            (CALL, lambda item: {**item, "call_id": "d"}, False),
            (THOUGHT, lambda item: {**item, "content": [{"type": "reasoning_text", "text": "Ah"}]}, False),
        ],
    )
    def test_only_a_change_that_a_client_made_counts(
        self, item: dict[str, object], change: Callable[..., dict[str, object]], same: bool
    ) -> None:
        known = SampledMessage(str(item["id"]), fingerprint(item), None)  # type: ignore[arg-type]
        assert known.is_replayed_by(change(item)) is same

    def test_a_digest_of_an_older_version_is_of_the_arguments_as_they_were_spelled(self) -> None:
        known = SampledMessage("fc_1", "490f0deab2618337eac0f56dfe43e398", None)  # type: ignore[arg-type]
        assert known.is_replayed_by(WRITTEN)
        assert not known.is_replayed_by({**WRITTEN, "arguments": "{}"})


SAYS = "I look."
THINKS = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": SAYS}]}
SHORT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": SAYS}]}
SAID = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": SAYS}]}
PATCH = {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "x"}
USER = {"type": "message", "role": "user", "content": SAYS}


def read(*items: dict[str, Any], sampled: dict[str, SampledMessage] | None = None) -> list[RenderedMessage]:
    """Return what the model reads of items."""
    return render_items(HarmonyFormat(), *parse_items(items, at="input"), parent=None, sampled=sampled or {})


@pytest.mark.parametrize("call", [CALL, PATCH])
def test_a_repeated_thought_is_not_read(call: dict[str, Any]) -> None:
    assert read(THINKS, SAID, call) == read(THINKS, call)
    assert read(SHORT, SAID, call) == read(SHORT, call)


@pytest.mark.parametrize(
    "items",
    [
        (THINKS, SAID),  # the answer
        (THINKS, SAID, USER),
        (SAID, CALL),
        (THINKS, {**SAID, "content": "I look around."}, CALL),
        (THINKS, {**SAID, "role": "user"}, CALL),
        ({**THINKS, "content": []}, {**SAID, "content": ""}, CALL),
    ],
)
def test_every_other_message_is_read(items: tuple[dict[str, Any], ...]) -> None:
    assert sum(map(len, (read(each) for each in items))) == len(read(*items))


def test_what_the_model_has_said_itself_is_read() -> None:
    (message,) = read(SAID)
    known = {"msg_1": SampledMessage("msg_1", fingerprint(SAID), message)}
    assert [decode_tokens(each.tokens) for each in read(THINKS, SAID, CALL, sampled=known)][1].endswith(
        "I look.<|end|>"
    )


SEARCH = {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["rain"], "results": None}
MCP_CALL = {"type": "mcp_call", "id": "mcp_1", "server_label": "a", "name": "f", "arguments": "{}", "output": "5"}
PAINTED = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "revised_prompt": "A cat"}


@pytest.mark.parametrize(
    ("item", "change"),
    [
        (SEARCH, {"queries": ["snow"]}),
        (SEARCH, {"results": [{"text": "Snow."}]}),
        (MCP_CALL, {"server_label": "b"}),
        (PAINTED, {"revised_prompt": "A dog"}),
    ],
)
def test_a_turn_is_another_one_where_a_tool_of_the_server_has_done_something_else(
    item: dict[str, Any], change: dict[str, Any]
) -> None:
    turn = turn_of_output([item, CALL])
    given_back = {name: value for name, value in item.items() if name != "id" and value is not None}
    assert turn.key is not None
    assert turn_of_output([given_back, CALL]).key == turn.key
    assert turn_of_output([{**item, **change}, CALL]).key != turn.key
