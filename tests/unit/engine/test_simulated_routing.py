"""The simulator of `bench/routing`: its cache block by block, its traces, and the real pool beside it."""

import asyncio
import random
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

import pytest

from bench.routing import traces
from bench.routing.cache import PrefixCache
from bench.routing.policies import Ours, Policy, RoundRobin
from bench.routing.replica import BLOCK, Request
from bench.routing.running import Hints, Setup, Simulation
from bench.routing.tables import Variant, figures
from engine.backends.scripted import ScriptedEngine
from engine.backends.vllm.server import VllmServerEngine
from engine.types import FinishReason, GenerationRequest, SamplingOptions, Session, TokenChunk
from tests.unit.engine.vllm_engines import SCRIPT, OpenEngine, OpenFake

Blocks = tuple[tuple[int, ...], ...]  # each with all tokens up to its end, as its hash in vLLM


class BlockCache:
    """A prefix cache as vLLM has it, block by block: whoever ends gives its blocks back, the last one first."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._users: OrderedDict[object, int] = OrderedDict()  # by blocks, the least recently used first

    def take(self, blocks: Sequence[object]) -> int:
        found = next((place for place, block in enumerate(blocks) if block not in self._users), len(blocks))
        for block in blocks:
            self._users[block] = self._users.get(block, 0) + 1
        while len(self._users) > self._size:
            del self._users[next(block for block, users in self._users.items() if not users)]
        return found

    def give_back(self, blocks: Sequence[object]) -> None:
        for block in reversed(blocks):
            self._users[block] -= 1
            self._users.move_to_end(block)


@pytest.mark.parametrize("seed", range(20))
def test_parts_are_evicted_as_their_blocks_would_be(seed: int) -> None:
    chance = random.Random(seed)
    cache, blocks, lengths = PrefixCache(60), BlockCache(60), dict.fromkeys(range(6), 0)
    running: list[tuple[tuple[str, int], ...]] = []
    for now in range(400):
        if running and (len(running) == 3 or chance.random() < 0.4):
            parts = running.pop(chance.randrange(len(running)))
            cache.give_back(parts, now)
            blocks.give_back(blocks_of(parts))
            continue
        number = chance.randrange(6)
        if any(parts[-1][0].startswith(f"chain {number}") for parts in running):
            continue
        lengths[number] += chance.randrange(1, 4)
        # A chain grows, or begins anew under another name.
        life, length = divmod(lengths[number], 14)
        parts = ((f"shared {number % 2}", 4), (f"chain {number} {life}", length + 1))
        here = [cache.has(name) for name, _ in parts]
        assert cache.take(parts, now)
        running.append(parts)
        found = min(4, here[0]) + (min(parts[1][1], here[1]) if here[0] >= 4 else 0)
        assert found == blocks.take(blocks_of(parts))


def blocks_of(parts: Sequence[tuple[str, int]]) -> list[object]:
    return [(name, place) for name, blocks in parts for place in range(blocks)]


def test_what_is_over_goes_first_and_what_is_expected_soon_stays() -> None:
    cache = PrefixCache(30)
    for name, away, over in (("back soon", 1.0, False), ("in an hour", 3600.0, False), ("over", 0.0, True)):
        assert cache.take([(name, 10)], 0.0)
        cache.give_back([(name, 10)], 0.0, away=away, over=over)
    left = []
    for now in range(2):
        assert cache.take([(f"new {now}", 10)], now)
        left.append([name for name in ("back soon", "in an hour", "over") if cache.has(name)])
    assert left == [["back soon", "in an hour"], ["back soon"]]


def test_what_is_kept_goes_only_where_nothing_else_is_left() -> None:
    cache = PrefixCache(20, keeps=True)
    for now, (name, away) in enumerate((("kept", 60.0), ("not kept", 0.0))):
        assert cache.take([(name, 10)], now)
        cache.give_back([(name, 10)], now, away=away)
    assert cache.take([("new", 10)], 3)
    assert (cache.has("kept"), cache.has("not kept")) == (10, 0)
    assert cache.take([("newer", 10)], 4)
    assert cache.has("kept") == 0


def test_what_does_not_fit_beside_what_runs_has_to_wait() -> None:
    cache = PrefixCache(10)
    assert cache.take([("a", 6)], 0.0)
    assert not cache.take([("b", 5)], 0.0)
    cache.give_back([("a", 6)], 0.0)
    assert cache.take([("b", 5)], 0.0)
    assert (cache.has("a"), cache.used) == (5, 10)


def test_traces_have_the_shape_of_agents() -> None:
    made = [traces.session(number) for number in range(600)]
    assert median(len(each.turns) for each in made) == pytest.approx(43, rel=0.1)
    assert median(max(each.prompts()) for each in made) == pytest.approx(142_000, rel=0.08)
    assert median(turn.output for each in made for turn in each.turns) == pytest.approx(444, rel=0.1)
    assert sum(any(turn.agents for turn in each.turns) for each in made) / 600 == pytest.approx(0.44, abs=0.05)
    waits = sorted(turn.wait for each in made for turn in each.turns)
    assert sum(waits[len(waits) * 9 // 10 :]) > 0.7 * sum(waits), "a tenth of them takes most of the time"
    assert traces.session(5) == traces.session(5) != traces.session(6)


def test_the_same_seed_gives_the_same_figures_and_ours_find_more() -> None:
    setup = Setup(agents=16, blocks=24_000, warm_up=200, seconds=400)
    first, again = (Simulation(setup, Ours()).run() for _ in range(2))
    assert first == again
    by_turns = Simulation(setup, RoundRobin()).run()
    assert first.share > 1.5 * by_turns.share
    assert first.turns > 1.1 * by_turns.turns
    assert figures(setup, Variant("hints", Ours, Hints(over=True, waits=True))).share > first.share - 0.05


def test_with_endless_caches_only_what_moved_is_computed_twice() -> None:
    setup = Setup(replicas=1, blocks=10**9, agents=8, warm_up=0, seconds=600)
    outcome = Simulation(setup, Ours()).run()
    # A whole block less, where a prompt ends with one: at least one token is computed.
    assert 0 <= outcome.twice <= BLOCK * outcome.turns


@dataclass(frozen=True)
class Step:
    what: Literal["asked", "begun", "done"]
    request: Request
    replica: str


class Recorder:
    """Writes down what a policy is asked and told."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.steps: list[Step] = []

    def choose(self, request: Request, loads: dict[str, int]) -> str:
        chosen = self._policy.choose(request, loads)
        self.steps.append(Step("asked", request, chosen))
        return chosen

    def begun(self, request: Request, replica: str) -> None:
        self._policy.begun(request, replica)
        self.steps.append(Step("begun", request, replica))

    def done(self, request: Request, replica: str) -> None:
        self._policy.done(request, replica)
        self.steps.append(Step("done", request, replica))


class CachingEngine(ScriptedEngine):
    """Says what it is told to, when it is told to, and finds prompts in a cache of blocks."""

    def __init__(self, blocks: int, gates: "Gates") -> None:
        super().__init__(model="behind the fake", options={"script": list(SCRIPT), "max_model_len": 10**9})
        self._cache, self._gates = BlockCache(blocks), gates

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenChunk, None]:
        """Yield the first token, and behind it the rest."""
        name = request.request_id
        if name not in self._gates.outputs:  # it is tried
            async for chunk in super().generate(request):
                yield chunk
            return
        prompt, output = list(request.prompt_token_ids), self._gates.outputs[name]
        held = blocks_with_all_before([*prompt, *output[:-1]])  # the last token is never read
        cached = min(self._cache.take(held), (len(prompt) - 1) // BLOCK) * BLOCK
        self._gates.cached[name] = cached
        self._gates.open("asked", name)
        await self._gates.opened("begun", name)
        yield TokenChunk(token_ids=output[:1])
        await self._gates.opened("done", name)
        self._cache.give_back(held)
        yield TokenChunk(token_ids=output[1:], finish_reason=FinishReason.LENGTH, cached_tokens=cached)


class Gates:
    """When generations are asked for and go on, what they say, and what they found."""

    def __init__(self) -> None:
        self.outputs: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}
        self._open: dict[tuple[str, str], asyncio.Event] = {}

    def _gate(self, what: str, name: str) -> asyncio.Event:
        return self._open.setdefault((what, name), asyncio.Event())

    def open(self, what: str, name: str) -> None:
        self._gate(what, name).set()

    async def opened(self, what: str, name: str) -> None:
        await self._gate(what, name).wait()


def blocks_with_all_before(tokens: Sequence[int]) -> list[object]:
    """Return the whole blocks of a sequence, each with a hash of all tokens up to its end."""
    hashes, before = list[object](), 0
    for begin in range(0, len(tokens) // BLOCK * BLOCK, BLOCK):
        before = hash((before, tuple(tokens[begin : begin + BLOCK])))
        hashes.append(before)
    return hashes


class Texts:
    """The tokens of each request of a trace: of a part always the same ones, of two never."""

    def __init__(self) -> None:
        self._words: dict[str, Iterator[int]] = {}
        self._said: dict[str, list[int]] = {}

    def of(self, request: Request) -> tuple[list[int], list[int]]:
        (shared, _), (own, _) = request.parts
        beginning = self._named(shared, SHARED_TOKENS[shared])
        tokens = [*beginning, *self._named(own, request.prompt + request.output - len(beginning))]
        return tokens[: request.prompt], tokens[request.prompt :]

    def _named(self, name: str, count: int) -> list[int]:
        said = self._said.setdefault(name, [])
        chance = self._words.setdefault(name, iter(random.Random(name).choices(range(1000, 150_000), k=20_000)))
        while len(said) < count:
            said.append(next(chance))
        return said[:count]


SMALL = ((240, 90), (160, 60), (110, 50), (70, 40))
SHARED_TOKENS = {
    name: tokens
    for number, both in enumerate(SMALL)
    for name, tokens in zip((f"harness {number}", f"agents of harness {number}"), both, strict=True)
}


async def test_the_real_pool_chooses_and_finds_what_the_simulator_says(
    open_fake: OpenFake, vllm_over: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trace with prompts of a hundredth, played step by step by the real engine over servers with real caches."""
    for name, value in {
        "HARNESSES": SMALL,
        "TASK": 40,
        "RESULT": 20,
        "OUTPUT": 8,
        "MAX_CONTEXT": 2000,
        "SUMMARY": 80,
    }.items():
        monkeypatch.setattr(traces, name, value)
    blocks = 320
    gates, texts = Gates(), Texts()
    fakes = []
    for _ in range(3):
        fake = await open_fake()
        fake.engine = CachingEngine(blocks, gates)
        await fake.engine.start()
        fakes.append(fake)
    # On a busy machine the process may be late for a look; nobody is to be taken out here.
    engine = await vllm_over(*fakes, health_seconds=60.0)
    recorder = Recorder(Ours())
    setup = Setup(replicas=3, blocks=blocks, agents=14, warm_up=0, seconds=60)
    simulation = Simulation(setup, recorder, names=[fake.url for fake in fakes])
    outcome = simulation.run()
    assert outcome.turns > 200
    assert outcome.twice > 300, "something was evicted"
    played = Played(engine, gates, texts)
    try:
        for number, step in enumerate(recorder.steps):
            await played.play(step, number)
    finally:
        await played.close()
    asked = {each.body["request_id"]: fake.url for fake in fakes for each in fake.generations}
    simulated = {played.names[id(step.request)]: step for step in recorder.steps if step.what == "asked"}
    assert asked == {name: step.replica for name, step in simulated.items()}
    assert gates.cached == {name: step.request.cached for name, step in simulated.items()}
    assert len({step.replica for step in simulated.values()}) == 3


class Played:
    """Generations of the real engine, which begin and end when those of the simulator do."""

    def __init__(self, engine: VllmServerEngine, gates: Gates, texts: Texts) -> None:
        self.names: dict[int, str] = {}
        self._engine, self._gates, self._texts = engine, gates, texts
        self._running: dict[str, AsyncGenerator[TokenChunk, None]] = {}
        self._firsts: dict[str, asyncio.Task[TokenChunk]] = {}

    async def play(self, step: Step, number: int) -> None:
        if step.what == "asked":
            await self._ask(step.request, f"turn-{number}")
            return
        name = self.names[id(step.request)]
        self._gates.open(step.what, name)
        if step.what == "begun":
            await self._firsts.pop(name)
        else:
            async for _ in self._running.pop(name):
                pass

    async def _ask(self, request: Request, name: str) -> None:
        prompt, self._gates.outputs[name] = self._texts.of(request)
        self.names[id(request)] = name
        self._running[name] = self._engine.generate(
            GenerationRequest(
                request_id=name,
                prompt_token_ids=prompt,
                sampling=SamplingOptions(max_output_tokens=request.output),
                session=Session(id=request.session, parent=request.parent),
            )
        )
        self._firsts[name] = asyncio.create_task(anext(self._running[name]))  # type: ignore[arg-type]
        await self._gates.opened("asked", name)

    async def close(self) -> None:
        for first in self._firsts.values():
            first.cancel()
        await asyncio.gather(*self._firsts.values(), return_exceptions=True)
        for generation in self._running.values():
            await generation.aclose()
