"""A server with several models, one of which is away: what it lists, serves, refuses and says of itself."""

import json
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.kit.clients import Socket, read_error_frame, text_of
from tests.kit.closed import ClosedServer, bearer
from tests.kit.scripts import as_history
from tests.kit.server import Server, free_port

SAYS = "<|channel|>final<|message|>{}<|return|>"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedServer]:
    """Two scripted models, and one whose vLLM server is not there."""
    folder = tmp_path_factory.mktemp("models")
    entries: dict[str, dict[str, object]] = {}
    for name in ("large", "small"):
        script = folder / f"{name}.json"
        script.write_text(json.dumps([{"say": SAYS.format(f"I am {name}.")}]))
        options = {"journal": str(folder / f"{name}.jsonl")}
        entries[name] = {"engine": "scripted", "script": str(script), "options": options}
    entries["small"] |= {"aliases": ["gpt-4o", "org/mini"]}
    entries["away"] = {"engine": "vllm-server", "url": f"http://127.0.0.1:{free_port()}"}
    with ClosedServer(folder / "server", auth="on", models=json.dumps(entries)) as started:
        started.folder = folder
        yield started


@pytest.fixture(scope="module")
def key(server: ClosedServer) -> str:
    return server.new_key("--project", "team")


@pytest.fixture
def http(server: ClosedServer, key: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.base_url, headers=bearer(key), verify=False, timeout=30) as client:
        yield client


def ask(http: httpx.Client, **fields: object) -> httpx.Response:
    return http.post("/responses", json={"input": "Hello", **fields})


def generations(server: Server, model: str) -> list[dict[str, list[int]]]:
    file = server.folder / f"{model}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_all_are_listed_with_their_aliases(http: httpx.Client) -> None:
    listed = {model["id"]: model.get("root") for model in http.get("/models").json()["data"]}
    assert listed == {"large": None, "small": None, "gpt-4o": "small", "org/mini": "small", "away": None}
    assert http.get("/models/org/mini").json()["root"] == "small"
    assert http.get("/models/other").status_code == 404
    catalogue = http.get("/models", params={"client_version": "0.1"}).json()
    assert [model["slug"] for model in catalogue["models"]] == list(listed)


@pytest.mark.parametrize(("name", "serves"), [(None, "large"), ("small", "small"), ("gpt-4o", "small")])
def test_each_is_served_under_its_names(http: httpx.Client, name: str | None, serves: str) -> None:
    answer = ask(http, **({} if name is None else {"model": name})).json()
    assert (answer["model"], text_of(answer)) == (serves, f"I am {serves}.")
    assert http.get(f"/responses/{answer['id']}").json()["model"] == serves


def test_one_that_is_away_is_refused_and_the_others_are_served(server: ClosedServer, http: httpx.Client) -> None:
    refused = ask(http, model="away")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_is_overloaded")
    assert int(refused.headers["retry-after"]) >= 1
    ready = httpx.get(f"{server.url}/ready", verify=False)
    assert ready.status_code == 200
    said = ready.json()
    assert said["models"] == {"large": "ok", "small": "ok", "away": "the engine is away"}
    assert said["engine"] == "away: the engine is away"
    assert ask(http).status_code == 200


async def test_a_connection_goes_on_with_another_model(server: ClosedServer, key: str) -> None:
    async with await Socket.open(server.ws_url, additional_headers=bearer(key)) as socket:
        first = await socket.ask(model="large", store=False)
        second = await socket.ask(model="gpt-4o", store=False, previous_response_id=first["id"])
        assert (text_of(first), text_of(second)) == ("I am large.", "I am small.")
        history = as_history(generations(server, "large")[-1])  # type: ignore[arg-type]
        assert generations(server, "small")[-1]["prompt_tokens"][: len(history)] == history
        await socket.create(model="away", previous_response_id=second["id"])
        read_error_frame(await socket.error(), status=503, code="server_is_overloaded")
        await socket.ask(model="large", store=False, previous_response_id=second["id"])


def test_a_key_for_one_model_sees_that_one_alone(server: ClosedServer) -> None:
    key = server.new_key("--project", "mini", "--models", "gpt-4o")
    with httpx.Client(base_url=server.base_url, headers=bearer(key), verify=False, timeout=30) as http:
        assert [model["id"] for model in http.get("/models").json()["data"]] == ["small", "gpt-4o", "org/mini"]
        assert ask(http).json()["model"] == "small"
        assert ask(http, model="large").status_code == 403


def test_metrics_tell_the_models_apart(server: ClosedServer, http: httpx.Client) -> None:
    ask(http, model="org/mini")
    key = server.new_key("--project", "operators", "--scopes", "api.metrics.read")
    text = httpx.get(f"{server.url}/metrics", headers=bearer(key), verify=False).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    reached = {each.labels["model"]: each.value for each in samples if each.name == "respsite_workers_reaching_model"}
    assert reached == {"large": 1, "small": 1, "away": 0}
    counted = {each.labels["model"] for each in samples if each.name == "respsite_responses_total" and each.value}
    assert counted <= {"large", "small"}
    assert "small" in counted


def test_a_server_none_of_whose_models_can_start_stops(folder) -> None:  # type: ignore[no-untyped-def]
    entries = {name: {"engine": "scripted", "script": str(folder / "missing.json")} for name in ("a", "b")}
    server = Server(folder, models=json.dumps(entries))
    with pytest.raises(AssertionError, match="the server ended"):
        server.start()
    assert "the engine of 'a' cannot start" in server.output
    assert "no engine can start, so the server stops" in server.output
