"""One run: servers and engines, harnesses, what happens to them meanwhile, and the comparison at the end."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psycopg
from psycopg import sql

from bench.report import Result
from bench.training.checking import SHOWN, Checked, EngineRecords, check
from bench.training.harness import Tally, Trace, roll, trace_of
from tests.kit.fake_vllm import MODEL
from tests.kit.postgres_server import DURABLE, PostgresServer
from tests.kit.redis_server import RedisServer, low_port
from tests.kit.served import Supervised
from tests.kit.server import ROOT, clean_environ

WORKERS, ENGINES = 3, 2
MIB = 1024 * 1024
READERS = 8  # trees that are read at once
TELL_SECONDS = 15.0


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is run."""

    rollouts: int
    turns: int
    at_once: int
    kills: int = 4  # of workers
    updates: int = 2  # of weights
    seconds: float = float("inf")  # after which no further roll-out begins


@dataclass(slots=True)
class Run:
    """What is there, and what has happened."""

    server: Supervised
    sizes: Sizes
    tally: Tally = field(default_factory=Tally)
    done: list[Trace] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    peaks: dict[str, int] = field(default_factory=dict)  # bytes of memory, by process


def train(folder: Path, sizes: Sizes, *, step: Callable[[str], None]) -> Iterator[Result]:
    """Run all roll-outs, and compare."""
    with ExitStack() as stack:
        files = [folder / f"engine-{number}.jsonl" for number in range(ENGINES)]
        folder.mkdir(parents=True, exist_ok=True)
        urls = [stack.enter_context(_engine(file)) for file in files]
        postgres = PostgresServer(options=(*DURABLE, "max_connections=200", "shared_buffers=256MB"))
        stack.callback(postgres.close)
        postgres.start()
        postgres.create_database(name="respsite")
        url = postgres.url_of("respsite")
        redis = stack.enter_context(RedisServer())
        server = Supervised(
            folder / "server",
            workers=WORKERS,
            database_url=url,
            redis_url=redis.url,
            engine="vllm-server",
            engine_url=",".join(urls),
            model=MODEL,
            model_name="agents",
            auth="off",
            engine_weights="on",
            secret_key="of a bench on loopback: it guards nothing",
            worker_lease_seconds=5,
            engine_options='{"max_connections": 1000}',
            idempotency_max_keys=10_000_000,
        )
        stack.enter_context(server)
        run = Run(server, sizes)
        cpu = _cpu_seconds(server)
        seconds = asyncio.run(_all(run, step))
        cpu = _cpu_seconds(server) - cpu
        engines = EngineRecords(files)
        checked, unread, reading = asyncio.run(_compare(run, engines, step))
        yield from _results(run, checked, seconds, unread, cpu)
        yield from _kept(url, run)
        yield asyncio.run(_export(run, checked))
        yield asyncio.run(_list(run))
        yield asyncio.run(_delete(run, url))
        for problem in checked.problems[:SHOWN]:
            step(problem)
        step(f"trees read in {reading:.0f} s; breaks: {dict(checked.breaks)}")


@contextmanager
def _engine(file: Path) -> Iterator[str]:
    port = low_port()
    command = [sys.executable, "-m", "bench.training.engine", str(port), str(file)]
    with file.with_suffix(".log").open("ab") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=clean_environ(), stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


async def _all(run: Run, step: Callable[[str], None]) -> float:
    """Run all roll-outs, with what happens meanwhile; return how many seconds that took."""
    sizes, began = run.sizes, time.monotonic()
    left = iter(range(sizes.rollouts))
    total = sum(trace_of(number, sizes.turns).generations for number in range(sizes.rollouts))

    async def work(http: aiohttp.ClientSession) -> None:
        for number in left:
            if time.monotonic() - began > sizes.seconds:
                return
            trace = trace_of(number, sizes.turns)
            try:
                await roll(http, trace, run.tally)
            except RuntimeError as gave_up:  # told at the end; the others go on
                run.tally.failed.append(str(gave_up))
            else:
                run.done.append(trace)

    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(_client(run.server))
        meanwhile = [
            asyncio.create_task(_watch(run, step, began, total)),
            asyncio.create_task(_disturb(run, http, total)),
        ]
        try:
            await asyncio.gather(*(work(http) for _ in range(sizes.at_once)))
        finally:
            for task in meanwhile:
                task.cancel()
            ended = await asyncio.gather(*meanwhile, return_exceptions=True)
        for problem in ended:
            if isinstance(problem, Exception):
                raise problem
    return time.monotonic() - began


def _client(server: Supervised) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=0)
    return aiohttp.ClientSession(server.url, connector=connector, timeout=aiohttp.ClientTimeout(total=600))


async def _disturb(run: Run, http: aiohttp.ClientSession, total: int) -> None:
    """Kill workers and change weights, spread over the run."""
    sizes, chance = run.sizes, random.Random(1)
    events: list[tuple[float, Callable[[], Awaitable[None]]]] = []

    async def kill() -> None:
        pid = chance.choice(run.server.pids())
        os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(run.server.wait_for, lambda: len(set(run.server.pids()) - {pid}) == WORKERS)
        run.events.append("a worker was killed")

    async def update() -> None:
        version = f"step-{sum('weights' in each for each in run.events) + 1}"
        body = {"action": "apply", "version": version, "info": {}, "mode": "keep"}
        async with http.post("/v1/engine/weights", json=body) as answer:
            assert answer.status == 200, await answer.text()
        run.events.append(f"weights {version}")

    events += [((number + 1) / (sizes.kills + 1), kill) for number in range(sizes.kills)]
    events += [((number + 0.8) / (sizes.updates + 1), update) for number in range(sizes.updates)]
    began = time.monotonic()
    for share, event in sorted(events, key=lambda each: each[0]):
        while max(run.tally.turns / total, (time.monotonic() - began) / sizes.seconds) < share:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        await event()


async def _watch(run: Run, step: Callable[[str], None], began: float, total: int) -> None:
    """Tell how far it is, and how much memory processes have."""
    while True:
        await asyncio.sleep(TELL_SECONDS)
        for number, pid in enumerate(run.server.pids()):
            run.peaks[f"worker {number} MiB"] = max(run.peaks.get(f"worker {number} MiB", 0), _memory(pid) // MIB)
        seconds, turns = time.monotonic() - began, run.tally.turns
        step(f"{seconds:.0f} s: {turns:,} of {total:,} turns, {turns / seconds:.0f} a second; {run.peaks}")


def _memory(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # it was killed
        return 0


def _cpu_seconds(server: Supervised) -> float:
    """Return the CPU time of the workers that live."""
    return sum(_ticks(pid) for pid in server.pids()) / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


async def _compare(run: Run, engines: EngineRecords, step: Callable[[str], None]) -> tuple[Checked, int, float]:
    checked, seen, began = Checked(), set[str](), time.monotonic()
    left = iter(run.done)

    async def read(http: aiohttp.ClientSession) -> None:
        for trace in left:
            async with http.get(f"/v1/rollouts/{trace.name}") as answer:
                assert answer.status == 200, await answer.text()
                tree = await answer.json()
            seen.update(each["response_id"] for each in tree["generations"])
            check(tree, trace, run.tally.answered[trace.name], engines, checked)
            if not checked.rollouts % 500:
                step(f"{checked.rollouts:,} compared")

    async with _client(run.server) as http:
        await asyncio.gather(*(read(http) for _ in range(READERS)))
    return checked, engines.unread(seen), time.monotonic() - began


def _results(run: Run, checked: Checked, seconds: float, unread: int, cpu: float) -> Iterator[Result]:
    tally = run.tally
    what = f"{checked.rollouts:,} roll-outs, {checked.generations:,} turns, {run.sizes.at_once} at a time"
    details: dict[str, float | str] = {
        "tokens compared": checked.tokens,
        "turns that went on elsewhere": checked.continued,
        "turns with two versions": checked.two_versions,
        "tokens of unknown weights": checked.unknown,
        "events": ", ".join(run.events),
        "retried": tally.retried,
        "turns that are recorded and were not answered": checked.unanswered,
        "tokens of lost turns": unread,
    }
    yield Result(what=f"{what}: token mismatches", measured=checked.mismatches, target=0, details=details)
    yield Result(what="roll-outs with more sequences than tokens need", measured=checked.broken, target=0)
    yield Result(what="roll-outs that the server's rendering broke", measured=checked.drifted, target=0)
    failed = [*tally.failed[:SHOWN], *(f"{count} x {problem}" for problem, count in tally.problems.items())]
    yield Result(
        what="responses that did not complete",
        measured=tally.responses.total() - tally.responses["completed"],
        target=0,
        details={str(place): problem for place, problem in enumerate(failed)},
    )
    details = {"seconds": seconds, "CPU ms a turn of the workers that live": cpu * 1e3 / max(1, tally.turns)}
    yield Result(what="turns a second", measured=tally.turns / seconds, details={**details, **run.peaks})


def _kept(url: str, run: Run) -> Iterator[Result]:
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT sum(bytes)::float / sum(generations), sum(prompt_tokens)::float / sum(generations),"
            " sum(sampled_tokens)::float / sum(generations) FROM responses_app_rollout"
        ).fetchone()
        sizes = connection.execute(
            "SELECT relname, pg_total_relation_size(oid) FROM pg_class WHERE relkind = 'r' AND relname LIKE"
            " 'responses_app_%' ORDER BY 2 DESC LIMIT 5"
        ).fetchall()
        failed = connection.execute(
            "SELECT status, count(*) FROM responses_app_response GROUP BY status ORDER BY status"
        ).fetchall()
    assert row is not None
    details: dict[str, float | str] = {"prompt tokens": row[1], "sampled tokens": row[2]}
    details |= {f"{name} MiB": size / MIB for name, size in sizes}
    details |= {f"responses {status}": count for status, count in failed}
    yield Result(what="bytes kept a turn", measured=row[0], unit="B", details=details)


async def _export(run: Run, checked: Checked) -> Result:
    """Export everything in one format."""
    began, cpu, size = time.monotonic(), _cpu_seconds(run.server), 0
    async with _client(run.server) as http, http.get("/v1/rollouts/export", params={"format": "trl"}) as answer:
        assert answer.status == 200, await answer.text()
        async for part in answer.content.iter_chunked(MIB):
            size += len(part)
    cpu = _cpu_seconds(run.server) - cpu
    tokens = checked.tokens
    with psycopg.connect(run.server.environ["DATABASE_URL"]) as connection:
        row = connection.execute("SELECT sum(prompt_tokens + sampled_tokens) FROM responses_app_rollout").fetchone()
        assert row is not None
        tokens = int(row[0])
    return Result(
        what="µs of CPU a token of an export (trl), each token of a roll-out once",
        measured=cpu / tokens * 1e6,
        unit="µs",
        target=5.0,
        details={"tokens/s a core": tokens / cpu, "seconds": time.monotonic() - began, "MiB": size / MIB},
    )


async def _list(run: Run) -> Result:
    """Read all pages of the list."""
    slowest, pages, after = 0.0, 0, None
    async with _client(run.server) as http:
        while True:
            began = time.monotonic()
            params = {"limit": "100", **({"after": after} if after else {})}
            async with http.get("/v1/rollouts", params=params) as answer:
                page = await answer.json()
            slowest, pages, after = max(slowest, time.monotonic() - began), pages + 1, page["last_id"]
            if not page["has_more"]:
                break
    return Result(
        what="the slowest page of the list",
        measured=slowest * 1e3,
        unit="ms",
        details={"pages": pages},
    )


async def _delete(run: Run, url: str) -> Result:
    """Let time pass for all roll-outs, and see how long others wait to write while they are purged."""
    waits: list[float] = []
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE responses_app_rollout SET last_at = last_at - interval '60 days'")
        began = time.monotonic()
        async with _client(run.server) as http:
            for number in range(100_000):
                asked = time.monotonic()
                async with http.post("/v1/rollouts", json={"id": f"beside-{number}"}) as answer:
                    assert answer.status == 200, await answer.text()
                waits.append(time.monotonic() - asked)
                query = sql.SQL("SELECT count(*) FROM responses_app_rollout WHERE last_at < now() - interval '30 days'")
                row = connection.execute(query).fetchone()
                if row is None or not row[0]:
                    break
                await asyncio.sleep(0.02)
    waits.sort()
    return Result(
        what=f"the slowest write while {len(run.done):,} roll-outs are purged",
        measured=waits[-1] * 1e3,
        unit="ms",
        details={"median ms": waits[len(waits) // 2] * 1e3, "seconds": time.monotonic() - began},
    )
