"""`/v1/embeddings` over HTTP: OpenAI's SDK, the forms of vectors, and what is refused."""

import array
import base64
import json
import math
from typing import Any

import httpx
import pytest

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
