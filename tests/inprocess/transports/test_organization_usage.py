"""Usage and costs over the API: OpenAI's SDK adds them up to what the answers said, for two projects."""

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

import httpx
import openai
import pytest

from tests.kit.background import until
from tests.kit.batches import batch_of, ended, line, output_of
from tests.kit.clients import Socket, server_sent
from tests.kit.closed import bearer
from tests.kit.inprocess import ClosedServer
from tests.kit.scripts import main_script
from tests.kit.stored import stored
from tests.kit.used import Said
from tests.kit.waiting import eventually

DAY = 86_400
PRICES = {"demo": {"input": Decimal("2.5"), "cached_input": Decimal("0.3"), "output": Decimal("10.1")}}
SETTINGS = {
    "auth": "on",
    "prices": '{"demo": {"input": 2.5, "cached_input": 0.3, "output": 10.1}}',
    "prices_currency": "eur",
}
QUESTION = {"type": "predicate", "instructions": "[says yes]"}
USAGE = "/v1/organization/usage"
COSTS = "/v1/organization/costs"
PATHS = (f"{USAGE}/completions", f"{USAGE}/decisions", f"{USAGE}/embeddings", COSTS)


@pytest.fixture(scope="module")
def closed(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedServer]:
    """A server that asks everybody for a key, and has prices."""
    folder = tmp_path_factory.mktemp("usage")
    script = folder / "script.json"
    script.write_text(json.dumps(main_script(folder)))
    models = {"demo": {"engine": "scripted", "script": str(script)}, "hashing-256": {"engine": "hashing"}}
    with ClosedServer(folder, models=json.dumps(models), **SETTINGS) as server:  # type: ignore[arg-type]
        yield server


async def use(server: ClosedServer, key: str, said: Said, texts: int) -> None:
    """Use every API with a key, with inputs of so many words, and take down what answers said."""
    text = " ".join(["word"] * texts)
    async with httpx.AsyncClient(base_url=server.base_url, headers=bearer(key), verify=False, timeout=30) as http:
        http.headers["anthropic-version"] = "2023-06-01"
        for store in (True, False):
            said.add((await http.post("/responses", json={"input": text, "store": store})).json())
        async with http.stream("POST", "/responses", json={"stream": True, "input": text}) as stream:
            events = [each async for _, each in server_sent(stream)]
        said.add(next(each["response"] for each in events if each["type"] == "response.completed"))  # type: ignore[index]
        begun = (await http.post("/responses", json={"input": text, "background": True})).json()
        said.add(await until(http, begun["id"], "completed"))
        async with await Socket.open(server.ws_url, additional_headers=bearer(key)) as socket:
            await socket.create(text)
            said.add((await socket.until("response.completed"))[-1]["response"])
        asked = {"model": "demo", "messages": [{"role": "user", "content": text}]}
        said.add((await http.post("/chat/completions", json=asked)).json())
        said.add((await http.post("/messages", json={"max_tokens": 50, **asked})).json())
        said.add((await http.post("/completions", json={"model": "demo", "prompt": text, "max_tokens": 5})).json())
        decided = {"model": "demo", "input": text, "questions": [QUESTION]}
        said.add((await http.post("/decisions", json=decided)).json(), "decisions")
        said.add((await http.post("/embeddings", json={"input": text})).json(), "embeddings")
    with openai.OpenAI(base_url=server.base_url, api_key=key, max_retries=0) as client:
        batch = ended(client, batch_of(client, [line(str(number), input=text) for number in range(3)]))
        for each in output_of(client, batch.output_file_id).values():
            said.add(each["response"]["body"], batch=True)


def told(results: Any, name: str) -> dict[tuple[str, bool], list[int]]:
    """Return usage as `Said` has it."""
    return {
        (name, bool(getattr(each, "batch", False))): [
            each.num_model_requests,
            each.input_tokens,
            getattr(each, "input_cached_tokens", 0),
            getattr(each, "output_tokens", 0),
        ]
        for each in results
    }


@pytest.mark.each_database
async def test_it_adds_up_for_two_projects_to_the_token_and_the_cent(closed: ClosedServer, sdk: openai.OpenAI) -> None:
    began = int(time.time()) - 1
    keys, saids = {}, {}
    for number, project in enumerate(("alpha", "beta")):
        sdk.admin.organization.projects.create(name=project)
        made = sdk.admin.organization.projects.service_accounts.create(project, name="ci").api_key
        keys[project], saids[project] = made.id, Said()
        await use(closed, made.value, saids[project], 3 + number)

    usage = sdk.admin.organization.usage

    def as_said(project: str) -> dict[tuple[str, bool], list[int]]:
        about: Any = {"start_time": began, "project_ids": [project]}
        (by_batch,) = usage.completions(**about, group_by=["batch", "project_id", "api_key_id"]).data
        (decisions,) = usage.decisions(**about, api_key_ids=[keys[project]]).data
        (embeddings,) = usage.embeddings(**about, group_by=["model"]).data
        for each in by_batch.results:
            assert (each.project_id, each.api_key_id) == (project, keys[project])  # type: ignore[union-attr]
        return {
            **told(by_batch.results, "responses"),
            **told(decisions.results, "decisions"),
            **told(embeddings.results, "embeddings"),
        }

    for project, said in saids.items():
        await eventually(lambda project=project, said=said: as_said(project) == dict(said.sums))  # type: ignore[misc]
        assert len(said.sums) == 4

    (day,) = usage.costs(start_time=began, group_by=["project_id"]).data
    for project, said in saids.items():
        cost = Decimal(0)
        for (source, _), (_, given, cached, output) in said.sums.items():
            if source != "embeddings":  # which have no price
                price = PRICES["demo"]
                cost += ((given - cached) * price["input"] + cached * price["cached_input"]) / 1_000_000
                cost += output * price["output"] / 1_000_000
        priced, unpriced = (each for each in day.results if each.project_id == project)
        assert priced.amount.value == float(cost)  # type: ignore[union-attr]
        assert priced.amount.currency == "eur"  # type: ignore[union-attr]
        assert unpriced.amount is None  # type: ignore[union-attr]
    (items,) = usage.costs(start_time=began, group_by=["line_item"], api_key_ids=[keys["alpha"]]).data
    quantities: dict[str, int] = {each.line_item: each.quantity for each in items.results}  # type: ignore[union-attr,misc]
    alpha: dict[str, int] = defaultdict(int)
    for (source, _), (_, given, cached, output) in saids["alpha"].sums.items():
        model = "hashing-256" if source == "embeddings" else "demo"
        for kind, tokens in (("input", given - cached), ("cached_input", cached), ("output", output)):
            alpha[f"{model}, {kind}_tokens"] += tokens
    assert quantities == {name: tokens for name, tokens in alpha.items() if tokens}
    assert {each.quantity_unit for each in items.results} == {"tokens"}  # type: ignore[union-attr]
    (only,) = usage.costs(start_time=began, group_by=["line_item"], line_items=["demo, output_tokens"]).data
    assert [each.line_item for each in only.results] == ["demo, output_tokens"]  # type: ignore[union-attr]


def keep(server: ClosedServer, name: object, **fields: object) -> None:
    """Keep what a request has used, past the server."""
    about = {
        "id": f"made_{name}", "at": 0, "seconds": 0, "project": "made", "key_id": "key_1", "model": "demo",
        "source": "responses", "batch": False, "requests": 1, "input_tokens": 10, "cached_tokens": 4,
        "output_tokens": 3,
    } | fields  # fmt: skip
    closed_rows = f"from responses_app.resources.usage.model import Usage; Usage.objects.create(**{about!r})"
    server.manage("shell", "--no-imports", "-c", closed_rows)


@pytest.mark.each_database
def test_pages_of_buckets(closed: ClosedServer, sdk: openai.OpenAI, raw: httpx.Client) -> None:
    """Buckets are whole days, also empty ones, and each is on one page."""
    today = int(time.time()) // DAY * DAY
    for number, day in enumerate((0, 3, 3, 9)):
        keep(closed, number, at=today - day * DAY, seconds=DAY)
    start = today - 9 * DAY + 5
    usage = sdk.admin.organization.usage
    about: Any = {"start_time": start, "project_ids": ["made"]}
    (whole,) = [usage.completions(**about, limit=31)]
    assert [(each.end_time - each.start_time) for each in whole.data] == [DAY] * 10
    assert whole.data[0].start_time == today - 9 * DAY
    assert [sum(each.num_model_requests for each in bucket.results) for bucket in whole.data] == [  # type: ignore[union-attr]
        *(1, 0, 0, 0, 0, 0, 2, 0, 0, 1)
    ]
    assert (whole.has_more, whole.next_page) == (False, None)
    paged, page = [], None
    while True:
        part = usage.completions(**about, limit=3, **({"page": page} if page else {}))
        paged += part.data
        page = part.next_page
        assert part.has_more == (page is not None)
        if page is None:
            break
        last = page
    assert paged == whole.data
    # A page is one of its question.
    for other in (f"start_time={start}", f"start_time={start}&project_ids[]=made&group_by[]=model"):
        error = raw.get(f"{USAGE}/completions?{other}&page={last}").json()["error"]
        assert (error["param"], error["code"]) == ("page", "invalid_value")
    (grouped,) = usage.completions(**about, end_time=today - 8 * DAY, group_by=["user_id", "api_source"]).data
    (only,) = grouped.results
    assert (only.user_id, only.api_source, only.model) == (None, "unlabeled", None)  # type: ignore[union-attr]
    assert usage.completions(start_time=int(time.time()) + 100 * DAY).data == []
    minutes = usage.completions(start_time=int(time.time()) - 3600, bucket_width="1m", limit=1440)
    assert 60 <= len(minutes.data) <= 62


def test_answers_have_the_fields_of_the_sdk(closed: ClosedServer, sdk: openai.OpenAI) -> None:
    today = int(time.time()) // DAY * DAY
    for source in ("responses", "decisions", "embeddings"):
        keep(closed, source, at=today, seconds=DAY, source=source, model="demo", project="fields")
    start = today
    usage = sdk.admin.organization.usage
    for answer in (
        usage.completions(start_time=start, group_by=["model", "api_key_id", "user_id", "project_id", "batch"]),
        usage.decisions(start_time=start),
        usage.embeddings(start_time=start),
        usage.costs(start_time=start, group_by=["line_item"]),
    ):
        results = [result for bucket in answer.data for result in bucket.results]
        assert results
        for each in (answer, *answer.data, *results):
            assert each.model_extra == {}
        for result in results:
            assert result.model_fields_set == set(type(result).model_fields)


WRONG: Mapping[str, str] = {
    "": "start_time",
    "start_time=": "start_time",
    "start_time=x": "start_time",
    "start_time=-1": "start_time",
    "start_time=1.5": "start_time",
    "start_time=99999999999999": "start_time",
    "start_time=2&end_time=1": "end_time",
    "start_time=2&end_time=2": "end_time",
    "start_time=2&end_time=x": "end_time",
    "start_time=2&bucket_width=1w": "bucket_width",
    "start_time=2&bucket_width=1d&bucket_width=": "bucket_width",
    "start_time=2&limit=0": "limit",
    "start_time=2&limit=181": "limit",
    "start_time=2&limit=x": "limit",
    "start_time=2&group_by[]=nothing": "group_by",
    "start_time=2&group_by[]=project_id&group_by[]=%00": "group_by",
    "start_time=2&project_ids[]=%00": "project_ids",
    "start_time=2&project_id=a": "project_id",
    "start_time=2&limit[]=3": "limit[]",
    "start_time=2&page=nothing": "page",
    "start_time=2&page=page_LTUuYWI": "page",
    f"start_time=2&page={'x' * 5000}": "page",
}


@pytest.mark.parametrize("query", WRONG)
@pytest.mark.parametrize("path", PATHS)
def test_what_is_asked_wrongly_is_refused(raw: httpx.Client, path: str, query: str) -> None:
    answer = raw.get(f"{path}?{query}")
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == WRONG[query]
    assert len(error["message"]) < 400


@pytest.mark.parametrize(
    ("path", "query", "says"),
    [
        ("completions", "bucket_width=1m", "kept by the minute for 2 days"),
        ("completions", "bucket_width=1h", "kept by the hour for 32 days"),
        ("completions", "group_by[]=service_tier", "not kept by it here"),
        ("completions", "limit=32", "from 1 to 31"),
        ("completions", "line_items[]=x", "This path takes api_key_ids, batch, "),
        ("completions", "batch=1", "'true' and 'false'"),
        ("embeddings", "batch=true", "Unknown parameter: 'batch'"),
        ("embeddings", "group_by[]=batch", "Supported values are: 'project_id', "),
        ("../costs", "bucket_width=1h", "Supported values are: '1d'"),
        ("../costs", "group_by[]=model", "'line_item'"),
    ],
)
def test_what_one_path_does_not_take(raw: httpx.Client, path: str, query: str, says: str) -> None:
    answer = raw.get(f"{USAGE}/{path}?start_time=1000&{query}")
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]


def test_without_prices_no_costs_are_told(closed: ClosedServer, admin: str) -> None:
    with ClosedServer(closed.folder, auth="on", model_name="demo") as other:
        answer = httpx.get(f"{other.url}{COSTS}?start_time=1", headers=bearer(admin), verify=False)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "no_prices"
        found = httpx.get(f"{other.url}{USAGE}/completions?start_time=1", headers=bearer(admin), verify=False)
        assert found.status_code == 200


def test_what_is_looked_at_is_no_content(closed: ClosedServer, sdk: openai.OpenAI) -> None:
    count = "SELECT COUNT(*) FROM responses_app_auditrow"
    before = stored(closed, count)
    sdk.admin.organization.usage.completions(start_time=1)
    sdk.admin.organization.usage.costs(start_time=1)
    assert stored(closed, count) == before
