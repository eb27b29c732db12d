"""How soon the playground is there, and how smooth long answers are: `python -m tests.system.playground.measuring`.

With names of cases, these alone. A gap is the time between two pictures: 17 ms are 60 pictures a second. The time of
the processor is that of the page's main thread: it tells the same on a busy machine, where gaps do not.
"""

import json
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, CDPSession

from tests.kit.browser import chromium
from tests.kit.server import Server
from tests.system.playground.browser import playground

LOADS = 5
WAIT_MS = 240_000
GAPS = """() => {
    window.gaps = [];
    let last = performance.now();
    const look = (now) => { window.gaps.push(now - last); last = now; requestAnimationFrame(look); };
    requestAnimationFrame(look);
    new PerformanceObserver((list) => list.getEntries().forEach((each) => (window.long ??= []).push(each.duration)))
        .observe({ entryTypes: ['longtask'] });
}"""
LOADED = """() => [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
    .reduce((sum, each) => sum + each.transferSize, 0)"""
PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"
WORDS = "Some **bold** words and a [link](https://example.com), with `code` and what is *meant* by them. "
# What is said to the demo engine.
CASES = {
    "10,000 events": "count to 5000",
    "200 KB of paragraphs": "repeat: " + "\n\n".join(WORDS * 5 for _ in range(420)),
    "a list": "repeat: " + f"- {WORDS}\n" * 500,
    "a table": "repeat: | a | b | c |\n|---|--:|---|\n" + "| some words | 12.5 | `a` and *more* |\n" * 800,
    "code": "repeat: ```python\n" + "    for name in names: print(name, 12)\n" * 1200 + "```",
    "5,000 lines of code that do not end": "repeat: ```\n" + "x = 1\n" * 5000,
    "one line of 100 KB": "repeat: " + WORDS * 1050,
}  # fmt: skip


def main(chosen: list[str]) -> None:
    """Print the numbers, each as JSON on its line."""
    with tempfile.TemporaryDirectory() as own, Server(Path(own)) as server, chromium() as browser:
        paints, sizes = [], []
        for _ in range(LOADS):
            with playground(browser) as page:
                page.open(server.url)
                paints.append(round(page.page.evaluate(PAINT)))
                sizes.append(page.page.evaluate(LOADED))
        print(json.dumps({"first contentful paint of a cold cache, ms": paints, "first load, bytes": max(sizes)}))
        for name in chosen or CASES:
            print(json.dumps({"answer": name, **measured(browser, server, CASES[name])}), flush=True)


def measured(browser: Browser, server: Server, text: str) -> dict[str, object]:
    """Return what it was like to watch one answer, with the pane of events open."""
    with playground(browser) as page:
        page.page.set_default_timeout(WAIT_MS)
        page.open(server.url)
        page.write("repeat: **a**\n```py\nx\n```")  # what is loaded for it is there
        page.ended(1)
        page.find("[data-do=events]").click()
        field = page.lane().locator(".composer textarea")
        field.evaluate("(field, text) => { field.value = text; }", text)
        page.page.evaluate(GAPS)
        devtools = page.page.context.new_cdp_session(page.page)
        devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
        before = busy(devtools)
        field.press("Control+Enter")
        turn = page.ended(2)
        page.page.wait_for_function("() => !document.querySelector('[aria-busy=true]')")
        gaps = sorted(page.page.evaluate("() => window.gaps"))
        return {
            "frames": page.find("#events-count").inner_text(),
            "numbers": turn.locator(".numbers").inner_text().replace("\n", " "),
            "pictures": len(gaps),
            "gap between pictures, ms: median": round(gaps[len(gaps) // 2]),
            "95th percentile": round(gaps[len(gaps) * 95 // 100]),
            "99th percentile": round(gaps[len(gaps) * 99 // 100]),
            "longest": round(gaps[-1]),
            "processor, s": {name: round(after - before[name], 2) for name, after in busy(devtools).items()},
            "tasks above 50 ms": page.page.evaluate("() => (window.long ?? []).length"),
        }


def busy(devtools: CDPSession) -> dict[str, float]:
    """Return how long the page's main thread has worked, in seconds of the processor."""
    told = {each["name"]: each["value"] for each in devtools.send("Performance.getMetrics")["metrics"]}
    return {name: told[f"{name}Duration"] for name in ("Task", "Script", "Layout", "RecalcStyle")}


if __name__ == "__main__":
    main(sys.argv[1:])
