"""A disk is full under load: what cannot be kept is refused or says so, and all of it goes on once there is room.

Only this finds a write that fails on a real disk and that nobody reports.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.pairs import Pair
from tests.kit.postgres_server import DURABLE, PostgresServer
from tests.kit.served import Supervised
from tests.kit.server import manage
from tests.kit.threads import in_a_thread
from tests.kit.waiting import eventually
from tests.system.cluster.cluster import Cluster
from tests.system.cluster.conftest import PACE
from tests.system.cluster.load import Tally, under_load
from tests.system.cluster.small_disk import full, small_disk
from tests.wire.transports.effects import hearing
from tests.wire.transports.test_effects import AT_ONCE, SETTINGS, House

FULL_SECONDS = 10.0
REFUSED_SECONDS = 60.0
CALLS = 20
PATIENCE_SECONDS = 60  # a slow machine fills its disk slowly: what ends meanwhile is to be kept, not to fail
SMALL_WAL = ("max_wal_size=64MB", "min_wal_size=32MB", "shared_buffers=16MB")  # PostgreSQL starts with 40 MB beside it


async def until_refused(tally: Tally) -> None:
    """Wait until clients are refused, with a 503 and `retry-after`; what there is still room for goes through."""
    before = tally.retried["503"]
    await eventually(lambda: tally.retried["503"] > before, timeout=REFUSED_SECONDS)


@pytest.fixture(scope="module")
def on_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervised]:
    """Two workers whose database and log are on one small disk."""
    with small_disk(tmp_path_factory.mktemp("sqlite") / "disk", 64) as disk:
        options = f'{{"tokens_per_second": {PACE}}}'
        server = Supervised(
            disk / "server",
            workers=2,
            auth="off",
            database_url=f"sqlite:///{disk}/store.sqlite3",
            worker_lease_seconds=5,
            database_patience_seconds=PATIENCE_SECONDS,
            max_websocket_connections=1000,
            background_max_running=200,
            engine_options=options,
        )
        with server:
            yield server


@pytest.mark.usefixtures("time_in_a_row")
async def test_the_disk_of_sqlite_and_of_the_log_is_full(on_sqlite: Supervised) -> None:
    async with under_load(on_sqlite, f"the disk of SQLite and of the log is full for {FULL_SECONDS:g} s") as tally:
        workers = on_sqlite.pids()
        with full(on_sqlite.log.parent.parent):
            await until_refused(tally)
            await asyncio.sleep(FULL_SECONDS)
            assert on_sqlite.pids() == workers, on_sqlite.output[-3000:]
        assert on_sqlite.is_running
    assert on_sqlite.pids() == workers


@pytest.fixture(scope="module")
def on_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Path]]:
    """A cluster whose PostgreSQL has a small disk, and that disk."""
    folder = tmp_path_factory.mktemp("postgres")
    folder.parent.chmod(0o755)
    folder.chmod(0o755)
    with small_disk(folder / "disk", 400) as disk:
        postgres = PostgresServer(disk / "postgres", options=(*DURABLE, *SMALL_WAL))

        with Cluster(
            folder, tokens_per_second=PACE, postgres=postgres, database_patience_seconds=PATIENCE_SECONDS
        ) as cluster:
            yield cluster, disk


@pytest.mark.usefixtures("time_in_a_row")
async def test_the_disk_of_postgres_is_full(on_postgres: tuple[Cluster, Path]) -> None:
    """PostgreSQL itself may end then, if it has no room for its log: whoever looks after it starts it again."""
    cluster, disk = on_postgres
    async with under_load(cluster.server, f"PostgreSQL's disk is full for {FULL_SECONDS:g} s") as tally:
        workers = cluster.server.pids()
        with full(disk):
            await until_refused(tally)
            await asyncio.sleep(FULL_SECONDS)
        if not cluster.postgres.is_running:
            tally.noted.append("PostgreSQL had ended, and was started again")
            cluster.postgres.kill()
            await asyncio.to_thread(cluster.postgres.start)
    assert cluster.server.pids() == workers


@pytest.fixture
def calling_on_postgres(tmp_path: Path) -> Iterator[tuple[House, PostgresServer, Path]]:
    """Two workers that call an MCP server, on a PostgreSQL with a small disk, and that disk."""
    for folder in (tmp_path, tmp_path.parent):
        folder.chmod(0o755)
    with small_disk(tmp_path / "disk", 400) as disk, in_a_thread(hearing(tmp_path / "own")) as hears:
        postgres = PostgresServer(disk / "postgres", options=(*DURABLE, *SMALL_WAL))
        postgres.start()
        url = postgres.url_of(postgres.create_database())
        manage("migrate", "--verbosity", "0", DATABASE_URL=url)
        limits = {"database_patience_seconds": PATIENCE_SECONDS, "background_max_running": CALLS}
        pair = Pair(tmp_path / "own", script=hears.script(CALLS), database_url=url, **SETTINGS, **limits)
        try:
            for worker in pair.workers:
                pair.start(worker)
            yield House(pair, hears), postgres, disk
        finally:
            for worker in pair.workers:
                worker.stop()
            postgres.close()


@pytest.mark.usefixtures("time_in_a_row")
async def test_calls_that_must_not_be_made_twice_wait_for_room(
    calling_on_postgres: tuple[House, PostgresServer, Path],
) -> None:
    house, postgres, disk = calling_on_postgres
    one, other = house.pair.workers
    ids: dict[int, str] = {}
    for _ in range(CALLS // AT_ONCE):
        ids |= await house.ready_to_call(one)
    with full(disk):
        for number in ids:
            house.hears.release(number)
        await asyncio.sleep(FULL_SECONDS)
        heard = house.hears.heard.total()
        assert max(house.hears.heard.values(), default=0) <= 1
    print(f"{heard} of {CALLS} calls were made while the disk was full")
    if not postgres.is_running:
        postgres.kill()
        await asyncio.to_thread(postgres.start)
    await house.made_once_at_most(other, ids)
