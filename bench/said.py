"""The rows about the admin's search by what was said, on SQLite and PostgreSQL, and what its index costs a store.

What is searched has the words of a language: some in nearly every response, most in very few (Zipf's law).
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from statistics import median
from typing import Any
from urllib.parse import quote_plus

from bench.admin import LIST, medians
from bench.report import Result
from bench.servers import Bench, settle
from tests.kit.people import log_in, make_superuser
from tests.kit.server import ROOT

RESPONSES = int(os.environ.get("SAID_RESPONSES", "100000"))
WORDS = 120  # of each response
VOCABULARY = 50_000
TARGET = 300.0  # milliseconds
DEARER = 1.10  # times as much as a store without the index
STORED, ROUNDS = 200, 15  # responses a round, of the comparison
SEARCHES = {
    "a rare word": "w40000",
    "a frequent word": "w1",
    "two frequent words": "w1 w2",
    "frequent and rare": "w1 w40000",
    "two rare words": "w3000 w4000",
    "a phrase": '"w1 w2"',
    "a beginning": "w4000*",
    "nothing": "nosuchword",
    "signs": "%%%",
}


def admin_search(bench: Bench) -> Iterator[Result]:
    """Time to a whole page of a search, the slowest kind counts; and a store's time with the index, and without."""
    for kind in ("sqlite", "postgres"):
        with ExitStack() as stack:
            server = stack.enter_context(bench.migrated_server(kind, name="said"))
            make_superuser(server)
            bench.report.step(f"{RESPONSES:,} responses are written on {kind}")
            told = _run(server.environ, "print(told())")
            stack.enter_context(server)
            browser = stack.enter_context(closing(log_in(server)))
            pages = {name: f"{LIST}?q={quote_plus(search)}" for name, search in SEARCHES.items()}
            taken = medians(bench, browser, pages)
        details: dict[str, float | str] = {f"{page} ms": value for page, value in taken.items()}
        details["responses read a second"] = told["read"]
        yield Result(
            what=f"a search by what was said over {RESPONSES:,} responses, {kind}, the slowest kind",
            measured=max(taken.values()),
            unit="ms",
            target=TARGET,
            details=details,
        )
        yield Result(
            what=f"the end of a response stored, with the search's index beside without, {kind}",
            measured=told["with"] / told["without"],
            unit="times",
            target=DEARER,
            details={"with ms": told["with"], "without ms": told["without"]},
        )


def _run(environ: dict[str, str], code: str) -> dict[str, float]:
    command = [sys.executable, "manage.py", "shell", "--no-imports", "-c", f"from bench.said import told; {code}"]
    done = subprocess.run(command, cwd=ROOT, env=environ, check=True, capture_output=True, text=True)
    read: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return read


def told() -> str:
    """Fill the database that Django has, read all of it into the index, compare; return the figures as JSON."""
    from django.db import connection

    from responses_app.models import Response
    from responses_app.stores.database import words

    compared = asyncio.run(_compared())
    Response.objects.bulk_create(_rows(random.Random(1)), batch_size=1_000)
    words.AT_ONCE = 200  # nobody else writes here
    began, steps = time.perf_counter(), 0
    while words.read_some(connection):
        steps += 1
    read = RESPONSES / (time.perf_counter() - began)
    settle()
    return json.dumps({**compared, "read": round(read)})


def _rows(chance: random.Random) -> Iterator[Any]:
    from datetime import UTC, datetime, timedelta

    from responses_app.models import Response
    from tests.inprocess.admin.samples import answered, said

    now = datetime.now(UTC)
    for number in range(RESPONSES):
        at = now - timedelta(seconds=30 * (RESPONSES - number))
        asked, told = (" ".join(_words(chance, WORDS // 2)) for _ in range(2))
        response_id = f"resp_{int(at.timestamp() * 1000):012x}7{number:019x}"
        yield Response(
            id=response_id, status="completed", model="gpt-oss-120b", created_at=at, size=1_500, transport="sse",
            input_items=[said(asked)], body={"id": response_id, "status": "completed", "output": [answered(told)]},
        )  # fmt: skip


def _words(chance: random.Random, count: int) -> Iterator[str]:
    for _ in range(count):
        yield f"w{int(VOCABULARY ** chance.random())}"  # the frequency of a word is one by its rank


async def _compared() -> dict[str, float]:
    """Return the milliseconds that the end of a response takes, with the triggers and without, in turn."""
    from django.db import connection

    from responses_app.stores.database.responses.store import DatabaseResponseStore
    from tests.contracts.store import Turn, exchange

    store = DatabaseResponseStore()
    await store.start()
    times: dict[str, list[float]] = {"with": [], "without": []}
    # SQLite works in this process: its CPU time says more than a busy machine's clock.
    clock = time.perf_counter if connection.vendor == "postgresql" else time.process_time
    for number in range(ROUNDS + 1):
        for name, taken in times.items():
            await asyncio.to_thread(_switch, on=name == "with")
            turns = [Turn("default") for _ in range(STORED)]
            for turn in turns:
                await store.accept(turn.begun())
            began = clock()
            for turn in turns:
                await store.save(turn.saying(*exchange(0)))
            if number:
                taken.append((clock() - began) * 1e3 / STORED)
    await asyncio.to_thread(_switch, on=True)
    await store.aclose()
    return {name: round(median(taken), 4) for name, taken in times.items()}


def _switch(*, on: bool) -> None:
    """Have the database note what ends, or not."""
    from importlib import import_module

    from django.db import connection

    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(f"ALTER TABLE responses_app_response {'ENABLE' if on else 'DISABLE'} TRIGGER USER")
        else:
            migration = import_module("responses_app.migrations.0029_words")
            for name in ("insert", "update"):
                cursor.execute(f"DROP TRIGGER IF EXISTS responses_app_words_{name}")
            for statement in [each for each in migration.SQLITE if "AFTER DELETE" not in each and "TRIGGER" in each]:
                if on:
                    cursor.execute(statement)
    connection.close()
