"""The laws of a response hold for the two families, too: those that `test_response_machine` holds gpt-oss to.

Events in order, the same bytes from the log and from any point of it, the same items however the tokens come, one end
wherever the response is stopped: cancelled, interrupted, failed, at its length.
"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.types import FinishReason
from responses_app.protocol.response.steps import Sampled, Started, ToolReturned
from tests.kit.laws import assert_laws
from tests.unit.formats.families import Family
from tests.unit.formats.rendering import FAMILIES, format_of
from tests.unit.protocol import test_response_machine as gpt_oss
from tests.unit.protocol.machines import Driver, machine, turn_of
from tests.unit.protocol.test_response_machine import short_thoughts_are_summed_up  # noqa: F401 - a fixture

LAWS: dict[str, Any] = {name: law for name, law in vars(gpt_oss.TestLaws).items() if hasattr(law, "hypothesis")}


def test_there_are_laws() -> None:
    assert len(LAWS) >= 6


@pytest.mark.parametrize("family", [family.name for family in FAMILIES])
@pytest.mark.parametrize("law", LAWS)
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_it_holds(law: str, family: str, data: st.DataObject) -> None:
    LAWS[law].hypothesis.inner_test(gpt_oss.TestLaws(), family, data)


CALLS = {
    "qwen": '<tool_call>\n{"name": "%s", "arguments": {}}\n</tool_call>',
    "llama": '{"name": "%s", "parameters": {}}',
}


@pytest.mark.parametrize("behind", [b"Wait.", b"\xc3"], ids=["text", "half a character"])
@pytest.mark.parametrize("name", ["python", "f"])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_what_is_said_behind_the_last_call_of_a_turn_is_not_said(family: Family, name: str, behind: bytes) -> None:
    """The token that shows that a call has ended is the first one of what follows."""
    made, renderer = format_of(family)
    driver = Driver(machine(made, hosted=True, one_call=True))
    called = [*renderer.encode(CALLS[family.name] % name), *behind]
    answer = [*renderer.encode("It is 2."), family.ids[family.end]]
    turns = [
        [*(Sampled((token,)) for token in called[:-1]), Sampled(called[-1:], FinishReason.LENGTH)],
        turn_of(answer, [3]),
    ]
    driver.run(Started(), turns, [ToolReturned("2")])
    assert_laws(driver.seen)
    types = [item["type"] for item in driver.items]
    assert types == ["function_call", "message"][: 2 if name == "python" else 1], "the server runs its own and goes on"
    assert "Wait" not in str(driver.items)
