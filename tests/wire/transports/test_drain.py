"""A server that is told to stop: what runs may end, and what does not end in time goes on after the next start."""

import asyncio
import json
import signal
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import httpx
import pytest

from responses_app.web.servers.uvicorn import LAST_SECONDS, UvicornHook
from tests.kit.background import ANSWER, begin, get, new_server, speak, until
from tests.kit.clients import (
    RAW_UPGRADE,
    Frame,
    Socket,
    http_client,
    raw_connection,
    raw_frame,
    read_error_answer,
    read_error_frame,
    ready,
    text_of,
)
from tests.kit.laws import assert_laws
from tests.kit.raw_streams import RawStream
from tests.kit.scripts import gate, release
from tests.kit.server import Server
from tests.kit.waiting import eventually

STATUSES = (0, -signal.SIGTERM)  # of a process that ended as it should
GOODBYE = (1012, "the server stops: connect again")
AT_ONCE = 60.0  # seconds, on a machine that is busy; the grace is longer


def tell_to_stop(server: Server) -> None:
    """Send SIGTERM and go on."""
    server.process.send_signal(signal.SIGTERM)


def assert_quiet(server: Server) -> None:
    """Check that nothing broke on the way."""
    for noise in ("Traceback", "was never", "Task was destroyed", "Unhandled"):
        assert noise not in server.output, server.output[-3000:]


@contextmanager
def served(folder: Path, **settings: Any) -> Iterator[Server]:
    """Run a server; nothing breaks on the way."""
    with new_server(folder, **settings) as server:
        yield server
    assert_quiet(server)


async def in_flight(server: Server, count: int) -> bool:
    """Say whether so many responses run."""
    return bool((await ready(server))["responses_in_flight"] == count)


async def refuses(http: httpx.AsyncClient) -> bool:
    """Say whether the server takes nothing more."""
    answer = await http.post("/responses", json={"input": "Hello"})
    if answer.status_code == 200:
        return False
    message = read_error_answer(answer, status=503, code="server_is_overloaded")
    assert "stopping" in message
    return True


@pytest.mark.each_server
async def test_what_ends_within_the_grace_is_waited_for(folder: Path, kind: str) -> None:
    with served(folder, kind=kind, shutdown_grace_seconds=30) as server:
        async with http_client(server) as http, await Socket.open(server.ws_url) as socket:
            background = await begin(http, "[dumb a]")
            streamed = await RawStream.create(server, input="[dumb a]")
            events = await streamed.take(2)
            await socket.create("[dumb a]", "lane")
            frames = await socket.until("response.in_progress", "lane")
            json_body = asyncio.create_task(http.post("/responses", json={"input": "[dumb a]"}))
            await eventually(lambda: in_flight(server, 4))
            tell_to_stop(server)
            await eventually(lambda: refuses(http))
            await socket.create("Too late")
            read_error_frame(await socket.error(), status=503, code="server_is_overloaded")
            stopping = await http.get(f"{server.url}/ready")
            assert (stopping.status_code, stopping.json()["status"]) == (503, "not ready")
            assert stopping.json()["server"] == "the server is stopping"
            assert (await get(http, background["id"]))["status"] in ("queued", "in_progress")
            speak(server, "a")
            events += await streamed.rest()
            frames += await socket.answer("lane")
            assert events[-1]["type"] == frames[-1]["type"] == "response.completed"
            assert (await json_body).json()["status"] == "completed"
            assert (await socket.closed(), socket.raw.close_reason) == GOODBYE
        assert await asyncio.to_thread(server.ended) in STATUSES
        ids = [
            background["id"],
            json_body.result().json()["id"],
            *(each[0]["response"]["id"] for each in (events, frames)),
        ]
        with server:
            async with http_client(server) as http:
                for response_id in ids:
                    assert text_of(await get(http, response_id)) == ANSWER


@pytest.mark.each_server
async def test_who_reads_late_still_reads_the_end(folder: Path, kind: str) -> None:
    """Autobahn by itself cuts who does not answer a close frame within a second."""
    with served(folder, kind=kind, shutdown_grace_seconds=300, responses_ping_interval_seconds=0.5) as server:
        async with http_client(server) as http, await Socket.open(server.ws_url) as other:
            await other.create("[dumb b]")
            await other.until("response.in_progress")
            with raw_connection(server.port) as late:
                late.sendall(RAW_UPGRADE)
                assert b" 101 " in await asyncio.to_thread(late.recv, 1024)
                # Each event with the whole response is larger than what the kernel takes for who does not read.
                late.sendall(raw_frame({"type": "response.create", "input": "[dumb a]", "instructions": "x" * 70_000}))
                await eventually(lambda: in_flight(server, 2))
                tell_to_stop(server)
                await eventually(lambda: refuses(http))
                speak(server, "a")
                await eventually(lambda: in_flight(server, 1))
                before = other.raw.pings
                await eventually(lambda: other.raw.pings >= before + 5)
                said = await asyncio.to_thread(read_to_the_close, late)
                assert b'"response.completed"' in said
            speak(server, "b")
            assert (await other.answer())[-1]["type"] == "response.completed"
        assert await asyncio.to_thread(server.ended) in STATUSES


def read_to_the_close(raw: socket.socket) -> bytes:
    """Read what the server says until it says goodbye, which is the last of it."""
    said = b""
    while not said.endswith(GOODBYE[1].encode()):
        part = raw.recv(65536)
        assert part, said[-1000:]
        said += part
    return said


@pytest.mark.parametrize(("kind", "grace"), [("daphne", 0), ("uvicorn", 0), ("daphne", 0.3)], indirect=["kind"])
@pytest.mark.each_server
async def test_what_does_not_end_goes_on_after_the_next_start_or_fails(folder: Path, kind: str, grace: float) -> None:
    with served(folder, kind=kind, shutdown_grace_seconds=grace) as server:
        async with http_client(server) as http, await Socket.open(server.ws_url) as socket:
            foreground = await RawStream.create(server, input="[hang]")
            spoken = await foreground.until("response.output_text.delta")
            await socket.create("[hang]")
            frames = await socket.until("response.output_text.delta")
            dumb = await begin(http, "[dumb a]", metadata={"a": "b"})
            said = await RawStream.create(server, input=gate("a0"), background=True)
            seen = await said.until("response.output_text.delta")
            waiting = [await begin(http, f"[dumb {name}]", instructions=name) for name in "bc"]
            watched = await RawStream.resume(server, dumb["id"])
            assert len(await watched.take(3)) == 3
            items = (await http.get(f"/responses/{dumb['id']}/input_items")).json()
            stopping = asyncio.create_task(asyncio.to_thread(server.stop))
            spoken += await foreground.rest()
            frames += await socket.answer()
            assert (await socket.closed(), socket.raw.close_reason) == GOODBYE
            for stream in (said, watched):
                assert await stream.rest_until_cut() == []  # it is not over: it goes on after the next start
            assert await stopping in STATUSES
        for events in (spoken, frames):
            assert_stopped(events)
        for name in "abc":
            speak(server, name)
        release(server, "a0")
        with server:
            async with http_client(server) as http:
                seen += await (await RawStream.resume(server, seen[0]["response"]["id"], len(seen) - 1)).rest()
                assert_laws(seen)
                assert text_of(seen[-1]["response"]) == "Hello there, friend."
                for events in (spoken, seen, frames):
                    assert await get(http, events[0]["response"]["id"]) == events[-1]["response"]
                for response in (dumb, *waiting):
                    done = await until(http, response["id"], "completed")
                    assert text_of(done) == ANSWER
                    kept = ("id", "created_at", "metadata", "instructions", "background", "model")
                    assert [done[name] for name in kept] == [response[name] for name in kept]
                again = await RawStream.resume(server, dumb["id"], 2)
                assert (await again.rest())[0]["sequence_number"] == 3
                assert (await http.get(f"/responses/{dumb['id']}/input_items")).json() == items


def assert_stopped(events: list[Frame]) -> None:
    """Check that a response failed because its server stopped."""
    assert_laws(events)
    response = events[-1]["response"]
    assert response["status"] == "failed"
    assert response["error"]["code"] == "server_error"
    assert "server stopped" in response["error"]["message"]


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.each_server
async def test_a_second_signal_or_ctrl_c_ends_the_wait(folder: Path, kind: str, sent: signal.Signals) -> None:
    with served(folder, kind=kind, shutdown_grace_seconds=300) as server:
        stream = await RawStream.create(server, input="[hang]")
        events = await stream.until("response.output_text.delta")
        if sent == signal.SIGTERM:
            tell_to_stop(server)
            await eventually(lambda: "they have 300 s to end" in server.output)
        begun = time.monotonic()
        stopping = asyncio.create_task(asyncio.to_thread(server.stop, sent))
        events += await stream.rest()
        assert_stopped(events)
        assert await stopping in (*STATUSES, -sent)
        assert time.monotonic() - begun < AT_ONCE


@pytest.mark.each_server
async def test_what_is_being_accepted_is_answered_and_no_key_is_lost(folder: Path, kind: str) -> None:
    """SQLite is locked, so nothing is accepted; the server is told to stop, and the lock is released."""
    chat = {"model": "scripted", "messages": [{"role": "user", "content": "Hello"}]}
    asked: dict[str, dict[str, object]] = {
        "/v1/responses": {"input": "Hello"},
        "/v1/conversations": {"items": [{"role": "user", "content": "Hello"}]},
        "/v1/chat/completions": chat,
        "/v1/completions": {"model": "scripted", "prompt": "Hello", "max_tokens": 5},
    }
    with served(folder, kind=kind, shutdown_grace_seconds=300) as server:
        with closing(sqlite3.connect(folder / "respsite.sqlite3", isolation_level=None)) as database:
            async with http_client(server) as http:
                database.execute("BEGIN IMMEDIATE")
                waiting = {path: sent(server, path, body) for path, body in asked.items()}
                assert (await http.get(f"{server.url}/health")).status_code == 200  # it has read what came before
                tell_to_stop(server)
                await eventually(lambda: has_begun_to_stop(http, server))
                database.execute("ROLLBACK")
                for path, connection in waiting.items():
                    answer = await asyncio.to_thread(connection.getresponse)
                    assert answer.status in (200, 503), (path, answer.read())
                    assert answer.status == 200 or answer.getheader("retry-after"), path
                    connection.close()
        assert await asyncio.to_thread(server.ended) in STATUSES
        with server:
            for path, body in asked.items():
                connection = sent(server, path, body)
                again = await asyncio.to_thread(connection.getresponse)
                assert again.status == 200, (path, again.read())
                connection.close()


def sent(server: Server, path: str, body: dict[str, object]) -> HTTPConnection:
    """Send a request with an idempotency key; its answer is read later."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    headers = {"content-type": "application/json", "idempotency-key": f"of {path}"}
    connection.request("POST", path, json.dumps(body), headers)
    return connection


async def has_begun_to_stop(http: httpx.AsyncClient, server: Server) -> bool:
    """Say whether it has."""
    return bool((await http.get(f"{server.url}/ready")).json()["server"] == "the server is stopping")


@pytest.mark.each_server
async def test_who_reads_slowly_reads_to_the_end(folder: Path, kind: str) -> None:
    """Nothing runs any more: what was answered is on its way."""
    with served(folder, kind=kind, shutdown_grace_seconds=300) as server:
        async with http_client(server) as http:
            content = b"0123456789abcdef" * 500_000
            made = await http.post("/files", files={"file": ("a.bin", content)}, data={"purpose": "user_data"})
            with raw_connection(server.port) as slow:
                slow.sendall(f"GET /v1/files/{made.json()['id']}/content HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                said = await asyncio.to_thread(slow.recv, 1024)
                tell_to_stop(server)
                await eventually(lambda: refuses(http))
                while part := await asyncio.to_thread(slow.recv, 65536):
                    said += part
            assert said.partition(b"\r\n\r\n")[2] == content
        assert await asyncio.to_thread(server.ended) in STATUSES


@pytest.mark.each_server
async def test_who_does_nothing_stops_at_once(folder: Path, kind: str) -> None:
    with served(folder, kind=kind, shutdown_grace_seconds=300) as server:
        async with await Socket.open(server.ws_url) as socket:
            await socket.ask("Hello")
            begun = time.monotonic()
            assert await asyncio.to_thread(server.stop) in STATUSES
            assert time.monotonic() - begun < AT_ONCE
            assert (await socket.closed(), socket.raw.close_reason) == GOODBYE


@pytest.mark.each_server
async def test_an_idle_socket_and_a_kept_connection_are_let_go_of_while_another_response_runs(
    folder: Path, kind: str
) -> None:
    """Their clients connect again, and reach a server that does not stop, where there is one."""
    with served(folder, kind=kind, shutdown_grace_seconds=300) as server:
        async with http_client(server) as http, await Socket.open(server.ws_url) as idle:
            await begin(http, "[dumb a]")
            kept = await http.get(f"{server.url}/health")
            assert kept.headers.get("connection", "") != "close"
            tell_to_stop(server)
            assert (await idle.closed(), idle.raw.close_reason) == GOODBYE
            await eventually(lambda: refuses(http))
            last = await http.get(f"{server.url}/health")
            assert (last.status_code, last.headers["connection"]) == (200, "close")
            async with await Socket.open(server.ws_url) as late:
                assert (await late.closed(), late.raw.close_reason) == GOODBYE
            speak(server, "a")
        assert await asyncio.to_thread(server.ended) in STATUSES


@pytest.mark.each_server
async def test_uvicorn_waits_for_readers_no_longer_than_a_stop_may_take() -> None:
    config = SimpleNamespace(timeout_graceful_shutdown=None)
    lifespan = SimpleNamespace(config=config)
    asked: list[object] = []

    async def receive(_: object) -> dict[str, object]:
        return {}

    async def application(*given: object) -> None:
        asked.append(given)

    unused: Any = None
    hook = UvicornHook(application, unused, unused, unused, grace=5)
    await hook({"type": "lifespan"}, MethodType(receive, lifespan), unused)
    assert config.timeout_graceful_shutdown == 5 + LAST_SECONDS
    assert len(asked) == 1
