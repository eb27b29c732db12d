"""`python -m tests.system.cluster.webhook_faults [EVENTS]`: webhooks while what carries them is killed.

Responses in the background end, as the writer of a worker keeps them, and real workers send what is told to real
receivers, of which each is another project's. Every few seconds one of the processes is killed (-9) and started again.
At the end each response that was kept has arrived, each that arrived was kept, and the rest are doubles with an id that
was seen before.
"""

import asyncio
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "respsite.settings")
os.environ.setdefault("SECRET_KEY", "of this program alone, and of its servers")

EVENTS = 10_000
PROJECTS = 4  # each with one endpoint at a receiver of its own
WORKERS = 2
AT_ONCE = 50  # responses that end together
REST = 0.4  # seconds between those and the next: so that all kinds of faults come while events are told
PAUSE = 2.0  # seconds between two faults
DOWN = 1.0  # seconds until what was killed is started again
LAST_SECONDS = 400.0  # for what is left behind the last fault


@dataclass
class Result:
    """What came of a run."""

    kept: set[str] = field(default_factory=set)  # responses whose end the store confirmed
    kills: Counter[str] = field(default_factory=Counter)
    retried: int = 0  # commits that the store did not confirm, and that were made again


async def run(events: int, folder: Path) -> None:
    """Run it, and print the table's row."""
    from asgiref.sync import sync_to_async
    from django.conf import settings
    from django.db import connections

    from responses_app.models import Response
    from responses_app.resources.webhooks.model import WebhookDelivery, WebhookEvent
    from responses_app.stores.database.responses.store import DatabaseResponseStore
    from respsite.settings import database
    from tests.kit.postgres_server import DURABLE, PostgresServer
    from tests.kit.server import Server, manage
    from tests.kit.webhook_receiver import Receiver

    postgres = PostgresServer(options=DURABLE)  # as a real one
    postgres.start()
    url = postgres.url_of(postgres.create_database())
    common = {"DATABASE_URL": url, "SECRET_KEY": os.environ["SECRET_KEY"]}
    manage("migrate", "--verbosity", "0", **common)
    connections.databases["default"] = connections.configure_settings({"default": database(url)})["default"]
    assert settings.configured
    workers = [
        Server(
            folder / f"worker{n}", engine="demo", webhook_allowed_hosts="127.0.0.1", webhook_seconds=3, metrics="off",
            database_url=url, secret_key=common["SECRET_KEY"], start_seconds=90,
        ).start()
        for n in range(WORKERS)
    ]  # fmt: skip
    receivers = [Receiver(folder / f"receiver{n}").start() for n in range(PROJECTS)]
    projects = await sync_to_async(_endpoints)([each.url for each in receivers])
    for (_, secret), receiver in zip(projects, receivers, strict=True):
        receiver.knows(secret)
    store = DatabaseResponseStore(timeout=10)
    await store.start()
    result, began = Result(), time.monotonic()
    async with _faults(result, postgres, workers, receivers):
        await _end_responses(store, result, [project for project, _ in projects], events)
        produced = time.monotonic() - began
    await _until_all_arrived(result, receivers)
    took = time.monotonic() - began
    received = Counter(line["header"] for each in receivers for line in each.received)
    arrived = {line["data"]["id"] for each in receivers for line in each.received}
    await sync_to_async(connections.close_all)()  # PostgreSQL was killed behind them
    rows = set(await sync_to_async(lambda: list(Response.objects.values_list("pk", flat=True)))())
    left = await sync_to_async(
        lambda: (WebhookEvent.objects.count(), WebhookDelivery.objects.exclude(status="delivered").count())
    )()
    print(
        f"events {len(result.kept)}; kills {dict(result.kills)}; commits tried again {result.retried}; "
        f"lost {len(result.kept - arrived)}; told though not kept {len(arrived - rows)}; "
        f"doubles {received.total() - len(received)}, ids that name two objects {len(received) - len(arrived)}; "
        f"left in the outbox and waiting {left}; produced in {produced:.0f} s, all arrived after {took:.0f} s"
    )
    await store.aclose()
    for process in (*workers, *receivers):
        process.kill()
    postgres.close()


def _endpoints(urls: list[str]) -> list[tuple[str, str]]:
    """Make an endpoint for each URL; return its project and its secret."""
    from datetime import UTC, datetime

    from django.conf import settings

    from responses_app.protocol.sealing import Sealer
    from responses_app.resources.webhooks.model import WebhookEndpoint
    from responses_app.resources.webhooks.sender import WebhookSender

    sender, at = WebhookSender(settings.RESPSITE, Sealer((os.environ["SECRET_KEY"],), random_bytes=os.urandom)), None
    made = []
    for number, url in enumerate(urls):
        project, at = f"project-{number}", datetime.now(UTC)
        secret, sealed = sender.new_secret(project)
        WebhookEndpoint.objects.create(
            id=f"we_{number}", project=project, name="x", url=url, event_types=["response.completed"], created_at=at,
            updated_at=at, secret=sealed, secret_hint="",
        )  # fmt: skip
        made.append((project, secret))
    return made


async def _end_responses(store: object, result: Result, projects: list[str], events: int) -> None:
    from tests.contracts.adapters.test_webhooks import ended
    from tests.contracts.store import Turn

    async def one(number: int) -> None:
        from responses_app.kit.errors import StoreError

        stored = ended(Turn(project=projects[number % len(projects)]))
        while True:
            try:
                await store.save(stored)  # type: ignore[attr-defined]
                result.kept.add(stored.response["id"])
                return
            except StoreError:
                result.retried += 1
                await asyncio.sleep(0.2)

    for start in range(0, events, AT_ONCE):
        await asyncio.gather(*(one(number) for number in range(start, min(events, start + AT_ONCE))))
        await asyncio.sleep(REST)


@asynccontextmanager
async def _faults(result: Result, postgres: object, workers: list, receivers: list) -> AsyncIterator[None]:  # type: ignore[type-arg]
    """Kill one process after the other for as long as this lasts."""

    def fault(kind: str) -> None:
        target = {"worker": workers, "receiver": receivers, "PostgreSQL": [postgres]}[kind]
        process = random.choice(target)
        process.kill()
        time.sleep(DOWN)
        process.start()
        result.kills[kind] += 1

    async def go_on() -> None:
        while True:
            for kind in ("worker", "receiver", "PostgreSQL"):
                await asyncio.sleep(PAUSE)
                await asyncio.to_thread(fault, kind)

    task, stop = asyncio.create_task(go_on()), asyncio.Event()
    try:
        yield
    finally:
        stop.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(DOWN + 20)  # a fault under way goes on, on its thread


async def _until_all_arrived(result: Result, receivers: list) -> None:  # type: ignore[type-arg]
    ends_at = time.monotonic() + LAST_SECONDS
    while time.monotonic() < ends_at:
        arrived = {line["data"]["id"] for each in receivers for line in each.received}
        if result.kept <= arrived:
            return
        await asyncio.sleep(1)


if __name__ == "__main__":
    import django

    django.setup(set_prefix=False)
    with tempfile.TemporaryDirectory(prefix="respsite-webhooks-") as folder:
        asyncio.run(run(int(sys.argv[1]) if len(sys.argv) > 1 else EVENTS, Path(folder)))
