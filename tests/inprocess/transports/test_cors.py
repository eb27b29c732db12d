"""Web pages of other origins that use the API by `fetch`: those that the operator lists, and no others."""

import httpx
import pytest

from responses_app.web.servers.heads import MAX_HEAD_BYTES
from tests.kit.clients import http_client, read_error_answer
from tests.kit.closed import bearer
from tests.kit.fixtures import module_server
from tests.kit.inprocess import ClosedServer
from tests.kit.stored import stored_statuses

APP = "https://app.example"
OTHERS = ["https://evil.example", "http://app.example", f"{APP}.evil.example", f"{APP}:8443", "null", f"{APP}/", ""]
OTHERS += [f"{APP}?", f"{APP}:0", "https://app\t.example"]
WANTED = {"access-control-request-method": "POST", "access-control-request-headers": "Authorization, content-type"}

pages = module_server(
    "pages", ClosedServer, auth="on", allowed_origins=f"http://localhost:3000,{APP}", max_body_bytes=4096
)


def told(answer: httpx.Response) -> dict[str, str]:
    """Return the headers of an answer that say something to a browser about pages."""
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


@pytest.mark.parametrize("path", ["/responses", "/files/file_1/content", "/missing", "/responses/resp_1?a=b"])
@pytest.mark.parametrize("origin", [APP, f"{APP}:443", "http://localhost:3000"])
async def test_a_preflight_of_a_listed_page_is_answered_to_whoever_asks(
    pages: ClosedServer, path: str, origin: str
) -> None:
    async with http_client(pages) as http:
        answer = await http.options(path, headers={"origin": origin, **WANTED})
    assert answer.status_code == 204
    assert told(answer) == {
        "access-control-allow-origin": origin,
        "access-control-allow-methods": "GET, HEAD, POST, DELETE",
        "access-control-allow-headers": "authorization, content-type",
        "access-control-expose-headers": "openai-processing-ms, x-request-id",
        "access-control-max-age": "600",
    }
    assert answer.headers["vary"] == "Origin"


async def test_what_lets_a_session_in_may_no_other_page_send(pages: ClosedServer) -> None:
    """A cookie goes along with what a page of the same site sends: only the server's own pages may mean it."""
    headers = {"origin": APP, **WANTED, "access-control-request-headers": "Respsite-Session, b c, a"}
    async with http_client(pages) as http:
        answer = await http.options("/responses", headers=headers)
        assert answer.headers["access-control-allow-headers"] == "a"
        assert "access-control-allow-credentials" not in answer.headers
        headers = {"origin": APP, "respsite-session": "p", "cookie": "sessionid=a"}
        assert (await http.get("/models", headers=headers)).status_code == 401


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/responses", b'{"input": "Hello", "store": false, "made_up": 1}', 200),
        ("POST", "/responses", b'{"input": "Hello", "stream": true, "store": false}', 200),
        ("GET", "/models", b"", 200),
        ("GET", "/responses/resp_nobody", b"", 404),
        ("POST", "/responses", b"{", 400),
        ("PUT", "/responses", b"{}", 405),
        ("POST", "/responses", b" " * 5000, 413),  # before the API sees it
        ("GET", "/missing", b"", 404),
    ],
)
async def test_a_listed_page_reads_each_answer_and_its_headers(
    pages: ClosedServer, method: str, path: str, body: bytes, status: int
) -> None:
    headers = {"origin": APP, "sec-fetch-site": "cross-site", "content-type": "application/json", **bearer(pages.key)}
    async with http_client(pages) as http:
        answer = await http.request(method, path, content=body, headers=headers)
        unasked = await http.get("/models", headers={**bearer(pages.key)})
    assert answer.status_code == status, answer.text
    assert answer.headers["access-control-allow-origin"] == APP
    exposed = set(answer.headers["access-control-expose-headers"].split(", "))
    own = {"x-request-id", "openai-processing-ms", "respsite-ignored", "retry-after", "allow", "x-accel-buffering"}
    assert exposed == own & set(answer.headers)
    assert "access-control-allow-credentials" not in answer.headers
    assert answer.headers["vary"] == unasked.headers["vary"] == "Origin"
    assert not told(unasked)


async def test_so_does_it_what_comes_to_no_path_of_the_api(pages: ClosedServer) -> None:
    long = "a" * (MAX_HEAD_BYTES + 1)
    asked: tuple[tuple[str, dict[str, str], int], ...] = (
        ("/missing", {}, 404),
        (f"/v1/models?{long}", {}, 414),
        ("/v1/models", {"x": long}, 431),
    )
    async with http_client(pages) as http:
        for path, headers, status in asked:
            answer = await http.get(f"{pages.url}{path}", headers={"origin": APP, **headers})
            assert (answer.status_code, answer.headers.get("access-control-allow-origin")) == (status, APP)
            assert "Origin" in answer.headers["vary"]
        assert not told(await http.get(f"{pages.url}/missing", headers={"origin": OTHERS[0]}))


@pytest.mark.parametrize("origin", OTHERS)
async def test_another_page_is_refused_before_anything_runs(pages: ClosedServer, origin: str) -> None:
    headers = {"origin": origin, **bearer(pages.key)}
    before = stored_statuses(pages)
    async with http_client(pages) as http:
        for answer in (
            await http.options("/responses", headers={**headers, **WANTED}),
            await http.post("/responses", json={"input": "Hello"}, headers=headers),
            await http.get("/models", headers=headers),
        ):
            assert "ALLOWED_ORIGINS" in read_error_answer(answer, status=403, code="origin_not_allowed")
            assert not told(answer)
    assert stored_statuses(pages) == before


async def test_without_the_setting_nothing_is_told(http: httpx.AsyncClient) -> None:
    answer = await http.options("/responses", headers={"origin": APP, **WANTED})
    assert answer.status_code == 403
    assert not told(answer)
    answer = await http.get("/models")
    assert not told(answer)
    assert "vary" not in answer.headers
