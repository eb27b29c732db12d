"""What a webhook adds to a response in the background: rows that its transaction writes, commits, and time."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from statistics import median
from typing import Any

from bench.loads import database_of
from bench.report import Result
from bench.servers import Bench

RESPONSES = 200  # one after the other, each in a transaction of its own
ROUNDS = 5
TARGET = 1.0


def webhook(bench: Bench) -> Iterator[Result]:
    """End responses on each database, with an endpoint that wants to be told of them and without."""
    for name in ("SQLite", "PostgreSQL"):
        with database_of(bench, name) as alias:
            counted, walls = asyncio.run(_ended(alias))
        commits = (counted[True, "commits"] - counted[False, "commits"]) / (ROUNDS * RESPONSES)
        yield Result(
            what=f"rows that a webhook adds to the transaction of a response, {name}",
            measured=counted[True, "rows"] / (ROUNDS * RESPONSES),
            target=TARGET,
            holds=commits == 0 and not counted[False, "rows"],
            details={
                "commits more": commits,
                "rows without an endpoint": counted[False, "rows"],
                "µs a response": median(walls[True]),
                "µs without an endpoint": median(walls[False]),
            },
        )


async def _ended(alias: str) -> tuple[Counter[tuple[bool, str]], dict[bool, list[float]]]:
    """Return how many rows and commits there were, with an endpoint and without, and the time of a response."""
    from django.db.backends.signals import connection_created

    from responses_app.kit.threads import DatabaseReaders
    from responses_app.resources.webhooks.model import WebhookEvent
    from responses_app.resources.webhooks.store import Webhooks
    from responses_app.stores.database.responses.store import DatabaseResponseStore
    from tests.contracts.adapters.test_webhooks import ended, endpoint
    from tests.contracts.store import Turn

    counted: Counter[tuple[bool, str]] = Counter()
    told = False  # whether the project of what is ended now has an endpoint

    def watch(connection: Any, **_: object) -> None:
        commit = connection._commit

        def counting() -> object:
            counted[told, "commits"] += connection.alias == alias
            return commit()

        connection._commit = counting

    connection_created.connect(watch)
    store, webhooks, readers = DatabaseResponseStore(using=alias), Webhooks(using=alias), DatabaseReaders(alias)
    await store.start()
    await webhooks.create(endpoint("told"))
    counted.clear()
    walls: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(ROUNDS):
        for told, kept in walls.items():
            before = await readers.run(lambda _: WebhookEvent.objects.using(alias).count())
            turns = [ended(Turn(project="told" if told else "silent")) for _ in range(RESPONSES)]
            began = time.perf_counter()
            for stored in turns:
                await store.save(stored)
            kept.append((time.perf_counter() - began) / RESPONSES * 1e6)
            after = await readers.run(lambda _: WebhookEvent.objects.using(alias).count())
            counted[told, "rows"] += after - before
    connection_created.disconnect(watch)
    for each in (store, webhooks, readers):
        await each.aclose()
    return counted, walls
