"""What is asked of a model for decisions, and what is made of its log probabilities."""

import math
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.formats.harmony.encoding import decode_tokens
from engine.formats.harmony.format import HarmonyFormat
from responses_app.protocol.decisions import DecisionsWanted, Question, answer, labels, parse_decisions
from responses_app.protocol.errors import ApiError
from responses_app.runs.deciding import prompts_of
from tests.fuzz import strategies
from tests.fuzz.driver import as_bytes

NOW = datetime(2026, 11, 22, tzinfo=UTC)
INPUT = [
    {"role": "system", "content": "Be strict."},
    {"role": "user", "content": [{"type": "input_text", "text": "Look"}, {"type": "input_json", "data": {"a": [1]}}]},
    {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "blue"},
]
OPTIONS = [{"value": str(number)} for number in range(255)]


def asked(*questions: dict[str, Any]) -> DecisionsWanted:
    """Return a request with these questions."""
    return parse_decisions({"input": INPUT, "questions": list(questions)})


def test_each_prompt_is_the_input_its_question_and_the_beginning_of_an_answer() -> None:
    wanted = asked(
        {"type": "predicate", "instructions": "it is blue"},
        {"type": "choice", "instructions": "which?", "choices": [{"value": "a", "description": "d"}, {"value": True}]},
    )
    first, second = (decode_tokens(prompt) for prompt in prompts_of(wanted, HarmonyFormat(), NOW))
    shared = first[: first.index("Question about")]
    assert second.startswith(shared)
    for text in ("Be strict.", 'Look{"a":[1]}', "functions.look", "blue", "2026-11-22"):
        assert text in shared.replace("\n", "")
    assert "it is blue" in first
    assert '1: "a" - d\n2: true' in second
    assert first.endswith("<|start|>assistant<|channel|>final<|message|>")


def test_every_label_is_one_token() -> None:
    wanted = asked(
        {"type": "predicate", "instructions": "x"}, {"type": "choice", "instructions": "x", "choices": OPTIONS}
    )
    found: set[int] = set()
    for question in wanted.questions:
        for form in (form for forms in labels(question) for form in forms):
            (token,) = HarmonyFormat().raw_prompt(form)
            assert token not in found
            found.add(token)
    assert len(found) == 6 + 255


@given(st.lists(st.floats(-30, 0) | st.just(-math.inf), min_size=2, max_size=2))
def test_probabilities_add_up_to_one_or_the_model_refuses(logprobs: list[float]) -> None:
    def to(**more: object) -> dict[str, Any]:
        (question,) = asked({"instructions": "x", **more}).questions
        return made(question, logprobs)

    predicate = to(type="predicate")
    choice = to(type="choice", choices=OPTIONS[:2])
    score = to(type="score", levels=[{"label": "low"}, {"label": "high"}])
    if not any(map(math.isfinite, logprobs)):
        assert {each["type"] for each in (predicate, choice, score)} == {"refusal"}
        return
    for each in (choice, score):
        assert math.isclose(math.fsum(option["probability"] for option in each["probabilities"]), 1.0)
        assert 0 <= each["confidence"] <= 1
    assert 0 <= score["score"] <= 1
    assert math.isclose(predicate["probability"], choice["probabilities"][0]["probability"])


def made(question: Question, logprobs: list[float]) -> dict[str, Any]:
    """Return an answer as a client reads it."""
    read: dict[str, Any] = orjson.loads(orjson.dumps(answer(question, logprobs)))
    return read


@settings(max_examples=60)
@given(strategies.mutated(strategies.decisions))
def test_hostile_questions_are_errors_that_help(body: Any) -> None:
    with suppress(ApiError):
        prompts_of(parse_decisions(as_read(body)), HarmonyFormat(), NOW)


def as_read(body: Any) -> dict[str, Any]:
    """Return a body as it arrives here; an empty one for what is not read as far as that."""
    try:
        read = orjson.loads(as_bytes(body))
    except orjson.JSONDecodeError:
        return {}
    return read if isinstance(read, dict) else {}
