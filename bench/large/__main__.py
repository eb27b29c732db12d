"""`python -m bench.large [step …]`: a store of LARGE_STORE_RESPONSES (2 million) in PostgreSQL, and what it costs.

Without LARGE_STORE_URL a PostgreSQL of its own is started, filled, and removed at the end: 2 million responses take
25 GB with their backup. A database that LARGE_STORE_URL names is filled if it holds no response, and stays.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import psycopg

from bench.large import measuring
from bench.large.filling import Filled, Template, fill
from bench.report import Report, Result, check_names
from tests.kit.ending import ended_cleanly
from tests.kit.postgres_server import PostgresServer
from tests.kit.server import Server, manage

# As an operator would have it, but for the size of its memory: durable, and with autovacuum.
OPTIONS = ("shared_buffers=512MB", "maintenance_work_mem=256MB", "max_wal_size=4GB", "checkpoint_timeout=5min")
SMALL = 2000  # responses of the store beside it, which tells what of a figure is the machine's
QUESTION = "Tell me about the weather on the river, please, and count to 40. " * 6

STEPS: Mapping[str, Callable[[measuring.Store], Iterable[Result]]] = {
    "retrieve": measuring.retrieve,
    "chain": measuring.chain,
    "create": measuring.create,
    "admin": measuring.admin,
    "purge": measuring.purge,
    "backup": measuring.backup,
}


def main(names: Sequence[str]) -> None:
    """Fill, and measure the steps that are named, or all."""
    check_names("large-store", STEPS, names)
    responses = int(os.environ.get("LARGE_STORE_RESPONSES", "2000000"))
    with ended_cleanly(), ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="respsite-large-")))
        url = _url(stack)
        beside = stack.enter_context(measuring.another_database(url, "small"))
        small = measuring.Store(*_served(stack, folder / "small", beside, SMALL))
        store = measuring.Store(*_served(stack, folder / "large", url, responses), small)
        failed = Report().measure(STEPS, names, store)
    if failed:
        raise SystemExit(1)


def _url(stack: ExitStack) -> str:
    given = os.environ.get("LARGE_STORE_URL")
    if given:
        return given
    server = PostgresServer(options=OPTIONS)
    stack.callback(server.close)
    server.start()
    return server.url


def _served(stack: ExitStack, folder: Path, url: str, responses: int) -> tuple[Server, str, Filled]:
    """Serve a database, filled."""
    manage("migrate", "--verbosity", "0", DATABASE_URL=url, DATA_DIR=str(folder))
    server = stack.enter_context(Server(folder, database_url=url, start_seconds=120))
    return server, url, _filled(server, url, responses)


def _filled(server: Server, url: str, responses: int) -> Filled:
    """Fill what is empty, and say how it went."""
    with psycopg.connect(url, autocommit=True) as connection:
        found = measuring.long_chain_in(connection)
        if found is not None:
            return found
        first, following = measuring.two_turns(server, QUESTION)
        began = time.monotonic()

        def told(done: int) -> None:
            seconds = time.monotonic() - began
            print(f"… {done:,} of {responses:,} responses, {done / seconds:,.0f} a second", flush=True)

        templates = (Template.read(connection, first), Template.read(connection, following, first))
        filled = fill(url, *templates, responses, now=time.time(), report=told)
        connection.execute("VACUUM ANALYZE")
        size = connection.execute("SELECT pg_size_pretty(pg_database_size(current_database()))").fetchone()
        print(f"{responses:,} responses in {time.monotonic() - began:.0f} s: {size[0] if size else '?'}", flush=True)
    return filled


if __name__ == "__main__":
    main(sys.argv[1:])
