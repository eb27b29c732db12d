"""Pages of servers that mean well, and of those that do not, over real connections; HTTPS with pinned names."""

import asyncio
import gzip
import ssl
import zlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from responses_app.protocol.setting import KIB, MIB
from responses_app.tools.browser.fetching import Fetcher, FetchFailed, FetchLimits
from responses_app.tools.network import AddressRefused, AllowedHosts, Network, NetworkError
from tests.kit.echo_host import certificate
from tests.kit.web_server import WebServer, answer, redirect, web_server
from tests.unit.tools.hostile_pages import drips, endless, endless_headers

LIMITS = FetchLimits(seconds=30)


@pytest.fixture
async def fetcher(web: WebServer) -> AsyncIterator[Fetcher]:
    """One that may reach the web server, as 127.0.0.1, and nothing else that is not public."""
    fetcher = Fetcher(Network("SEARCH_ALLOWED_HOSTS", AllowedHosts.parse(f"127.0.0.1:{web.port}")))
    yield fetcher
    await fetcher.aclose()


async def test_a_page_is_had(web: WebServer, fetcher: Fetcher) -> None:
    web.pages["/page"] = answer("<p>Grüße</p>".encode("latin-1"), kind="text/html; charset=ISO-8859-1")
    page = await fetcher.get(web.url("/page#part"), LIMITS, params={"q": "a b&c"})
    assert (page.status, page.content_type, page.charset) == (200, "text/html", "ISO-8859-1")
    assert (page.body.decode("latin-1"), page.truncated) == ("<p>Grüße</p>", False)
    assert page.url == web.url("/page?q=a+b%26c")
    assert "cookie" not in web.asked[0].lower()
    assert (await fetcher.get(web.url("/elsewhere"), LIMITS)).status == 404


async def test_redirects_are_followed_and_each_is_judged(web: WebServer, fetcher: Fetcher) -> None:
    web.pages |= {"/a": redirect("/b"), "/b": redirect(web.url("/c"), "307 Temporary Redirect"), "/c": answer(b"here")}
    page = await fetcher.get(web.url("/a"), LIMITS)
    assert (page.body, page.url) == (b"here", web.url("/c"))
    web.pages["/round"] = redirect("/round")
    with pytest.raises(FetchFailed, match="redirects more than 8 times"):
        await fetcher.get(web.url("/round"), LIMITS)
    for location in ("http://169.254.169.254/latest/meta-data/", f"http://localhost:{web.port}/c", "http://[::1]/"):
        web.pages["/out"] = redirect(location)
        with pytest.raises(AddressRefused):
            await fetcher.get(web.url("/out"), LIMITS)
    for location in ("file:///etc/passwd", "gopher://127.0.0.1/", "javascript:1"):
        web.pages["/out"] = redirect(location)
        with pytest.raises(FetchFailed, match="not a URL of the web"):
            await fetcher.get(web.url("/out"), LIMITS)


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://a.example/", "/relative", "http://", "", "a" * 9000, "http://[x]/"]
)
async def test_what_is_not_a_url_of_the_web_is_refused(fetcher: Fetcher, url: str) -> None:
    with pytest.raises(NetworkError):
        await fetcher.get(url, LIMITS)


@pytest.mark.parametrize("host", ["127.0.0.1", "2130706433", "127.1", "[::ffff:127.0.0.1]", "localhost", "0.0.0.0"])
async def test_this_machine_is_not_reached_however_it_is_written(web: WebServer, host: str) -> None:
    fetcher = Fetcher(Network("SEARCH_ALLOWED_HOSTS"))
    with pytest.raises(AddressRefused):
        await fetcher.get(f"http://{host}:{web.port}/", LIMITS)
    await fetcher.aclose()
    assert web.asked == []


async def test_a_name_that_changes_is_asked_once_and_what_was_judged_is_reached(web: WebServer) -> None:
    answers = [["127.0.0.1"], ["127.0.0.2"]]
    asked: list[str] = []

    async def lookup(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return answers.pop(0)

    web.pages["/"] = answer(b"judged", "Connection: close")
    fetcher = Fetcher(Network("SEARCH_ALLOWED_HOSTS", AllowedHosts.parse("127.0.0.1/32"), lookup))
    page = await fetcher.get(web.url("/", host="turning.example"), LIMITS)
    assert (page.body, asked) == (b"judged", ["turning.example"])
    assert f"Host: turning.example:{web.port}" in web.asked[0]
    with pytest.raises(AddressRefused):  # a second connection is judged anew
        await fetcher.get(web.url("/", host="turning.example"), LIMITS)
    await fetcher.aclose()


async def test_long_pages_are_cut_and_documents_that_must_be_whole_refused(web: WebServer, fetcher: Fetcher) -> None:
    web.pages["/endless"] = endless
    page = await fetcher.get(web.url("/endless"), FetchLimits(max_bytes=100_000))
    assert (page.body, page.truncated) == (b"x" * 100_000, True)
    with pytest.raises(FetchFailed, match="more than 100000 bytes"):
        await fetcher.get(web.url("/endless"), FetchLimits(max_bytes=100_000, whole=True))


async def test_gzip_is_unpacked_up_to_the_limit(web: WebServer, fetcher: Fetcher) -> None:
    web.pages["/small"] = answer(gzip.compress(b"small"), "Content-Encoding: gzip")
    assert (await fetcher.get(web.url("/small"), LIMITS)).body == b"small"
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join([*(packer.compress(bytes(MIB)) for _ in range(64)), packer.flush()])
    assert len(bomb) < 100 * KIB
    web.pages["/bomb"] = answer(bomb, "Content-Encoding: gzip")
    page = await fetcher.get(web.url("/bomb"), FetchLimits(max_bytes=MIB))
    assert (len(page.body), page.truncated) == (MIB, True)
    web.pages["/odd"] = answer(b"odd", "Content-Encoding: br")
    with pytest.raises(FetchFailed, match="compression that was not asked for"):
        await fetcher.get(web.url("/odd"), LIMITS)
    web.pages["/lie"] = answer(b"plain text", "Content-Encoding: gzip")
    with pytest.raises(FetchFailed, match="not gzip"):
        await fetcher.get(web.url("/lie"), LIMITS)


async def test_servers_that_drip_hang_break_or_talk_nonsense(web: WebServer, fetcher: Fetcher) -> None:
    async def silent(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    web.pages |= {
        "/drips": drips,
        "/silent": silent,
        "/headers": endless_headers,
        "/nonsense": b"SSH-2.0-OpenSSH\r\n\r\n",
    }
    for path in ("/drips", "/silent"):
        with pytest.raises(FetchFailed, match=r"did not answer within 0\.2 s"):
            await fetcher.get(web.url(path), FetchLimits(seconds=0.2))
    for path in ("/headers", "/nonsense"):
        with pytest.raises(FetchFailed):
            await fetcher.get(web.url(path), LIMITS)

    async def breaks(writer: asyncio.StreamWriter) -> None:
        writer.write(answer(b"short").replace(b"Length: 5", b"Length: 500"))

    web.pages["/broken"] = breaks
    with pytest.raises(FetchFailed) as failed:
        await fetcher.get(web.url("/broken"), LIMITS)
    assert "127.0.0.1" in str(failed.value)


async def test_a_server_that_is_away_is_told_without_its_address() -> None:
    async def lookup(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    fetcher = Fetcher(Network("X", AllowedHosts.parse("127.0.0.1/32"), lookup))
    with pytest.raises(FetchFailed, match=r"No connection to away\.example") as failed:
        await fetcher.get("http://away.example:9/", LIMITS)
    assert "127.0.0.1" not in str(failed.value)
    await fetcher.aclose()


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
