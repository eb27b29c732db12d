"""What is not served is a JSON 404 in OpenAI's shape, wherever it is; and the page that tells what is."""

import json
import re

import httpx
import pytest
from openai.types import Completion, CompletionChoice, CreateEmbeddingResponse
from websockets.exceptions import InvalidStatus

from responses_app.api.endpoints import ENDPOINTS
from responses_app.kit.extension import extensions
from responses_app.protocol.stateless.completions import Completion as OurCompletion
from responses_app.protocol.stateless.completions import CompletionChoice as OurChoice
from responses_app.protocol.stateless.embeddings import EmbeddingList
from responses_app.web.endpoint import Endpoint, find, is_api_path, path_not_found, served
from tests.kit.clients import Socket
from tests.kit.inprocess import Server


@pytest.mark.parametrize("path", ["/foo", "/v1/audio/speech", "/tokenize", "/v2/responses", "/static/none", "/a/../b"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_path_that_is_not_there(demo_server: Server, path: str, method: str) -> None:
    answer = httpx.request(method, f"{demo_server.url}{path}", json={} if method == "POST" else None, verify=False)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/json")
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "not_found")
    assert "/v1" in error["message"]
    assert "embeddings" in error["message"]


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/v1/v1/messages", "The client adds /v1 to its base URL"),
        ("/rollouts/a/v1/v1/messages", "The client adds /v1 to its base URL"),
        ("/v1/rollouts/a/v1/responses", "The base URL of a roll-out is /rollouts/ID/v1."),
        ("/rollouts/a/responses", "The base URL of a roll-out is /rollouts/ID/v1."),
        ("/rollouts/a/b/v1/responses", "The base URL of a roll-out is /rollouts/ID/v1."),
    ],
)
def test_a_base_url_that_is_not_quite_right_is_told(demo_server: Server, path: str, told: str) -> None:
    answer = httpx.post(f"{demo_server.url}{path}", json={}, verify=False)
    assert (answer.status_code, told in answer.json()["error"]["message"]) == (404, True), answer.text


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/v1/realtime?model=demo", "spoken sessions; the WebSocket of /v1/responses is for text. Connect to"),
        ("/v1/v1/responses", "The client adds /v1 to its base URL"),
        ("/v1/chat/completions", "No WebSocket is served at '/v1/chat/completions'. Connect to /v1/responses."),
    ],
)
async def test_a_websocket_where_none_is_served_is_told(demo_server: Server, path: str, told: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await Socket.open(demo_server.ws_url.replace("/v1/responses", path))
    answer = refused.value.response
    assert (answer.status_code, json.loads(answer.body)["error"]["code"]) == (404, "not_found")
    assert told in json.loads(answer.body)["error"]["message"]


@pytest.mark.parametrize("left", [[], ["containers"]])
def test_it_is_told_where_an_extension_is_left_out(monkeypatch: pytest.MonkeyPatch, left: list[str]) -> None:
    loaded = [each for each in extensions() if each.label not in left]
    monkeypatch.setattr("responses_app.web.endpoint.extensions", lambda: loaded)
    assert ("EXTENSIONS leaves out" in path_not_found("/v1/containers").message) == bool(left)


def test_all_that_is_served_is_told() -> None:
    assert set(served()) == {
        *("responses", "chat/completions", "messages", "completions", "embeddings", "decisions", "models", "engine"),
        *("conversations", "files", "uploads", "batches", "vector_stores", "containers", "skills"),
        "playground/chats",
        *("webhook_endpoints", "webhook_event_types", "rollouts", "organization/costs"),
    }


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda each: each.id)
def test_every_path_is_found_with_a_slash_and_without_v1_too(endpoint: Endpoint) -> None:
    path = re.sub(r"{\w+}", "a", endpoint.shown_path)
    for each in {path, path.removeprefix("/v1"), f"{path}/"}:
        assert is_api_path(each)
        route, named = find(each)
        assert route.endpoint(endpoint.method) is endpoint
        assert named == dict.fromkeys(endpoint.parameters, "a")


def test_a_page_of_the_admin_that_is_not_there_is_for_people(demo_server: Server) -> None:
    answer = httpx.get(f"{demo_server.url}/admin/nothing/", verify=False, follow_redirects=True)
    assert "text/html" in answer.headers["content-type"]


def test_browsers_find_the_icon_that_they_ask_for(demo_server: Server) -> None:
    answer = httpx.get(f"{demo_server.url}/favicon.ico", verify=False, follow_redirects=True)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/svg+xml")


def test_the_page_of_the_document(demo_server: Server) -> None:
    answer = httpx.get(f"{demo_server.url}/openapi", verify=False)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    text = answer.text
    assert "<script" not in text
    assert not re.search(r"(?:src|href)=\"(?!#|/)", text), "it needs nothing from elsewhere"
    document = httpx.get(f"{demo_server.url}/openapi.json", verify=False).json()
    for path, item in document["paths"].items():
        assert path.replace("'", "&#x27;") in text
        for method in ("get", "post", "delete"):
            assert method not in item or f'id="{item[method]["operationId"]}"' in text
    anchors = set(re.findall(r'id="([^"]+)"', text))
    assert set(re.findall(r'href="#([^"]+)"', text)) <= anchors
    assert {f"schema-{name}" for name in document["components"]["schemas"]} <= anchors
    assert answer.text == httpx.get(f"{demo_server.base_url}/openapi/", verify=False).text


def test_answers_have_the_fields_that_openai_publishes() -> None:
    for ours, theirs in (
        (OurCompletion, Completion),
        (OurChoice, CompletionChoice),
        (EmbeddingList, CreateEmbeddingResponse),
    ):
        known = {name for name, field in theirs.model_fields.items() if field.is_required()}
        assert known <= set(ours.__annotations__), theirs
