"""Django's handler, in this process: what a request of the API leaves out, and what others have as ever."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.signals import request_finished, request_started
from django.dispatch import Signal

from responses_app.web.http import json_response
from responses_app.web.servers.layers import Handler
from responses_app.wiring.site import get_site


@pytest.fixture
def signals() -> Iterator[list[str]]:
    """What Django has said of requests since then."""
    said: list[str] = []
    receivers: dict[Signal, Callable[..., None]] = {
        request_started: lambda **_: said.append("started"),
        request_finished: lambda **_: said.append("finished"),
    }
    for signal, receiver in receivers.items():
        signal.connect(receiver)
    yield said
    for signal, receiver in receivers.items():
        signal.disconnect(receiver)


class Asked:
    """A GET of a path; its client stays until `leaves` is set."""

    def __init__(self, path: str, **more: Any) -> None:
        self.scope = {"type": "http", "method": "GET", "path": path, "headers": [(b"host", b"localhost")], **more}
        self.sent: list[dict[str, Any]] = []
        self.leaves = asyncio.Event()
        self._has_asked = False

    async def receive(self) -> dict[str, Any]:
        """Return the empty body, and then that the client has left."""
        if not self._has_asked:
            self._has_asked = True
            return {"type": "http.request"}
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        """Take a part of the answer."""
        self.sent.append(message)

    async def be_served(self, handler: Handler) -> None:
        """Serve it."""
        await handler(self.scope, self.receive, self.send)


@pytest.mark.parametrize(("path", "root"), [("/health", ""), ("/below/health", "/below")])
async def test_a_request_of_the_api_has_no_signals_and_no_thread(signals: list[str], path: str, root: str) -> None:
    handler, asked = Handler(get_site()), Asked(path, root_path=root)
    threads = set(threading.enumerate())
    await asked.be_served(handler)
    assert [message.get("status") for message in asked.sent] == [200, None]
    assert signals == []
    assert set(threading.enumerate()) <= threads


async def test_all_others_are_djangos(signals: list[str]) -> None:
    asked = Asked("/nothing")
    await asked.be_served(Handler(get_site()))
    assert asked.sent[0]["status"] == 404
    assert signals == ["started", "finished"]


async def test_a_client_that_leaves_ends_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    handler, asked = Handler(get_site()), Asked("/health")
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def slow(request: Any) -> Any:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return json_response({})

    monkeypatch.setattr(handler, "run_get_response", slow)
    serving = asyncio.create_task(asked.be_served(handler))
    await began.wait()
    asked.leaves.set()
    await serving
    assert cancelled.is_set()
    assert asked.sent == []


async def test_what_breaks_reaches_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = Handler(get_site())

    async def broken(request: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(handler, "run_get_response", broken)
    with pytest.raises(RuntimeError, match="broken"):
        await Asked("/health").be_served(handler)
