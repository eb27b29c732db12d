"""PostgreSQL and Redis are switched over to their copies under load, behind haproxy, and PgBouncer is started again.

Only this finds an acknowledged response, or a count of a limit, that gets lost between two servers of which each is
right. PostgreSQL copies synchronously: what it has acknowledged its copy has, too.
"""

import asyncio
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psycopg
import redis

from tests.kit.capabilities import program
from tests.kit.pgbouncer import PgBouncer
from tests.kit.postgres_server import DURABLE, PostgresServer
from tests.kit.redis_server import RedisServer, low_port
from tests.kit.served import Supervised
from tests.kit.server import Server, manage
from tests.kit.waiting import looks
from tests.system.cluster.cluster import DATABASE, Cluster
from tests.system.cluster.load import under_load
from tests.system.cluster.processes import Program

CLIENTS = 32
TIMES = 3
BETWEEN_SECONDS = 32.0  # from one fault to the next: five minutes in all
DEMOTED_SECONDS = 6.0  # in which the old one still answers, and takes no writes
ALONE_SECONDS = DEMOTED_SECONDS + 15.0  # until each worker has found the Redis that takes writes
A_MINUTE = 120  # requests of the key that has a limit
KEY_WORKERS = 2
CONFIGURATION = """
global
    stats socket {folder}/haproxy.sock level admin
defaults
    mode tcp
    timeout connect 5s
    timeout client 1h
    timeout server 1h
"""


class Haproxy(Program):
    """haproxy before servers of which one at a time is in use: `ports` has where it listens, by name."""

    def __init__(self, folder: Path, **servers: Sequence[int]) -> None:
        super().__init__("haproxy-tcp", folder, low_port())
        self.ports = {name: low_port() for name in servers}
        self._servers = servers
        self._socket = folder / "haproxy.sock"
        lines = [CONFIGURATION.format(folder=folder)]
        for name, ports in servers.items():
            lines += [f"listen {name}", f"    bind 127.0.0.1:{self.ports[name]}"]
            lines += [f"    server s{port} 127.0.0.1:{port} disabled" for port in ports]
        self._file = folder / "haproxy-tcp.cfg"
        self._file.write_text("\n".join(lines) + "\n")

    def command(self) -> list[str]:
        """Return what starts it."""
        return [str(program("haproxy")), "-db", "-f", str(self._file)]

    def _answers(self) -> bool:
        return self._socket.exists()

    def lead(self, name: str, port: int, *, cut: int | None = None) -> None:
        """Lead new connections to a server alone; those to the one of port `cut` are closed, others stay."""
        for each in self._servers[name]:
            self._tell(f"{'enable' if each == port else 'disable'} server {name}/s{each}")
        if cut is not None:
            self._tell(f"shutdown sessions server {name}/s{cut}")

    def _tell(self, command: str) -> None:
        with socket.socket(socket.AF_UNIX) as console:
            console.connect(str(self._socket))
            console.sendall(f"{command}\n".encode())
            assert console.recv(4096).strip() == b"", command


def told(port: int, *statements: str) -> object:
    """Have a PostgreSQL carry out statements, each by itself; return the first value that the last one gives."""
    with psycopg.connect(f"postgres://postgres@127.0.0.1:{port}/postgres", autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement)
        row = cursor.fetchone() if cursor.description else None
    return row and row[0]


class Databases:
    """PostgreSQL servers, of which one leads, and the next is its synchronous copy."""

    def __init__(self) -> None:
        self.all = [PostgresServer(options=DURABLE) for _ in range(TIMES + 1)]
        self.leader = 0

    def copy(self) -> None:
        """Make the next server the copy of the one that leads, which acknowledges nothing without it from now on."""
        leader, copy = self.all[self.leader], self.all[self.leader + 1]
        copy.copy_of(leader)
        copy.start()
        told(leader.port, "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
        for _ in looks(60):
            if told(leader.port, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == 1:
                return
        raise AssertionError("the copy does not follow")

    def promote(self) -> None:
        """Let the copy lead. It waits for no other."""
        self.leader += 1
        leader = self.all[self.leader]
        leader.promote()
        told(leader.port, "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")


class Failovers:
    """A cluster whose PostgreSQL is behind PgBouncer and haproxy, and whose Redis is behind haproxy."""

    def __init__(self, folder: Path) -> None:
        self.databases = Databases()
        self.caches = [RedisServer(), RedisServer()]
        self.haproxy = Haproxy(
            folder, postgres=[each.port for each in self.databases.all], redis=[each.port for each in self.caches]
        )
        self.bouncer = PgBouncer(self.haproxy.ports["postgres"], sessions=40)
        self._cached = 0

    @contextmanager
    def running(self) -> Iterator[dict[str, object]]:
        """Run all of it; give the settings of servers that use it."""
        with ExitStack() as stack:
            for database in self.databases.all:
                stack.callback(database.close)
            for cache in self.caches:
                stack.enter_context(cache)
            first = self.databases.all[0]
            first.start()
            first.create_database(name=DATABASE)
            self.haproxy.start()
            stack.callback(self.haproxy.stop)
            self.haproxy.lead("postgres", first.port)
            self.haproxy.lead("redis", self.caches[0].port)
            self.databases.copy()
            self._follow(1, 0)
            stack.enter_context(self.bouncer)
            yield {
                "database_url": self.bouncer.url_of(DATABASE),
                "redis_url": f"redis://127.0.0.1:{self.haproxy.ports['redis']}/0",
            }

    def kill_the_leader(self) -> None:
        """It is gone without a word; the copy leads some seconds later."""
        self.databases.all[self.databases.leader].kill()
        self._lead_with_the_copy()

    def switch_the_leader_over(self) -> None:
        """It lets only read, as where it is being demoted; then its copy leads, and connections to it are cut."""
        old = self.databases.all[self.databases.leader]
        told(old.port, "ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
        self._lead_with_the_copy()

    def _lead_with_the_copy(self) -> None:
        old = self.databases.all[self.databases.leader]
        time.sleep(DEMOTED_SECONDS)
        self.databases.promote()
        leader = self.databases.all[self.databases.leader]
        told(leader.port, "ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()")
        self.haproxy.lead("postgres", leader.port, cut=old.port)
        old.stop()
        if self.databases.leader < TIMES:
            self.databases.copy()

    def demote_redis(self) -> None:
        """It becomes the copy of its copy, and answers without taking writes; new connections go there later."""
        old, new = self._cached, 1 - self._cached
        with redis.Redis.from_url(self.caches[new].url) as client:
            client.replicaof("NO", "ONE")
        self._follow(old, new)
        time.sleep(DEMOTED_SECONDS)
        self.haproxy.lead("redis", self.caches[new].port)
        self._cached = new

    def restart_the_pooler(self) -> None:
        """It is killed, and away for a moment."""
        self.bouncer.__exit__()
        time.sleep(2.0)
        self.bouncer.__enter__()

    def _follow(self, copy: int, leader: int) -> None:
        with redis.Redis.from_url(self.caches[copy].url) as client:
            client.replicaof("127.0.0.1", str(self.caches[leader].port))
            for _ in looks(60):
                if client.info("replication")["master_link_status"] == "up":
                    return
        raise AssertionError("the copy does not follow")


@dataclass
class Limited:
    """Clients with a key that has a limit, who ask as fast as they are answered; `passed` has when each was let in."""

    server: Server
    key: str
    passed: list[float] = field(default_factory=list)
    refused: int = 0

    async def ask(self) -> None:
        """Ask until this is cancelled."""
        headers = {"Authorization": f"Bearer {self.key}"}
        async with httpx.AsyncClient(base_url=self.server.base_url, headers=headers, timeout=60) as http:
            while True:
                began = time.monotonic()
                with suppress(httpx.TransportError):
                    answer = await http.post("/responses", json={"input": "Hello", "store": False})
                    assert answer.status_code in (200, 429, 503), answer.text
                    if answer.status_code == 200:
                        self.passed.append(began)
                    self.refused += answer.status_code == 429
                await asyncio.sleep(0.1)


def folder_in(folder: Path, name: str) -> Path:
    """Make a folder."""
    (folder / name).mkdir()
    return folder / name


async def test_everything_fails_over(tmp_path: Path) -> None:
    failovers = Failovers(tmp_path)
    faults = [
        (failovers.kill_the_leader, "PostgreSQL was killed, its copy promoted"),
        (failovers.demote_redis, "Redis was demoted"),
        (failovers.switch_the_leader_over, "PostgreSQL let only read, its copy was promoted"),
        (failovers.demote_redis, "Redis was demoted"),
        (failovers.restart_the_pooler, "PgBouncer was killed and started"),
        (failovers.kill_the_leader, "PostgreSQL was killed, its copy promoted"),
        (failovers.demote_redis, "Redis was demoted"),
    ]
    with failovers.running() as settings, ExitStack() as stack:
        cluster = stack.enter_context(Cluster(tmp_path / "cluster", **settings))
        key = manage("create_key", "--requests-per-minute", str(A_MINUTE), DATABASE_URL=str(settings["database_url"]))
        keyed = Supervised(folder_in(tmp_path, "keyed"), workers=KEY_WORKERS, auth="on", **settings)
        limited = Limited(stack.enter_context(keyed), key.strip())
        asking = [asyncio.create_task(limited.ask()) for _ in range(4)]
        began = time.monotonic()
        async with under_load(cluster.server, "failovers of PostgreSQL, Redis and PgBouncer", clients=CLIENTS) as tally:
            for fault, name in faults:
                at = time.monotonic() - began
                await asyncio.to_thread(fault)
                print(f"{at:5.0f} s  {name}, over after {time.monotonic() - began - at:.0f} s", flush=True)
                await asyncio.sleep(BETWEEN_SECONDS)
            seconds = time.monotonic() - began
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            shared = A_MINUTE * (1 + seconds / 60)
            # A worker that cannot ask Redis counts by itself, from a full bucket: each does so each time.
            alone = TIMES * KEY_WORKERS * A_MINUTE * (1 + ALONE_SECONDS / 60)
            tally.noted += [
                f"{len(tally.acknowledged)} were acknowledged",
                f"of the key with {A_MINUTE} requests a minute {len(limited.passed)} were let in in {seconds:.0f} s "
                f"and {limited.refused} refused; {shared:.0f} without a failover, {shared + alone:.0f} at most",
            ]
            assert len(limited.passed) <= shared + alone
