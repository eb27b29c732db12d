"""`/v1/decisions`: OpenAI's SDK asks a scripted model, whose log probabilities are known."""

import math
from typing import Any

import httpx
import openai
import pytest
from openai.types import Decision

from tests.kit.inprocess import Server

SAID = math.exp(-0.25)  # the probability of what the script says; each alternative has a 1/e of the one before
CHOICES = [{"value": "a", "description": "the first"}, {"value": True}, {"value": "true"}]
LEVELS = [{"label": "low"}, {"label": "middle", "description": "in between"}, {"label": "high"}]


def predicate(says: str, **more: object) -> dict[str, Any]:
    """Return a question to which the model says this."""
    return {"type": "predicate", "instructions": f"[says {says}]", **more}


def test_openais_sdk_reads_an_answer_to_each_question(server: Server) -> None:
    questions: list[Any] = [
        predicate("yes", name="sure"),
        predicate("No"),
        {"type": "choice", "instructions": "[says 3]", "choices": CHOICES},
        {"type": "score", "instructions": [{"type": "input_text", "text": "[says 3]"}], "levels": LEVELS, "name": "s"},
        predicate("perhaps", name="odd"),
    ]
    with openai.OpenAI(base_url=server.base_url, api_key="-", http_client=httpx.Client(verify=False)) as client:
        decision = client.decisions.create(model="test-model", input="The sky is blue.", questions=questions)
    yes, no, choice, score, refused = decision.answers
    assert (yes.type, yes.name, round(yes.probability, 3)) == ("predicate", "sure", 1.0)
    assert (no.type, no.name, round(no.probability, 3)) == ("predicate", None, 0.0)
    shares = [math.exp(place) / math.fsum(map(math.exp, range(3))) for place in range(3)]
    assert choice.type == "choice"
    assert (choice.choice, choice.confidence) == ("true", pytest.approx(SAID))
    assert [each.value for each in choice.probabilities] == ["a", True, "true"]
    assert [each.probability for each in choice.probabilities] == pytest.approx(shares)
    assert score.type == "score"
    assert [(each.value, each.label) for each in score.probabilities] == [(0, "low"), (1, "middle"), (2, "high")]
    assert (score.name, score.score) == ("s", pytest.approx(shares[1] + 2 * shares[2]))
    assert (refused.type, refused.name) == ("refusal", "odd")
    usage = decision.usage
    assert (usage.output_tokens, usage.total_tokens) == (5, usage.input_tokens + 5)
    assert decision.model == "test-model"


def test_the_fields_are_openais(server: Server) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Look"}, {"type": "input_json", "data": {"a": 1}}]},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "blue"},
    ]
    answer = server.post(
        "/decisions", model="test-model", input=items, questions=[predicate("yes")], prompt_cache_key="k"
    )
    assert answer.status_code == 200, answer.text
    Decision.model_validate(answer.json(), strict=True)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"questions": [predicate("yes")]}, "input"),
        ({"input": "a"}, "questions"),
        ({"input": "a", "questions": []}, "questions"),
        ({"input": "a", "questions": [predicate("yes")] * 401}, "questions"),
        ({"input": "a", "questions": [{"type": "noul", "instructions": "b"}]}, "questions[0].type"),
        ({"input": "a", "questions": [{"type": "predicate", "instructions": ""}]}, "questions[0]"),
        (
            {"input": "a", "questions": [{"type": "choice", "instructions": "b", "choices": CHOICES[:1]}]},
            "questions[0]",
        ),
        (
            {"input": "a", "questions": [{"type": "choice", "instructions": "b", "choices": CHOICES[:1] * 2}]},
            "questions[0]",
        ),
        (
            {
                "input": [{"type": "function_call_output", "call_id": "c", "output": "x"}],
                "questions": [predicate("yes")],
            },
            "input",
        ),
        ({"input": [{"type": "item_reference", "id": "msg_1"}], "questions": [predicate("yes")]}, "input[0].type"),
        ({"input": "word " * 5000, "questions": [predicate("yes")]}, "input"),
        ({"input": "a", "questions": [predicate("yes")], "model": "other"}, "model"),
    ],
)
def test_what_is_refused(server: Server, body: dict[str, Any], param: str) -> None:
    answer = server.post("/decisions", **body)
    assert answer.status_code in (400, 404), answer.text
    assert answer.json()["error"]["param"].startswith(param)


@pytest.mark.parametrize(("word", "status"), [("[asked: unavailable]", 503), ("[asked: overloaded]", 429)])
def test_an_engine_that_fails(server: Server, word: str, status: int) -> None:
    questions = [predicate("yes"), {"type": "predicate", "instructions": word}]
    answer = server.post("/decisions", input="a", questions=questions)
    assert answer.status_code == status
    assert "scripted" not in answer.text


def test_an_engine_without_log_probabilities(demo_server: Server) -> None:
    answer = demo_server.post("/decisions", input="a", questions=[predicate("yes")])
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_parameter")
