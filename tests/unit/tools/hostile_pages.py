"""Pages of servers that do not mean well: they drip, or have no end."""

import asyncio


async def drips(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1073741824\r\n\r\n")
    while True:
        writer.write(b"x" * 65_536)
        await writer.drain()


async def endless_headers(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    for number in range(100_000):
        writer.write(f"X-{number}: {'y' * 100}\r\n".encode())
        await writer.drain()
