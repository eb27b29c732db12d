"""A background response that has to fit a rule, and whose worker is gone: what becomes of it on another one."""

import json

import pytest

from engine.formats.harmony.format import HarmonyFormat
from engine.types import JsonSchema, TurnRules
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.response.input_codec import decode
from responses_app.runs.plan.failures import BROKEN
from tests.kit.fakes import THOUGHT
from tests.kit.laws import assert_laws
from tests.unit.runs.test_takeover import TokenEngine, gone_on, undisturbed

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}, "required": ["n", "s"]}
FORMAT: JsonObject = {"text": {"format": {"type": "json_schema", "name": "it", "strict": True, "schema": SCHEMA}}}
TOOL: JsonObject = {"type": "function", "name": "f", "strict": True, "parameters": SCHEMA}
VALUE = '{"n": 17, "s": "Grüße 🙂"}'
HEADERS = {"an answer": "<|channel|>final<|message|>", "a call": "<|channel|>commentary to=functions.f<|message|>"}
ASKED: dict[str, dict[str, object]] = {"an answer": FORMAT, "a call": {"tools": [TOOL], "tool_choice": "required"}}
ENDS = {"an answer": "<|return|>", "a call": "<|call|>"}


class Held(TokenEngine):
    """An engine that takes grammars, and says what its test wants."""

    supports_grammar = True


class Other(Held):
    """Goes on with something else behind what is there already."""

    def __init__(self, *turns: str, rest: str) -> None:
        super().__init__(turns)
        self.rest = self.encode(rest)

    def encode(self, said: str) -> list[int]:
        whole = super().encode(said)
        if not self.requests:
            return whole
        prompt = list(self.requests[-1].prompt_token_ids)
        return [*whole[: self._already(prompt, whole)], *self.rest]


@pytest.fixture(autouse=True)
def engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the undisturbed run have an engine of this kind too."""
    monkeypatch.setattr("tests.unit.runs.test_takeover.TokenEngine", Held)


def texts(response: JsonObject) -> list[tuple[str, str]]:
    """Return the contents that have to fit, and the status of each."""
    found = []
    for item in response["output"]:  # type: ignore[attr-defined]
        if item["type"] == "function_call":
            found.append((item["arguments"], item["status"]))
        if item["type"] == "message":
            found.append((item["content"][0]["text"], item["status"]))
    return found


@pytest.mark.parametrize("case", HEADERS)
async def test_a_content_that_goes_on_as_it_should_is_whole_wherever_it_was_cut(case: str) -> None:
    turn = f"{THOUGHT}{HEADERS[case]}{VALUE}{ENDS[case]}"
    accepted, events = await undisturbed([turn], ASKED[case])
    inputs = list(decode(accepted.log))
    for count in range(len(inputs)):
        _, reading = await gone_on(accepted, inputs[:count], Held([turn]))
        assert await reading.to_the_end() == events, f"cut behind {count} of {len(inputs)} inputs"


@pytest.mark.parametrize("rest", ["oops", ' and "more": 1}', '": 3}'])
@pytest.mark.parametrize("case", HEADERS)
async def test_one_that_does_not_fit_any_more_fails_and_is_never_told_as_whole(
    case: str, rest: str, caplog: pytest.LogCaptureFixture
) -> None:
    turn = f"{THOUGHT}{HEADERS[case]}{VALUE}{ENDS[case]}"
    accepted, _ = await undisturbed([turn], ASKED[case])
    inputs = list(decode(accepted.log))
    ends = {"completed": 0, "failed": 0}
    for count in range(len(inputs)):
        caplog.clear()
        engine = Other(turn, rest=f"{rest}{ENDS[case]}")
        _, reading = await gone_on(accepted, inputs[:count], engine)
        events = await reading.to_the_end()
        assert_laws(events)
        response: JsonObject = events[-1]["response"]  # type: ignore[assignment]
        grammar = engine.requests[0].grammar if engine.requests else None
        if grammar is not None and not grammar.loose:
            continue  # a real engine would have held to it
        ends[str(response["status"])] += 1
        if response["status"] == "failed":
            assert response["error"] == {"code": "server_error", "message": BROKEN}
            assert "does not fit its schema or grammar" in caplog.text
            assert "oops" not in caplog.text, "what the model says stays out of the log"
            assert [status for _, status in texts(response) if status == "completed"] == []
            done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
            assert {item["type"] for item in done} <= {"reasoning"}  # type: ignore[index]
        else:
            assert texts(response) == [(VALUE, "completed")]
    assert ends["failed"] > 5
    assert ends["completed"] >= 1, "it had ended before it was cut"


def test_a_grammar_is_loose_behind_the_middle_of_a_content_alone() -> None:
    made = HarmonyFormat()
    rules = TurnRules(answer=JsonSchema(json.dumps(SCHEMA)))
    header, inside = (Held([]).encode(f"<|channel|>final<|message|>{text}") for text in ("", '{"n'))
    assert [made.grammar(rules, behind).loose for behind in (header, inside)] == [False, True]  # type: ignore[union-attr]
    assert not made.grammar(TurnRules(), inside).loose  # type: ignore[union-attr]
