"""The steps: what is measured over a large store, each beside what an operator would want of it."""

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import django
import httpx
import psycopg

from bench.large.asking import Asker, Request, ask_all, asking
from bench.large.filling import LONG_CHAIN, RESPONSES, Connection, Filled
from bench.report import Result
from tests.kit.people import NAME, log_in, make_superuser
from tests.kit.postgres_server import newest_programs
from tests.kit.server import ROOT, Server

RETRIEVED, CHAINS, CREATED, ROUNDS = 2000, 25, 200, 7
PURGED = 100_000
CLIENTS, PAUSE = 4, 0.02  # while something goes on beside: 4 clients, each 20 ms after its last answer
QUIET_SECONDS = 10.0
LIST = "/admin/responses_app/response/"


@dataclass(frozen=True, slots=True)
class Store:
    """What is measured: a server with a filled database, and a small one beside."""

    server: Server
    url: str
    filled: Filled
    small: "Store | None" = None

    @property
    def both(self) -> "Sequence[Store]":
        """Itself, and the small one."""
        return [self, self.small] if self.small else [self]

    def some_ids(self, count: int, *, newest: float = 1.0) -> list[str]:
        """Return ids from all over the table, or from its newest part."""
        with psycopg.connect(self.url) as connection:
            share = min(100.0, 100.0 * max(4 * count, 5000) / self.filled.responses)
            sql = f"SELECT id FROM {RESPONSES} TABLESAMPLE SYSTEM ({share}) WHERE id > %s ORDER BY id"
            found = [row[0] for row in connection.execute(sql.encode(), [self.filled.long_chain])]
        chosen = found[int(len(found) * (1 - newest)) :]
        return random.Random(1).sample(chosen, min(count, len(chosen)))


def two_turns(server: Server, question: str) -> tuple[str, str]:
    """Let a server store a conversation of two turns; return their ids."""
    asker = Asker(server)
    asked = {"input": question, "model": "demo"}
    with closing(asker):
        first = httpx.Response(200, content=asker.ask(("", "POST", "/v1/responses", asked))[1]).json()["id"]
        asked = {**asked, "previous_response_id": first}
        second = httpx.Response(200, content=asker.ask(("", "POST", "/v1/responses", asked))[1]).json()["id"]
    return first, second


def long_chain_in(connection: Connection) -> Filled | None:
    """Return what an earlier run has left, None where it is empty."""
    row = connection.execute(f"SELECT count(*) FROM {RESPONSES}".encode()).fetchone()
    if row is None or row[0] < LONG_CHAIN:
        return None
    sql = f"SELECT id FROM {RESPONSES} ORDER BY id OFFSET {LONG_CHAIN - 1} LIMIT 1"
    last = connection.execute(sql.encode()).fetchone()
    assert last is not None
    return Filled(row[0], last[0])


def retrieve(store: Store) -> Iterator[Result]:
    """Retrieve responses from all over the table, one after the other."""
    taken = {}
    for each in store.both:
        requests: list[Request] = [("", "GET", f"/v1/responses/{one}", None) for one in each.some_ids(RETRIEVED)]
        ask_all(each.server, requests[:200])
        taken[each.url] = ask_all(each.server, requests)
    large, small = taken[store.url], taken[store.both[-1].url]
    details = {
        "p99 ms": large.quantile(0.99),
        "slowest ms": large.slowest,
        "small ms": small.quantile(0.5),
        "small p99 ms": small.quantile(0.99),
    }
    yield _row(f"GET of a response over {store.filled.responses:,}", large.quantile(0.5), 3.0, details)


def chain(store: Store) -> Iterator[Result]:
    """Load a chain of 1,000 as the server does before it is continued."""
    os.environ.update(store.server.environ)
    django.setup()
    from django.db import connections

    from respsite.settings import database

    taken = {}
    for each in store.both:
        alias = each.url.rpartition("/")[2]
        connections.databases[alias] = connections.configure_settings({"default": {}, alias: database(each.url)})[alias]
        taken[each.url] = asyncio.run(_load(alias, each.filled.long_chain))
    large, small = taken[store.url], taken[store.both[-1].url]
    details = {"best ms": min(large), "small ms": median(small), "small best ms": min(small)}
    yield _row(f"a chain of {LONG_CHAIN:,} stored responses loaded", median(large), 15.0, details)


async def _load(alias: str, response_id: str) -> list[float]:
    from responses_app.stores.database.responses.store import DatabaseResponseStore

    store, milliseconds = DatabaseResponseStore(using=alias), []
    for _ in range(CHAINS):
        began = time.perf_counter()
        link = await store.chain("default", response_id)
        milliseconds.append((time.perf_counter() - began) * 1e3)
        assert link is not None, "the chain is whole"
    await store.aclose()
    return milliseconds


def create(store: Store) -> Iterator[Result]:
    """Create responses, and continue old ones."""
    details, medians = {}, []
    for each, beside in zip(store.both, ("", "small "), strict=False):
        requests: list[Request] = []
        for parent in each.some_ids(CREATED):
            asked = {"input": "Hello", "model": "demo"}
            requests.append(("create", "POST", "/v1/responses", asked))
            requests.append(("continue", "POST", "/v1/responses", {**asked, "previous_response_id": parent}))
        taken = ask_all(each.server, requests)
        medians.append(taken.quantile(0.5))
        details |= {f"{beside}{name} ms": median(times) for name, times in taken.times.items()}
    yield _row("a response created or continued, demo engine", medians[0], None, details)


def admin(store: Store) -> Iterator[Result]:
    """Pages of the admin, the slowest kind counts."""
    large = _pages(store)
    small = _pages(store.small) if store.small else {}
    details = {f"{name} ms": f"{taken:.0f} / {small.get(name, 0):.0f}" for name, taken in large.items()}
    yield _row("a page of the admin, the slowest kind; large / small", max(large.values()), 300.0, details)


def _pages(store: Store) -> dict[str, float]:
    """Return the median times of pages."""
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute("DELETE FROM auth_user WHERE username = %s", [NAME])  # of a run before, on this database
    make_superuser(store.server)
    some = store.some_ids(1)[0]
    pages = {
        "list": LIST,
        "last page": f"{LIST}?p=200",
        "a status": f"{LIST}?status=failed",
        "a rare status": f"{LIST}?status=in_progress",
        "three filters": f"{LIST}?status=failed&model=nothing&transport=http",
        "a day": f"{LIST}?age=day",
        "search": f"{LIST}?q={some}",
        "search of a beginning": f"{LIST}?q=resp_0",
        "found nothing": f"{LIST}?q=resp_zzz",
        "search of words": f"{LIST}?q=the+sky",
        "response": f"{LIST}{some}/change/",
        "conversations": "/admin/responses_app/conversation/",
        "dashboard": "/admin/dashboard/",
        "dashboard, a week": "/admin/dashboard/?span=week",
    }
    times: dict[str, list[float]] = {name: [] for name in pages}
    with closing(log_in(store.server)) as browser:
        for _ in range(ROUNDS):
            for name, path in pages.items():
                began = time.perf_counter()
                browser.get(path).raise_for_status()
                times[name].append((time.perf_counter() - began) * 1e3)
    return {name: median(taken) for name, taken in times.items()}


def purge(store: Store) -> Iterator[Result]:
    """Purge 100,000 while serving."""
    with psycopg.connect(store.url) as connection:
        offset = min(PURGED, store.filled.responses // 4)
        sql = f"SELECT created_at FROM {RESPONSES} ORDER BY created_at, id OFFSET {offset} LIMIT 1"
        row = connection.execute(sql.encode()).fetchone()
        assert row is not None
        ttl = time.time() - row[0].timestamp()
    quiet = _beside(store, lambda: time.sleep(QUIET_SECONDS))
    command = [sys.executable, "manage.py", "purge_responses", "--ttl", str(ttl)]
    began = time.monotonic()
    busy = _beside(
        store, lambda: subprocess.run(command, cwd=ROOT, env=store.server.environ, check=True, capture_output=True)
    )
    seconds = time.monotonic() - began
    details = {
        "p99 ms": busy.quantile(0.99),
        "requests": busy.count,
        "slowest without ms": quiet.slowest,
        "p99 without ms": quiet.quantile(0.99),
        "seconds": seconds,
        "responses a second": offset / seconds,
    }
    yield _row(f"the slowest request while {offset:,} are purged", busy.slowest, 100.0, details)


def backup(store: Store) -> Iterator[Result]:
    """Back up with pg_dump while serving, and restore beside."""
    programs, into = newest_programs(), store.server.folder / "backup"
    with another_database(store.url, "restored") as restored:
        work = {
            "pg_dump": ("--format=directory", "--compress=1", f"--dbname={store.url}", f"--file={into}"),
            "pg_restore": (f"--dbname={restored}", str(into)),
        }
        for name, arguments in work.items():
            yield _with_program(store, programs / name, arguments, into)


def _with_program(store: Store, program: Path, arguments: Sequence[str], into: Path) -> Result:
    began = time.monotonic()
    taken = _beside(store, lambda: subprocess.run([program, *arguments], check=True))
    details = {
        "p99 ms": taken.quantile(0.99),
        "seconds": time.monotonic() - began,
        "GiB of the backup": sum(file.stat().st_size for file in into.iterdir()) / 2**30,
    }
    return _row(f"the slowest request during {program.name}", taken.slowest, None, details)


@contextmanager
def another_database(url: str, name: str) -> Iterator[str]:
    """Make a database on the same server, which is dropped at the end; give where it is."""

    def execute(statement: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statement.encode())

    name = f"{name}_{os.getpid()}"
    execute(f"CREATE DATABASE {name}")
    try:
        yield f"{url.rpartition('/')[0]}/{name}"
    finally:
        execute(f"DROP DATABASE {name} WITH (FORCE)")


def _beside(store: Store, work: Any) -> Any:
    """Ask over and over while something goes on."""
    ids = store.some_ids(2000, newest=0.4)

    def requests(number: int) -> list[Request]:
        asked: list[Request] = []
        for each in ids[number::CLIENTS]:
            body = {"input": "Hello", "model": "demo", "previous_response_id": each}
            asked += [("retrieve", "GET", f"/v1/responses/{each}", None), ("continue", "POST", "/v1/responses", body)]
        return asked

    with asking(store.server, requests, clients=CLIENTS, pause=PAUSE) as taken:
        work()
    return taken


def _row(what: str, measured: float, target: float | None, details: Mapping[str, float | str]) -> Result:
    return Result(what=what, measured=measured, unit="ms", target=target, details=details)
