"""A role that is taken away, a user who is disabled, a session or a key that ends, while its owner watches a stream."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import httpx
import pytest
from websockets.sync import client as websockets

from tests.inprocess.roles.people import PASS, make_people, roles_script, run, signed_in
from tests.kit.closed import bearer, post
from tests.kit.inprocess import ClosedServer

PATIENCE = 60  # seconds: a test that fails waits so long, none that passes
LONG = {"input": "repeat: " + "word " * 2_000, "stream": True}
DISABLED = "from django.contrib.auth.models import User\nUser.objects.filter(username={!r}).update(is_active={})"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedServer]:
    folder, slow = tmp_path_factory.mktemp("roles"), {"tokens_per_second": 20}
    with ClosedServer(folder, auth="on", engine_options=slow) as server:
        make_people(server)
        yield server


def sign_out(browser: httpx.Client) -> None:
    browser.post("/admin/logout/", data={"csrfmiddlewaretoken": browser.cookies["csrftoken"]})


Ending = Callable[[ClosedServer, httpx.Client], None]
ENDINGS: dict[str, Ending] = {
    "signed out": lambda server, browser: sign_out(browser),
    "disabled": lambda server, browser: run(server, DISABLED.format("admin", False)),
    "another role": lambda server, browser: run(server, roles_script("admin", "auditor")),
}


@pytest.fixture(params=ENDINGS)
def ending(request: pytest.FixtureRequest, server: ClosedServer) -> Iterator[Ending]:
    """What takes from the admin what they came in by; they have it again behind the test."""
    yield ENDINGS[request.param]
    run(server, DISABLED.format("admin", True))
    run(server, roles_script("admin", "admin"))


def revoke(server: ClosedServer, key: str) -> None:
    server.operate("revoke_key", key)


def read_to_its_end(answer: httpx.Response, then: Callable[[], None]) -> bytes:
    """Read a stream, do something once its first piece came, and return the whole that comes before it breaks."""
    pieces: list[bytes] = []

    def read() -> None:
        until = time.monotonic() + PATIENCE
        for piece in answer.iter_raw():
            if not pieces:
                then()
            pieces.append(piece)
            assert time.monotonic() < until, "the stream goes on"

    with pytest.raises(httpx.RemoteProtocolError):
        read()
    return b"".join(pieces)


def test_a_stream_over_http_ends(server: ClosedServer, ending: Ending) -> None:
    with (
        closing(signed_in(server, "admin")) as browser,
        browser.stream("POST", "/v1/responses", json=LONG, headers=PASS) as answer,
    ):
        assert answer.status_code == 200
        read = read_to_its_end(answer, lambda: ending(server, browser))
    assert b"response.completed" not in read
    assert b"[DONE]" not in read


def test_a_websocket_ends_with_a_reason(server: ClosedServer, ending: Ending) -> None:
    with closing(signed_in(server, "admin")) as browser:
        headers = {"Cookie": f"sessionid={browser.cookies['sessionid']}"}
        how = {"origin": server.url, "subprotocols": ["respsite-session.default"], "additional_headers": headers}
        with websockets.connect(server.ws_url, **how) as socket:  # type: ignore[arg-type]
            socket.send(json.dumps({"type": "response.create", "input": LONG["input"]}))
            socket.recv(timeout=PATIENCE)
            ending(server, browser)
            frames = [json.loads(frame) for frame in socket]
    assert frames[-1]["type"] == "error"
    assert "The session of this connection is over" in frames[-1]["error"]["message"]


def test_a_stream_of_a_revoked_key_ends(server: ClosedServer) -> None:
    key = server.new_key()
    with httpx.stream("POST", f"{server.base_url}/responses", json=LONG, headers=bearer(key), timeout=30) as answer:
        read = read_to_its_end(answer, lambda: revoke(server, key))
    assert b"response.completed" not in read


def test_a_page_that_is_watched_shows_no_text_any_more(server: ClosedServer, ending: Ending) -> None:
    response_id = post(server, server.key, input="repeat: planted words").json()["id"]
    with closing(signed_in(server, "admin")) as browser:
        page = f"/watch/responses/{response_id}?part=live"
        assert "planted words" in browser.get(page).text
        ending(server, browser)
        answer = browser.get(page)
    # An auditor goes on; whoever is out is sent to the login.
    if answer.status_code == 200:
        assert ending is ENDINGS["another role"]
    else:
        assert (answer.status_code, "planted words" in answer.text) == (302, False)
