"""Weights that change: the gate of engines in this process, and several vLLM servers, all at once or in turn."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from engine.backends.demo.engine import DemoEngine
from engine.backends.vllm.local import Versions
from engine.backends.vllm.server import LOOK_SECONDS, VllmServerEngine
from engine.errors import EngineUnavailable, GenerationCut, TurnEnded, WeightsNotServed, WeightsRefused
from engine.formats.harmony.encoding import decode_tokens
from engine.types import UNKNOWN, FinishReason, TokenChunk, TokenLogprob, WeightsSpan
from engine.weights import Gate, PauseMode, RemoteCall, WeightsCall, WeightsStep
from tests.contracts.engine import ask, assert_whole, collect, joined
from tests.kit.fake_vllm import FakeVllm
from tests.kit.waiting import eventually
from tests.unit.engine.vllm_engines import SCRIPT, OpenEngine, OpenFake, OpenPool, prompt, update


@pytest.fixture
async def demo() -> Any:
    engine = DemoEngine(model="demo")
    await engine.start()
    yield engine
    await engine.aclose()


class TestGate:
    async def test_what_is_frozen_goes_on(self) -> None:
        gate = Gate()
        async with gate.generation() as name:
            await gate.passed(name)
            await gate.close(PauseMode.KEEP)
            passing = asyncio.create_task(gate.passed(name))
            assert not (await asyncio.wait([passing], timeout=0.05))[0]
            gate.open()
            await passing

    async def test_a_pause_that_waits_is_there_with_the_last_end(self) -> None:
        gate = Gate()
        async with gate.generation() as name:
            closing = asyncio.create_task(gate.close(PauseMode.WAIT))
            await asyncio.sleep(0)
            await gate.passed(name)
            late = asyncio.create_task(gate.generation().__aenter__())
            assert not (await asyncio.wait([closing, late], timeout=0.05))[0]
        await closing
        gate.open()
        await late

    async def test_what_was_frozen_may_be_ended_after_all(self) -> None:
        gate = Gate()
        async with gate.generation() as name:
            await gate.close(PauseMode.KEEP)
            passing = asyncio.create_task(gate.passed(name))
            await asyncio.sleep(0)
            await gate.close(PauseMode.ABORT)
            with pytest.raises(TurnEnded):
                await passing


class TestDemo:
    async def test_a_seed_changes_words_and_nothing_else(self, demo: DemoEngine) -> None:
        first = await collect(demo, ask(prompt("count to 3, please")))
        assert {chunk.weights_version for chunk in first} == {"default"}
        said = set()
        for seed in (0, 1, 2):
            await demo.weights.apply(update(f"s{seed}", {"seed": seed}), PauseMode.KEEP)
            chunks = await collect(demo, ask(prompt("Who are you?")))
            assert_whole(chunks)
            assert {chunk.weights_version for chunk in chunks} == {f"s{seed}"}
            said.add(decode_tokens(joined(chunks)))
        assert len(said) == 3
        assert len({text.lower() for text in said}) == 1

    async def test_a_turn_that_was_cut_goes_on_with_other_weights(self, demo: DemoEngine) -> None:
        whole = joined(await collect(demo, ask(prompt("Who are you?"))))
        await demo.weights.apply(update("s1", {"seed": 1}), PauseMode.KEEP)
        for cut in range(1, len(whole)):
            rest = joined(await collect(demo, ask([*prompt("Who are you?"), *whole[:cut]])))
            assert len(rest) == len(whole) - cut

    @pytest.mark.parametrize("seed", [-1, True, "7", None, 2**40])
    async def test_what_is_no_seed_is_refused(self, demo: DemoEngine, seed: object) -> None:
        with pytest.raises(WeightsRefused, match="seed"):
            await demo.weights.apply(update("x", {"seed": seed}), PauseMode.KEEP)
        assert demo.weights_version == "default"
        assert_whole(await collect(demo, ask(prompt("Well?"))))

    async def test_it_has_no_workers_and_nothing_to_finish(self, demo: DemoEngine) -> None:
        with pytest.raises(WeightsRefused):
            await demo.weights.call(
                WeightsCall(step=WeightsStep.UPDATE, version="x", transfer=False, remote=RemoteCall("f"))
            )
        with pytest.raises(WeightsRefused):
            await demo.weights.call(WeightsCall(step=WeightsStep.FINISH, version="x"))

    async def test_closing_ends_what_a_pause_holds(self, demo: DemoEngine) -> None:
        await demo.weights.pause(PauseMode.KEEP)
        held = asyncio.create_task(collect(demo, ask(prompt("Well?"))))
        await asyncio.sleep(0)
        await demo.aclose()
        with pytest.raises(EngineUnavailable):
            await held


def output(tokens: list[int], *, spans: list[tuple[str, int]] | None = None) -> Any:
    told = None if spans is None else [SimpleNamespace(version=version, start=start) for version, start in spans]
    return SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens, weight_versions=told)])


class TestVersions:
    def test_each_token_has_the_version_that_sampled_it(self) -> None:
        starts: list[tuple[str, int]] = []
        state = SimpleNamespace(weight_version_starts=starts)
        processor = SimpleNamespace(external_req_ids={"r": ["r-1"]}, request_states={"r-1": state})
        versions = Versions(SimpleNamespace(output_processor=processor), "r")
        starts.append(("a", 0))
        assert told(versions, [1, 2]) == [([1, 2], "a")]
        assert told(versions, [3]) == [([3], "a")]
        starts.append(("b", 4))
        starts.append(("c", 7))
        # What piled up while nobody read comes as one output: tokens 3 to 8, of three versions.
        assert told(versions, [4, 5, 6, 7, 8, 9]) == [([4], "a"), ([5, 6, 7], "b"), ([8, 9], "c")]
        assert told(versions, []) == [([], None)]
        processor.request_states.clear()
        assert told(versions, [10]) == [([10], "c")]

    def test_what_comes_as_one_output_is_cut_too(self) -> None:
        versions = Versions(SimpleNamespace(output_processor=SimpleNamespace(external_req_ids={})), "r")
        logprobs = [TokenLogprob(token, -1.0) for token in (1, 2, 3)]
        chunk = TokenChunk(
            token_ids=[1, 2, 3], logprobs=logprobs, finish_reason=FinishReason.STOP, cached_tokens=7, prompt_logprobs=[]
        )
        first, last = versions.of(output([1, 2, 3], spans=[("a", 0), ("b", 2)]), chunk)
        assert (first.token_ids, first.logprobs, first.finish_reason) == ([1, 2], logprobs[:2], None)
        assert (last.token_ids, last.logprobs, last.finish_reason) == ([3], logprobs[2:], FinishReason.STOP)
        assert (first.weights_version, last.weights_version, last.cached_tokens) == ("a", "b", 7)
        assert (first.prompt_logprobs, last.prompt_logprobs) == ([], None)

    def test_where_vllm_does_not_tell_nothing_is_told(self) -> None:
        versions = Versions(SimpleNamespace(output_processor=SimpleNamespace(external_req_ids={})), "r")
        assert told(versions, [1, 2]) == [([1, 2], None)]


def told(versions: Versions, tokens: list[int]) -> list[tuple[list[int], str | None]]:
    """Return the chunks of an output that is not the last one."""
    chunk = TokenChunk(token_ids=tokens)
    return [(list(part.token_ids), part.weights_version) for part in versions.of(output(tokens), chunk)]


Fakes = list[FakeVllm]
SLOW = {"when": "slow", "say": SCRIPT[-1]["say"], "delay": 0.003}


def steps(fake: FakeVllm) -> list[str]:
    return [step for step, _ in fake.doors.asked]


async def versions(engine: VllmServerEngine) -> list[str | None]:
    return [replica.version for replica in await engine.weights.replicas() if not replica.problem]


async def read_into(chunks: list[TokenChunk], turn: AsyncIterator[TokenChunk]) -> None:
    async for chunk in turn:
        chunks.append(chunk)


@pytest.fixture
async def fakes(open_fake: OpenFake) -> Fakes:
    return [await open_fake(SLOW, *SCRIPT) for _ in range(3)]


@pytest.fixture
async def engine(fakes: Fakes, vllm_over: OpenEngine) -> VllmServerEngine:
    return await vllm_over(*fakes, health_seconds=LOOK_SECONDS)  # some wait for a look


async def test_all_change_at_once(fakes: Fakes, engine: VllmServerEngine) -> None:
    assert engine.weights_version == "default"
    await engine.weights.apply(update("v1"), PauseMode.KEEP)
    for fake in fakes:
        assert steps(fake) == [
            *("pause keep", "start_weight_update", "update_weights", "finish_weight_update"),
            *("update_weight_version", "resume"),
        ]
        assert dict(fake.doors.asked)["update_weights"] == {"update_info": {"names": ["w"]}}
    assert engine.weights_version == "v1"
    chunks = await collect(engine, ask(prompt("short")))
    assert {chunk.weights_version for chunk in chunks} == {"v1"}
    assert chunks[-1].weights == [WeightsSpan("v1", sum(len(chunk.token_ids) for chunk in chunks))]


async def test_each_connects_to_the_trainer_in_its_own_way(fakes: Fakes, engine: VllmServerEngine) -> None:
    infos = [{"rank_offset": offset} for offset in (1, 3, 5)]
    await engine.weights.call(WeightsCall(step=WeightsStep.INIT, info=infos))
    assert [fake.doors.asked for fake in fakes] == [
        [("init_weight_transfer_engine", {"init_info": info})] for info in infos
    ]
    for info in (infos[:2], []):
        with pytest.raises(WeightsRefused, match=f"is for {len(info)} vLLM servers, and there are 3"):
            await engine.weights.call(WeightsCall(step=WeightsStep.INIT, info=info))
    await engine.weights.call(WeightsCall(step=WeightsStep.INIT, info={"port": 1}))
    assert [fake.doors.asked[1:] for fake in fakes] == [
        [("init_weight_transfer_engine", {"init_info": {"port": 1}})]
    ] * 3


async def test_others_serve_while_one_after_the_other_changes(fakes: Fakes, engine: VllmServerEngine) -> None:
    begun = [asyncio.create_task(collect(engine, ask(prompt("slow")))) for _ in range(6)]
    await eventually(lambda: all(fake.generations for fake in fakes))
    rolling = asyncio.create_task(engine.weights.roll(update("v1"), PauseMode.WAIT))
    await eventually(lambda: any("pause wait" in steps(fake) for fake in fakes))
    # Each waits for its turns to end, so the pool serves all the while.
    while not rolling.done():
        assert_whole(await collect(engine, ask(prompt("short"))))
    await rolling
    for chunks in await asyncio.gather(*begun):
        assert_whole(chunks)
    assert await versions(engine) == ["v1"] * 3


@pytest.mark.parametrize("rolling", [False, True])
@pytest.mark.parametrize("step", ["start_weight_update", "update_weights", "finish_weight_update"])
async def test_the_pool_goes_on_with_those_that_agree(
    fakes: Fakes, engine: VllmServerEngine, step: str, rolling: bool
) -> None:
    fakes[1].doors.fails.add(step)
    change = engine.weights.roll if rolling else engine.weights.apply
    await change(update("v1"), PauseMode.KEEP)
    assert engine.replicas()["serving"] == 2
    assert engine.weights_version == "v1"
    (problem,) = [each.problem for each in await engine.weights.replicas() if each.problem]
    assert fakes[1].url in problem
    served = len(fakes[1].generations)
    for _ in range(6):
        assert {chunk.weights_version for chunk in await collect(engine, ask(prompt("short")))} == {"v1"}
    assert len(fakes[1].generations) == served
    # It is well, and asked again and again: it comes back with the weights of the others only.
    fakes[1].doors.fails.clear()
    fakes[1].doors.gate.open()
    fakes[1].doors.version = "v1"
    await eventually(lambda: engine.replicas()["serving"] == 3)


async def test_a_cancel_renames_servers_where_no_update_is_open_any_more(
    fakes: Fakes, engine: VllmServerEngine
) -> None:
    await engine.weights.pause(PauseMode.KEEP)
    fakes[0].doors.is_updating = True  # the worker that changed them has died, and had come so far with one
    await engine.weights.call(WeightsCall(step=WeightsStep.CANCEL, version="failed:v1"))
    await engine.weights.resume()
    assert engine.replicas()["serving"] == 3
    assert await versions(engine) == ["failed:v1"] * 3


async def test_one_that_did_not_go_on_behind_a_pause_is_asked_again(fakes: Fakes, engine: VllmServerEngine) -> None:
    fakes[1].doors.fails.add("resume")
    await engine.weights.apply(update("v1"), PauseMode.KEEP)
    assert engine.replicas()["serving"] == 2
    fakes[1].doors.fails.clear()
    await eventually(lambda: engine.replicas()["serving"] == 3)
    assert steps(fakes[1])[-1] == "resume"


async def test_weights_that_are_wanted_choose_the_server(fakes: Fakes, engine: VllmServerEngine) -> None:
    short = replace(ask(prompt("short")), weights="v1")
    with pytest.raises(WeightsNotServed) as refused:
        await collect(engine, short)
    assert (refused.value.wanted, refused.value.served) == ("v1", ["default"])
    # In the middle of a rolling update, versions differ.
    first = engine._opened_pool().replicas[0]
    assert await engine.weights._change(first, update("v1"), PauseMode.KEEP) is None
    assert engine.weights.versions == ["default", "v1"]
    for number in range(6):
        for version in ("default", "v1"):
            chunks = await collect(engine, replace(short, request_id=f"{version}-{number}", weights=version))
            assert {chunk.weights_version for chunk in chunks} == {version}
    assert fakes[0].doors.version == "v1"


async def test_of_a_turn_across_a_change_nobody_knows_more_before_its_end(
    open_fake: OpenFake, vllm_over: OpenEngine
) -> None:
    """Other processes are told before new weights sample anything; a chunk of the old ones may be on its way then."""
    fake = await open_fake(SLOW, *SCRIPT)
    one, two = await vllm_over(fake), await vllm_over(fake)
    told: list[str | None] = []

    async def tell() -> None:
        sent = fake.generations[0].sent
        await two.weights.learn(paused=PauseMode.KEEP, version="v1", is_settled=True)
        told.append(two.weights_version)
        assert fake.generations[0].sent == sent, "it is paused"

    turn = two.generate(ask(prompt("slow")))
    chunks = [await anext(turn)]
    await one.weights.apply(update("v1"), PauseMode.KEEP, told=tell)
    assert told == ["v1"]
    chunks += [chunk async for chunk in turn]
    assert_whole(chunks)
    assert chunks[0].weights_version == "default"
    assert {(chunk.weights_version, chunk.newest) for chunk in chunks[1:-1]} <= {("default", None), (UNKNOWN, "v1")}
    assert chunks[-2].weights_version == UNKNOWN
    assert chunks[-1].weights is not None
    assert [span.version for span in chunks[-1].weights] == ["default", "v1"]
    assert {chunk.weights_version for chunk in await collect(two, ask(prompt("short")))} == {"v1"}


async def test_servers_that_change_one_after_the_other_are_known_before_they_go_on(
    fakes: Fakes, engine: VllmServerEngine, vllm_over: OpenEngine
) -> None:
    two, known = await vllm_over(*fakes), list[list[str | None]]()

    async def tell() -> None:
        await two.weights.learn(paused=PauseMode.KEEP, version="v1", is_settled=False)
        known.append(await versions(two))

    await engine.weights.roll(update("v1"), PauseMode.KEEP, told=tell)
    assert known == [["v1", "default", "default"], ["v1", "v1", "default"], ["v1", "v1", "v1"]]


async def test_a_turn_whose_server_changes_goes_on_where_its_weights_are(
    fakes: Fakes, engine: VllmServerEngine
) -> None:
    turn = engine.generate(replace(ask(prompt("slow")), weights="default"))
    begun = await anext(turn)
    assert begun.weights_version == "default"
    (own,) = [replica for replica in engine._opened_pool().replicas if replica.running]
    assert await engine.weights._change(own, update("v1"), PauseMode.KEEP) is None
    chunks = [begun]
    with pytest.raises(GenerationCut) as cut:
        await read_into(chunks, turn)
    assert cut.value.at == own.client.url
    assert {chunk.weights_version for chunk in chunks} == {"default"}
    assert engine.replicas()["serving"] == 3, "no server is at fault"
    assert len({fake.doors.version for fake in fakes}) == 2


async def test_what_nobody_takes_leaves_all_in_use(fakes: Fakes, engine: VllmServerEngine) -> None:
    for fake in fakes:
        fake.doors.fails.add("start_weight_update")
    for change in (engine.weights.apply, engine.weights.roll):
        with pytest.raises(WeightsRefused, match="went away") as refused:
            await change(update("v1"), PauseMode.KEEP)
        assert not refused.value.changed
        assert await versions(engine) == ["default"] * 3
        assert_whole(await collect(engine, ask(prompt("short"))))


@pytest.mark.parametrize("breaks", [False, True])
async def test_weights_that_may_be_mixed_are_called_so(pool: OpenPool, breaks: bool) -> None:
    """A vLLM server closes its connection behind an error: that may cross what is asked next."""
    [fake], engine = await pool(1, *SCRIPT)
    fake.doors.fails.add("update_weights")
    fake.doors.breaks |= {"update_weight_version"} if breaks else set()
    with pytest.raises(WeightsRefused) as refused:
        await engine.weights.apply(update("v1"), PauseMode.KEEP)
    assert refused.value.changed
    assert not fake.doors.breaks
    assert await versions(engine) == [fake.doors.version] == ["failed:v1"]
    assert {chunk.weights_version for chunk in await collect(engine, ask(prompt("short")))} == {"failed:v1"}


async def test_a_turn_that_is_frozen_is_not_silent(pool: OpenPool) -> None:
    _, engine = await pool(1, SLOW, *SCRIPT, options={"silence_seconds": 0.3})
    chunks: list[TokenChunk] = []
    frozen = asyncio.create_task(read_into(chunks, engine.generate(ask(prompt("slow")))))
    await eventually(lambda: len(chunks) > 20)
    await engine.weights.pause(PauseMode.KEEP)
    late = asyncio.create_task(collect(engine, ask(prompt("short"))))
    done, _ = await asyncio.wait([frozen, late], timeout=1.0)  # three silences
    assert not done
    for call in update("v1"):
        await engine.weights.call(call)
    await engine.weights.resume()
    await frozen
    assert_whole(chunks)
    assert chunks[-1].weights is not None
    assert [span.version for span in chunks[-1].weights] == ["default", "v1"]
    assert (await late)[-1].weights_version == "v1"


async def test_a_pause_ends_what_runs(engine: VllmServerEngine) -> None:
    generation = engine.generate(ask(prompt("slow")))
    await anext(generation)
    await engine.weights.pause(PauseMode.ABORT)
    with pytest.raises(TurnEnded):
        await read_into([], generation)
    await engine.weights.resume()
    assert_whole(await collect(engine, ask(prompt("short"))))
    assert await versions(engine) == ["default"] * 3, "no server is at fault"


async def test_others_learn_of_it(fakes: Fakes, engine: VllmServerEngine, vllm_over: OpenEngine) -> None:
    other = await vllm_over(*fakes)
    await engine.weights.apply(update("v1"), PauseMode.KEEP)
    fakes[2].doors.version = "failed:v1"
    await other.weights.learn(paused=None, version="v1", is_settled=True)
    assert await versions(other) == ["v1", "v1"]
    assert other.weights_version == "v1"


async def test_one_that_comes_back_with_other_weights_is_not_used(fakes: Fakes, engine: VllmServerEngine) -> None:
    await engine.weights.apply(update("v1"), PauseMode.KEEP)
    await engine.weights.learn(paused=None, version="v1", is_settled=True)
    await fakes[0].kill()
    await eventually(lambda: engine.replicas()["serving"] == 2)
    fakes[0].doors.version = "default"  # as a vLLM that was started again
    await fakes[0].start()
    await eventually(lambda: "/weight_info" in fakes[0].asked_paths)
    assert engine.replicas()["serving"] == 2
    await engine.weights.roll(update("v2"), PauseMode.KEEP)
    await eventually(lambda: engine.replicas()["serving"] == 3)
    assert await versions(engine) == ["v2"] * 3


async def test_where_all_were_started_anew_they_are_used(fakes: Fakes, engine: VllmServerEngine) -> None:
    await engine.weights.apply(update("v1"), PauseMode.KEEP)
    await engine.weights.learn(paused=None, version="v1", is_settled=True)
    for fake in fakes:
        await fake.kill()
    await eventually(lambda: engine.replicas()["serving"] == 0)
    for fake in fakes:
        fake.doors.version = "default"
        await fake.start()
    await eventually(lambda: engine.replicas()["serving"] == 3)
    assert engine.weights_version == "default"


async def test_one_that_comes_back_in_a_pause_waits_for_its_end(fakes: Fakes, engine: VllmServerEngine) -> None:
    await fakes[0].kill()
    await eventually(lambda: engine.replicas()["serving"] == 2)
    await engine.weights.pause(PauseMode.KEEP)
    await engine.weights.learn(paused=PauseMode.KEEP, version="", is_settled=True)
    await fakes[0].start()
    await eventually(lambda: "/v1/models" in fakes[0].asked_paths)
    assert engine.replicas()["serving"] == 2
    await engine.weights.resume()
    await eventually(lambda: engine.replicas()["serving"] == 3)


async def test_servers_without_endpoints_for_trainers_are_told_apart(
    open_fake: OpenFake, vllm_over: OpenEngine
) -> None:
    fake = await open_fake(*SCRIPT)
    fake.doors.is_open = False
    engine = await vllm_over(fake)
    assert engine.weights_version is None
    with pytest.raises(WeightsRefused, match="VLLM_SERVER_DEV_MODE=1"):
        await engine.weights.pause(PauseMode.KEEP)
    chunks = await collect(engine, ask(prompt("short")))
    assert {chunk.weights_version for chunk in chunks[:-1]} == {None}


async def test_a_method_of_the_workers_is_called(pool: OpenPool) -> None:
    [fake], engine = await pool(1, *SCRIPT)
    remote = RemoteCall("load", ["path"], {"strict": True})
    calls = [
        WeightsCall(step=WeightsStep.BEGIN, version="v1", transfer=False),
        WeightsCall(step=WeightsStep.UPDATE, version="v1", transfer=False, remote=remote),
        WeightsCall(step=WeightsStep.FINISH, version="v1", transfer=False),
    ]
    await engine.weights.apply(calls, PauseMode.KEEP)
    assert steps(fake) == ["pause keep", "collective_rpc", "update_weight_version", "resume"]
    assert dict(fake.doors.asked)["collective_rpc"] == {"method": "load", "args": ["path"], "kwargs": {"strict": True}}


async def test_an_engine_that_is_not_started_has_no_doors_yet(vllm_over: OpenEngine) -> None:
    engine = VllmServerEngine(model="m", options={"urls": ("http://127.0.0.1:9",), "api_key": ""})
    assert engine.weights_version is None
    with pytest.raises(EngineUnavailable):
        await engine.weights.pause(PauseMode.KEEP)
