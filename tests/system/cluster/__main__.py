"""`python -m tests.system.cluster`, what `make cluster` calls: a whole installation on loopback, until Ctrl-C.

PORT is nginx's; other settings of the environment hold for the server. Data and logs stay in `var/cluster`. An engine
that dies, since somebody tries what happens then, is started again after `AWAY_SECONDS`.
"""

import os
import shutil
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from responses_app.settings.conf import ConfigurationError, from_environ, table
from tests.kit.postgres_server import DURABLE, PostgresServer
from tests.kit.server import ROOT
from tests.system.cluster.cluster import WORKERS, Cluster
from tests.system.cluster.processes import NGINX, EngineServer

FOLDER = ROOT / "var" / "cluster"
PORT = 8000
AWAY_SECONDS = 10.0
ASK = '{"input": "Hello"}'


def main() -> int:
    """Start the cluster, say where it is, and end it with Ctrl-C or SIGTERM; return the exit status."""
    missing = [name for name, found in (("redis-server", shutil.which("redis-server")), ("nginx", NGINX)) if not found]
    if missing:
        print(f"make cluster needs {' and '.join(missing)}: make services installs what is missing.", file=sys.stderr)
        return 1
    try:
        from_environ(os.environ)
    except ConfigurationError as wrong:
        print(wrong, file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, _interrupt)
    given = {row.name: os.environ[row.name] for row in table() if os.environ.get(row.name)}
    port = int(given.pop("PORT", PORT))
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "server" / "server.log").unlink(missing_ok=True)
    directory = _place_of_postgres()
    try:
        with Cluster(FOLDER, port=port, postgres=PostgresServer(directory, options=DURABLE), **given) as cluster:
            print(said(cluster, directory), flush=True)
            look_after(cluster)
    except KeyboardInterrupt:
        return 0
    return 1


def said(cluster: Cluster, directory: Path | None) -> str:
    """Return what a person wants to know of a cluster."""
    rows = {
        "URL": f"{cluster.server.base_url} (nginx; WebSocket at the same path)",
        "Workers": f"{WORKERS}, of process {cluster.server.process.pid if cluster.server.process else '-'}",
        "Engines": ", ".join(f"{engine.url} (process {_pid(engine)})" for engine in cluster.engines),
        "Database": cluster.server.environ["DATABASE_URL"] + ("" if directory else " (gone at the end)"),
        "Redis": cluster.redis.url,
        "Logs": ", ".join(str(each.relative_to(ROOT)) for each in (cluster.server.log, cluster.nginx.log)),
        "Try": f"curl {cluster.server.base_url}/responses -H 'content-type: application/json' -d '{ASK}'",
    }
    return "\n".join(f"{name:<10}{text}" for name, text in rows.items())


def look_after(cluster: Cluster) -> None:
    """Start engines again that have died. Returns when the server itself has ended."""
    died: dict[str, float] = {}
    while cluster.server.is_running:
        time.sleep(0.2)
        for engine in cluster.engines:
            if engine.process is not None and engine.process.poll() is None:
                continue
            if engine.name not in died:
                died[engine.name] = time.monotonic()
                print(f"{engine.name} has died; it is started again in {AWAY_SECONDS:g} s", flush=True)
            elif time.monotonic() - died[engine.name] > AWAY_SECONDS:
                engine.start()
                del died[engine.name]
                print(f"{engine.name} is there again (process {_pid(engine)})", flush=True)
    print(f"the server has ended:\n{cluster.server.output[-2000:]}", file=sys.stderr)


def _pid(engine: EngineServer) -> int | None:
    return engine.process.pid if engine.process is not None else None


def _place_of_postgres() -> Path | None:
    """Return where PostgreSQL's data can stay: it refuses to run as root, and its own user may not come this far."""
    others_may = all(folder.stat().st_mode & 0o001 for folder in (FOLDER, *FOLDER.parents))
    return FOLDER / "postgres" if os.geteuid() != 0 or others_may else None


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    raise SystemExit(main())
