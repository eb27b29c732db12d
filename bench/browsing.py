"""What a page of the web costs: fetched, read by its process, and shown."""

import asyncio
import os
import resource
import time
from pathlib import Path
from statistics import median

from bench.report import Result
from bench.servers import Bench
from responses_app.protocol.output.citations import PageStack
from responses_app.tools.browser.browsing import Browser, BrowsingOptions
from responses_app.tools.browser.fetching import Fetcher, PageCache, PageReader
from responses_app.tools.browser.searching import json_search
from responses_app.tools.network import AllowedHosts, Network
from tests.kit.web_server import answer, web_server

PAGE_BYTES = 200_000
ROUNDS = 20
_TICK = 1000 / os.sysconf("SC_CLK_TCK")  # ms


def browsing(bench: Bench) -> list[Result]:
    """Open a page with links, lists and tables, again and again: CPU of this process and of the one that reads."""
    here, there, wall, started = asyncio.run(_opened())
    return [
        Result(
            name="browser",
            what=f"opening a page of {PAGE_BYTES // 1000} KB, CPU in all",
            measured=here + there,
            unit="ms",
            target=80.0,
            details={"of it reading, in its process, ms": there, "wall ms": wall, "the first one, wall ms": started},
        )
    ]


def page() -> bytes:
    """Return a page as encyclopedias have them."""
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


async def _opened() -> tuple[float, float, float, float]:
    async with web_server() as web:
        web.pages["/"] = answer(page())
        fetcher = Fetcher(Network("SEARCH_ALLOWED_HOSTS", AllowedHosts.parse("127.0.0.1")))
        reader = PageReader()
        browser = Browser(json_search(web.url()), fetcher, reader, PageCache())

        async def opened() -> float:
            began = time.perf_counter()
            await browser.act("open", {"id": web.url()}, PageStack(), BrowsingOptions(), project="bench")
            return (time.perf_counter() - began) * 1e3

        started = await opened()
        stat = Path(f"/proc/{reader.pids[0]}/stat")
        here, there = _own(), _ticks(stat)
        walls = [await opened() for _ in range(ROUNDS)]
        result = (_own() - here) / ROUNDS, (_ticks(stat) - there) / ROUNDS, median(walls), started
        await browser.aclose()
        return result


def _own() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1e3


def _ticks(stat: Path) -> float:
    fields = stat.read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK
