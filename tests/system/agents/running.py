"""The task with one agent: two workers play the model, and half way the one that is at work is killed."""

import asyncio
import json
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.kit.balancer import Balancer
from tests.kit.scripts import journal
from tests.kit.server import Server
from tests.kit.waiting import eventually
from tests.kit.wiretap import Wiretap
from tests.system.agents.agent import Agent, Way
from tests.system.agents.every import MODEL
from tests.system.agents.figures import Figures, measured
from tests.system.agents.playing import half_way, waiting_script
from tests.system.agents.task import DONE, PROMPT, STEPS, make_repository, require_done

WORKERS = ("Worcester", "Worthing")  # names that nothing else says
HALF_SECONDS = 240.0  # bound of half of the task


@dataclass(frozen=True, kw_only=True)
class Done:
    """A task that was done."""

    figures: Figures
    seconds: float  # that the agent ran


async def run_task(agent: Agent, way: Way, folder: Path, *, redis_url: str) -> Done:
    """Let an agent do the task, and fail where it is not done."""
    work, gate = folder / "work", folder / "gate"
    async with AsyncExitStack() as stack:
        workers = [_worker(agent, name, work=work, gate=gate, redis_url=redis_url) for name in WORKERS]
        for worker in workers:
            stack.callback(worker.stop)
        await asyncio.gather(*(asyncio.to_thread(worker.start) for worker in workers))
        balancer = await stack.enter_async_context(Balancer(workers))
        tap = await stack.enter_async_context(Wiretap(balancer.port))
        client = agent.open(folder, f"http://127.0.0.1:{tap.port}", way)
        make_repository(work)
        began = time.monotonic()
        running = asyncio.create_task(client.ask(PROMPT))
        await eventually(lambda: running.done() or _at_work(tap) is not None, timeout=HALF_SECONDS)
        at_work = _at_work(tap)
        assert at_work is not None, await running
        workers[at_work].kill()
        gate.touch()
        turn = await running
        seconds = time.monotonic() - began
        assert (turn.exit_code, turn.last_message) == (0, DONE), turn
        require_done(work)
        workers[1 - at_work].stop()
        return Done(figures=measured(tap, workers, journal(workers[0]), len(STEPS)), seconds=seconds)


def _worker(agent: Agent, name: str, *, work: Path, gate: Path, redis_url: str) -> Server:
    """Return a worker, not yet started; they have all but their scripts in common."""
    folder = work.parent / "server"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(waiting_script(agent, work, gate=gate, worker=name)))
    worker = Server(folder, model_name=MODEL, engine="scripted", engine_script=path, journal=True, redis_url=redis_url)
    worker.log = folder / f"{name}.log"
    return worker


def _at_work(tap: Wiretap) -> int | None:
    """Return which worker has said that half is done; None while none has."""
    return next((place for place, name in enumerate(WORKERS) if tap.answered(half_way(name))), None)
