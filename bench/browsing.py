"""What a page of the web costs: fetched, read by its process, and shown."""

import asyncio
import time
from collections.abc import Iterator
from statistics import median

from bench.report import Result, beside
from bench.servers import Bench
from responses_app.protocol.output.citations import PageStack
from responses_app.tools.browser.fetching import Fetcher, PageCache, PageReader
from responses_app.tools.browser.searching import json_search
from responses_app.tools.browser.tool import Browser, BrowsingOptions
from responses_app.tools.network import AllowedHosts, Network
from responses_app.tools.reading.pages import said_by
from tests.kit.web_server import answer, web_server

PAGE_BYTES = 200_000
ROUNDS = 20


def browsing(bench: Bench) -> Iterator[Result]:
    """Open a page with links, lists and tables, again and again: CPU of this process and of the one that reads."""
    costs, reading, parsed, walls = asyncio.run(_opened())
    yield beside(
        f"opening a page of {PAGE_BYTES // 1000} KB, CPU",
        costs,
        yardstick="the library's parsing and text",
        its=parsed,
        unit="ms",
        # 40 ms, where the library took 4 ms
        target=10.0,
        details={"of it reading, in its process, ms": median(reading), "wall ms": median(walls)},
    )


def page() -> bytes:
    parts = ["<html><head><title>On turtles</title></head><body><nav>"]
    parts += [f"<a href='/menu/{number}'>Menu {number}</a> " for number in range(60)]
    parts.append("</nav><main>")
    sentence = "The shell of a turtle is bone and grows with it for all of its very long life. "
    while sum(map(len, parts)) < PAGE_BYTES:
        number = len(parts)
        link = f"<a href='/wiki/{number}'>reptile {number}</a>"
        parts.append(f"<h2>Part {number}</h2><p>{sentence * 5}{link} {sentence * 3}</p><ul><li>a</li><li>b</li></ul>")
        parts.append(f"<table><tr><td>{number}</td><td>{link}</td></tr></table>")
    return "".join([*parts, "</main></body></html>"]).encode()


async def _opened() -> tuple[list[float], list[float], list[float], list[float]]:
    """Return the milliseconds of each round: CPU in all, CPU of the process that reads, CPU of the library, wall."""
    from resiliparse.parse.html import HTMLTree

    body = page()
    async with web_server() as web:
        web.pages["/"] = answer(body)
        fetcher = Fetcher(Network("SEARCH_ALLOWED_HOSTS", AllowedHosts.parse("127.0.0.1")))
        reader = PageReader()
        browser = Browser(json_search(web.url()), fetcher, reader, PageCache())

        async def opened() -> None:
            await browser.act("open", {"id": web.url()}, PageStack(), BrowsingOptions(), project="bench")

        await opened()
        clock = _clock_of(reader.pids[0])
        costs, reading, parsed, walls = [], [], [], []
        for _ in range(ROUNDS):
            wall, here, there = time.perf_counter(), time.process_time(), time.clock_gettime(clock)
            await opened()
            here, there = time.process_time() - here, time.clock_gettime(clock) - there
            walls.append((time.perf_counter() - wall) * 1e3)
            costs.append((here + there) * 1e3)
            reading.append(there * 1e3)
            began = time.process_time()
            said_by(HTMLTree.parse(body.decode()))
            parsed.append((time.process_time() - began) * 1e3)
        await browser.aclose()
        return costs, reading, parsed, walls


def _clock_of(pid: int) -> int:
    """Return Linux's clock of the CPU time of a process: finer than the ticks in `/proc`."""
    return ~pid << 3 | 2
