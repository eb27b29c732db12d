"""HTTPS: the name is resolved and pinned, and the certificate is still that name's."""

import ssl
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from responses_app.tools.browser.fetching import Fetcher, FetchFailed, FetchLimits
from responses_app.tools.network import AllowedHosts, Network
from tests.kit.echo_host import certificate
from tests.kit.web_server import WebServer, answer, web_server

NAME = "good.example"


@pytest.fixture
def pem(tmp_path: Path) -> Path:
    return certificate(tmp_path / "certificate.pem", [NAME])


@pytest.fixture
async def secure(pem: Path) -> AsyncIterator[WebServer]:
    """A web server over TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    async with web_server(tls=context) as web:
        web.pages["/"] = answer(b"secret")
        yield web


async def test_the_certificate_is_that_of_the_name(secure: WebServer, pem: Path) -> None:
    async def lookup(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    network = Network("X", AllowedHosts.parse("127.0.0.1/32"), lookup)
    trusting = Fetcher(network, ssl_context=ssl.create_default_context(cafile=str(pem)))
    page = await trusting.get(secure.url(host=NAME, scheme="https"), FetchLimits())
    assert page.body == b"secret"
    with pytest.raises(FetchFailed, match=r"certificate of other\.example is not valid"):
        await trusting.get(secure.url(host="other.example", scheme="https"), FetchLimits())
    await trusting.aclose()
    careful = Fetcher(network)
    with pytest.raises(FetchFailed, match="certificate"):
        await careful.get(secure.url(host=NAME, scheme="https"), FetchLimits())
    with pytest.raises(FetchFailed, match=r"HTTP wants|broke"):
        await careful.get(secure.url(host=NAME), FetchLimits())  # no TLS where it is wanted
    await careful.aclose()
