"""The headers that every answer has: JSON, streams, errors of all kinds, and the handshake of a WebSocket."""

from pathlib import Path

import httpx
import pytest

from tests.kit.clients import Socket
from tests.kit.fixtures import server_of_each_kind
from tests.kit.server import KINDS, Server

OURS = ("openai-organization", "openai-version", "x-ms-region", "x-ms-request-id", "api-supported-versions")


named = server_of_each_kind(
    "named",
    default_openai_organization="org-default",
    default_openai_version="2020-10-01",
    azure_region="Sweden Central",
    max_body_bytes=2000,
)


ASKED = {
    "json": ("POST", "/v1/responses", {"input": "Hello"}, 200),
    "stream": ("POST", "/v1/responses", {"input": "Hello", "stream": True}, 200),
    "models": ("GET", "/v1/models", None, 200),
    "health": ("GET", "/health", None, 200),
    "invalid": ("POST", "/v1/responses", {"input": 3}, 400),
    "unknown": ("GET", "/v1/responses/resp_none", None, 404),
    "nowhere": ("GET", "/v1/nothing", None, 404),
    "method": ("DELETE", "/v1/models", None, 405),
    "too large": ("POST", "/v1/responses", {"input": "x" * 3000}, 413),
}


@pytest.mark.parametrize("asked", list(ASKED))
def test_every_answer_has_them(named: Server, asked: str) -> None:
    method, path, body, status = ASKED[asked]
    answer = httpx.request(method, named.url + path, json=body, verify=False, headers={"x-request-id": "mine"})
    assert answer.status_code == status
    assert answer.headers["x-request-id"] == answer.headers["x-ms-request-id"] == "mine"
    assert answer.headers["openai-organization"] == "org-default"
    assert answer.headers["openai-version"] == "2020-10-01"
    assert answer.headers["x-ms-region"] == "Sweden Central"
    assert answer.headers["api-supported-versions"] == "v1"
    assert 0 <= int(answer.headers["openai-processing-ms"]) < 10_000


@pytest.mark.parametrize("body", [{"input": "Hello"}, {"input": "x" * 3000}])
@pytest.mark.each_server
def test_what_the_client_names_comes_back(named: Server, body: dict[str, str]) -> None:
    headers = {"openai-organization": "org-mine", "OpenAI-Version": "2099-01-01"}
    answer = httpx.post(f"{named.base_url}/responses", json=body, headers=headers, verify=False)
    assert (answer.headers["openai-organization"], answer.headers["openai-version"]) == ("org-mine", "2099-01-01")
    headers = {"openai-organization": "x" * 129, "openai-version": b"\xe9"}  # not echoed
    answer = httpx.post(f"{named.base_url}/responses", json=body, headers=headers, verify=False)
    assert (answer.headers["openai-organization"], answer.headers["openai-version"]) == ("org-default", "2020-10-01")


@pytest.mark.each_server
async def test_the_handshake_of_a_websocket_has_them(named: Server) -> None:
    async with await Socket.open(named.ws_url, additional_headers={"x-request-id": "mine"}) as socket:
        headers = socket.raw.response.headers
        assert (headers["x-request-id"], headers["openai-organization"]) == ("mine", "org-default")
        assert headers["x-ms-region"] == "Sweden Central"


@pytest.mark.parametrize("kind", KINDS)
def test_without_settings_only_openais_own_are_there(kind: str, tmp_path: Path) -> None:
    with Server(tmp_path, kind=kind) as server:
        answer = httpx.get(f"{server.base_url}/models", verify=False)
        assert answer.headers["openai-processing-ms"]
        assert answer.headers["x-request-id"].startswith("req_")
        assert not [name for name in OURS if name in answer.headers]
