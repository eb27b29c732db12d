"""The server in the process of the tests is as strict as a process: what it would hide, it tells."""

import threading
from pathlib import Path

import httpx
import pytest
from django.conf import settings
from django.contrib.auth.models import User

from tests.kit.clients import WAIT_SECONDS, Socket, server_sent
from tests.kit.inprocess import Server
from tests.kit.scripts import gate, main_script, release, was_aborted
from tests.kit.stored import stored
from tests.kit.waiting import eventually


def test_clients_wait_longer_than_httpx_would_by_itself() -> None:
    assert httpx.Client().timeout.read == httpx.AsyncClient().timeout.read == WAIT_SECONDS
    assert httpx.Client(timeout=2.0).timeout.read == 2.0


async def test_a_stream_comes_part_by_part(server: Server, http: httpx.AsyncClient) -> None:
    async with http.stream("POST", "/responses", json={"input": gate("a0"), "stream": True}) as answer:
        seen = []
        async for name, _ in server_sent(answer):
            seen.append(name)
            if name == "response.output_text.delta" and seen.count(name) == 1:
                release(server, "a0")
    assert "response.completed" in seen


async def test_whoever_leaves_a_stream_has_left(server: Server, http: httpx.AsyncClient) -> None:
    async with http.stream("POST", "/responses", json={"input": "[hang]", "stream": True, "store": False}) as answer:
        async for _, event in server_sent(answer):
            assert isinstance(event, dict)
            response_id = event["response"]["id"]
            break
    await eventually(lambda: was_aborted(server, response_id))


def test_a_server_keeps_its_database_and_its_settings(folder: Path) -> None:
    Server.rest()  # the server of another test may be active still, with its settings
    before = settings.RESPSITE
    server = Server(folder, script=main_script(folder), model_name="kept")
    with server:
        assert settings.RESPSITE.model_name == "kept"
        response = server.post("/responses", input="Hello").json()
    assert settings.RESPSITE is before
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health", verify=False)
    with server:
        assert httpx.get(f"{server.base_url}/responses/{response['id']}", verify=False).json() == response
    assert server.output.count("completed") == 1


def test_two_with_one_database_are_refused(folder: Path) -> None:
    with Server(folder) as first, Server(folder), pytest.raises(AssertionError, match="are processes"):
        first.post("/responses", input="Hello")


async def test_two_that_are_asked_at_once_are_refused(
    server: Server, http: httpx.AsyncClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.kit.inprocess.ENDING_SECONDS", 0.1)
    other = Server(folder)
    async with http.stream("POST", "/responses", json={"input": "[hang]", "stream": True}) as answer:
        async for name, _ in server_sent(answer):
            if name == "response.output_text.delta":
                break
        with pytest.raises(AssertionError, match="cannot answer at the same time"):
            other.start()


def test_a_thread_that_is_left_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.kit.inprocess.LEFT_SECONDS", 0.1)
    ended = threading.Event()
    server = Server(folder).start()
    server.with_database(lambda: threading.Thread(target=ended.wait, name="left").start())
    with pytest.raises(AssertionError, match="left"):
        server.stop()
    ended.set()


async def test_the_clock_is_moved(folder: Path) -> None:
    with Server(folder, websocket_lifetime_seconds=3600) as server:
        async with await Socket.open(server.ws_url) as socket:
            server.advance(3599)
            await socket.ask()
            server.advance(2)
            assert await socket.closed() == 1000


@pytest.mark.django_db
def test_the_test_database_of_django_is_another_one(folder: Path) -> None:
    User.objects.create(username="here")
    with Server(folder) as server:
        assert server.with_database(User.objects.filter(username="here").count) == 0
        assert User.objects.filter(username="here").count() == 1
        assert stored(server, "SELECT username FROM auth_user") == []
