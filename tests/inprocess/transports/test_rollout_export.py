"""`GET /v1/rollouts/export` over real servers."""

import io
import json
from typing import Any
from uuid import uuid4

import httpx
import pytest

from responses_app.extensions.training.training_rows import FORMATS
from tests.kit.inprocess import Server


@pytest.fixture
async def group(http: httpx.AsyncClient) -> str:
    """A group of three roll-outs; the second has two turns, and each a reward."""
    group = f"g-{uuid4().hex}"
    for number in range(3):
        name = f"{group}.{number}"
        made = await http.post("/rollouts", json={"id": name, "group": group})
        assert made.status_code == 200, made.text
        first = await _respond(http, name, "Hello")
        if number == 1:
            await _respond(http, name, "Again", previous_response_id=first["id"])
        rewarded = await http.post(f"/rollouts/{name}/reward", json={"reward": number})
        assert rewarded.status_code == 200, rewarded.text
    return group


async def _respond(http: httpx.AsyncClient, name: str, text: str, **fields: Any) -> Any:
    body = {"model": "test-model", "input": text, **fields}
    answer = await http.post("/responses", json=body, headers={"x-rollout-id": name})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def exported(http: httpx.AsyncClient, **params: Any) -> list[Any]:
    """Return the rows of an export."""
    answer = await http.get("/rollouts/export", params=params)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-jsonl"
    return [json.loads(line) for line in answer.text.splitlines()]


@pytest.mark.parametrize("name", FORMATS)
async def test_every_format_has_every_rollout_of_a_group(
    server: Server, http: httpx.AsyncClient, group: str, name: str
) -> None:
    rows = await exported(http, format=name, group=group)
    found = [row.get("rollout_id", row.get("id")) for row in rows]
    assert list(dict.fromkeys(found)) == [f"{group}.{number}" for number in range(3)]


@pytest.mark.each_database
async def test_a_tree_is_the_tree_of_the_rollout(server: Server, http: httpx.AsyncClient, group: str) -> None:
    rows = await exported(http, group=group)
    assert rows == [(await http.get(f"/rollouts/{group}.{number}")).json() for number in range(3)]


@pytest.mark.each_database
async def test_which_rollouts_it_has(server: Server, http: httpx.AsyncClient, group: str) -> None:
    async def names(**params: Any) -> list[str]:
        return [row["id"].rpartition(".")[2] for row in await exported(http, group=group, **params)]

    assert await names(after=f"{group}.0") == ["1", "2"]
    assert await names(min_reward=1) == ["1", "2"]
    assert await names(max_reward=1.5, min_reward=0.5) == ["1"]
    assert await names(status="ended") == []
    assert await names(created_before=1) == []
    assert (await http.post(f"/rollouts/{group}.2/end")).status_code == 200
    assert await names(status="ended") == ["2"]
    assert (await http.delete(f"/rollouts/{group}.1")).status_code == 200
    assert await names() == ["0", "2"]


async def test_what_is_wrong_is_named(server: Server, http: httpx.AsyncClient) -> None:
    for params, param in (
        ({"format": "csv"}, "format"),
        ({"after": "none"}, "after"),
        ({"min_reward": "nan"}, "min_reward"),
    ):
        refused = await http.get("/rollouts/export", params=params)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    made = await http.post("/rollouts", json={"id": "export"})
    assert (made.status_code, made.json()["error"]["param"]) == (400, "id")


async def test_a_head_says_what_it_would_be(server: Server, http: httpx.AsyncClient) -> None:
    answer = await http.head("/rollouts/export", params={"format": "trl"})
    assert (answer.status_code, answer.headers["content-type"], answer.content) == (200, "application/x-jsonl", b"")


async def test_parquet_where_the_server_has_it(server: Server, http: httpx.AsyncClient, group: str) -> None:
    arrow = pytest.importorskip("pyarrow.parquet")
    answer = await http.get("/rollouts/export", params={"format": "trl", "file_type": "parquet", "group": group})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/vnd.apache.parquet")
    rows = arrow.read_table(io.BytesIO(answer.content)).to_pylist()
    lines = await exported(http, format="trl", group=group)
    assert [row["input_ids"] for row in rows] == [line["input_ids"] for line in lines]
    assert [row["old_log_probs"] for row in rows] == [line["old_log_probs"] for line in lines]
