"""The transport for httpx2: connections by the rules, bodies within their bounds."""

import gzip
from collections.abc import AsyncIterator, Sequence

import httpx2
import pytest

from responses_app.tools.httpx_network import CheckedTransport
from responses_app.tools.network import AddressRefused, AllowedHosts, Network
from tests.kit.web_server import WebServer, answer, redirect

TLS = httpx2.create_ssl_context()  # making one takes 0.1 s


def client_of(network: Network) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=CheckedTransport(network, max_body_bytes=1000, ssl_context=TLS), timeout=30)


@pytest.fixture
async def client(web: WebServer) -> AsyncIterator[httpx2.AsyncClient]:
    """One that may reach the web server, as 127.0.0.1 and as `mcp.internal`."""

    async def lookup(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.2", "127.0.0.1"]  # nobody listens on the first

    async with client_of(Network("X", AllowedHosts.parse(f"127.0.0.1:{web.port},mcp.internal"), lookup)) as client:
        yield client


async def test_it_connects_to_what_was_judged_and_keeps_the_name(web: WebServer, client: httpx2.AsyncClient) -> None:
    web.pages["/mcp"] = answer(b'{"ok": true}', kind="application/json")
    got = await client.post(web.url("/mcp", host="mcp.internal"), headers={"Authorization": "Bearer t"})
    assert got.json() == {"ok": True}
    assert f"host: mcp.internal:{web.port}" in web.asked[0].lower()
    assert "accept-encoding: identity" in web.asked[0].lower()


async def test_a_connection_is_kept_and_its_name_asked_once(web: WebServer) -> None:
    asked = []

    async def lookup(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"]

    web.pages["/mcp"] = answer(b"{}")
    async with client_of(Network("X", AllowedHosts.parse("127.0.0.1/32"), lookup)) as client:
        for _ in range(3):
            assert (await client.get(web.url("/mcp", host="mcp.example"))).status_code == 200
    assert asked == ["mcp.example"]


@pytest.mark.parametrize("host", ["127.0.0.2", "localhost", "[::1]", "169.254.169.254", "127.1"])
async def test_what_is_not_allowed_is_refused(web: WebServer, host: str) -> None:
    async with client_of(Network("MCP_ALLOWED_HOSTS", AllowedHosts.parse("127.0.0.1"))) as client:
        with pytest.raises(AddressRefused):
            await client.get(web.url(host=host))
    assert web.asked == []


async def test_a_redirect_elsewhere_is_refused_where_somebody_follows_it(
    web: WebServer, client: httpx2.AsyncClient
) -> None:
    web.pages["/"] = redirect("http://169.254.169.254/latest/")
    assert (await client.get(web.url())).status_code == 302
    with pytest.raises(AddressRefused):
        await client.get(web.url(), follow_redirects=True)


async def test_bodies_have_a_bound_and_event_streams_none(web: WebServer, client: httpx2.AsyncClient) -> None:
    web.pages |= {"/big": answer(b"x" * 1001), "/events": answer(b":" * 5000, kind="text/event-stream; charset=utf-8")}
    with pytest.raises(httpx2.ReadError, match="more than 1000 bytes"):
        await client.get(web.url("/big"))
    assert len((await client.get(web.url("/events"))).content) == 5000


async def test_compressed_answers_are_refused(web: WebServer, client: httpx2.AsyncClient) -> None:
    web.pages["/"] = answer(gzip.compress(bytes(500)), "Content-Encoding: gzip")
    with pytest.raises(httpx2.DecodingError):
        await client.get(web.url())


async def test_errors_are_those_of_httpx(web: WebServer, client: httpx2.AsyncClient) -> None:
    web.pages["/"] = b"not http\r\n\r\n"
    with pytest.raises(httpx2.RemoteProtocolError):
        await client.get(web.url())
    with pytest.raises(httpx2.ConnectError):
        await client.get("http://mcp.internal:9/")
