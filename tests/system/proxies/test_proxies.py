"""nginx, Caddy and haproxy before a server, each with its file of `deploy/`.

Only this finds a line of such a file that the real program does not take, or that holds back what it passes on.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import connect
from websockets.typing import Origin

from responses_app.protocol.setting import MIB
from tests.kit.capabilities import program
from tests.kit.people import token
from tests.kit.server import ROOT, Server, free_port
from tests.system.cluster.processes import Nginx, Program
from tests.system.playground.held import APPLICATION, held

pytestmark = pytest.mark.needs("proxies")
OWN = {"nginx": 2, "caddy": 3, "haproxy": 4}  # the end of the address that a client has, one for each
UPLOAD = 34 * MIB  # more than a request may have that is no upload


class Installed(Program):
    """A program of Debian's that reads its address and the server's from the environment."""

    def __init__(self, folder: Path, port: int, *, upstreams: Sequence[str]) -> None:
        name, *arguments = self.arguments
        super().__init__(name, folder, port)
        settings = {"RESPSITE_UPSTREAM": upstreams[0], "HOME": str(folder), **self.settings(port)}
        self._command = ["env", *(f"{key}={value}" for key, value in settings.items()), str(program(name)), *arguments]

    arguments: Sequence[str]

    def settings(self, port: int) -> dict[str, str]:
        """Return the variables that say where it listens."""
        raise NotImplementedError

    def command(self) -> list[str]:
        return self._command


class Caddy(Installed):
    """Caddy, without TLS."""

    arguments = ("caddy", "run", "--adapter", "caddyfile", "--config", str(ROOT / "deploy" / "caddy" / "Caddyfile"))

    def settings(self, port: int) -> dict[str, str]:
        """Return the variables that say where it listens."""
        return {"RESPSITE_NAMES": f"http://127.0.0.1:{port}", "CADDY_ADMIN": f"127.0.0.1:{free_port()}"}


class Haproxy(Installed):
    """haproxy, without TLS."""

    arguments = ("haproxy", "-db", "-f", str(ROOT / "deploy" / "haproxy" / "haproxy.cfg"))

    def settings(self, port: int) -> dict[str, str]:
        """Return the variables that say where it listens."""
        return {"RESPSITE_BIND": f"127.0.0.1:{port}"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose answers can be held, and that locks after one failed login."""
    settings = {"behind_proxy": "http", "auth": "off", "admin_login_failures": 1}
    with Server(tmp_path_factory.mktemp("behind"), application=APPLICATION, **settings) as server:
        yield server


@pytest.fixture(params=[Nginx, Caddy, Haproxy], ids=lambda each: str(each.__name__).lower())
def front(request: pytest.FixtureRequest, server: Server, tmp_path: Path) -> Iterator[Program]:
    """A proxy before it."""
    make: Callable[..., Program] = request.param
    proxy = make(tmp_path, free_port(), upstreams=[f"127.0.0.1:{server.port}"])
    try:
        proxy.start()
        yield proxy
    finally:
        proxy.stop()


def test_what_a_proxy_passes_on(server: Server, front: Program) -> None:
    url, begun = f"{front.url}/v1/responses", {"input": "count to 3000", "stream": True}
    with held(server) as release, httpx.Client(timeout=60, verify=False) as http:
        # A client that takes compressed answers gets events while the answer still runs, and their end.
        headers = {"accept-encoding": "gzip, br, zstd"}
        with http.stream("POST", url, json=begun, headers=headers) as answer:
            lines = answer.iter_lines()
            assert any(".delta" in line for line in lines), answer.headers
            release()
            assert any("response.completed" in line for line in lines)
        assert "content-encoding" not in answer.headers

    # The host came along that the page names, or its Origin would be a foreign one.
    with connect(f"ws://127.0.0.1:{front.port}/v1/responses", origin=Origin(front.url), proxy=None) as socket:
        socket.send('{"type": "response.create", "input": "Hello"}')
        assert any("response.completed" in str(frame) for frame in socket)

    form = {"data": {"purpose": "user_data"}, "files": {"file": ("a.bin", b"a" * UPLOAD)}}
    kept = httpx.post(f"{front.url}/v1/files", timeout=120, verify=False, **form)  # type: ignore[arg-type]
    assert (kept.status_code, kept.json()["bytes"]) == (200, UPLOAD)

    forged = [("X-Forwarded-For", "6.6.6.6"), ("X-Forwarded-For", "7.7.7.7"), ("Forwarded", "for=8.8.8.8")]
    name, own = f"guess-{front.name}", f"127.0.0.{OWN[front.name]}"
    transport = httpx.HTTPTransport(local_address=own)
    with httpx.Client(base_url=front.url, headers=forged, transport=transport, timeout=60) as browser:
        guess = {**token(browser.get("/admin/login/")), "username": name, "password": "wrong"}
        assert browser.post("/admin/login/", data=guess).status_code == 429
    assert re.findall(rf"'{name}' and from (\S+) are locked", server.output) == [own]
