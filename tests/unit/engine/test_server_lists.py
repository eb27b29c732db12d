"""Where servers are: URLs, names with several addresses, files of URLs; and what is broken for a moment."""

import asyncio
import logging
import socket
from pathlib import Path
from typing import Any

import pytest

from engine.backends.vllm import server_lists
from engine.backends.vllm.server_lists import ServerList, as_server, as_source
from engine.errors import EngineUnavailable


def listing(*given: str) -> ServerList:
    sources = [as_source(each) for each in given]
    assert None not in sources
    return ServerList([source for source in sources if source is not None])


@pytest.mark.parametrize(
    "given",
    ["", "ftp://x", "http://", "http://x:99999", "http://x?y=1", 1, None, "file:///", "file://x", "dns+http://",
     "dns+https://x:1", "dns+ftp://x", "http://u:p@x", "http://u@x", "dns+http://u@x:1"],
)  # fmt: skip
def test_what_names_no_server(given: object) -> None:
    assert as_source(given) is None


def test_a_server_is_named_without_what_belongs_to_the_api() -> None:
    assert as_server("https://models.example.com:8443/vllm/v1/") == "https://models.example.com:8443/vllm"


async def test_urls_are_what_they_are_and_named_once() -> None:
    servers = listing("http://a:1", "http://b:1/", "http://a:1/v1")
    assert not servers.changes
    assert await servers.read() == ("http://a:1", "http://b:1")


class Resolver:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.addresses: list[str] | Exception = []
        self.asked: list[tuple[str, int]] = []
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", self.resolve)

    async def resolve(self, host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        self.asked.append((host, port))
        if isinstance(self.addresses, Exception):
            raise self.addresses
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in self.addresses]


async def test_each_address_of_a_name_is_a_server(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    resolver = Resolver(monkeypatch)
    resolver.addresses = ["10.0.0.2", "10.0.0.1", "fd00::1", "10.0.0.1"]
    servers = listing("dns+http://vllm.svc:8001/path")
    assert servers.changes
    first = await servers.read()
    assert first == ("http://10.0.0.1:8001/path", "http://10.0.0.2:8001/path", "http://[fd00::1]:8001/path")
    assert resolver.asked == [("vllm.svc", 8001)]
    resolver.addresses = socket.gaierror(-3, "Temporary failure in name resolution")
    assert await servers.read() == first
    assert await servers.read() == first
    assert caplog.text.count("stay those that were known: the addresses of vllm.svc cannot be resolved") == 1
    caplog.set_level(logging.INFO, logger="respsite.engine")
    resolver.addresses = ["10.0.0.3"]
    assert await servers.read() == ("http://10.0.0.3:8001/path",)
    assert "can be read again" in caplog.text


async def test_a_real_name() -> None:
    assert "http://127.0.0.1:8001" in await listing("dns+http://localhost:8001").read()


async def test_a_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "of servers"
    path.write_text("# the first rack\nhttp://a:1\n\n  http://b:1/v1  \n")
    servers = listing(f"file://{path}".replace(" ", "%20"), "http://c:1")
    assert servers.changes
    assert await servers.read() == ("http://a:1", "http://b:1", "http://c:1")
    path.write_text("http://b:1\n")
    assert await servers.read() == ("http://b:1", "http://c:1")


@pytest.mark.parametrize(
    "content", [None, b"", b"# none\n", b"http://b:1\nhttp:", b"\xff\xfe", b"http://u:hidden@b:1", b"x" * 70_000]
)
async def test_a_file_that_is_broken_changes_nothing(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "servers"
    path.write_text("http://a:1")
    servers = listing(f"file://{path}")
    assert await servers.read() == ("http://a:1",)
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert await servers.read() == ("http://a:1",)
    assert caplog.text.count("stay those that were known: the file") == 1
    assert "hidden" not in caplog.text


async def test_a_start_without_any_server_says_what_is_the_matter(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match=r"No vLLM server is known: the file .* cannot be read"):
        await listing(f"file://{tmp_path}/servers").read()


async def test_there_is_a_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_lists, "MAX_SERVERS", 2)
    path = tmp_path / "servers"
    path.write_text("http://a:1\nhttp://b:1\nhttp://c:1\n")
    assert await listing(f"file://{path}").read() == ("http://a:1", "http://b:1")
    assert "there are 3 servers, of which the first 2 are used" in caplog.text
