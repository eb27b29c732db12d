"""The database and Redis: whether they answer, whether the tables are this version's, and what time they have."""

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from responses_app.command_line.examining.findings import Finding, ok, problem, warning
from responses_app.settings.conf import Settings

LEAST_SECONDS = 2  # libpq takes no fewer
SLOW_SECONDS = 0.1  # a request waits for the database several times
APART_SECONDS = 2.0  # clocks that differ by more
T = TypeVar("T")


async def database(settings: Settings, seconds: float) -> list[Finding]:
    """Ask the database for its version, its time, and its tables."""
    from django.db import DatabaseError

    try:
        return await in_daemon_thread(partial(_database, max(LEAST_SECONDS, round(0.8 * seconds))))
    except (DatabaseError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        return [
            problem("database", f"it cannot be used ({reason})", "Check that it runs, and what DATABASE_URL names.")
        ]


def _database(connect_seconds: int) -> list[Finding]:
    from django.db import connections
    from django.db.migrations.executor import MigrationExecutor

    from responses_app.stores.database.responses.rows import database_time

    connection = connections["default"]
    if connection.vendor == "postgresql":
        connection.settings_dict["OPTIONS"]["connect_timeout"] = connect_seconds
    with connection.cursor() as cursor:
        began = time.monotonic()
        sent, theirs = time.time(), database_time(cursor)
        seconds = time.monotonic() - began
    executor = MigrationExecutor(connection)
    missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    newer = executor.loader.applied_migrations.keys() - executor.loader.graph.nodes.keys()
    name = "PostgreSQL" if connection.vendor == "postgresql" else "SQLite"
    number = ".".join(map(str, connection.get_database_version()))
    findings = [_speed("database", f"{name} {number}", seconds), *_clock("database", theirs - sent - seconds / 2)]
    if missing:
        found = f"{len(missing)} migrations are missing, {missing[0][0].name} first"
        findings.append(warning("database", found, "`respsite serve` migrates; else run `respsite manage migrate`."))
    if ours := sorted(name for app, name in newer if app == "responses_app"):
        advice = "Install the newer version again, or restore the backup from before the upgrade."
        findings.append(problem("database", f"a newer version has migrated it ({ours[-1]})", advice))
    connection.close()
    return findings


async def redis(settings: Settings, seconds: float) -> list[Finding]:
    """Ask Redis for its version and its time."""
    if not settings.redis_url:
        return [ok("redis", "none: limits hold in each process")]
    from redis.asyncio import Redis
    from redis.exceptions import RedisError

    most = 0.8 * seconds
    client = Redis.from_url(settings.redis_url, socket_connect_timeout=most, socket_timeout=most)
    try:
        await client.ping()
        began, sent = time.monotonic(), time.time()
        whole, micro = await client.time()
        took = time.monotonic() - began
        about: dict[str, Any] = await client.info("server")
    except (RedisError, OSError, TimeoutError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        return [problem("redis", f"it cannot be used ({reason})", "Check that it runs, and what REDIS_URL names.")]
    finally:
        await client.aclose()
    found = f"Redis {about.get('redis_version', '')}"
    return [_speed("redis", found, took), *_clock("redis", whole + micro / 1e6 - sent - took / 2)]


def _speed(subject: str, name: str, seconds: float) -> Finding:
    text = f"{name} answers in {seconds * 1000:.1f} ms"
    if seconds <= SLOW_SECONDS:
        return ok(subject, text)
    return warning(subject, text, "Every request waits for it: bring it nearer, or find out what keeps it busy.")


def _clock(subject: str, apart: float) -> list[Finding]:
    if abs(apart) <= APART_SECONDS:
        return [ok("clocks", f"this machine and the {subject}: {abs(apart):.2f} s apart")]
    text = f"the {subject}'s clock is {abs(apart):.0f} s {'ahead of' if apart > 0 else 'behind'} this machine's"
    return [warning("clocks", text, "Run an NTP client, such as chrony, on both machines.")]


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """Run work in a thread that keeps no process alive: a database that says nothing would hold it for ever."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: Exception | None) -> None:
        if done.done():
            return
        done.set_exception(error) if error is not None else done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        try:
            outcome: tuple[T | None, Exception | None] = (work(), None)
        except Exception as error:  # noqa: BLE001 - it is raised again by who waits
            outcome = (None, error)
        if not loop.is_closed():
            loop.call_soon_threadsafe(finish, *outcome)

    threading.Thread(target=run, name="examine", daemon=True).start()
    return await done
