"""PostgreSQL and Redis fail over to their replicas under load, behind haproxy, and PgBouncer is restarted.

Only this finds an acknowledged response, or a count of a limit, that gets lost between two servers. PostgreSQL
replicates synchronously, so the replica has every transaction that was acknowledged.
"""

import asyncio
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
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
FAILOVERS = 3  # of PostgreSQL, and as many of Redis
BETWEEN_SECONDS = 32.0  # from the end of one fault to the next: five minutes in all
DEMOTED_SECONDS = 6.0  # in which the old leader answers without taking writes, or is away
ALONE_SECONDS = DEMOTED_SECONDS + 15.0  # until each worker has found the Redis that takes writes
REQUESTS_PER_MINUTE = 120  # the limit of the key
KEY_WORKERS = 2  # that serve the key
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
    """haproxy before groups of servers, each with one server in use; `ports` has its own port for each group."""

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
        return [str(program("haproxy")), "-db", "-f", str(self._file)]

    def _answers(self) -> bool:
        return self._socket.exists()

    def route(self, name: str, port: int, *, cut: int | None = None) -> None:
        """Send new connections to the server of this port alone. Those to port `cut` are closed, others stay."""
        for each in self._servers[name]:
            self._tell(f"{'enable' if each == port else 'disable'} server {name}/s{each}")
        if cut is not None:
            self._tell(f"shutdown sessions server {name}/s{cut}")

    def _tell(self, command: str) -> None:
        with socket.socket(socket.AF_UNIX) as console:
            console.connect(str(self._socket))
            console.sendall(f"{command}\n".encode())
            assert console.recv(4096).strip() == b"", command


class Databases:
    """PostgreSQL servers, of which one is the primary, and the next its synchronous replica."""

    def __init__(self) -> None:
        self.all = [PostgresServer(options=DURABLE) for _ in range(FAILOVERS + 1)]
        self.leader = 0

    def copy(self) -> None:
        """Make the next server the replica of the leader, which commits nothing without it from now on."""
        leader, copy = self.all[self.leader], self.all[self.leader + 1]
        copy.copy_of(leader)
        copy.start()
        leader.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        leader.execute("SELECT pg_reload_conf()")
        for _ in looks(60):
            if leader.execute("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == 1:
                return
        raise AssertionError("the replica does not follow")

    def promote(self) -> None:
        """Promote the replica. It commits without another one: it was copied before its leader waited for it."""
        self.leader += 1
        self.all[self.leader].promote()


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
        """Run all of it; yield the settings of servers that use it."""
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
            self.haproxy.route("postgres", first.port)
            self.haproxy.route("redis", self.caches[0].port)
            self.databases.copy()
            self._follow(1, 0)
            stack.enter_context(self.bouncer)
            yield {
                "database_url": self.bouncer.url_of(DATABASE),
                "redis_url": f"redis://127.0.0.1:{self.haproxy.ports['redis']}/0",
            }

    def kill_the_leader(self) -> None:
        """Kill PostgreSQL's primary; the replica is promoted some seconds later."""
        old = self.databases.all[self.databases.leader]
        old.kill()
        self._fail_over(old)
        self._replicate()

    def switch_the_leader_over(self) -> None:
        """Make the primary read-only, as in a demotion; then promote the replica and cut the old connections."""
        old = self.databases.all[self.databases.leader]
        with old.only_reading():
            self._fail_over(old)
        old.stop()
        self._replicate()

    def _fail_over(self, old: PostgresServer) -> None:
        time.sleep(DEMOTED_SECONDS)
        self.databases.promote()
        self.haproxy.route("postgres", self.databases.all[self.databases.leader].port, cut=old.port)

    def _replicate(self) -> None:
        if self.databases.leader < FAILOVERS:
            self.databases.copy()

    def demote_redis(self) -> None:
        """Make the leading Redis the replica of its replica; new connections go to it still for some seconds."""
        old, new = self._cached, 1 - self._cached
        with redis.Redis.from_url(self.caches[new].url) as client:
            client.replicaof("NO", "ONE")
        self._follow(old, new)
        time.sleep(DEMOTED_SECONDS)
        self.haproxy.route("redis", self.caches[new].port)
        self._cached = new

    def restart_the_pooler(self) -> None:
        """Kill PgBouncer, and start it two seconds later."""
        self.bouncer.__exit__()
        time.sleep(2.0)
        self.bouncer.__enter__()

    def _follow(self, copy: int, leader: int) -> None:
        with redis.Redis.from_url(self.caches[copy].url) as client:
            client.replicaof("127.0.0.1", str(self.caches[leader].port))
            for _ in looks(60):
                if client.info("replication")["master_link_status"] == "up":
                    return
        raise AssertionError("the replica does not follow")


@dataclass
class Limited:
    """Clients of a key with a limit, which send a request as soon as one is answered."""

    server: Server
    key: str
    passed: int = 0
    refused: int = 0

    async def ask(self) -> None:
        """Send requests until this is cancelled."""
        headers = {"Authorization": f"Bearer {self.key}"}
        async with httpx.AsyncClient(base_url=self.server.base_url, headers=headers, timeout=60) as http:
            while True:
                with suppress(httpx.TransportError):
                    answer = await http.post("/responses", json={"input": "Hello", "store": False})
                    assert answer.status_code in (200, 429, 503), answer.text
                    self.passed += answer.status_code == 200
                    self.refused += answer.status_code == 429
                await asyncio.sleep(0.1)


async def test_everything_fails_over(tmp_path: Path) -> None:
    failovers = Failovers(tmp_path)
    faults = [
        (failovers.kill_the_leader, "PostgreSQL was killed, its copy promoted"),
        (failovers.demote_redis, "Redis was demoted"),
        (failovers.switch_the_leader_over, "PostgreSQL only let read, its copy was promoted"),
        (failovers.demote_redis, "Redis was demoted"),
        (failovers.restart_the_pooler, "PgBouncer was killed and started"),
        (failovers.kill_the_leader, "PostgreSQL was killed, its copy promoted"),
        (failovers.demote_redis, "Redis was demoted"),
    ]
    with failovers.running() as settings, ExitStack() as stack:
        cluster = stack.enter_context(Cluster(tmp_path / "cluster", **settings))
        limit = ("--requests-per-minute", str(REQUESTS_PER_MINUTE))
        key = manage("create_key", *limit, DATABASE_URL=str(settings["database_url"]))
        folder = tmp_path / "keyed"
        folder.mkdir()
        keyed = Supervised(folder, workers=KEY_WORKERS, auth="on", **settings)
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
            ends = await asyncio.gather(*asking, return_exceptions=True)
            assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends
            shared = REQUESTS_PER_MINUTE * (1 + seconds / 60)
            # A worker that cannot ask Redis counts by itself, from a full bucket: each worker in each failover.
            alone = FAILOVERS * KEY_WORKERS * REQUESTS_PER_MINUTE * (1 + ALONE_SECONDS / 60)
            tally.noted += [
                f"{len(tally.acknowledged)} were acknowledged",
                f"of the key with {REQUESTS_PER_MINUTE} requests a minute, in {seconds:.0f} s {limited.passed} passed "
                f"and {limited.refused} were refused; {shared:.0f} without a failover, {shared + alone:.0f} at most",
            ]
            assert limited.refused
            assert limited.passed <= shared + alone
