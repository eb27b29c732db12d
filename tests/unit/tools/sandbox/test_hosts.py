"""Hosts of containers: several, hung, leaving, over TLS; who may ask them, and what strangers send."""

import asyncio
import socket
import ssl
import struct
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from socket import socketpair
from typing import Any

import pytest
import pytest_asyncio

from responses_app.extensions.containers.programs import ProgramTool
from responses_app.extensions.containers.sandbox import hosts, sharing
from responses_app.extensions.containers.sandbox.channel import (
    MAX_JSON,
    VERSION,
    HostChannel,
    HostQuestion,
    MessageError,
    packed,
    read_as,
    received,
)
from responses_app.extensions.containers.sandbox.hosts import BaseHost, HostAction, HostListener, HostServer, RemoteHost
from responses_app.extensions.containers.sandbox.records import (
    CellRun,
    ChainFound,
    ContainerNotFound,
    HostGone,
    HostRoom,
    SandboxError,
)
from responses_app.extensions.containers.sandbox.sharing import SharedContainers
from responses_app.observing.logs import bind, bound
from responses_app.protocol.errors import ApiError
from tests.kit.sandboxes import SMALL, certificate, host_at, needs_bubblewrap, serving
from tests.kit.waiting import eventually
from tests.unit.tools.sandbox.test_sharing import containers_of

SILENCE = 60.0


async def work(what: str, arguments: Sequence[Any], asked: HostQuestion) -> Any:
    """Need something, and tell something, before the answer."""
    asked.tell({"of": what})
    return await asked.call({"of": what})


@asynccontextmanager
async def connected() -> AsyncIterator[HostChannel]:
    """Yield the asking end of a connection, which was opened for somebody else."""
    ours, theirs = socketpair()
    opener = copy_context()
    opener.run(bind, project="the opener's")
    ends = (
        HostChannel(await asyncio.open_unix_connection(sock=ours), silence=SILENCE),
        HostChannel(await asyncio.open_unix_connection(sock=theirs), work=work, silence=SILENCE),
    )
    tasks = [asyncio.create_task(end.live(), context=opener.copy()) for end in ends]
    try:
        yield ends[0]
    finally:
        for end in ends:
            end.close()
        await asyncio.gather(*tasks)


async def test_what_is_needed_is_done_for_who_asks_and_not_for_who_opened_the_connection() -> None:
    about: list[tuple[str, str]] = []

    async def asks(channel: HostChannel, project: str) -> object:
        bind(project=project)

        def note() -> None:
            about.append((project, bound()["project"]))

        async def needed(value: dict[str, Any]) -> dict[str, Any]:
            note()
            bind(project="what is bound here stays here")
            return {"for": project, **value}

        return await channel.ask("it", (), callback=needed, report=lambda _: note())

    async with connected() as channel:
        answers = await asyncio.gather(asks(channel, "one"), asks(channel, "two"))
    assert answers == [{"for": "one", "of": "it"}, {"for": "two", "of": "it"}]
    assert sorted(about) == [("one", "one"), ("one", "one"), ("two", "two"), ("two", "two")]


pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = "a secret of some length"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


@pytest_asyncio.fixture(loop_scope="module")
async def path(folder: Path) -> AsyncIterator[Path]:
    """Return where a host listens that has no container."""
    async with host_at(folder / "host", containers_of()):
        yield folder / "host"


def among(*hosts: BaseHost) -> SharedContainers:
    return SharedContainers(hosts)


@asynccontextmanager
async def mute(folder: Path, *, greets: bool = False) -> AsyncIterator[list[asyncio.StreamWriter]]:
    """Listen at `mute` in a folder and answer nothing, yield who came; `greets`: they are let in as by a host."""
    came: list[asyncio.StreamWriter] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(writer)
        if greets:
            writer.write(packed({"hello": VERSION, "problem": "", "room": containers_of().room()}))
        await reader.read()
        writer.close()

    async with await asyncio.start_unix_server(listen, folder / "mute"):
        yield came


@dataclass
class Secure:
    """A host at a port, over TLS and with a secret; who trusts `cert` trusts it."""

    server: HostServer
    port: int
    cert: str

    def trusting(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.cert)

    def remote(self, secret: str = SECRET) -> RemoteHost:
        return RemoteHost(f"localhost:{self.port}", secret=secret, tls=self.trusting)


@pytest_asyncio.fixture(loop_scope="module")
async def secure(folder: Path) -> AsyncIterator[Secure]:
    cert, key = certificate(folder)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(cert, key)
    listener = socket.create_server(("127.0.0.1", 0))
    server = HostServer(containers_of(), HostListener(listener, SECRET, tls), grace=0)
    async with serving(server):
        yield Secure(server, listener.getsockname()[1], cert)


async def test_each_container_is_found_at_its_host_and_new_ones_lie_where_there_is_room(folder: Path) -> None:
    one, other = containers_of(), containers_of()
    async with host_at(folder / "1", one), host_at(folder / "2", other) as leaving:
        every = among(RemoteHost(str(folder / "1")), RemoteHost(str(folder / "2")))
        made = [await every.create("p") for _ in range(4)]
        assert (len(one._known._containers), len(other._known._containers)) == (2, 2)
        assert {each.id for each in await every.all_of("p")} == {each.id for each in made}
        for each in made:
            assert await every.find("p", each.id) == each
            await every.join_chain(each.id, [f"resp_{each.id}"])
            found = await every.of_chain("p", ["resp_0", f"resp_{each.id}"])
            assert found == each
        with pytest.raises(ContainerNotFound):
            await every.find("p", f"cntr_{'0' * 32}")
        leaving.leave()
        await eventually(lambda: not leaving._channels)
        later = await every.create("p")
        assert one._known._containers.keys() >= {later.id}
        assert len(await every.all_of("p")) == 3, "without those of the host that is gone"
        lost = next(each for each in made if each.id[-8:] == other.tag)
        with pytest.raises(HostGone):
            await every.find("p", lost.id)
        assert await every.of_chain("p", [lost.id]) is None
        await every.aclose()


async def test_a_host_that_stands_still_is_gone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(hosts, "PING_SECONDS", 0.05)
    async with mute(folder, greets=True):
        host = RemoteHost(str(folder / "mute"))
        with pytest.raises(HostGone, match="went away"):
            await host.ask("run", "p", "cntr_1", "1", None, "")
        await host.aclose()


async def test_one_that_is_late_is_asked_again_later(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(hosts.ACTIONS, "check", HostAction(str, 0.1))
    async with mute(folder, greets=True):
        every = among(RemoteHost(str(folder / "mute")))
        with pytest.raises(HostGone, match="in time"):
            await every.check()

        async def containers() -> SharedContainers:
            return every

        use: Any = None  # what a request declares does not matter to it
        with pytest.raises(ApiError, match="Programs cannot be run now") as refused:
            await ProgramTool(containers, SMALL).offer(use)
        assert (refused.value.status, refused.value.retry_after) == (503, 2)
        await every.aclose()


async def test_all_who_wait_for_a_host_that_hangs_wait_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "CONNECT_SECONDS", 2.5)
    monkeypatch.setattr(hosts, "AGAIN_SECONDS", 2.0)  # less than an attempt takes, as it is
    async with mute(folder) as came:
        host = RemoteHost(str(folder / "mute"))
        ended = await asyncio.gather(*(host.ask("records", "p") for _ in range(5)), return_exceptions=True)
        assert [type(each) for each in ended] == [HostGone] * 5
        assert len(came) == 1, "not one behind the other"
        await host.aclose()


async def test_one_that_hangs_keeps_nobody_from_the_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "LATE_SECONDS", 0.05)
    async with host_at(folder / "1", containers_of()), mute(folder) as came:
        every = among(RemoteHost(str(folder / "mute")), RemoteHost(str(folder / "1")))
        async with asyncio.timeout(hosts.CONNECT_SECONDS / 2):
            await every.check()
            made = [await every.create("p") for _ in range(3)]
            assert await every.of_chain("p", ["resp_1"]) is None
            assert [each.id for each in await every.all_of("p")] == [each.id for each in made]
        assert len(came) == 1, "one attempt, which goes on"
        await every.aclose()


async def test_what_is_needed_ends_with_what_needs_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def need(self: object, call: Any) -> Any:
        return await call({})

    monkeypatch.setitem(hosts.ACTIONS, "need", HostAction(dict[str, Any], needs=True))
    monkeypatch.setattr("responses_app.extensions.containers.sandbox.containers.Containers.need", need, raising=False)
    begun, ended = asyncio.Event(), asyncio.Event()

    async def for_ever(value: dict[str, Any]) -> dict[str, Any]:
        begun.set()
        try:
            return await asyncio.Future()
        finally:
            ended.set()

    async def too_much(value: dict[str, Any]) -> dict[str, Any]:
        return {"text": "a" * (MAX_JSON + 1)}

    host = RemoteHost(str(path))
    asks = asyncio.create_task(host.ask("need", callback=for_ever))
    await begun.wait()
    asks.cancel()
    await ended.wait()
    assert "cannot be sent" in (await host.ask("need", callback=too_much))["error"]
    await host.aclose()


async def test_where_no_host_is_there_all_say_so(folder: Path) -> None:
    nobody = among(RemoteHost(str(folder / "none")), RemoteHost(str(folder / "none2")))
    for ask in (nobody.check(), nobody.create("p"), nobody.find("p", f"cntr_{'0' * 32}")):
        with pytest.raises(HostGone):
            await ask
    assert nobody.problem is None, "one may come back, so requests are not refused for what they declare"
    assert await nobody.all_of("p") == []


@needs_bubblewrap
async def test_one_that_leaves_lets_code_end_and_begins_none(folder: Path) -> None:
    own = containers_of()
    async with host_at(folder / "host", own, grace=30) as server:
        every = among(RemoteHost(str(folder / "host")))
        made = await every.create("p")
        await every.run("p", made.id, "1")
        work = asyncio.create_task(every.run("p", made.id, "import time; time.sleep(0.5); print('done')"))
        await eventually(lambda: own._known._containers[made.id].working > 0)
        server.leave()
        with pytest.raises(HostGone):
            await every.run("p", made.id, "2")
        with pytest.raises(HostGone):
            await every.create("p")
        assert (await work).execution.output == "done\n"
        await every.aclose()


async def test_an_action_may_need_the_worker_while_it_works(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def count(self: object, most: int, call: Any) -> list[int]:
        return [(await call({"number": number}))["double"] for number in range(most)]

    monkeypatch.setitem(hosts.ACTIONS, "count", HostAction(list[int], needs=True))
    monkeypatch.setattr("responses_app.extensions.containers.sandbox.containers.Containers.count", count, raising=False)

    async def double(value: dict[str, Any]) -> dict[str, Any]:
        return {"double": 2 * value["number"]}

    host = RemoteHost(str(path))
    assert await asyncio.gather(*(host.ask("count", 3, callback=double) for _ in range(5))) == [[0, 2, 4]] * 5
    await host.aclose()


async def test_only_actions_can_be_asked_for(path: Path) -> None:
    host = RemoteHost(str(path))
    await host.open()
    assert host._channel is not None
    for what in ("aclose", "_end", "__init__", "sandbox"):
        with pytest.raises(Exception, match="this host knows no"):
            await host._channel.ask(what, [])
    await host.aclose()


async def test_over_tls_with_the_secret_and_not_without(secure: Secure) -> None:
    known = among(secure.remote())
    made = await known.create("p")
    assert await known.find("p", made.id) == made
    await known.aclose()
    for secret in ("", "another secret of it", f"{SECRET}x"):
        with pytest.raises(HostGone, match="the secret is wrong"):
            await secure.remote(secret).open()
    with pytest.raises(HostGone):  # it is not known who that is
        await RemoteHost(f"localhost:{secure.port}", secret=SECRET, tls=ssl.create_default_context).open()


async def test_those_who_say_nothing_keep_no_worker_of_another_address_out(
    secure: Secure, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hosts, "HELLO_SECONDS", 60.0)
    most, server = hosts.MAX_STRANGERS_OF_ADDRESS, secure.server
    # Not one handshake: before its own, a connection was not counted.
    address = ("127.0.0.1", secure.port)
    strangers = [socket.create_connection(address, source_address=("127.0.0.2", 0)) for _ in range(2 * most)]
    await eventually(lambda: server._refused == most)
    assert len(server._connections) == most
    made = secure.remote()
    await made.open()
    assert f"{most} connections were refused" in caplog.text
    await made.aclose()
    for each in strangers:
        each.close()
    await eventually(lambda: not server._strangers)


async def test_who_is_refused_and_leaves_its_end_open_is_counted_until_it_is_cut(
    secure: Secure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "GOODBYE_SECONDS", 0.2)

    def refused() -> ssl.SSLSocket:
        """Hear that the secret is wrong, and say no more: not even that TLS ends."""
        plain = socket.create_connection(("127.0.0.1", secure.port))
        client = secure.trusting().wrap_socket(plain, server_hostname="localhost")
        client.sendall(packed({"hello": VERSION, "secret": "another secret of it"}))
        assert b"the secret is wrong" in client.recv(4096)
        return client

    client = await asyncio.to_thread(refused)
    assert secure.server._strangers == {"127.0.0.1": 1}
    with client:
        await eventually(lambda: not secure.server._strangers)
        assert await asyncio.to_thread(client.recv, 1) == b""
    await eventually(lambda: not secure.server._connections)


HELLO = packed({"hello": VERSION, "secret": ""})
NO_BYTES = b'{"ask":1,"what":"run","arguments":[{"\\u0000bytes":[0,9]}]}'
STRANGE = {
    "nothing": b"",
    "garbage": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 100,
    "a huge length": struct.pack(">II", 2**32 - 1, 0),
    "huge bytes": struct.pack(">II", 2, 2**32 - 1),
    "half a hello": HELLO[:9],
    "no JSON": struct.pack(">II", 3, 0) + b"{]}",
    "no object": struct.pack(">II", 2, 0) + b"[]",
    "half a character": packed({"hello": VERSION, "secret": "\ud800"}),
    "another version": packed({"hello": 99, "secret": ""}),
    "deep JSON": HELLO + struct.pack(">II", 200_000, 0) + b"[" * 200_000,
    "an unknown word": HELLO + packed({"say": 1}),
    "bytes that are not there": HELLO + struct.pack(">II", len(NO_BYTES), 0) + NO_BYTES,
    "a number twice": HELLO + 2 * packed({"ask": 1, "what": "check", "arguments": []}),
    "a call of nothing": HELLO + packed({"cancel": 5}) + packed({"reply": 5, "turn": 1, "value": 1}) + b"\xff" * 8,
}


@pytest.mark.parametrize("name", STRANGE)
async def test_whatever_strangers_send_ends_their_connection_alone(
    name: str, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hosts, "HELLO_SECONDS", 0.3)
    friend = among(RemoteHost(str(path)))
    made = await friend.create("p")
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(STRANGE[name])
    if name in ("nothing", "half a hello"):
        await asyncio.wait_for(reader.read(), 10)  # it is too slow
    else:
        writer.write_eof()
        await asyncio.wait_for(reader.read(), 10)
    writer.close()
    assert await friend.find("p", made.id) == made
    assert [each for each in caplog.records if each.exc_info] == [], "it is no error of this host's"
    await friend.aclose()


async def test_a_wrong_call_of_an_action_fails_alone(path: Path) -> None:
    host = RemoteHost(str(path))
    for wrong in ([], [1, 2, 3, 4, 5, 6, 7], [None, {"a": 1}]):
        with pytest.raises((SandboxError, ContainerNotFound)):
            await host.ask("record", *wrong)
    with pytest.raises(SandboxError):
        await host.ask("put_part", "p", "cntr_1", "x", 0, b"x" * (65 * 2**20))
    assert await host.ask("records", "p") == []
    await host.aclose()


@pytest.mark.parametrize("value", [None, [], {}, {"tag": "x"}, {"tag": 5}, "x"])
async def test_what_is_not_of_its_type_is_refused(value: object) -> None:
    with pytest.raises(MessageError):
        read_as(HostRoom, value)
    with pytest.raises(MessageError):
        read_as(CellRun, value)
    assert read_as(ChainFound | None, None) is None


async def test_a_frame_that_does_not_come_to_its_end_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("responses_app.extensions.containers.sandbox.channel.FRAME_SECONDS", 0.05)
    reader = asyncio.StreamReader()
    reader.feed_data(HELLO[:9])
    with pytest.raises(TimeoutError):
        await received(reader)
