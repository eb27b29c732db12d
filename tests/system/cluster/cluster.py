"""A whole installation on loopback: nginx, a supervisor with its workers, Redis, PostgreSQL and engines over HTTP."""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psycopg

from tests.kit.postgres_server import DURABLE, PostgresServer
from tests.kit.redis_server import RedisServer, low_port
from tests.kit.served import Supervised
from tests.system.cluster.processes import EngineServer, Nginx

WORKERS, ENGINES = 3, 2
TOKENS_PER_SECOND = 50.0  # the pace of an answer
DATABASE = "respsite"
SETTINGS: dict[str, object] = {
    "AUTH": "off",  # all of it is on loopback
    "SECRET_KEY": "of a cluster on loopback, the same on all of its hosts; it guards nothing",
    "BEHIND_PROXY": "http",
    "WORKER_LEASE_SECONDS": 5,
    "MAX_WEBSOCKET_CONNECTIONS": 1000,
    "BACKGROUND_MAX_RUNNING": 200,
    "SHUTDOWN_GRACE_SECONDS": 30,
}


class Behind(Supervised):
    """The server as its clients see it: `port` is nginx's, `own_port` where it listens itself."""

    def __init__(self, folder: Path, port: int, **settings: object) -> None:
        workers = int(str(settings.pop("workers", WORKERS)))
        super().__init__(folder, workers=workers, **settings)
        self.own_port = self.port
        self.port = port

    def accepts_itself(self) -> bool:
        """Whether the workers' own port is listened on."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.own_port)) == 0


class Cluster:
    """Start and stop all of it; each of its parts can be killed and started again by itself.

    `server` is the first of `hosts` supervisors, each with its workers; nginx hands clients to all of them.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        engines: int = ENGINES,
        hosts: int = 1,
        tokens_per_second: float = TOKENS_PER_SECOND,
        postgres: PostgresServer | None = None,
        **settings: object,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.redis = RedisServer()
        self.postgres = postgres or PostgresServer(options=DURABLE)
        self.engines = [
            EngineServer(f"engine-{number}", folder, low_port(), tokens_per_second=tokens_per_second)
            for number in range(1, engines + 1)
        ]
        given = {
            "DATABASE_URL": self.postgres.url_of(DATABASE),
            "REDIS_URL": self.redis.url,
            "ENGINE": "vllm-server",
            "ENGINE_URL": ",".join(engine.url for engine in self.engines),
            "MODEL": "demo",
            **SETTINGS,
            **{name.upper(): value for name, value in settings.items()},
        }
        port = port or low_port()
        own = {name.lower(): value for name, value in given.items()}
        self.hosts = [Behind(folder / f"server{number or ''}", port, **own) for number in range(hosts)]
        self.server = self.hosts[0]
        self.nginx = Nginx(folder, port, upstreams=[f"127.0.0.1:{host.own_port}" for host in self.hosts])

    def __enter__(self) -> "Cluster":
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def start(self) -> "Cluster":
        """Start everything; return when the workers serve through nginx."""
        try:
            for engine in self.engines:
                engine.begin()  # both at once, beside what follows
            self.redis.start()
            self.postgres.start()
            with suppress(psycopg.errors.DuplicateDatabase):
                self.postgres.create_database(name=DATABASE)
            self.nginx.start()
            for host in self.hosts:
                host.start()
            for engine in self.engines:
                engine.start()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End everything, whatever has been killed already, the server first."""
        ends: list[Callable[[], object]] = [
            *(host.stop for host in self.hosts),
            self.nginx.stop,
            *(engine.stop for engine in self.engines),
            *(self.redis.close, self.postgres.close),
        ]
        problems = []
        for end in ends:
            try:
                end()
            except Exception as problem:  # noqa: BLE001 - the others have to end, too
                problems.append(problem)
        if problems:
            raise ExceptionGroup("not everything has ended as it should", problems)

    def sizes(self) -> dict[str, int]:
        """Return the bytes that each worker and each engine holds."""
        pids = {f"worker {pid}": pid for host in self.hosts for pid in host.pids()}
        pids |= {engine.name: engine.process.pid for engine in self.engines if engine.process is not None}
        page = os.sysconf("SC_PAGE_SIZE")
        return {name: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page for name, pid in pids.items()}
