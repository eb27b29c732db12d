"""The proxy of a container over http://: what it passes on and refuses, and connections of all containers."""

import asyncio
import contextlib
import json
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from responses_app.extensions.containers.egress import connections, peers, proxies
from responses_app.extensions.containers.egress.peers import (
    MAX_LOOKUPS,
    PROJECT_LOOKUPS,
    Dialler,
    ProxyTarget,
    Unreached,
)
from responses_app.extensions.containers.egress.settings import EgressSettings
from responses_app.tools import network
from responses_app.tools.network import AllowedHosts, Network
from tests.kit.echo_host import EchoHost, echo_host
from tests.kit.egress import TOKEN, Opened, opened, opened_all, policy, settings
from tests.kit.waiting import eventually


@pytest.fixture(scope="module")
def host() -> Iterator[EchoHost]:
    with echo_host() as host:
        yield host


@pytest.fixture
async def proxy(host: EchoHost) -> AsyncIterator[Opened]:
    """A proxy that lets that host be reached, by one name."""
    host.asked.clear()
    async with opened(policy(f"api.example:{host.port}", "usual.example")) as proxy:
        yield proxy


def get(url: str, *headers: str, version: str = "1.1", method: str = "GET", host: str = "") -> bytes:
    name = host or re.sub(r"^https?://([^/?]*).*", r"\1", url)
    lines = [f"{method} {url} HTTP/{version}", f"Host: {name}", *headers, "", ""]
    return "\r\n".join(lines).encode()


def status(answer: bytes) -> int:
    assert answer.startswith(b"HTTP/1.1 "), answer
    return int(answer.split()[1])


def body(answer: bytes) -> Any:
    """Return what the host was asked, by its answer."""
    return json.loads(answer.partition(b"\r\n\r\n")[2])


@contextlib.asynccontextmanager
async def answering(
    reply: Callable[[bytes], bytes], own: EgressSettings | None = None, **secrets: str
) -> AsyncIterator[tuple[int, Opened]]:
    """Run a host that makes one answer of each request's head; yield its port, and a proxy that lets it be reached."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(reply(await reader.readuntil(b"\r\n\r\n")))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with opened(policy(f"api.example:{port}", **secrets), own) as proxy:
            yield port, proxy


async def test_a_request_is_passed_on_without_what_is_of_its_connection(proxy: Opened, host: EchoHost) -> None:
    url = f"http://api.example:{host.port}/a/b?c=%20d"
    mine = (
        "X-Mine: 1",
        "Proxy-Authorization: x",
        "Connection: close, X-Hop",
        "X-Hop: 2",
        "TE: trailers",
        "Upgrade: h2c",
    )
    answer = await proxy.said(get(url, *mine))
    assert status(answer) == 200
    asked = body(answer)
    assert (asked["method"], asked["path"]) == ("GET", "/a/b?c=%20d")
    assert asked["headers"] == {"Host": f"api.example:{host.port}", "X-Mine": "1", "Connection": "close"}
    answer = await proxy.said(get(f"http://API.example:{host.port}", "Connection: close"))
    assert body(answer)["path"] == "/"


async def test_bodies_go_both_ways(proxy: Opened, host: EchoHost) -> None:
    url = f"http://api.example:{host.port}"
    posted = get(f"{url}/post", "Content-Length: 5", "Connection: close", method="POST") + b"hello"
    assert body(await proxy.said(posted))["body"] == "hello"
    async with await proxy.connected() as raw:
        waits = get(f"{url}/post", "Content-Length: 5", "Expect: 100-continue", "Connection: close", method="POST")
        assert await raw.said(waits, until=b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert body(await raw.said(b"later"))["body"] == "later"
    large = await proxy.said(get(f"{url}/large?1000000", "Connection: close"))
    assert large.endswith(b"x" * 1000)
    assert len(large) > 1_000_000
    head = await proxy.said(get(f"{url}/large?77", "Connection: close", method="HEAD"))
    assert b"content-length: 77" in head.lower()
    assert head.endswith(b"\r\n\r\n")
    old = await proxy.said(get(f"{url}/pieces", version="1.0"))
    assert body(old)["path"] == "/pieces", "a client of HTTP/1.0 knows no chunks"


async def test_each_request_of_a_connection_is_checked(proxy: Opened, host: EchoHost) -> None:
    url = f"http://api.example:{host.port}/"
    async with await proxy.connected() as raw:
        first = await raw.said(get(f"{url}1"), until=b"}")
        assert status(first) == 200
        await raw.reader.readuntil(b"}")
        second = await raw.said(get(f"{url}2", "Connection: keep-alive"), until=b"}")
        assert status(second) == 200
        await raw.reader.readuntil(b"}")
        third = await raw.said(get("http://evil.example/3"))
        assert status(third) == 403
    assert [each["path"] for each in host.asked] == ["/1", "/2"]


async def test_nothing_can_be_smuggled_behind_a_request(proxy: Opened, host: EchoHost) -> None:
    url = f"http://api.example:{host.port}/"
    inner = get("http://evil.example/inner", "Connection: close")
    both = get(url, "Content-Length: 4", "Transfer-Encoding: chunked", method="POST") + b"0\r\n\r\n" + inner
    assert status(await proxy.said(both)) == 400
    twice = get(url, "Content-Length: 4", "Content-Length: 5", method="POST") + b"12345"
    assert status(await proxy.said(twice)) == 400
    for coding in ("chunked, chunked", "gzip", "xchunked", "identity"):
        assert status(await proxy.said(get(url, f"Transfer-Encoding: {coding}", method="POST"))) in (400, 501)
    two_hosts = get(url, "Host: evil.example")
    assert status(await proxy.said(two_hosts)) == 400
    folded = get(url, "X: a\r\n b\x00")
    assert status(await proxy.said(folded)) == 400
    pipelined = get(url, "Content-Length: 0", method="POST") + inner
    answer = await proxy.said(pipelined)
    assert (status(answer), answer.count(b"HTTP/1.1 ")) == (200, 2)
    assert b"HTTP/1.1 403" in answer
    assert [each["path"] for each in host.asked] == ["/"]


@pytest.mark.parametrize(
    ("url", "code"),
    [
        *(("http://evil.example/", 403), ("http://api.example/", 403), ("http://api.example:{port}.evil.test/", 400)),
        *(("http://x.api.example:{port}/", 403), ("http://api.example.:22/", 403), ("http://usual.example:8080/", 403)),
        *(("http://127.0.0.1:{port}/", 403), ("http://2130706433:{port}/", 403), ("http://0x7f.1:{port}/", 403)),
        *(("http://[::1]:{port}/", 403), ("http://[::ffff:127.0.0.1]:{port}/", 403), ("http://169.254.169.254/", 403)),
        *(("http://user@api.example:{port}/", 400), ("http://evil.example@api.example:{port}/", 400)),
        *(("http://api.example:{port}\\@evil.example/", 400), ("https://api.example:{port}/", 400), ("/", 400)),
        *(("*", 400), ("http://", 400), ("ftp://api.example/", 400), ("http://api.example:0{port}0/", 400)),
        *(("http://api.example:99999/", 400), ("http://api.example:/", 400), ("http://017700000001:{port}/", 403)),
    ],
)
async def test_what_the_allowlist_does_not_have_is_refused(proxy: Opened, host: EchoHost, url: str, code: int) -> None:
    answer = await proxy.said(get(url.format(port=host.port), host="" if "//" in url else "x"))
    assert status(answer) == code
    assert host.asked == []


async def test_a_refusal_names_the_host_and_the_field(proxy: Opened) -> None:
    answer = (await proxy.said(get("http://evil.example:81/"))).decode()
    said = (
        "The host 'evil.example:81' may not be reached: the allowlist of the request (network_policy.allowed_domains) "
        "does not have it."
    )
    assert answer.startswith(f"HTTP/1.1 403 {said}\r\n")
    assert answer.endswith(f"\r\n\r\n{said}\n")


async def test_the_host_header_is_that_of_the_url(proxy: Opened, host: EchoHost) -> None:
    url = f"http://api.example:{host.port}/"
    for name in ("evil.example", "api.example", f"api.example:{host.port}@evil.example", "api.example evil.example"):
        assert status(await proxy.said(get(url, host=name))) in (400, 403), name
    assert status(await proxy.said(get(url, "Connection: close", host=f"API.example:{host.port}"))) == 200
    for name in (f"api.example.:{host.port}", f"\x1capi.example:{host.port}"):
        answer = await proxy.said(get(url, "Connection: close", host=name))
        assert (status(answer), body(answer)["headers"]["Host"]) == (200, f"api.example:{host.port}"), name
    old = get(url, version="1.0").replace(b"Host:", b"X-Host:")
    assert body(await proxy.said(old))["headers"]["Host"] == f"api.example:{host.port}"


async def test_addresses_inside_are_refused_however_a_name_leads_there(host: EchoHost) -> None:
    answers = iter(["127.0.0.1", "169.254.169.254", "10.0.0.1", "::1", "::ffff:10.0.0.1", "fd00:ec2::254", "0.0.0.0"])
    asked = 0

    async def lookup(name: str, port: int) -> Sequence[str]:
        nonlocal asked
        asked += 1
        return [next(answers)]

    async with opened(policy(f"api.example:{host.port}"), settings(""), lookup=lookup) as proxy:
        for _ in range(7):
            answer = await proxy.said(get(f"http://api.example:{host.port}/"))
            assert status(answer) == 403
            assert b"SANDBOX_ALLOWED_HOSTS" in answer
    assert asked == 7, "once for each: what was checked is what is connected to"


async def test_a_name_that_changes_leads_to_what_was_checked(host: EchoHost) -> None:
    """The second answer would be another machine; nobody asks for it."""
    answers = iter([["127.0.0.1"], ["192.0.2.1"]])

    async def lookup(name: str, port: int) -> Sequence[str]:
        return next(answers)

    async with opened(policy(f"api.example:{host.port}"), lookup=lookup) as proxy:
        assert status(await proxy.said(get(f"http://api.example:{host.port}/", "Connection: close"))) == 200
    assert next(answers) == ["192.0.2.1"]


async def test_a_redirect_is_the_clients_and_is_checked_again(proxy: Opened, host: EchoHost) -> None:
    url = f"http://api.example:{host.port}/redirect?http://evil.example/"
    answer = await proxy.said(get(url, "Connection: close"))
    assert status(answer) == 302
    assert b"http://evil.example/" in answer


async def test_hosts_that_cannot_be_reached(host: EchoHost, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lookup(name: str, port: int) -> Sequence[str]:
        if name == "none.example":
            raise OSError
        return ["127.0.0.1"]

    async with opened(policy("none.example", "api.example:1"), lookup=lookup) as proxy:
        assert status(await proxy.said(get("http://none.example/"))) == 403
        assert status(await proxy.said(get("http://api.example:1/"))) == 502


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (b"", 502),
        (b"nothing of HTTP\r\n\r\n", 502),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 502),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", 502),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 40_000 + b"\r\n\r\n", 502),
        (b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 200),
        (b"HTTP/1.0 200 OK\r\n\r\nto the end", 200),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100, 502),
    ],
)
async def test_what_a_host_may_answer(said: bytes, code: int) -> None:
    async with answering(lambda _: said) as (port, proxy):
        assert status(await proxy.said(get(f"http://api.example:{port}/", "Connection: close"))) == code


async def test_what_a_host_says_wrongly_is_told_to_nobody() -> None:
    """A line that is no header may have the value of a secret, which only answers are freed from."""

    def reply(head: bytes) -> bytes:
        return b"HTTP/1.1 200 OK\r\n" + re.findall(rb"X-Token: (.*)\r\n", head)[0] + b"\r\n\r\n"

    async with answering(reply, settings("127.0.0.1/32,api.example"), TOKEN="api.example") as (port, proxy):
        answered = await proxy.said(get(f"http://api.example:{port}/", f"X-Token: {proxy.env['TOKEN']}"))
    assert status(answered) == 502
    assert b"s3cr3t" not in answered


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        (b"", 200),
        (b"Content-Encoding: Identity\r\n", 200),
        (b"Content-Encoding: identity\r\nContent-Encoding: gzip\r\n", 502),
        (b"Content-Encoding: identity, gzip\r\n", 502),
    ],
)
async def test_answers_in_which_no_value_could_be_found_are_refused(headers: bytes, code: int) -> None:
    said = b"HTTP/1.1 200 OK\r\n" + headers + b"Content-Length: 2\r\n\r\nok"
    async with answering(lambda _: said, TOKEN="api.example") as (port, proxy):
        assert status(await proxy.said(get(f"http://api.example:{port}/", "Connection: close"))) == code


async def test_heads_have_an_end(proxy: Opened, host: EchoHost) -> None:
    url = f"http://api.example:{host.port}/"
    assert status(await proxy.said(get(url, "X: " + "x" * 200_000))) == 400
    assert status(await proxy.said(get(url, *(f"X-{each}: y" for each in range(200))))) == 400
    assert status(await proxy.said(get(url + "x" * 200_000))) == 400
    assert host.asked == []


async def test_slow_clients_and_hosts_are_cut(proxy: Opened, host: EchoHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(connections, "ANSWER_SECONDS", 0.2)
    async with await proxy.connected() as raw:
        assert await raw.said(b"GET http://api") == b"", "half a head"
    answered = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answered.wait()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with opened(policy(f"api.example:{port}")) as other:
            assert status(await other.said(get(f"http://api.example:{port}/"))) == 504
            answered.set()
    monkeypatch.setattr(peers, "IDLE_SECONDS", 0.2)
    url = f"http://api.example:{host.port}/"
    half = get(url, "Content-Length: 100", method="POST") + b"half"
    monkeypatch.setattr(peers.Peer.event, "__defaults__", (0.2,))
    assert b" 200 " not in await proxy.said(half)


async def test_a_container_has_its_bytes_and_no_more(host: EchoHost) -> None:
    url = f"http://api.example:{host.port}"
    async with opened(policy(f"api.example:{host.port}"), settings(sandbox_network_bytes=300_000)) as proxy:
        assert len(await proxy.said(get(f"{url}/large?100000", "Connection: close"))) > 100_000
        assert len(await proxy.said(get(f"{url}/large?1000000", "Connection: close"))) < 300_000
        answer = await proxy.said(get(f"{url}/"))
        assert answer == b"" or (status(answer), b"SANDBOX_NETWORK_BYTES" in answer) == (403, True)


async def test_a_container_has_so_many_connections_and_others_wait(
    proxy: Opened, host: EchoHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [await proxy.connected() for _ in range(proxies.MAX_CONNECTIONS)]
    await eventually(lambda: len(proxy.proxy._connections) == proxies.MAX_CONNECTIONS)
    late = [await proxy.connected() for _ in range(20)]
    asked = asyncio.create_task(late[0].said(get(f"http://api.example:{host.port}/", "Connection: close")))
    await eventually(lambda: len(proxy.proxy._connections) == proxies.MAX_CONNECTIONS)
    assert not asked.done()
    many[0].writer.transport.abort()
    assert status(await asked) == 200
    for each in (*many, *late):
        each.writer.transport.abort()
    await eventually(lambda: not proxy.proxy._connections)


async def test_secrets_go_over_http_to_hosts_of_the_operator_alone(host: EchoHost) -> None:
    allowed = policy(f"api.example:{host.port}", f"other.example:{host.port}", TOKEN="api.example")
    url = f"http://api.example:{host.port}/"
    async with opened(allowed, settings("127.0.0.1/32,api.example")) as proxy:
        stands = proxy.env["TOKEN"]
        answer = await proxy.said(get(url, f"X-Token: {stands}", "Connection: close"))
        assert host.asked[-1]["headers"]["X-Token"] == TOKEN
        assert body_of_chunks(answer)["headers"]["X-Token"] == stands
        assert TOKEN.encode() not in answer
        other = await proxy.said(get(url.replace("api", "other"), f"X-Token: {stands}", "Connection: close"))
        assert host.asked[-1]["headers"]["X-Token"] == stands, "another domain gets what it was sent"
        assert status(other) == 200
    async with opened(allowed) as proxy:
        asked = len(host.asked)
        answer = await proxy.said(get(url, f"X-Token: {proxy.env['TOKEN']}", "Connection: close"))
        assert (status(answer), b"The secret TOKEN is sent by https:// only." in answer) == (403, True)
        assert len(host.asked) == asked


def body_of_chunks(answer: bytes) -> Any:
    """Return what the host was asked, by its answer in chunks."""
    rest, content = answer.partition(b"\r\n\r\n")[2], b""
    while (size := int(rest.partition(b"\r\n")[0], 16)) > 0:
        rest = rest.partition(b"\r\n")[2]
        content, rest = content + rest[:size], rest[size + 2 :]
    return json.loads(content)


async def test_name_servers_that_do_not_answer_hold_up_their_own_project_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads of lookups go on where nobody waits any more: names that nobody answers for had all of them."""
    monkeypatch.setattr(peers, "CONNECT_SECONDS", 0.1)
    asked, answer = set(), threading.Event()

    def resolve(host: str, port: int) -> Sequence[str]:
        if host.startswith("dead"):
            asked.add(host)
            answer.wait(30)
            raise OSError
        return ["127.0.0.1"]

    monkeypatch.setattr(network, "_addresses_of", resolve)
    allowed = AllowedHosts.parse("127.0.0.1/32")
    dialler = Dialler(Network("X", allowed, max_lookups=MAX_LOOKUPS))

    async def dial(host: str, project: str) -> int:
        try:
            async with dialler.connected(ProxyTarget(host, port), project, tls=False):
                return 200
        except Unreached as problem:
            return problem.status

    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        try:
            for turn in range(2):
                names = (f"dead{turn}-{each}.example" for each in range(2 * PROJECT_LOOKUPS))
                assert set(await asyncio.gather(*(dial(name, "greedy") for name in names))) == {504}
            assert len(asked) == PROJECT_LOOKUPS, "also behind those whose time was over"
            assert await dial("api.example", "greedy") == 504
            assert await dial("api.example", "other") == 200
        finally:
            answer.set()
        await eventually(lambda: not dialler._lookups._taken)
        assert await dial("api.example", "greedy") == 200
        dialler.network.close()


async def test_containers_of_one_project_leave_files_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxies, "PROJECT_CLIENTS", 5)
    monkeypatch.setattr(proxies, "MAX_CLIENTS", 8)

    def served(*of: Opened) -> int:
        return sum(len(each.proxy._connections) for each in of)

    refused = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    async with (
        opened_all(policy("api.example"), ("greedy", "greedy", "other")) as (one, two, other),
        AsyncExitStack() as held,
    ):
        for each in (one, two) * 4:
            await held.enter_async_context(await each.connected())
        await eventually(lambda: served(one, two) == 5)
        assert b" 400 " in await other.said(refused)
        late = await held.enter_async_context(await one.connected())
        asked = asyncio.create_task(late.said(refused))
        await one.proxy.aclose()
        assert await asked == b""
        assert b" 400 " in await two.said(refused)
        assert served(one, two) <= 5
    await eventually(lambda: not served(one, two, other))
