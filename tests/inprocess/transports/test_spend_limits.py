"""Spend limits: set by OpenAI's SDK, a command or the admin, and enforced on every API and every worker."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.kit.background import until
from tests.kit.batches import batch_of, ended, line
from tests.kit.clients import Socket
from tests.kit.closed import bearer, limit, post
from tests.kit.fixtures import module_server
from tests.kit.inprocess import ClosedServer
from tests.kit.scripts import gate, main_script, release
from tests.kit.stored import stored
from tests.kit.waiting import eventually

WITHIN = 25.0  # seconds until a limit holds: 15 for what is spent, and the 2 of keys
PRICES = '{"demo": {"input": 1000000, "output": 1000000}, "hashing-256": {"input": 1000000}}'  # 1 a token
QUESTION = {"type": "predicate", "instructions": "[says yes]"}
PROJECTS = "/v1/organization/projects"
ALL = "/v1/organization/spend_limit"


def new_server(folder: Path, **settings: object) -> ClosedServer:
    """Return a server with prices, not started."""
    script = folder / "script.json"
    folder.mkdir(exist_ok=True)
    script.write_text(json.dumps(main_script(folder)))
    models = {"demo": {"engine": "scripted", "script": str(script)}, "hashing-256": {"engine": "hashing"}}
    return ClosedServer(folder, models=json.dumps(models), **{"auth": "on", "prices": PRICES, **settings})  # type: ignore[arg-type]


closed = module_server("spending", new_server)


async def answers(server: ClosedServer, key: str | None, status: int) -> None:
    """Wait until a create is answered so."""

    async def is_so() -> bool:
        return (await asyncio.to_thread(post, server, key)).status_code == status

    await eventually(is_so, timeout=WITHIN)


def is_refused(answer: httpx.Response, says: str) -> None:
    """Whether an answer is OpenAI's error of a quota."""
    assert answer.status_code == 429, answer.text
    assert answer.headers["x-should-retry"] == "false"
    error = answer.json()["error"]
    assert says in error["message"]
    if answer.json().get("type") != "error":  # as Anthropic's API has it
        assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")


@pytest.mark.each_database
async def test_a_project_that_has_spent_its_limit_is_refused_by_every_api(
    closed: ClosedServer, sdk: openai.OpenAI, raw: httpx.Client
) -> None:
    projects = sdk.admin.organization.projects
    keys: dict[str, str] = {}
    for name in ("spender", "neighbour"):
        made = projects.service_accounts.create(projects.create(name=name).id, name="k").api_key
        keys[name] = made.value
    with pytest.raises(openai.NotFoundError):
        projects.spend_limit.retrieve("spender")
    key = keys["spender"]
    begun = post(closed, key, input=gate("b0"), background=True).json()["id"]
    socket = await Socket.open(closed.ws_url, additional_headers=bearer(key))
    await socket.create(gate("b1"))
    await socket.until("response.output_text.delta")
    assert post(closed, key).status_code == 200
    set_ = projects.spend_limit.update("spender", currency="USD", interval="month", threshold_amount=100)
    assert (set_.threshold_amount, set_.currency, set_.interval, set_.object) == (
        100, "USD", "month", "project.spend_limit",
    )  # fmt: skip
    assert set_.enforcement.status == "enforcing", "1 USD is spent long ago"
    assert projects.spend_limit.retrieve("spender") == set_
    assert set_.model_extra == {}
    await answers(closed, key, 429)
    says = "the spend limit of project 'spender' for "
    is_refused(post(closed, key), says)
    is_refused(post(closed, key, stream=True), says)
    is_refused(post(closed, key, background=True), says)
    is_refused(post(closed, key, store=False), "is 1.00 USD, of which ")
    asked: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}
    bodies: dict[str, dict[str, Any]] = {
        "/chat/completions": asked,
        "/messages": {"max_tokens": 50, **asked},
        "/completions": {"model": "demo", "prompt": "Hello", "max_tokens": 5},
        "/decisions": {"model": "demo", "input": "Hello", "questions": [QUESTION]},
        "/embeddings": {"input": "Hello"},
        "/responses/compact": {"model": "demo", "input": "Hello"},
    }
    async with httpx.AsyncClient(base_url=closed.base_url, headers=bearer(key), verify=False, timeout=30) as http:
        for path, body in bodies.items():
            headers = {"anthropic-version": "2023-06-01"} if path == "/messages" else {}
            is_refused(await http.post(path, json=body, headers=headers), says)
        async with await Socket.open(closed.ws_url, additional_headers=bearer(key)) as other:
            await other.create()
            error = await other.error()
            assert error["error"]["code"] == "insufficient_quota"
        with openai.OpenAI(base_url=closed.base_url, api_key=key, max_retries=0) as client:
            batch: Any = ended(client, batch_of(client, [line("1", input="Hello"), line("2", input="Hello")]))
            assert (batch.request_counts.failed, batch.output_file_id) == (2, None)
            assert batch.error_file_id is not None
            told = client.files.content(batch.error_file_id).text
            assert told.count('"insufficient_quota"') == 4
            with pytest.raises(openai.RateLimitError, match="exceeded your current quota"):
                client.responses.create(input="Hello")
        # Nobody else is refused, what was accepted goes on, and what is stored can be read.
        assert post(closed, keys["neighbour"]).status_code == 200
        release(closed, "b0")
        await until(http, begun, "completed")
        release(closed, "b1")
        await socket.until("response.completed")
        await socket.raw.close()
    projects.spend_limit.update("spender", currency="USD", interval="month", threshold_amount=10**9)
    await answers(closed, key, 200)
    projects.spend_limit.update("spender", currency="USD", interval="month", threshold_amount=1)
    await answers(closed, key, 429)
    assert projects.spend_limit.delete("spender").deleted
    await answers(closed, key, 200)
    with pytest.raises(openai.NotFoundError):
        projects.spend_limit.delete("spender")
    rows = "SELECT actor_name, detail FROM responses_app_auditrow WHERE action = 'limits_changed' "
    rows += "AND project = 'spender' ORDER BY number"
    changed = [(name, json.loads(detail)["monthly_spend_cents"]) for name, detail in stored(closed, rows)]
    assert changed == [("first", cents) for cents in (100, 10**9, 1, None)]


async def test_a_key_is_limited_by_a_command(closed: ClosedServer) -> None:
    key, other = closed.new_key("--project", "shelled"), closed.new_key("--project", "shelled")
    assert post(closed, key).status_code == 200
    assert "monthly spend cents: 1\n" in limit(closed, "--key", key[:9], "--monthly-spend-cents", "1")
    await answers(closed, key, 429)
    is_refused(post(closed, key), "the spend limit of this API key (key_")
    assert post(closed, other).status_code == 200
    limit(closed, "--key", key[:9], "--monthly-spend-cents", "none")
    await answers(closed, key, 200)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "currency"),
        ({"currency": "EUR", "interval": "month", "threshold_amount": 5}, "currency"),
        ({"currency": "USD", "interval": "day", "threshold_amount": 5}, "interval"),
        *(
            ({"currency": "USD", "interval": "month", "threshold_amount": amount}, "threshold_amount")
            for amount in (-1, 1.5, "5", None, True, 10**16)
        ),
    ],
)
def test_what_is_wrong_is_refused(raw: httpx.Client, body: dict[str, object], param: str) -> None:
    for path in (ALL, f"{PROJECTS}/default/spend_limit"):
        answer = raw.post(path, json=body)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == param


def test_without_prices_nothing_is_limited(folder: Path) -> None:
    body = {"currency": "USD", "interval": "month", "threshold_amount": 5}
    with new_server(folder, prices="{}") as other:
        admin = other.new_key("--admin", "--name", "first")
        for path in (ALL, f"{PROJECTS}/default/spend_limit"):
            answer = httpx.post(other.url + path, json=body, headers=bearer(admin), verify=False)
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "no_prices"


@pytest.fixture(autouse=True)
async def unlimited(closed: ClosedServer) -> AsyncIterator[None]:
    """Leave no limit of all together behind."""
    yield
    closed.operate("set_limits", "--organization", "--monthly-spend-cents", "none")
