"""Items that a client gives back: the same to a client is the same, whatever its SDK added or left out."""

from collections.abc import Callable

import pytest

from responses_app.protocol.items.items import SampledMessage, fingerprint

MESSAGE = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "Hi"}],
}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]}


class TestReplayedItems:
    @pytest.mark.parametrize(
        ("item", "change"),
        [
            (MESSAGE, lambda item: {**item, "status": "completed", "phase": None}),
            (MESSAGE, lambda item: {**item, "content": "Hi"}),
            (MESSAGE, lambda item: {**item, "content": [{"type": "output_text", "text": "Hi", "annotations": []}]}),
            (CALL, lambda item: {**item, "status": "completed"}),
            (THOUGHT, lambda item: {**item, "content": None, "encrypted_content": "x"}),
            (THOUGHT, lambda item: item),
        ],
    )
    def test_the_same_to_a_client_is_the_same(
        self, item: dict[str, object], change: Callable[..., dict[str, object]]
    ) -> None:
        known = SampledMessage(str(item["id"]), fingerprint(item), None)  # type: ignore[arg-type]
        assert known.is_replayed_by(change(item))

    @pytest.mark.parametrize(
        ("item", "change"),
        [
            (MESSAGE, lambda item: {**item, "content": "Ho"}),
            (MESSAGE, lambda item: {**item, "content": []}),
            (CALL, lambda item: {**item, "arguments": '{"a":1}'}),
            (CALL, lambda item: {**item, "name": "g"}),
            (CALL, lambda item: {**item, "call_id": "d"}),
            (THOUGHT, lambda item: {**item, "content": [{"type": "reasoning_text", "text": "Ah"}]}),
        ],
    )
    def test_a_change_that_a_client_made_counts(
        self, item: dict[str, object], change: Callable[..., dict[str, object]]
    ) -> None:
        known = SampledMessage(str(item["id"]), fingerprint(item), None)  # type: ignore[arg-type]
        assert not known.is_replayed_by(change(item))
