"""Names are resolved and judged, connections of httpx2 go by the rules, and what comes has its bounds."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Sequence
from ipaddress import ip_address
from itertools import pairwise

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_app.tools.httpx_network import CheckedTransport, JsonWeight, TooManyValues
from responses_app.tools.network import AddressRefused, AllowedHosts, NameNotFound, Network, normal_host
from tests.kit.web_server import WebServer, answer, redirect

TEXTS = st.text('\\"ab,{[é', max_size=12)
JSON = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
CUTS = st.lists(st.integers(0, 9999), max_size=6)


def weight(value: object) -> int:
    """Return what JSON counts as: its texts, its arrays and objects, and what stands between values."""
    if isinstance(value, str):
        return 1
    if isinstance(value, dict):
        return 1 + max(0, len(value) - 1) + sum(1 + weight(each) for each in value.values())
    if isinstance(value, list):
        return 1 + max(0, len(value) - 1) + sum(map(weight, value))
    return 0


def parts(body: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    return [body[start:end] for start, end in pairwise(places)]


def is_taken(most: int, body: bytes, cuts: list[int], *, events: bool = False) -> bool:
    weighs = JsonWeight(most, events=events)
    try:
        for part in parts(body, cuts):
            weighs.add(part)
    except TooManyValues:
        return False
    return True


@given(JSON, CUTS, st.booleans(), st.booleans())
def test_it_counts_what_is_there_however_it_is_cut(value: object, cuts: list[int], indented: bool, ascii: bool) -> None:
    body = json.dumps(value, indent=2 if indented else None, ensure_ascii=ascii).encode()
    expected = weight(value)
    assert is_taken(expected, body, cuts)
    assert expected == 0 or not is_taken(expected - 1, body, cuts)


@given(
    st.lists(JSON, min_size=1, max_size=4), st.lists(st.integers(0, 9999), max_size=6), st.sampled_from(["\n", "\r\n"])
)
def test_each_event_counts_for_itself(values: list[object], cuts: list[int], line: str) -> None:
    stream = b"".join(f"event: message{line}data: {json.dumps(each)}{line}{line}".encode() for each in values)
    most = max(map(weight, values))
    whole = len(cuts) < 2  # in one part, all of its events are counted together
    assert is_taken(sum(map(weight, values)) if whole else most * len(values), stream, cuts, events=True)
    assert most == 0 or not is_taken(most - 1, stream, cuts, events=True)


def test_a_quote_that_is_not_closed_hides_nothing_behind_its_line() -> None:
    assert not is_taken(5, b': "\r\ndata: [1,2,3,4,5,6,7]', [], events=True)
    assert not is_taken(5, b'"\\\n[1,2,3,4,5,6,7]"\n[1,2,3,4,5,6,7]', [1, 2, 3])


@pytest.mark.parametrize("size", [1, 7, 65536])
def test_long_texts_weigh_nothing(size: int) -> None:
    body = json.dumps({"text": 'a,"[{\\' * 20_000}).encode()
    assert is_taken(3, body, list(range(0, len(body), size)))


PUBLIC = "93.184.215.14"


def network(*found: str, allowed: str = "") -> Network:
    """Return a network whose every name has these addresses."""

    async def lookup(host: str, port: int) -> Sequence[str]:
        return found

    return Network("MCP_ALLOWED_HOSTS", AllowedHosts.parse(allowed), lookup)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.9.1", "0.0.0.0", "10.0.0.1", "172.16.5.4", "192.168.1.1", "100.64.0.1", "192.0.0.192"),
        *("169.254.169.254", "168.63.129.16", "224.0.0.1", "240.0.0.1", "255.255.255.255", "198.18.0.1"),
        *("::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "::ffff:127.0.0.1"),
        *("::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2001:0:1::1"),
        *("::127.0.0.1", "2001:db8::1"),
    ],
)
async def test_what_is_not_public_is_refused_as_a_name_and_as_an_address(address: str) -> None:
    with pytest.raises(AddressRefused, match="MCP_ALLOWED_HOSTS") as refused:
        await network(address).addresses("evil.example", 80)
    assert address not in str(refused.value)
    with pytest.raises(AddressRefused):
        await network().addresses(address, 80)
    with pytest.raises(AddressRefused):
        network().check_literal(f"[{address}]" if ":" in address else address, 80)


@pytest.mark.parametrize("address", [PUBLIC, "8.8.8.8", "2606:4700::1111", "64:ff9b::808:808", "::ffff:808:808"])
async def test_what_is_public_is_reached(address: str) -> None:
    # Newer versions of Python write the last one as ::ffff:8.8.8.8.
    assert await network(address).addresses("good.example", 443) == [str(ip_address(address))]
    assert len(await network().addresses(address, 443)) == 1
    network().check_literal(address, 443)


ODD = ("2130706433", "0x7f000001", "0x7f.1", "127.1", "0177.0.0.1", "127.0.0.01", "1.2.3.4.", "fe80::1%eth0")


@pytest.mark.parametrize(
    "host", [*ODD, "", " ", "a b", "a/b", "a@b", "a\r\nHost: b", "-", "x" * 300, "a:80", "[::1", "é" * 80]
)
async def test_what_is_no_host_is_refused_and_not_looked_up(host: str) -> None:
    with pytest.raises(AddressRefused):
        await network(PUBLIC).addresses(host, 80)
    if host in ODD:
        with pytest.raises(AddressRefused):
            network(PUBLIC).check_literal(host, 80)


async def test_one_private_address_among_public_ones_refuses_the_name() -> None:
    with pytest.raises(AddressRefused):
        await network(PUBLIC, "10.0.0.1").addresses("both.example", 80)


async def test_the_operator_allows_names_ports_and_networks() -> None:
    inside = network(
        "10.1.2.3", allowed="MCP.internal., tools.internal:8900, .corp.example, 10.9.0.0/16, [::1]:80, 127.0.0.1"
    )
    for host, port in [
        ("mcp.internal", 1),
        ("Tools.Internal.", 8900),
        ("a.corp.example", 80),
        ("a.b.corp.example", 80),
    ]:
        assert await inside.addresses(host, port) == ["10.1.2.3"]
    for host, port in [("tools.internal", 80), ("corp.example", 80), ("xcorp.example", 80), ("x.mcp.internal", 1)]:
        with pytest.raises(AddressRefused):
            await inside.addresses(host, port)
    inside.check_literal("10.9.8.7", 80)
    inside.check_literal("::1", 80)
    inside.check_literal("127.0.0.1", 6379)
    with pytest.raises(AddressRefused):
        inside.check_literal("::1", 81)
    assert await network("10.9.8.7", allowed="10.9.0.0/16").addresses("any.example", 80) == ["10.9.8.7"]


async def test_the_clouds_metadata_stay_refused_in_an_allowed_network() -> None:
    every = network("169.254.169.254", allowed="0.0.0.0/0,::/0")
    with pytest.raises(AddressRefused):
        await every.addresses("metadata.example", 80)
    with pytest.raises(AddressRefused):
        every.check_literal("::ffff:169.254.169.254", 80)
    network(allowed="169.254.169.254").check_literal("169.254.169.254", 80)


@pytest.mark.parametrize("wrong", ["10.0.0.0/33", "a b", "host:99999999", "10.0.0.1/8", "http://mcp.internal"])
def test_a_wrong_list_is_told(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        AllowedHosts.parse(wrong)


async def test_the_resolver_of_the_system_is_asked_and_knows_its_own_machine() -> None:
    here = Network("SEARCH_ALLOWED_HOSTS", AllowedHosts.parse("127.0.0.0/8,::1"))
    assert set(await here.addresses("localhost", 80)) <= {"127.0.0.1", "::1"}
    with pytest.raises(AddressRefused, match="SEARCH_ALLOWED_HOSTS"):
        await Network("SEARCH_ALLOWED_HOSTS").addresses("localhost", 80)
    here.close()


async def test_a_name_without_an_address_is_not_found() -> None:
    async def nothing(host: str, port: int) -> Sequence[str]:
        raise OSError("no such name")

    with pytest.raises(NameNotFound):
        await Network("X", lookup=nothing).addresses("nowhere.example", 80)
    with pytest.raises(NameNotFound):
        await network().addresses("empty.example", 80)


async def test_a_slow_name_server_holds_nobody_for_ever() -> None:
    async def never(host: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        return ()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await Network("X", lookup=never).addresses("slow.example", 80)


def test_hosts_are_compared_in_one_form() -> None:
    assert normal_host("BÜCHER.example.") == "xn--bcher-kva.example"
    assert normal_host("[2001:DB8:0::1]") == "2001:db8::1"


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


async def test_a_redirect_elsewhere_is_refused_to_who_follows_it(web: WebServer, client: httpx2.AsyncClient) -> None:
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
