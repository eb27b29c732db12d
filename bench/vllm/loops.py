"""Rows about rollouts: what the prefix cache keeps of a chain, and how much of the time the front end takes."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from bench.report import Result
from bench.vllm.cores import load_in_its_place
from bench.vllm.rollouts import CALLS, FULL_INPUT, PREVIOUS, WEBSOCKET, Rollout, Way, roll, script
from bench.vllm.servers import Bench, Contender

ROUNDS = 3
WARM_UP_CALLS = 2
FASTER = 1.6  # how many times faster than the full input over HTTP the WebSocket is to be
Measured = Mapping[tuple[str, Way], list[Rollout]]


def rollouts(bench: Bench) -> Iterator[Result]:
    """Run the loop over every transport of every server, in turn."""
    own, by_server, in_process = bench.compared("own", "by_server", "in_process_with_metrics")
    pairs = [(in_process, way) for way in (WEBSOCKET, PREVIOUS, FULL_INPUT)]
    pairs += [(by_server, way) for way in (WEBSOCKET, FULL_INPUT)]
    pairs += [(own, way) for way in (PREVIOUS, FULL_INPUT)]
    bench.speak(script())
    done = _measured(bench, pairs, ROUNDS)
    (default,) = bench.compared("own_as_shipped")
    done = {**done, **_measured(bench, [(default, PREVIOUS)], 1)}
    yield from (_cache(done, each, (own, default)) for each in (in_process, by_server))
    yield from (_speed(done, each) for each in (in_process, by_server))
    yield from _times(done)


def _measured(bench: Bench, pairs: Iterable[tuple[Contender, Way]], rounds: int) -> Measured:
    done: dict[tuple[str, Way], list[Rollout]] = {(contender.name, way): [] for contender, way in pairs}

    async def run() -> None:
        for turn in range(rounds + 1):
            for contender, way in pairs:
                what = f"round {turn} of {rounds}" if turn else "warm-up"
                bench.report.step(f"{CALLS} calls, {what}: {contender.name}, {way.name}")
                rollout = await roll(contender, way, CALLS if turn else WARM_UP_CALLS)
                done[contender.name, way] += [rollout] if turn else []

    with load_in_its_place():
        asyncio.run(run())
    return done


def _cache(done: Measured, ours: Contender, theirs: Iterable[Contender]) -> Result:
    """Count what had to be computed again, with the tokens as they were sampled and rendered again."""
    exact = done[ours.name, WEBSOCKET] + done.get((ours.name, PREVIOUS), [])
    last = exact[-1].answers[-1]
    return Result(
        what=f"tokens of full blocks computed again, {CALLS} calls, {ours.name}",
        measured=max(rollout.lost_tokens for rollout in exact),
        unit="tokens",
        target=0,
        details={
            **{each.name: _lost(done[each.name, PREVIOUS]) for each in theirs},
            "of sampled tokens": sum(answer.output_tokens for answer in exact[-1].answers),
            "earlier tokens cached %": _percent(exact),
            **{f"{each.name} %": _percent(done[each.name, PREVIOUS]) for each in theirs},
            "tokens at the end": last.input_tokens + last.output_tokens,
            "N": len(exact),
        },
    )


def _lost(rollouts: Iterable[Rollout]) -> float:
    return median(rollout.lost_tokens for rollout in rollouts)


def _percent(rollouts: Iterable[Rollout]) -> float:
    return 100 * median(rollout.cached_share for rollout in rollouts)


def _front_end(rollouts: Sequence[Rollout]) -> float:
    """Return the seconds of all turns, each the median of its rounds: the machine does other things beside it."""
    return sum(median(rounds) for rounds in zip(*(rollout.front_end for rollout in rollouts), strict=True))


def _speed(done: Measured, ours: Contender) -> Result:
    socket, full = done[ours.name, WEBSOCKET], done[ours.name, FULL_INPUT]
    ratio = _front_end(socket) / _front_end(full)
    return Result(
        what=f"front end's time of {CALLS} calls, {ours.name}, WebSocket / full input over HTTP",
        measured=ratio,
        target=1 / FASTER,
        details={
            "times faster": 1 / ratio,
            "ms a turn": 1000 * _front_end(socket) / (CALLS + 1),
            "with the full input": 1000 * _front_end(full) / (CALLS + 1),
            "CPU ratio": median(mine.cpu / other.cpu for mine, other in zip(socket, full, strict=True)),
            "N": len(socket),
        },
    )


def _times(done: Measured) -> Iterator[Result]:
    for (name, way), rollouts in done.items():
        yield Result(
            what=f"  {name}, {way.name} (information)",
            measured=_front_end(rollouts),
            unit="s",
            details={
                "CPU s": median(rollout.cpu for rollout in rollouts),
                "engine s": median(sum(rollout.engine) for rollout in rollouts),
                "wall s": median(rollout.wall for rollout in rollouts),
                "tokens computed again": _lost(rollouts),
                "N": len(rollouts),
            },
        )
