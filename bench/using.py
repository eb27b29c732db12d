"""What it takes to say what projects have used in a month of two million requests, on each database."""

import time
from collections.abc import Callable, Iterator
from statistics import median

from bench.loads import database_of
from bench.report import Result
from bench.servers import Bench

REQUESTS, DAYS = 2_000_000, 31
ROUNDS = 7
TARGET = 300.0  # milliseconds
DAY, HOUR, MINUTE = 86_400, 3_600, 60
# Rows as the server keeps them: of the last hour one a second, of two days by the minute, of what is older by the hour.
_FILL = """
INSERT INTO responses_app_usage (id, at, seconds, project, key_id, model, source, batch, requests, input_tokens,
  cached_tokens, output_tokens)
WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < {most}), used AS (
  SELECT n, {start} + n * {seconds} / {requests} AS at, CASE WHEN n >= {last_hour} THEN 1 WHEN n >= {last_days} THEN
    {minute} ELSE {hour} END AS width FROM numbers
)
SELECT 'sum-' || MIN(n), at - at % width, width, 'team-' || n * 7919 % 20, 'key_' || n * 31 % 100, 'model-' || n % 3,
  'responses', FALSE, COUNT(*), SUM(1000 + n % 777), SUM(n % 500), SUM(200 + n % 99)
FROM used GROUP BY at - at % width, width, n * 7919 % 20, n * 31 % 100, n % 3
"""


def usage(bench: Bench) -> Iterator[Result]:
    """Add up what each project has used of each model in a month, and on each of its days."""
    for name in ("SQLite", "PostgreSQL"):
        bench.report.step(f"{REQUESTS:,} requests on {name}")
        with database_of(bench, name) as alias:
            rows, month, days = _measured(alias)
        yield Result(
            what=f"a month's usage by project and model of {REQUESTS:,} requests on {name}, wall",
            measured=median(month),
            unit="ms",
            target=TARGET,
            holds=median(days) <= TARGET,
            details={"the slowest, ms": max(month), "by day, ms": median(days), "rows": rows},
        )


def _measured(alias: str) -> tuple[int, list[float], list[float]]:
    from django.db import connections

    from responses_app.resources.usage.fields import UsageQuery
    from responses_app.resources.usage.store import sums

    connection, end = connections[alias], int(time.time())
    start = end - DAYS * DAY
    # PostgreSQL multiplies in 32 bits what fits into them.
    fill = _FILL.format(
        **{"start": start, "seconds": f"CAST({DAYS * DAY} AS BIGINT)", "requests": REQUESTS, "most": REQUESTS - 1},
        **{"last_hour": _at(HOUR), "last_days": _at(2 * DAY), "minute": MINUTE, "hour": HOUR},
    ).replace("n * 7919", "CAST(n AS BIGINT) * 7919")
    with connection.cursor() as cursor:
        cursor.execute(fill)
        cursor.execute("SELECT COUNT(*) FROM responses_app_usage")
        rows = cursor.fetchone()[0]
        if connection.vendor == "postgresql":  # as autovacuum would have done; SQLite is never analyzed
            cursor.execute("VACUUM ANALYZE responses_app_usage")
    month = UsageQuery(start=start, end=end + 1, groups=["project", "model"])
    days = UsageQuery(start=start, end=end + 1, groups=["project", "model"], width=DAY)
    times = [_milliseconds(lambda query=query: sums(connection, query)) for query in (month, days)]  # type: ignore[misc]
    return rows, *times


def _at(ago: int) -> int:
    """Return the number of the request that was made so many seconds ago."""
    return REQUESTS - REQUESTS * ago // (DAYS * DAY)


def _milliseconds(act: Callable[[], object]) -> list[float]:
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        act()
        times.append((time.perf_counter() - began) * 1e3)
    return times
