"""The rows about a vLLM server that dies, or hangs, while it generates: how long a stream is silent by that."""

import asyncio
from collections.abc import Callable, Iterator

from bench.paced import PacedSocket
from bench.report import Result
from bench.servers import Bench, BenchServer
from tests.kit.fake_vllm import MODEL
from tests.kit.vllm_process import VllmProcess
from tests.kit.waiting import eventually

STREAMS = 200
TEXT = " ".join(str(number) for number in range(60))
SCRIPT = {"say": f"<|channel|>final<|message|>{TEXT}<|return|>", "delay": 0.1}
TARGET = 3.0  # seconds
WAYS: dict[str, Callable[[VllmProcess], None]] = {
    "killed (-9)": VllmProcess.kill,
    "stopped (SIGSTOP)": VllmProcess.pause,
}


def replicas(bench: Bench) -> Iterator[Result]:
    """Two servers that speak vLLM's wire, each with half of the streams; one of them is lost."""
    for number, (way, lose) in enumerate(WAYS.items()):
        bench.report.step(way)
        with VllmProcess(SCRIPT) as lost, VllmProcess(SCRIPT) as left:
            urls = f"{lost.url},{left.url}"
            name = f"replicas-{number}"
            with bench.fresh_server(name=name, engine="vllm-server", engine_url=urls, model=MODEL) as server:
                sockets, ran_there = asyncio.run(_streams(server, lost, lose))
        whole = [socket for socket in sockets if socket.tokens == max(each.tokens for each in sockets) > 0]
        longest = max(gap for socket in sockets for gap in socket.gaps)
        yield Result(
            what=f"a replica of two is {way} at {STREAMS} streams: longest gap",
            measured=longest,
            unit="s",
            target=TARGET,
            holds=len(whole) == STREAMS,
            details={"ran there": float(ran_there), "not whole": float(STREAMS - len(whole))},
        )


async def _streams(
    server: BenchServer, lost: VllmProcess, lose: Callable[[VllmProcess], None]
) -> tuple[list[PacedSocket], int]:
    paced = [await PacedSocket.connect(server.port) for _ in range(STREAMS)]
    for socket in paced:
        socket.begin()
    await eventually(lambda: all(len(socket.gaps) > 5 for socket in paced), timeout=60)
    for socket in paced:
        socket.gaps.clear()  # of the begin, when all prompts come at once
    ran_there = lost.running()
    lose(lost)
    await asyncio.gather(*(socket.done for socket in paced), return_exceptions=True)
    for socket in paced:
        socket.close()
    return paced, ran_there
