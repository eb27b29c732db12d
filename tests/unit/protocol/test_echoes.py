"""A message that only repeats the thought before it, beside a call, is not read; every other one is."""

from typing import Any

import pytest

from engine.formats.base import RenderedMessage
from engine.formats.harmony.encoding import decode_tokens
from engine.formats.harmony.format import HarmonyFormat
from responses_app.protocol.items.items import SampledMessage, fingerprint, parse_items
from responses_app.protocol.prompt.prompt import render_items

SAYS = "I look."
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": SAYS}]}
SHORT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": SAYS}]}
SAID = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": SAYS}]}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
PATCH = {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "x"}
USER = {"type": "message", "role": "user", "content": SAYS}


def read(*items: dict[str, Any], sampled: dict[str, SampledMessage] | None = None) -> list[RenderedMessage]:
    """Return what the model reads of items."""
    return render_items(HarmonyFormat(), *parse_items(items, at="input"), parent=None, sampled=sampled or {})


@pytest.mark.parametrize("call", [CALL, PATCH])
def test_a_repeated_thought_is_not_read(call: dict[str, Any]) -> None:
    assert read(THOUGHT, SAID, call) == read(THOUGHT, call)
    assert read(SHORT, SAID, call) == read(SHORT, call)


@pytest.mark.parametrize(
    "items",
    [
        (THOUGHT, SAID),  # the answer
        (THOUGHT, SAID, USER),
        (SAID, CALL),
        (THOUGHT, {**SAID, "content": "I look around."}, CALL),
        (THOUGHT, {**SAID, "role": "user"}, CALL),
        ({**THOUGHT, "content": []}, {**SAID, "content": ""}, CALL),
    ],
)
def test_every_other_message_is_read(items: tuple[dict[str, Any], ...]) -> None:
    assert sum(map(len, (read(each) for each in items))) == len(read(*items))


def test_what_the_model_has_said_itself_is_read() -> None:
    (message,) = read(SAID)
    known = {"msg_1": SampledMessage("msg_1", fingerprint(SAID), message)}
    assert [decode_tokens(each.tokens) for each in read(THOUGHT, SAID, CALL, sampled=known)][1].endswith(
        "I look.<|end|>"
    )
