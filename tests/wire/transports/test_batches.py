"""Batches as the SDKs ask for them: what they run, what they refuse, and how they end early."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import uuid4

import httpx
import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from openai.types import Batch

from tests.kit.batches import batch_of, ended, line, output_of, uploaded
from tests.kit.fixtures import module_sdk, module_server
from tests.kit.scripts import gate, main_script, release
from tests.kit.server import Server

server = module_server("batches", batch_max_lines=40, engine_options={"tokens_per_second": 2000})

BODIES: Mapping[str, Mapping[str, object]] = {
    "/v1/responses": {"input": "Say hello."},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Say hello."}]},
    "/v1/completions": {"prompt": "count to 5", "max_tokens": 20},
    "/v1/embeddings": {"input": ["a", "b"]},
    "/v1/messages": {"max_tokens": 50, "messages": [{"role": "user", "content": "Say hello."}]},
}


client = module_sdk()


@pytest.mark.parametrize("endpoint", BODIES)
def test_each_line_is_answered_as_its_endpoint_does(client: OpenAI, server: Server, endpoint: str) -> None:
    model = "hashing-256" if endpoint == "/v1/embeddings" else "demo"
    lines = [line(str(number), endpoint, **BODIES[endpoint], model=model) for number in range(5)]
    batch = ended(client, batch_of(client, lines, endpoint, metadata={"a": "b"}))
    assert (batch.status, batch.endpoint, batch.model, batch.metadata) == ("completed", endpoint, model, {"a": "b"})
    assert batch.request_counts.model_dump() == {"total": 5, "completed": 5, "failed": 0}
    assert batch.error_file_id is None
    times = (batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at)
    assert all(times)
    assert list(times) == sorted(times)
    assert batch.expires_at == batch.created_at + 24 * 3600
    answers = output_of(client, batch.output_file_id)
    assert sorted(answers) == ["0", "1", "2", "3", "4"]
    headers = {"anthropic-version": "2023-06-01"}
    body = {**BODIES[endpoint], "model": model}
    alone = httpx.post(f"{server.url}{endpoint}", json=body, headers=headers, verify=False, timeout=30).json()
    for answer in answers.values():
        assert answer["error"] is None
        assert answer["response"]["status_code"] == 200
        assert sorted(answer["response"]["body"]) == sorted(alone)
    used = sum(_input_tokens(each["response"]["body"]) for each in answers.values())
    assert batch.usage.input_tokens == used > 0
    assert batch.usage.total_tokens == batch.usage.input_tokens + batch.usage.output_tokens


def _input_tokens(body: Mapping[str, Any]) -> int:
    usage = body["usage"]
    cached = usage.get("cache_read_input_tokens", 0)
    return int(usage.get("input_tokens", usage.get("prompt_tokens"))) + int(cached)


def test_lines_that_fail_are_in_the_error_file(client: OpenAI) -> None:
    lines = [
        line("good", input="Say hello."),
        line("bad", input="Say hello.", temperature=99),
        line("streamed", input="Say hello.", stream=True),
        line("behind", input="Say hello.", background=True),
    ]
    batch = ended(client, batch_of(client, lines))
    assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 1, 3)
    assert list(output_of(client, batch.output_file_id)) == ["good"]
    errors = output_of(client, batch.error_file_id)
    told = {name: each["response"]["body"]["error"]["param"] for name, each in errors.items()}
    assert told == {"bad": "temperature", "streamed": "stream", "behind": "background"}
    assert {each["response"]["status_code"] for each in errors.values()} == {400}


def _raw(*lines: object) -> Iterable[bytes]:
    return [each if isinstance(each, bytes) else json.dumps(each).encode() for each in lines]


@pytest.mark.parametrize(
    ("lines", "code", "number"),
    [
        ([b""], "empty_file", None),
        ([line("a", input="x"), b"", b"[1]"], "invalid_json_line", 3),
        ([line("a", "/v1/embeddings", input="x")], "url_mismatch", 1),
        ([{**line("a", input="x"), "method": "GET"}], "invalid_value", 1),
        ([{"custom_id": "a", "method": "POST", "url": "/v1/responses"}], "missing_required_parameter", 1),
        ([{**line("a", input="x"), "custom_id": 5}], "invalid_type", 1),
        ([line("a", input="x", model="none")], "model_not_found", 1),
        ([*(line(str(number), input="x") for number in range(39)), b'{"custom_id": '], "invalid_json_line", 40),
    ],
    ids=str.split("empty no-object url method no-body id-type no-model the-last-is-broken"),
)
def test_an_input_that_is_wrong_runs_nothing(client: OpenAI, lines: list[object], code: str, number: int) -> None:
    batch = ended(client, batch_of(client, _raw(*lines)))
    assert batch.status == "failed"
    assert batch.failed_at is not None
    assert (batch.output_file_id, batch.error_file_id, batch.in_progress_at) == (None, None, None)
    first = batch.errors.data[0]
    assert (first.code, first.line) == (code, number)
    assert first.message


def test_a_create_that_is_wrong(client: OpenAI) -> None:
    file = uploaded(client, [line("a", input="x")])
    fields: dict[str, Any] = {"completion_window": "24h", "endpoint": "/v1/responses", "input_file_id": file}
    for changes, param in (
        ({"completion_window": "1h"}, "completion_window"),
        ({"endpoint": "/v1/videos"}, "endpoint"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 5}}, "output_expires_after.seconds"),
    ):
        with pytest.raises(BadRequestError) as refused:
            client.batches.create(**(fields | changes))
        assert refused.value.param == param
    with pytest.raises(NotFoundError):
        client.batches.create(**(fields | {"input_file_id": "file-none"}))
    other = client.files.create(file=("a.txt", b"x"), purpose="user_data").id
    with pytest.raises(BadRequestError, match="purpose"):
        client.batches.create(**(fields | {"input_file_id": other}))
    for ask in (client.batches.retrieve, client.batches.cancel):
        with pytest.raises(NotFoundError):
            ask("batch_none")


def test_lists_and_files(client: OpenAI) -> None:
    made = [
        batch_of(client, [line("a", input="x")], output_expires_after={"anchor": "created_at", "seconds": 3600})
        for _ in range(3)
    ]
    pages = client.batches.list(limit=2)
    listed = [batch.id for _, batch in zip(range(3), pages, strict=False)]
    assert listed == [batch.id for batch in reversed(made)]
    batch = ended(client, made[-1])
    assert set(batch.model_dump()) <= set(Batch.model_fields)
    assert not batch.model_extra
    file = client.files.retrieve(str(batch.output_file_id))
    assert (file.purpose, file.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert file.expires_at == file.created_at + 3600
    assert file.id in {each.id for each in client.files.list(purpose="batch_output")}
    with pytest.raises(BadRequestError, match="completed"):
        client.batches.cancel(batch.id)


held_server = module_server("held_batches", script=main_script, model="demo")
held_client = module_sdk("held_server")


def test_a_cancelled_batch_keeps_what_has_ended(held_server: Server, held_client: OpenAI) -> None:
    client = held_client
    lines = [line(str(number), input=gate("b0") if number else "Hello") for number in range(40)]
    batch = batch_of(client, lines)
    began = ended(client, batch, lambda now: now.request_counts is not None and now.request_counts.completed > 0)
    assert began.status == "in_progress"
    assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    ended(client, batch, lambda now: now.status in ("cancelling", "cancelled"))
    release(held_server, "b0")  # what runs may end, and what has not begun never does
    batch = ended(client, batch)
    assert batch.status == "cancelled"
    assert batch.cancelling_at is not None
    assert batch.cancelled_at is not None
    answers, errors = output_of(client, batch.output_file_id), output_of(client, batch.error_file_id)
    assert sorted([*answers, *errors]) == sorted(str(number) for number in range(40))
    assert {each["error"]["code"] for each in errors.values()} == {"batch_cancelled"}
    assert batch.request_counts.completed == len(answers) > 0
    assert batch.request_counts.failed == 0


def bare(answer_id: str) -> str:
    """Return the part of an id that a response has in common with the chat, message or completion that it was."""
    return re.sub(r"^[a-z]+[_-]|-0$", "", answer_id)


@pytest.mark.parametrize("endpoint", ["/v1/responses", "/v1/chat/completions", "/v1/messages", "/v1/completions"])
def test_lines_are_recorded_in_the_roll_outs_that_they_name(client: OpenAI, endpoint: str) -> None:
    """Two lines of one roll-out, one of another, one of none, and one of a roll-out that has ended."""
    group = uuid4().hex
    names = {"a": f"{group}.1", "b": f"{group}.1", "c": f"{group}.2", "late": f"{group}.ended"}
    client.post("/rollouts", body={"id": names["late"]}, cast_to=object)
    client.post(f"/rollouts/{names['late']}/end", cast_to=object)
    lines = [
        line(custom_id, endpoint, **BODIES[endpoint], metadata={"rollout_id": name})
        for custom_id, name in names.items()
    ]
    batch = ended(client, batch_of(client, [*lines, line("none", endpoint, **BODIES[endpoint])], endpoint))
    answers, refused = output_of(client, batch.output_file_id), output_of(client, batch.error_file_id)
    assert (sorted(answers), sorted(refused)) == (["a", "b", "c", "none"], ["late"])
    assert "has ended" in str(refused["late"]["response"]["body"])
    assert refused["late"]["response"]["status_code"] in (400, 409)
    for name, of in ((f"{group}.1", ("a", "b")), (f"{group}.2", ("c",)), (names["late"], ())):
        tree: Any = client.get(f"/rollouts/{name}", cast_to=object)
        assert tree["usage"]["generations"] == len(of)
        own = {bare(answers[custom_id]["response"]["body"]["id"]) for custom_id in of}
        assert {bare(each["response_id"]) for each in tree["generations"]} == own
        assert {each["branch"] for each in tree["generations"]} <= {"main"}
        assert [each["reason"] for each in tree["breaks"]] == ["fork"] * (len(of) - 1 if of else 0)


@pytest.mark.parametrize("way", ["header", "url"])
@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_a_batch_is_part_of_no_roll_out(client: OpenAI, server: Server, api: str, way: str) -> None:
    params = {"model": "demo", **BODIES["/v1/messages"]}
    path, body = {
        "anthropic": ("/v1/messages/batches", {"requests": [{"custom_id": "a", "params": params}]}),
        "openai": (
            "/v1/batches",
            {
                "endpoint": "/v1/responses",
                "completion_window": "24h",
                "input_file_id": uploaded(client, [line("a", input="Hi")]),
            },
        ),
    }[api]
    headers = {"anthropic-version": "2023-06-01"} if api == "anthropic" else {}
    base = f"{server.url}/rollouts/r1" if way == "url" else server.url
    headers |= {"x-rollout-id": "r1"} if way == "header" else {}
    answer = httpx.post(base + path, json=body, headers=headers, verify=False, timeout=30)
    assert answer.status_code == 400
    assert "metadata" in answer.json()["error"]["message"]
    assert httpx.get(f"{server.url}/v1/rollouts/r1", verify=False, timeout=30).status_code == 404


def test_a_line_of_a_messages_batch_is_recorded(client: OpenAI, server: Server) -> None:
    name, headers = f"task:{uuid4().hex}", {"anthropic-version": "2023-06-01"}
    params = {"model": "demo", **BODIES["/v1/messages"], "metadata": {"rollout_id": name}}
    body = {"requests": [{"custom_id": "a", "params": params}]}
    url = f"{server.url}/v1/messages/batches"
    made = httpx.post(url, json=body, headers=headers, verify=False, timeout=30).json()
    while httpx.get(f"{url}/{made['id']}", headers=headers, verify=False, timeout=30).json()["ended_at"] is None:
        pass
    tree: Any = client.get(f"/rollouts/{name}", cast_to=object)
    assert [each["api"] for each in tree["generations"]] == ["messages"]
