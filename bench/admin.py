"""The rows about the admin: how long its pages take over many stored responses, on SQLite and PostgreSQL."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from statistics import median

import httpx

from bench.report import Result
from bench.servers import Bench, settle
from tests.kit.people import log_in, make_superuser
from tests.kit.server import ROOT

RESPONSES, BODY = 100_000, 4_000  # bytes a body has
ROUNDS = 7
TARGET = 200.0  # milliseconds
LIST = "/admin/responses_app/response/"
PAGES = {
    "first page": LIST,
    "a rare status": f"{LIST}?status=cancelled",
    "three filters": f"{LIST}?status=failed&model=gpt-oss-20b&transport=sse",
    "nothing found": f"{LIST}?status=queued",
    "last page": f"{LIST}?p=200",
    "a day": f"{LIST}?age=day",
    "search": f"{LIST}?q=resp_0000000000000000000000abc0",
    "projects": "/admin/responses_app/project/",
    "keys": "/admin/responses_app/apikey/",
    "usage": "/admin/usage/",
}
CHARTS = {"a day": "/admin/dashboard/", "a week": "/admin/dashboard/?span=week"}


def admin(bench: Bench) -> Iterator[Result]:
    """Time to a whole page, from a browser's request to its last byte; the slowest kind of page counts."""
    for kind in ("sqlite", "postgres"):
        yield from _on(bench, kind)


def fill() -> None:
    """Fill the database that Django has."""
    from tests.inprocess.admin.samples import many

    many(RESPONSES, padding=BODY)
    settle()


def _on(bench: Bench, kind: str) -> Iterator[Result]:
    with bench.migrated_server(kind, name="admin") as server:
        make_superuser(server)
        bench.report.step(f"{RESPONSES:,} responses are written on {kind}")
        command = [sys.executable, "manage.py", "shell", "--no-imports", "-c", "from bench.admin import fill; fill()"]
        subprocess.run(command, cwd=ROOT, env=server.environ, check=True)
        with server, closing(log_in(server)) as browser:
            lists, charts = (medians(bench, browser, pages) for pages in (PAGES, CHARTS))
    for what, taken in (
        (f"page of the admin's list over {RESPONSES:,} responses, {kind}, the slowest", lists),
        (f"the admin's dashboard over {RESPONSES:,} responses, {kind}", charts),
    ):
        details = {f"{page} ms": value for page, value in taken.items()}
        yield Result(what=what, measured=max(taken.values()), unit="ms", target=TARGET, details=details)


def medians(bench: Bench, browser: httpx.Client, pages: dict[str, str]) -> dict[str, float]:
    """Return how long each of these pages takes, in milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in pages}
    for _ in bench.report.rounds(ROUNDS):
        for name, path in pages.items():
            began = time.perf_counter()
            browser.get(path).raise_for_status()
            times[name].append((time.perf_counter() - began) * 1e3)
    return {name: median(taken) for name, taken in times.items()}
