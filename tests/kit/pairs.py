"""Two workers on one database, and readers of what they run, whichever of them has it."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from responses_app.protocol.errors import ENDS_WORKERS
from tests.kit.background import get
from tests.kit.clients import Frame, http_client, text_of
from tests.kit.laws import assert_laws
from tests.kit.raw_streams import CUT, RawStream
from tests.kit.scripts import BEGIN
from tests.kit.server import Server
from tests.kit.stored import stored

LEASE = 2.0  # WORKER_LEASE_SECONDS
SHORT_LEASE = 1.0  # where it does no harm if a worker that was only slow is taken over, too
LONG_LEASE = 60.0  # where nobody is to take over before something is seen
HELD = 150  # tokens of `[held]`, of more than twice as many, behind which it waits for `Pair.let_go_on`
NUMBERS = " ".join(str(number) for number in range(150))
LONG = f"<|channel|>analysis<|message|>Let me count: ümläute 🙂.<|end|><|start|>assistant{BEGIN}{NUMBERS}<|return|>"
TERMINAL = ("response.completed", "response.incomplete", "response.failed")
REDIS = ("with Redis", "without Redis", "Redis is away")


class Pair:
    """Two workers on one database; `alive` are those that can be asked.

    They say the same to `[long]` and to `[held]`, which waits in its middle.
    """

    def __init__(
        self, folder: Path, *, delay: float = 0.01, script: Sequence[Mapping[str, object]] = (), **settings: object
    ) -> None:
        self._gate = folder / "gate-held"
        long = {"say": LONG, "delay": delay}
        held = {"hang_after": HELD, "wait_for_file": str(self._gate)}
        script = script or [
            *({"when": "[long]", **long}, {"when": "[held]", **long, **held}, {"say": f"{BEGIN}Hello.<|return|>"})
        ]
        limits = {"worker_lease_seconds": LEASE, "background_max_running": 20}
        self.workers = [Server(folder, script=script, **{**limits, **settings}) for _ in range(2)]  # type: ignore[arg-type]
        for name, worker in zip("ab", self.workers, strict=True):
            worker.log = folder / f"{name}.log"
        self.alive: list[Server] = []

    def let_go_on(self) -> None:
        """Let what waits in the middle of `[held]` go on."""
        self._gate.touch()

    def start(self, worker: Server) -> None:
        worker.start()
        self.alive.append(worker)

    def kill(self, worker: Server) -> None:
        self.alive.remove(worker)
        worker.kill()

    def other(self, worker: Server) -> Server:
        return self.workers[1 - self.workers.index(worker)]


@asynccontextmanager
async def two_workers(folder: Path, *, delay: float = 0.01, **settings: object) -> AsyncIterator[Pair]:
    """Run two workers; nothing breaks in either."""
    pair = Pair(folder, delay=delay, **settings)
    try:
        await asyncio.gather(*(asyncio.to_thread(pair.start, worker) for worker in pair.workers))
        yield pair
        await asyncio.gather(*(asyncio.to_thread(worker.stop) for worker in pair.alive))
        for worker in pair.workers:
            for noise in ("Traceback", "was never", "Task was destroyed", "locked"):
                assert noise not in worker.output, worker.output[-4000:]
    finally:
        for worker in pair.workers:
            if worker.process is not None and worker.is_running:
                worker.kill()


class Reader:
    """Reads a response to its end, wherever it is to be had; `events` is what it has seen."""

    def __init__(self, pair: Pair, response_id: str, *, chance: random.Random) -> None:
        self.pair = pair
        self.response_id = response_id
        self.events: list[Frame] = []
        self._chance = chance

    async def read(self) -> None:
        """Come back as often as it is cut, to any worker that lives."""
        while not self._has_ended():
            if not self.pair.alive:
                await asyncio.sleep(0.05)
                continue
            worker = self._chance.choice(self.pair.alive)
            last = self.events[-1]["sequence_number"] if self.events else None
            with suppress(*CUT):
                stream = await RawStream.resume(worker, self.response_id, last)
                try:
                    while (event := await stream.next()) is not None:
                        self.events.append(event)
                finally:
                    stream.kill()
            await asyncio.sleep(0.02)

    def _has_ended(self) -> bool:
        return bool(self.events) and self.events[-1]["type"] in TERMINAL


async def hold_to_the_laws(pair: Pair, readers: list[Reader], *, condemned: int = 0) -> None:
    """Check that each has seen one whole stream, which every worker gives again, and nothing is counted twice.

    So many may have failed as `limits.suspects` has it: each was the one on trial at a worker that was killed.
    """
    failed = 0
    for reader in readers:
        assert_laws(reader.events)
        response = reader.events[-1]["response"]
        if response["status"] == "failed" and response["error"] == ENDS_WORKERS and failed < condemned:
            failed += 1
        else:
            assert (response["status"], text_of(response)) == ("completed", NUMBERS)
        for worker in pair.alive:
            again = await (await RawStream.resume(worker, reader.response_id)).rest()
            assert again == reader.events
            async with http_client(worker) as http:
                assert await get(http, reader.response_id) == response


async def seen(server: Server, response_id: str, count: int = 20) -> list[Frame]:
    """Read the first events of a response, and leave."""
    stream = await RawStream.resume(server, response_id)
    try:
        return await stream.take(count)
    finally:
        stream.kill()


def epoch_of(server: Server, response_id: str) -> int:
    """Return how often a response was claimed."""
    rows = {row[0]: row[1] for row in stored(server, "SELECT id, epoch FROM responses_app_response")}
    return int(rows[response_id])
