"""How a response of a model with a chat template ends before its model ends it: at its length, and cancelled."""

import pytest

from engine.types import FinishReason
from responses_app.protocol.errors import JsonObject
from tests.kit.fakes import TOOL_F
from tests.kit.laws import assert_laws
from tests.unit.formats.families import LLAMA, QWEN, Family
from tests.unit.formats.test_chat_template import FamilySite, kinds

PARTS = {  # beginnings of turns
    "answer": {"qwen": " It is 1", "llama": " It is 1"},
    "call": {
        "qwen": '<tool_call>\n{"name": "f", "arguments": {"a": [1',
        "llama": '{"name": "f", "parameters": {"a": [1',
    },
}


@pytest.mark.parametrize("family", [QWEN, LLAMA], ids=lambda each: each.name)
class TestEndings:
    @pytest.mark.parametrize("part", PARTS)
    async def test_one_that_is_too_long_is_incomplete_and_is_gone_on_with(self, family: Family, part: str) -> None:
        said = PARTS[part][family.name]
        site = FamilySite(family, [said, FinishReason.LENGTH], f"Yes.{family.end}")
        limit = len(site.engine.encode(said))
        events = await (await site.begin(input="hi", tools=[TOOL_F], max_output_tokens=limit)).to_the_end()
        assert_laws(events)
        first: JsonObject = events[-1]["response"]  # type: ignore[assignment]
        assert (events[-1]["type"], first["status"]) == ("response.incomplete", "incomplete")
        assert first["incomplete_details"] == {"reason": "max_output_tokens"}
        [item] = first["output"]  # type: ignore[misc]
        assert item["status"] == "incomplete"
        assert (item["arguments"] if part == "call" else item["content"][0]["text"]) == (
            '{"a": [1' if part == "call" else said
        )
        assert first["usage"]["output_tokens"] == limit  # type: ignore[index]
        if part == "answer":
            await site.ask(input="Go on.", tools=[TOOL_F], previous_response_id=first["id"])
            site.assert_goes_on_behind(said)

    async def test_behind_a_call_of_the_only_one_nothing_is_said(self, family: Family) -> None:
        call = PARTS["call"][family.name] + "]}}" + ("\n</tool_call>" if family is QWEN else "")
        site = FamilySite(family, f"{call}\nLet me see.{family.end}")
        response = await site.ask(input="hi", tools=[TOOL_F], parallel_tool_calls=False)
        assert (kinds(response), response["status"]) == (["function_call"], "completed")
