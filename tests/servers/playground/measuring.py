"""How soon the playground is there, and what 10,000 frames cost it: `python -m tests.servers.playground.measuring`."""

import json
import tempfile
from pathlib import Path

from tests.kit.browser import chromium
from tests.kit.server import Server
from tests.servers.playground.browser import playground

LOADS = 5
COUNT = 5_000  # numbers that are counted: each is a token, and so is the space before it
GAPS = """() => {
    window.gaps = [];
    let last = performance.now();
    const look = (now) => { window.gaps.push(now - last); last = now; requestAnimationFrame(look); };
    requestAnimationFrame(look);
    new PerformanceObserver((list) => list.getEntries().forEach((each) => (window.long ??= []).push(each.duration)))
        .observe({ entryTypes: ['longtask'] });
}"""
PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"


def main() -> None:
    """Print the numbers as JSON."""
    told: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as own, Server(Path(own)) as server, chromium() as browser:
        paints = []
        for _ in range(LOADS):
            with playground(browser) as page:
                page.open(server.url)
                paints.append(round(page.page.evaluate(PAINT)))
        told["first contentful paint of a cold cache, ms"] = paints
        with playground(browser) as page:
            page.open(server.url)
            page.find("[data-do=events]").click()
            page.page.evaluate(GAPS)
            page.write(f"count to {COUNT}")
            turn = page.ended(1)
            gaps = sorted(page.page.evaluate("() => window.gaps"))
            told |= {
                "frames": page.find("#events-count").inner_text(),
                "row elements": page.find("#events-list .row").count(),
                "numbers": turn.locator(".numbers").inner_text().replace("\n", " "),
                "pictures": len(gaps),
                "gap between pictures, ms: median": round(gaps[len(gaps) // 2]),
                "95th percentile": round(gaps[len(gaps) * 95 // 100]),
                "longest": round(gaps[-1]),
                "long tasks, ms": [round(each) for each in page.page.evaluate("() => window.long ?? []")],
            }
    print(json.dumps(told, indent=2))


if __name__ == "__main__":
    main()
