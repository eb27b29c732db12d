"""https:// through the proxy of a container: blind tunnels, and TLS that ends there for the domains of secrets."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from responses_app.extensions.containers.egress import connections, proxies, tunnels
from responses_app.extensions.containers.egress.policy import EgressPolicy
from responses_app.extensions.containers.egress.proxies import Authority, ContainerProxy, trusted_certificates
from tests.kit.echo_host import EchoHost, certificate, echo_host
from tests.kit.egress import NAMES, TOKEN, Opened, Raw, opened, policy, settings
from tests.kit.waiting import eventually
from tests.unit.tools.egress.test_proxy import body_of_chunks, get, status


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificate(tmp_path_factory.mktemp("tls") / "host.pem", NAMES)


@pytest.fixture
def host(pem: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EchoHost]:
    """A host of https://, which this machine trusts."""
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    with echo_host(pem) as host:
        yield host


@pytest.fixture
async def proxy(host: EchoHost) -> AsyncIterator[Opened]:
    """A proxy with a secret for one of two names of that host."""
    async with opened(policy(*(f"{name}:{host.port}" for name in NAMES[:2]), TOKEN="api.example")) as proxy:
        yield proxy


async def tunnel(proxy: Opened, target: str, *headers: str, code: int = 200) -> Raw:
    raw = await proxy.connected()
    answer = await raw.said(get(target, *headers, method="CONNECT", host=target), until=b"\r\n\r\n")
    assert status(answer) == code
    return raw


async def secured(raw: Raw, name: str, proxy: Opened) -> Raw:
    """Begin TLS as a program of the container does."""
    trusted = ssl.create_default_context(cadata=proxy.proxy.bundle.decode())
    await raw.writer.start_tls(trusted, server_hostname=name)
    return raw


async def greeted(proxy: Opened, target: str, greeting: bytes, **more: bytes) -> bytes:
    """Return the answer to the first bytes in a tunnel."""
    async with await tunnel(proxy, target) as raw:
        return await raw.said(greeting, **more)


async def asked_by(proxy: Opened, host: EchoHost, name: str, path: str = "/", *headers: str) -> bytes:
    """Return what an https:// URL answers."""
    target = f"{name}:{host.port}"
    async with await secured(await tunnel(proxy, target), name, proxy) as raw:
        return await raw.said(get(path, *headers, "Connection: close", host=target))


async def test_a_domain_without_secrets_is_passed_on_unread(proxy: Opened, host: EchoHost) -> None:
    stands = proxy.env["TOKEN"]
    answer = await asked_by(proxy, host, "open.example", "/x", f"X-Token: {stands}", "Accept-Encoding: gzip")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["headers"]["Accept-Encoding"] == "gzip"
    assert host.asked[-1]["headers"]["X-Token"] == stands


async def test_a_value_goes_to_its_domain_and_does_not_come_back(proxy: Opened, host: EchoHost) -> None:
    stands = proxy.env["TOKEN"]
    sent = (f"X-Token: {stands}", "Range: bytes=0-3", "Accept-Encoding: gzip")
    answer = await asked_by(proxy, host, "api.example", f"/pieces?key={stands}", *sent)
    asked = host.asked[-1]
    assert asked["headers"]["X-Token"] == TOKEN
    assert asked["path"] == "/pieces?key=s3cr3t%2Fvalue%20%22of%22%20a%20test"
    assert asked["headers"]["Accept-Encoding"] == "identity"
    assert "Range" not in asked["headers"]
    got = body_of_chunks(answer)
    assert (got["headers"]["X-Token"], got["path"]) == (stands, f"/pieces?key={stands}")
    assert b"s3cr3t" not in answer
    assert f"X-Token: {stands}\r\n".encode() in answer


async def test_each_request_of_a_tunnel_is_checked(proxy: Opened, host: EchoHost) -> None:
    target = f"api.example:{host.port}"
    async with await secured(await tunnel(proxy, target), "api.example", proxy) as raw:
        assert status(await raw.said(get("/1", host=target), until=b"0\r\n\r\n")) == 200
        assert status(await raw.said(get("/2", host="evil.example"))) == 400
    async with await secured(await tunnel(proxy, target), "api.example", proxy) as raw:
        assert status(await raw.said(get("http://evil.example/", host=target))) == 400
    async with await secured(await tunnel(proxy, target), "api.example", proxy) as raw:
        assert status(await raw.said(get("evil.example:443", method="CONNECT", host=target))) == 400
    assert [each["path"] for each in host.asked] == ["/1"]


async def test_a_head_is_not_long_with_its_values_either(host: EchoHost) -> None:
    """Else some KB of a container would be some MB for the host."""
    secret = {"domain": "api.example", "name": "TOKEN", "value": "x" * 8192}
    allowed = {"allowed_domains": [f"api.example:{host.port}"], "domain_secrets": [secret]}
    async with opened(EgressPolicy.read(allowed)) as proxy:
        stands = proxy.env["TOKEN"]
        for times, code in ((2, 200), (9, 400)):
            headers = [f"X-{each}: {stands}" for each in range(times)]
            answer = await asked_by(proxy, host, "api.example", "/large?1", *headers)
            assert status(answer) == code


async def test_compressed_answers_of_a_secrets_domain_are_refused(proxy: Opened, host: EchoHost) -> None:
    answer = await asked_by(proxy, host, "api.example", "/gzip")
    assert (status(answer), b"compressed" in answer) == (502, True)
    assert status(await asked_by(proxy, host, "open.example", "/gzip")) == 200


async def test_the_certificate_of_a_secrets_domain_is_checked(tmp_path: Path, host: EchoHost) -> None:
    with echo_host(certificate(tmp_path / "other.pem", NAMES)) as untrusted:
        async with opened(policy(f"api.example:{untrusted.port}", TOKEN="api.example")) as proxy:
            answer = await asked_by(proxy, untrusted, "api.example", "/", f"X-Token: {proxy.env['TOKEN']}")
        assert (status(answer), b"certificate of 'api.example' is not valid" in answer) == (502, True)
        assert untrusted.asked == []


async def test_values_may_be_given_anew_and_may_be_lost(host: EchoHost) -> None:
    lost = policy(f"api.example:{host.port}", TOKEN="api.example").public()
    async with opened(EgressPolicy.read(lost)) as proxy:
        header = f"X-Token: {proxy.env['TOKEN']}"
        answer = await asked_by(proxy, host, "api.example", "/", header)
        assert (status(answer), b"The value of the secret TOKEN is not known any more" in answer) == (502, True)
        assert host.asked == []
        proxy.proxy.give_secrets([{"domain": "api.example", "name": "TOKEN", "value": "a new value"}])
        await asked_by(proxy, host, "api.example", "/", header)
        assert host.asked[-1]["headers"]["X-Token"] == "a new value"


@pytest.mark.parametrize(
    ("target", "code"),
    [
        *(("evil.example:443", 403), ("api.example:443", 403), ("127.0.0.1:{port}", 403), ("[::1]:{port}", 403)),
        *(
            ("2130706433:443", 403),
            ("api.example", 400),
            ("api.example:", 400),
            (":443", 400),
            ("usual.example:80", 403),
        ),
        *(("http://api.example:{port}/", 400), ("user@api.example:{port}", 403), ("api.example:{port}/x", 400)),
    ],
)
async def test_connect_leads_where_the_allowlist_does(host: EchoHost, target: str, code: int) -> None:
    async with opened(policy(f"api.example:{host.port}", "usual.example")) as proxy:
        where = target.format(port=host.port)
        answer = await proxy.said(get(where, method="CONNECT", host=where))
        assert status(answer) == code
        body = get(f"api.example:{host.port}", "Content-Length: 3", method="CONNECT") + b"abc"
        assert status(await proxy.said(body)) == 400


async def test_names_that_lead_inside_are_refused_to_tunnels(host: EchoHost) -> None:
    async with opened(policy(f"api.example:{host.port}"), settings("")) as proxy:
        raw = await tunnel(proxy, f"api.example:{host.port}", code=403)
        raw.writer.close()


def greeting_of(name: str | None) -> bytes:
    """Return how a client of TLS begins."""
    context, incoming, outgoing = ssl.create_default_context(), ssl.MemoryBIO(), ssl.MemoryBIO()
    context.check_hostname = name is not None
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


async def read(content: bytes) -> tuple[bytes, str | None]:
    reader = asyncio.StreamReader()
    reader.feed_data(content)
    reader.feed_eof()
    return await tunnels.greeting(reader)


async def test_the_name_in_a_greeting_is_found() -> None:
    whole = greeting_of("api.example")
    assert await read(whole + b"behind") == (whole, "api.example")
    assert (await read(greeting_of(None)))[1] is None
    message = whole[5:]
    cut = b"".join(b"\x16\x03\x01" + len(each).to_bytes(2, "big") + each for each in (message[:7], message[7:]))
    assert await read(cut) == (cut, "api.example"), "in two records"


async def test_what_is_no_greeting_is_none() -> None:
    whole = greeting_of("api.example")
    broken = [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        whole[:100],
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\xff\xff" + bytes(70000),
    ]
    broken += [b"\x17" + whole[1:], whole[:5] + b"\x02" + whole[6:], b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00"]
    for each in broken:
        with pytest.raises(tunnels.NoGreeting):
            await read(each)
    for place in range(5, len(whole)):
        damaged = whole[:place] + bytes((whole[place] ^ 0xFF,)) + whole[place + 1 :]
        try:
            assert (await read(damaged))[1] in (None, "api.example") or place > 43
        except tunnels.NoGreeting:
            continue


def with_extension(kind: int, content: bytes) -> bytes:
    """Return a greeting that has a further extension at its end."""
    hello = greeting_of("api.example")[9:]
    place = 34 + 1 + hello[34]
    place += 2 + int.from_bytes(hello[place : place + 2], "big")
    place += 1 + hello[place]
    more = kind.to_bytes(2, "big") + len(content).to_bytes(2, "big") + content
    size = int.from_bytes(hello[place : place + 2], "big") + len(more)
    hello = hello[:place] + size.to_bytes(2, "big") + hello[place + 2 :] + more
    message = b"\x01" + len(hello).to_bytes(3, "big") + hello
    return b"\x16\x03\x01" + len(message).to_bytes(2, "big") + message


def names(*of: str) -> bytes:
    entries = b"".join(b"\0" + len(each).to_bytes(2, "big") + each.encode() for each in of)
    return len(entries).to_bytes(2, "big") + entries


async def test_a_greeting_in_which_servers_may_read_another_name_is_refused() -> None:
    assert (await read(with_extension(0x1234, b"anything")))[1] == "api.example"
    with pytest.raises(tunnels.NoGreeting):
        await read(with_extension(0, names("other.example")))
    several = greeting_of("a" * 20).replace(names("a" * 20), names("a" * 8, "b" * 9))
    with pytest.raises(tunnels.NoGreeting):
        await read(several)
    encrypted = with_extension(0xFE0D, bytes(100))
    assert (await read(encrypted))[1] == "", "the name inside is another one"


async def test_a_tunnel_leads_to_the_name_that_was_checked(host: EchoHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual port leads to this host here: it is the port that has the rule."""
    monkeypatch.setattr(connections, "_HTTPS", host.port)
    allowed = policy("api.example")
    monkeypatch.setattr(type(allowed), "allows", lambda *_: True)
    target = f"api.example:{host.port}"
    async with opened(allowed) as proxy:
        assert await greeted(proxy, target, greeting_of("other.example")) == tunnels.WRONG_NAME
        assert await greeted(proxy, target, b"SSH-2.0-OpenSSH_9.0\r\n") == b""
        assert (await greeted(proxy, target, greeting_of("api.example"), until=b"\x16")).startswith(b"\x16")


async def test_a_port_of_the_allowlist_leads_to_no_other_name(host: EchoHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that writes `api.example:443` for `api.example` would get past what the operator allows."""
    target = f"api.example:{host.port}"
    async with opened(policy(target)) as proxy:
        assert await greeted(proxy, target, greeting_of("other.example")) == tunnels.WRONG_NAME
        assert await greeted(proxy, target, with_extension(0xFE0D, bytes(100))) == tunnels.WRONG_NAME
        assert await greeted(proxy, target, greeting_of("api.example")[:6] + b"\x07" * 100) == b"", "no greeting"
        for name in ("api.example", None):
            assert (await greeted(proxy, target, greeting_of(name), until=b"\x16")).startswith(b"\x16")
        monkeypatch.setattr(connections, "_HTTPS", host.port)
        assert await greeted(proxy, target, greeting_of(None)) == tunnels.WRONG_NAME


CHANGE_CIPHER = b"\x14\x03\x03\x00\x01\x01"


@pytest.mark.parametrize(
    ("second", "code"),
    [
        (greeting_of("other.example"), "wrong"),
        (CHANGE_CIPHER + greeting_of("other.example"), "wrong"),
        (CHANGE_CIPHER * 2 + greeting_of("api.example") + b"rest", "passed"),
        (CHANGE_CIPHER + b"\x17\x03\x03\x00\x04data", "passed"),
        (b"\x16\x03\x03\x00\x04\x10\x00\x00\x00" + greeting_of("other.example"), "passed"),
        (b"\x16\x03\x03\x00\x00" + greeting_of("other.example"), "cut"),
        (b"\x14\x03\x03\x00\x02\x01\x01" + greeting_of("other.example"), "cut"),
        (b"\x16\x03", "cut"),
    ],
)
async def test_a_second_greeting_asks_for_the_same_name(second: bytes, code: str) -> None:
    """A server asks for it where the first one has no key that it takes, and goes by its name."""
    got = b""

    async def takes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal got
        got += await reader.read()
        writer.close()

    async with await asyncio.start_server(takes, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        target, first = f"api.example:{port}", greeting_of("api.example")
        async with opened(policy(target)) as proxy, await tunnel(proxy, target) as raw:
            raw.writer.write(first + second)
            raw.writer.write_eof()
            assert await raw.rest() == (tunnels.WRONG_NAME if code == "wrong" else b"")
    if code == "passed":
        assert got == first + second
    else:
        assert b"other.example" not in got


async def test_a_tunnel_ends_with_either_side_or_in_silence(host: EchoHost, monkeypatch: pytest.MonkeyPatch) -> None:
    async def says(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        assert await reader.read() == b"bye"
        writer.write(b" and bye")
        writer.close()

    async with await asyncio.start_server(says, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with opened(policy(f"api.example:{port}")) as proxy:
            async with await tunnel(proxy, f"api.example:{port}") as raw:
                raw.writer.write(b"bye")
                raw.writer.write_eof()
                assert await raw.rest() == b"hello and bye"
            monkeypatch.setattr(tunnels, "IDLE_SECONDS", 0.1)
            async with await tunnel(proxy, f"api.example:{port}") as raw:
                assert await raw.rest() == b"hello"
            await eventually(lambda: not proxy.proxy._connections)


async def test_what_is_sent_before_a_connect_was_answered_is_refused(proxy: Opened, host: EchoHost) -> None:
    early = get(f"open.example:{host.port}", method="CONNECT") + greeting_of("open.example")
    assert status(await proxy.said(early)) == 400


def test_authorities_are_of_one_container_each(pem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = Authority(), Authority()
    assert one.certificate != other.certificate
    assert b"PRIVATE" not in one.certificate
    assert one.context("api.example") is one.context("api.example")
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    assert b"PRIVATE" not in trusted_certificates(), "though the file has a key"
    assert trusted_certificates().count(b"BEGIN CERTIFICATE") == 1
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere")
    assert isinstance(trusted_certificates(), bytes)


def test_a_certificate_that_could_not_be_loaded_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    authority, load = Authority(), proxies._load
    loaded: list[ssl.SSLContext] = []

    def fails(context: ssl.SSLContext, chain: bytes) -> None:
        raise OSError("too many open files")

    monkeypatch.setattr(proxies, "_load", fails)
    with pytest.raises(OSError, match="too many open files"):
        authority.context("api.example")

    def loads(context: ssl.SSLContext, chain: bytes) -> None:
        load(context, chain)
        loaded.append(context)

    monkeypatch.setattr(proxies, "_load", loads)
    assert [authority.context("api.example")] == loaded


async def test_the_variables_of_a_container(proxy: Opened) -> None:
    env: dict[str, Any] = dict(proxy.env)
    assert env["HTTPS_PROXY"] == env["http_proxy"] == "http://127.0.0.1:3128"
    assert env["TOKEN"].startswith("respsite-secret-")
    assert TOKEN not in str(env)
    assert isinstance(proxy.proxy, ContainerProxy)
