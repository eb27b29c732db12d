"""Connections of all containers of a process: a name server that does not answer holds up its own project alone."""

import asyncio
import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest

from responses_app.tools import network
from responses_app.tools.egress import dialling, proxies
from responses_app.tools.egress.dialling import MAX_LOOKUPS, PROJECT_LOOKUPS, Dialler, Target, Unreached
from responses_app.tools.network import AllowedHosts, Network
from tests.kit.egress import Opened, opened_all, policy
from tests.kit.waiting import eventually


async def test_name_servers_that_do_not_answer_hold_up_their_own_project_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads of lookups go on where nobody waits any more: names that nobody answers for had all of them."""
    monkeypatch.setattr(dialling, "CONNECT_SECONDS", 0.1)
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
            async with dialler.connected(Target(host, port), project, tls=False):
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
        dialler.close()


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
