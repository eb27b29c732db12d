"""The smaller APIs over HTTP: `/v1/embeddings`, `/v1/decisions` and `/v1/models`."""

import array
import base64
import json
import math
from typing import Any
from urllib.parse import parse_qs

import httpx
import openai
import pytest
from openai.types import Decision

from responses_app.api.models import CatalogueModel, anthropic_page, catalogue
from responses_app.protocol.errors import ApiError
from tests.kit.closed import bearer
from tests.kit.inprocess import ClosedServer, Server
from tests.kit.sdk import sdk_of
from tests.kit.waiting import eventually

MODEL = "hashing-256"


def test_openais_sdk(demo_server: Server) -> None:
    with sdk_of(demo_server) as client:
        asked = {"model": MODEL, "input": ["A cat sat there.", "Shares fell."]}
        packed = client.embeddings.create(**asked)  # it asks for base64, and reads it  # type: ignore[arg-type]
        plain = client.embeddings.create(**asked, encoding_format="float")  # type: ignore[arg-type]
    assert [each.index for each in packed.data] == [0, 1]
    assert (packed.model, packed.object, packed.data[0].object) == (MODEL, "list", "embedding")
    extra = packed.model_extra or {}
    assert str(extra["id"]).startswith("embd-")
    assert isinstance(extra["created"], int)
    assert packed.usage.prompt_tokens == packed.usage.total_tokens > 4
    for left, right in zip(packed.data, plain.data, strict=True):
        assert len(left.embedding) == 256
        assert math.isclose(math.hypot(*left.embedding), 1.0, rel_tol=1e-5)
        assert left.embedding == pytest.approx(right.embedding)


@pytest.mark.parametrize("given", ["one", ["one"], [1, 2, 3], [[1, 2, 3]]])
def test_each_form_of_an_input(demo_server: Server, given: object) -> None:
    answer = demo_server.post("/embeddings", input=given, dimensions=16, user="u", unknown=1).json()
    (entry,) = answer["data"]
    assert len(entry["embedding"]) == 16
    assert answer["model"] == MODEL
    assert answer["usage"]["prompt_tokens"] == (1 if "one" in given else 3)  # type: ignore[operator]


def test_every_encoding_says_the_same(demo_server: Server) -> None:
    inputs = ["one", "two", "three"]
    plain = [each["embedding"] for each in demo_server.post("/embeddings", input=inputs).json()["data"]]
    packed = demo_server.post("/embeddings", input=inputs, encoding_format="base64").json()["data"]
    assert [_floats(base64.b64decode(each["embedding"])) for each in packed] == [pytest.approx(each) for each in plain]
    for form in ("bytes", "bytes_only"):
        answer = demo_server.post("/embeddings", input=inputs, encoding_format=form)
        assert answer.headers["content-type"] == "application/octet-stream"
        assert _floats(answer.content) == pytest.approx([value for vector in plain for value in vector])
        if form == "bytes":
            described = json.loads(answer.headers["metadata"])
            assert [(each["start"], each["end"], each["shape"]) for each in described["data"]] == [
                (at * 1024, at * 1024 + 1024, [256]) for at in range(3)
            ]
            assert described["usage"]["prompt_tokens"] == 3
            assert described["id"].startswith("embd-")
        else:
            assert "metadata" not in answer.headers


def _floats(content: bytes) -> list[float]:
    return array.array("f", content).tolist()


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "input"),
        ({"input": None}, 400, "input"),
        ({"input": ""}, 400, "input"),
        ({"input": []}, 400, "input"),
        ({"input": 1}, 400, "input"),
        ({"input": {"role": "user"}}, 400, "input"),
        ({"input": ["a", ""]}, 400, "input[1]"),
        ({"input": ["a", 1]}, 400, "input[1]"),
        ({"input": [1, "a"]}, 400, "input[1]"),
        ({"input": [True]}, 400, "input[0]"),
        ({"input": [-1]}, 400, "input[0]"),
        ({"input": [[1], []]}, 400, "input[1]"),
        ({"input": [[1], [1.5]]}, 400, "input[1][0]"),
        ({"input": ["a"] * 2049}, 400, "input"),
        ({"input": [1] * 8193}, 400, "input"),
        ({"input": "a", "dimensions": 257}, 400, "dimensions"),
        ({"input": "a", "dimensions": 0}, 400, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, 400, "encoding_format"),
        ({"input": ["a"] * 65, "encoding_format": "bytes"}, 400, "encoding_format"),
        ({"input": "a", "model": "demo"}, 400, "model"),
        ({"input": "a", "model": "nothing"}, 404, "model"),
    ],
)
def test_what_is_refused(demo_server: Server, body: dict[str, Any], status: int, param: str) -> None:
    answer = demo_server.post("/embeddings", **body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param), error


def test_the_largest_inputs_are_taken(demo_server: Server) -> None:
    assert demo_server.post("/embeddings", input=[1] * 8192).json()["usage"]["prompt_tokens"] == 8192
    answer = demo_server.post("/embeddings", input=["word"] * 2048, encoding_format="base64").json()
    assert [each["index"] for each in answer["data"]] == list(range(2048))


async def test_keys_and_limits(closed: ClosedServer) -> None:
    def ask(key: str) -> httpx.Response:
        body = {"input": [1] * 30}
        return httpx.post(f"{closed.base_url}/embeddings", json=body, headers=bearer(key), verify=False, timeout=30)

    assert ask("sk-nonsense").status_code == 401
    assert ask(closed.new_key("--scopes", "api.embeddings.write")).status_code == 200
    assert ask(closed.new_key("--scopes", "api.responses.write")).status_code == 403
    assert ask(closed.new_key("--models", "m")).status_code == 404  # without a name: none that it may use
    key = closed.new_key("--input-tokens-per-minute", "40")
    assert ask(key).headers["x-ratelimit-limit-tokens"] == "40"
    await eventually(lambda: ask(key).status_code == 429)
    reads = bearer(closed.new_key("--scopes", "api.metrics.read"))
    async with httpx.AsyncClient(headers=reads, verify=False) as client:
        metrics = await client.get(f"{closed.url}/metrics")
    assert f'respsite_embeddings_total{{model="{MODEL}",status="completed"}}' in metrics.text


@pytest.mark.parametrize("path", ["/responses", "/chat/completions", "/completions"])
def test_a_model_that_makes_embeddings_says_so_where_text_is_wanted(demo_server: Server, path: str) -> None:
    said = {"input": "a"} if path == "/responses" else {"prompt": "a"} if path == "/completions" else {}
    messages = {} if said else {"messages": [{"role": "user", "content": "a"}]}
    answer = demo_server.post(path, model=MODEL, **said, **messages)
    message = answer.json()["error"]["message"]
    assert answer.status_code == 400
    assert message == f"The model '{MODEL}' makes embeddings (/v1/embeddings), and generates no text. These do: demo."


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


QUESTIONS = [predicate("yes")]
CHOICE = {"type": "choice", "instructions": "b"}


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"input": None}, "input"),
        ({"questions": None}, "questions"),
        ({"questions": []}, "questions"),
        ({"questions": QUESTIONS * 401}, "questions"),
        ({"questions": [{"type": "noul", "instructions": "b"}]}, "questions[0].type"),
        ({"questions": [{"type": "predicate", "instructions": ""}]}, "questions[0]"),
        ({"questions": [{**CHOICE, "choices": CHOICES[:1]}]}, "questions[0]"),
        ({"questions": [{**CHOICE, "choices": CHOICES[:1] * 2}]}, "questions[0]"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"input": "word " * 5000}, "input"),
        ({"model": "other"}, "model"),
    ],
)
def test_what_is_refused_of_decisions(server: Server, changes: dict[str, Any], param: str) -> None:
    body = {"input": "a", "questions": QUESTIONS, **changes}
    answer = server.post("/decisions", **{name: value for name, value in body.items() if value is not None})
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


REQUIRED = {  # Codex 0.169 knows none of a catalogue's models where an entry lacks one of these, or has it as null
    *("slug", "display_name", "base_instructions", "supported_reasoning_levels", "shell_type", "visibility"),
    *("supported_in_api", "priority", "support_verbosity", "truncation_policy", "experimental_supported_tools"),
}


@pytest.mark.parametrize("query", ["", "?client_version=", "?version=0.169.0"])
def test_openais_list(demo_server: Server, query: str) -> None:
    told = httpx.get(f"{demo_server.base_url}/models{query}").json()
    assert (told["object"], [model["id"] for model in told["data"]]) == ("list", ["demo", "hashing-256"])
    assert "models" not in told


def test_each_model_says_what_it_can_do(demo_server: Server) -> None:
    generates, embeds = httpx.get(f"{demo_server.base_url}/models").json()["data"]
    assert {"generate", "structured_outputs", "images"} <= set(generates["capabilities"])
    assert {"/v1/responses", "/v1/completions", "/v1/messages"} <= set(generates["endpoints"])
    assert (embeds["capabilities"], embeds["endpoints"], embeds["dimensions"]) == (["embed"], ["/v1/embeddings"], 256)
    assert embeds["max_model_len"] == 8192
    for model in (generates, embeds):
        assert httpx.get(f"{demo_server.base_url}/models/{model['id']}").json() == model
        for path in model["endpoints"]:
            assert httpx.post(f"{demo_server.url}{path}", json={"model": model["id"]}).status_code == 400


def test_codexs_catalogue(demo_server: Server) -> None:
    model, _ = httpx.get(f"{demo_server.base_url}/models").json()["data"]
    told = httpx.get(f"{demo_server.base_url}/models", params={"client_version": "0.169.0"}).json()
    assert list(told) == ["models"]
    (entry,) = told["models"]
    assert [name for name in REQUIRED if entry.get(name) is None] == []
    assert (entry["slug"], entry["context_window"]) == ("demo", model["max_model_len"])
    assert entry["apply_patch_tool_type"] == "freeform"
    assert entry["input_modalities"] == ["text", "image"]
    assert entry["supports_parallel_tool_calls"] is True
    assert [level["effort"] for level in entry["supported_reasoning_levels"]] == ["low", "medium", "high"]
    assert "*** Begin Patch" in entry["base_instructions"]
    assert entry["truncation_policy"] == {"mode": "tokens", "limit": min(10_000, model["max_model_len"] // 8)}


def test_a_model_that_is_not_loaded_yet_or_has_no_grammars_is_in_the_catalogue() -> None:
    models = [CatalogueModel("demo", None, sees=False, is_held=is_held) for is_held in (True, False)]
    entry, without_grammars = catalogue(models)["models"]  # type: ignore[misc]
    assert (entry["context_window"], entry["truncation_policy"]["limit"]) == (None, 10_000)
    assert without_grammars["apply_patch_tool_type"] is None
    assert "apply_patch" not in without_grammars["base_instructions"]


@pytest.mark.parametrize(
    ("query", "ids", "has_more"),
    [
        ("", ["a", "b", "c"], False),
        ("limit=2", ["a", "b"], True),
        ("limit=2&after_id=a", ["b", "c"], False),
        ("limit=1&after_id=a", ["b"], True),
        ("before_id=c", ["a", "b"], False),
        ("limit=1&before_id=c", ["b"], True),
        ("after_id=c", [], False),
    ],
)
def test_a_client_of_anthropics_api_pages_through_models(query: str, ids: list[str], has_more: bool) -> None:
    models: Any = [{"id": name} for name in "abc"]
    page = anthropic_page(models, parse_qs(query))
    assert ([each["id"] for each in page["data"]], page["has_more"]) == (ids, has_more)
    assert (page["first_id"], page["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=1001", "after_id=nobody", "before_id=nobody"])
def test_a_page_of_models_that_cannot_be_is_refused(query: str) -> None:
    with pytest.raises(ApiError) as refused:
        anthropic_page([], parse_qs(query))
    assert refused.value.status == 400
