"""A server that can be reached from the network says so, whatever started it; one that cannot says nothing."""

import socket
import sys
from pathlib import Path

import httpx
import pytest

from responses_app.auth.door import is_loopback
from responses_app.web.servers.layers import Exposure
from tests.kit.server import Server
from tests.kit.waiting import looks

SAID = "This server can be reached from the network, at "


class OpenServer(Server):
    """A server that listens on every address of this machine."""

    def _command(self) -> list[str]:
        if self.kind == "serve":
            return [sys.executable, "manage.py", "serve"]
        return [word.replace("127.0.0.1", "0.0.0.0") for word in super()._command()]

    def logged_lines(self, start: str) -> list[str]:
        """Wait for lines that begin so, and return them."""
        for _ in looks(10):
            if found := [line for line in self.output.splitlines() if line.startswith(start)]:
                return found
        raise AssertionError(self.output)


def network_address() -> str:
    """Return an address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: asks which address would be used
        except OSError:
            pytest.skip("this machine has no network")
        return str(probe.getsockname()[0])


def warnings_of(server: Server) -> list[str]:
    """Return what it said of being open."""
    return [line for line in server.output.splitlines() if SAID in line]


@pytest.mark.parametrize(
    ("settings", "any_name"), [({}, False), ({"kind": "serve", "host": "0.0.0.0", "allowed_hosts": "*"}, True)]
)
@pytest.mark.each_server
def test_daphne_tells_at_its_start_and_serve_that_any_name_is_taken_too(
    folder: Path, settings: dict[str, str], any_name: bool
) -> None:
    server = OpenServer(folder, auth="off", **settings)  # type: ignore[arg-type]
    server.environ["PORT"] = str(server.port)
    with server:
        (line,) = warnings_of(server)
        assert f"0.0.0.0:{server.port}" in line
        assert "ALLOWED_HOSTS=* lets in the pages of any web site" in line if any_name else "ALLOWED_HOSTS" not in line


@pytest.mark.each_server
def test_uvicorn_tells_at_the_first_connection_from_the_network(folder: Path) -> None:
    address = network_address()
    with OpenServer(folder, kind="uvicorn", allowed_hosts=f"127.0.0.1,{address}", auth="off") as server:
        assert warnings_of(server) == [], "nobody has come from there"
        for _ in range(2):
            assert httpx.get(f"http://{address}:{server.port}/health", verify=False).status_code == 200
        (line,) = warnings_of(server)
        assert f"{address}:{server.port}" in line


@pytest.mark.parametrize("kind", ["daphne", "uvicorn", "serve"])
@pytest.mark.each_server
def test_who_comes_from_the_network_needs_the_key_that_was_made(folder: Path, kind: str) -> None:
    address = network_address()
    host = {"host": "0.0.0.0"} if kind == "serve" else {}
    server = OpenServer(folder, kind=kind, allowed_hosts=f"127.0.0.1,{address}", **host)
    server.environ["PORT"] = str(server.port)
    with server:
        url = f"http://{address}:{server.port}/v1/models"
        assert httpx.get(url, verify=False).status_code == 401
        assert warnings_of(server) == []
        (line,) = server.logged_lines("API key")
        bearer = {"authorization": f"Bearer {line.split()[-1]}"}
        assert httpx.get(url, headers=bearer, verify=False).status_code == 200
        on_loopback = httpx.get(f"{server.url}/v1/models", verify=False).status_code
        assert on_loopback == 401, "it is known to listen elsewhere too"


@pytest.mark.each_server
def test_who_listens_on_loopback_says_nothing(server: Server) -> None:
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert warnings_of(server) == []


@pytest.mark.parametrize(
    ("address", "named"),
    [
        *((("127.0.0.2", 80), None), (("::1", 80), None), (("/run/a.sock", None), None), (None, None)),
        *((("::ffff:127.0.0.1", 80), None), (("localhost", 80), None)),
        *((("10.0.0.1", 80), "10.0.0.1:80"), (("::", 80), "[::]:80"), (("2001:db8::1", 1), "[2001:db8::1]:1")),
    ],
)
@pytest.mark.each_server
async def test_which_addresses_are_told(
    address: tuple[str, int | None] | None, named: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    served = []

    async def app(scope: object, receive: object, send: object) -> None:
        served.append(scope)

    told: list[bool] = []
    exposure = Exposure(app, any_host=False, asks_nobody=True, exposed=lambda: told.append(True))
    for kind in ("lifespan", "http", "websocket"):
        await exposure({"type": kind, "server": address}, None, None)  # type: ignore[arg-type]
    assert len(served) == 3
    assert [named in record.getMessage() for record in caplog.records] == ([True] if named else [])  # type: ignore[operator]
    assert told == ([True] if named else [])


@pytest.mark.each_server
def test_an_address_of_this_machine_alone() -> None:
    assert not is_loopback("0.0.0.0", unknown=True)
    assert not is_loopback("192.168.1.1", unknown=True)
