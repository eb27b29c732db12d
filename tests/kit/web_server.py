"""`WebServer`: a web server on loopback whose pages tests write, as bytes where they are to be wrong."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

Page = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class WebServer:
    """`pages` are the answers by path; `asked` are the request lines and headers that came, in order."""

    port: int
    pages: dict[str, bytes | Page] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def url(self, path: str = "/", host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.asked.append(head.decode())
                path = head.split()[1].decode().partition("?")[0]
                page = self.pages.get(path, answer(b"not here", status="404 Not Found"))
                if isinstance(page, bytes):
                    writer.write(page)
                    await writer.drain()
                else:
                    await page(writer)
                    break
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass  # the client has gone
        finally:
            writer.close()


def answer(body: bytes, *headers: str, status: str = "200 OK", kind: str = "text/html; charset=utf-8") -> bytes:
    """Return an answer as it goes over the wire."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def redirect(location: str, status: str = "302 Found") -> bytes:
    """Return an answer that leads elsewhere."""
    return answer(b"", f"Location: {location}", status=status)


@asynccontextmanager
async def web_server(*, tls: ssl.SSLContext | None = None) -> AsyncIterator[WebServer]:
    """Run a web server on a free port."""
    web = WebServer(0)
    server = await asyncio.start_server(web.serve, "127.0.0.1", 0, ssl=tls)
    web.port = server.sockets[0].getsockname()[1]
    try:
        yield web
    finally:
        server.close()
