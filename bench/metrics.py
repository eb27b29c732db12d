"""The row about metrics: what they cost a token, beside what an event costs."""

import asyncio
import time
from collections.abc import Callable, Iterator
from statistics import median

from bench.events import CONNECTIONS, bursts
from bench.report import Result, ratio
from bench.servers import Bench
from responses_app.observing.metrics import Metrics, Outcome

NOTES = 50_000
ROUNDS = 9
TOKENS = 500  # of the response that the servers say
OUTCOME = Outcome(
    transport="websocket",
    status="completed",
    error=None,
    input_tokens=70,
    cached_tokens=0,
    output_tokens=50,
    reasoning_tokens=0,
    first_token=0.1,
    duration=1.0,
    calls=(),
    repairs=0,
    unknown_tools=0,
    misfits=0,
    journal_bytes=100_000,
)


def metrics(bench: Bench) -> Iterator[Result]:
    """What is measured of an event, alone; and two whole servers side by side, one with METRICS=off.

    The difference of the servers is mostly what else the machine does: two of the same kind differ as much.
    """
    on, off = asyncio.run(_servers(bench))
    token, response = _token_us(), _response_us()
    yield Result(
        what="CPU of measuring an event, and its share of its response / CPU of a WebSocket event",
        measured=(token + response / TOKENS) / median(off),
        target=0.03,
        details={"a token µs": token, f"a response of {TOKENS} tokens µs": response},
    )
    yield Result(
        what=f"CPU per WebSocket event, {CONNECTIONS} connections bursting, with metrics / METRICS=off",
        measured=ratio(on, off),
        details={"with µs": median(on), "without µs": median(off)},
    )


def _token_us() -> float:
    meter = Metrics().model("m").turn()
    assert meter is not None
    return _cost_us(lambda: meter.note(1))


def _response_us() -> float:
    meter = Metrics().model("m")
    return _cost_us(lambda: meter.ended(OUTCOME))


def _cost_us(do: Callable[[], None]) -> float:
    costs = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(NOTES):
            do()
        costs.append((time.process_time() - began) / NOTES * 1e6)
    return median(costs)


async def _servers(bench: Bench) -> tuple[list[float], list[float]]:
    settings = {"on": {}, "off": {"metrics": "off"}}
    servers = [bench.fresh_server(name=f"metrics-{name}", **each) for name, each in settings.items()]
    with servers[0], servers[1]:
        on, off = await bursts(bench, servers, rounds=ROUNDS)
    return on.cpu, off.cpu
