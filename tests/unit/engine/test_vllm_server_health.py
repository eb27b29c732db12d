"""vLLM servers that hang, break everything, or are slow to say how they are; and servers that come and go."""

import asyncio
import logging
from pathlib import Path

import pytest

from engine.backends.vllm.replica import CALM_SECONDS, FAILURE_SECONDS, MAX_FAILURES, WAITS, Circuit
from engine.backends.vllm.server import VllmServerEngine
from engine.errors import GenerationCut, GenerationFailed
from tests.contracts.engine import ask, assert_whole, collect
from tests.kit.fake_vllm import MODEL, FakeVllm
from tests.kit.waiting import eventually
from tests.unit.engine.test_vllm_server import affine
from tests.unit.engine.vllm_engines import LONG, SCRIPT, OpenEngine, OpenFake, OpenPool, is_away, is_healthy, prompt

QUICK = {"health_seconds": 0.1}
SLOWLY = {"when": "[slowly]", "say": LONG, "delay": 0.005}


async def begun_on_one(engine: VllmServerEngine, fakes: list[FakeVllm]) -> tuple[asyncio.Task[object], FakeVllm]:
    """Begin a generation that hangs; return it and the server it hangs on."""
    task: asyncio.Task[object] = asyncio.create_task(collect(engine, ask(prompt("[hang]"))))
    await eventually(lambda: any(fake.engine.running for fake in fakes))
    (home,) = [fake for fake in fakes if fake.engine.running]
    await eventually(lambda: home.generations[-1].sent > 0)
    return task, home


class TestHanging:
    async def test_what_ran_on_one_that_hangs_can_go_on_elsewhere(
        self, pool: OpenPool, caplog: pytest.LogCaptureFixture
    ) -> None:
        fakes, engine = await pool(2, options=QUICK)
        running, home = await begun_on_one(engine, fakes)
        home.switches.answers = False
        async with asyncio.timeout(10):
            with pytest.raises(GenerationCut, match="hangs"):
                await running
        assert engine.replicas() == {"serving": 1, "away": 1, "leaving": 0}
        assert caplog.text.count(f"the vLLM server at {home.url} hangs") == 1
        caplog.set_level(logging.INFO, logger="respsite.engine")
        home.switches.answers = True
        await eventually(lambda: engine.replicas()["serving"] == 2)
        assert f"the vLLM server at {home.url} is there" in caplog.text

    async def test_who_waits_for_its_first_token_does_not_notice(self, pool: OpenPool) -> None:
        fakes, engine = await pool(2, options=QUICK)
        for fake in fakes:
            fake.switches.answers = False
            asking = [asyncio.create_task(collect(engine, affine(str(number)))) for number in range(6)]
            for each in await asyncio.gather(*asking):
                assert_whole(each)
            fake.switches.answers = True
            await eventually(lambda: engine.replicas()["serving"] == 2)

    async def test_one_that_is_only_too_busy_to_answer_is_left_at_work(self, pool: OpenPool) -> None:
        fakes, engine = await pool(2, SLOWLY, *SCRIPT, options=QUICK)
        working = asyncio.create_task(collect(engine, ask(prompt("[slowly]"))))
        await eventually(lambda: any(fake.engine.running for fake in fakes))
        (home,) = [fake for fake in fakes if fake.engine.running]
        home.switches.answers = False
        await eventually(lambda: home.waiting > 0)
        assert_whole(await working)
        await eventually(lambda: engine.replicas()["away"] == 1)

    async def test_the_last_one_keeps_what_it_has(self, fake: FakeVllm, vllm_over: OpenEngine) -> None:
        engine = await vllm_over(fake, **QUICK)
        running, _ = await begun_on_one(engine, [fake])
        fake.switches.answers = False
        await eventually(lambda: is_away(engine))
        fake.switches.answers = True
        await eventually(lambda: is_healthy(engine))
        assert not running.done(), "nobody could have gone on with it"
        running.cancel()
        await asyncio.wait([running])

    async def test_as_soon_as_another_one_is_there_it_goes_on(self, pool: OpenPool) -> None:
        fakes, engine = await pool(2, options=QUICK)
        running, home = await begun_on_one(engine, fakes)
        (other,) = [fake for fake in fakes if fake is not home]
        other.switches.answers = False
        await eventually(lambda: engine.replicas()["away"] == 1)
        home.switches.answers = False
        await eventually(lambda: is_away(engine))
        assert not running.done()
        other.switches.answers = True
        async with asyncio.timeout(10):
            with pytest.raises(GenerationCut):
                await running


class TestBreaking:
    async def test_one_that_breaks_everything_is_left_alone(
        self, pool: OpenPool, caplog: pytest.LogCaptureFixture
    ) -> None:
        fakes, engine = await pool(2)
        fakes[0].switches.refusal = 500, {}
        for number in range(20):
            assert_whole(await collect(engine, affine(str(number))))
        assert len(fakes[0].generations) == 1, "what just broke something comes last"
        asking = [collect(engine, affine(str(number))) for number in range(20)]
        fakes[1].switches.refusal, fakes[0].switches.refusal = (500, {}), None
        for each in await asyncio.gather(*asking):
            assert_whole(each)
        await eventually(lambda: "not used until it is better" in caplog.text)
        assert len(fakes[1].generations) > 20
        fakes[1].switches.refusal = None
        await eventually(lambda: engine.replicas()["serving"] == 2)

    async def test_the_last_one_is_used_all_the_same(self, fake: FakeVllm, engine: VllmServerEngine) -> None:
        """A request that no server can do would else shut out everybody."""
        fake.switches.refusal = 500, {}
        for _ in range(5):
            with pytest.raises(GenerationFailed):
                await collect(engine, ask(prompt("short")))
            await engine.health()

    async def test_a_request_breaks_no_more_than_three(self, pool: OpenPool) -> None:
        fakes, engine = await pool(5)
        for fake in fakes:
            fake.switches.refusal = 500, {}
        with pytest.raises(GenerationFailed):
            await collect(engine, ask(prompt("short")))
        assert sum(len(fake.generations) for fake in fakes) == 3


class TestComingAndGoing:
    @pytest.fixture
    async def servers(self, tmp_path: Path, open_fake: OpenFake) -> "Servers":
        return Servers(tmp_path / "servers", [await open_fake() for _ in range(3)])

    async def test_they_come_and_go_while_it_runs(
        self, servers: "Servers", vllm_over: OpenEngine, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, logger="respsite.engine")
        first, second, third = servers.fakes
        servers.name(first)
        engine = await vllm_over(**servers.options)
        running = engine.generate(ask(prompt("[hang]")))
        await anext(running)
        servers.name(first, second)
        await eventually(lambda: engine.replicas()["serving"] == 2)
        assert second.asked, "it is inspected before it is used"
        servers.name(second, third)
        await eventually(lambda: engine.replicas() == {"serving": 2, "away": 0, "leaving": 1})
        for number in range(40):  # so many that chance does not send them all to one of the two
            assert_whole(await collect(engine, affine(str(number))))
        assert len(first.generations) == first.engine.running == 1, "it has what it had, and gets nothing new"
        assert second.generations
        assert third.generations
        await running.aclose()
        await eventually(lambda: engine.replicas()["leaving"] == 0)
        servers.path.write_text("")
        await eventually(lambda: "stay those that were known" in caplog.text)
        assert engine.replicas()["serving"] == 2

    async def test_one_that_comes_back_before_it_is_gone(self, servers: "Servers", vllm_over: OpenEngine) -> None:
        first, second, _ = servers.fakes
        servers.name(first)
        engine = await vllm_over(**servers.options)
        running = engine.generate(ask(prompt("[hang]")))
        await anext(running)
        servers.name(second)
        await eventually(lambda: engine.replicas() == {"serving": 1, "away": 0, "leaving": 1})
        servers.name(first, second)
        await eventually(lambda: engine.replicas() == {"serving": 2, "away": 0, "leaving": 0})
        await running.aclose()

    async def test_one_that_serves_another_model_is_not_used(
        self, servers: "Servers", vllm_over: OpenEngine, caplog: pytest.LogCaptureFixture
    ) -> None:
        first, second, third = servers.fakes
        second.switches.model = third.switches.model = "another"
        servers.name(first, second)
        engine = await vllm_over(**servers.options)
        servers.name(first, second, third)
        for other in (second, third):
            words = f"{other.url} does not serve MODEL={MODEL}"
            await eventually(lambda: words in caplog.text)  # noqa: B023
        assert engine.replicas() == {"serving": 1, "away": 2, "leaving": 0}
        assert_whole(await collect(engine, ask(prompt("short"))))

    async def test_the_addresses_of_a_name(self, fake: FakeVllm) -> None:
        options = {"urls": [f"dns+http://localhost:{fake.port}"], "health_seconds": 60}
        engine = VllmServerEngine(model=MODEL, options=options)
        await engine.start()
        assert_whole(await collect(engine, ask(prompt("short"))))
        await engine.aclose()


class Servers:
    """Some servers, and the file that names those that belong to a pool."""

    def __init__(self, path: Path, fakes: list[FakeVllm]) -> None:
        self.path = path
        self.fakes = fakes
        self.options = {"urls": [f"file://{path}"], "refresh_seconds": 0.05, **QUICK}

    def name(self, *fakes: FakeVllm) -> None:
        new = self.path.with_suffix(".new")
        new.write_text("".join(f"{fake.url}\n" for fake in fakes))
        new.rename(self.path)


def closed(now: float = 0.0) -> Circuit:
    circuit = Circuit()
    assert not circuit.is_closed
    circuit.close(now)
    return circuit


def test_too_many_failures_in_a_row_are_told() -> None:
    circuit = closed()
    assert [circuit.note_failure(1.0) for _ in range(MAX_FAILURES + 1)] == [False, False, True, True]


def test_failures_that_are_far_apart_are_not_too_many() -> None:
    circuit = closed()
    assert not any(circuit.note_failure(number * FAILURE_SECONDS) for number in range(20))


def test_a_success_between_them_forgives() -> None:
    circuit = closed()
    for _ in range(10):
        assert not circuit.note_failure(1.0)
        assert not circuit.note_failure(1.0)
        circuit.note_success()
    assert not circuit.is_suspect(1.0)


def test_one_that_just_failed_is_suspect_for_a_while() -> None:
    circuit = closed()
    circuit.note_failure(1.0)
    assert circuit.is_suspect(1.0 + FAILURE_SECONDS)
    assert not circuit.is_suspect(1.1 + FAILURE_SECONDS)


def test_probes_come_ever_later() -> None:
    circuit = closed()
    circuit.open(CALM_SECONDS)
    assert not circuit.is_closed
    assert [circuit.next_wait() for _ in range(len(WAITS) + 1)] == [*WAITS, WAITS[-1]]


def test_one_that_works_for_a_moment_only_does_not_begin_anew() -> None:
    circuit, now, waits = closed(), CALM_SECONDS, []
    for _ in WAITS:
        circuit.open(now)
        waits.append(circuit.next_wait())
        circuit.close(now)
        now += CALM_SECONDS / 2
    assert waits == list(WAITS)
    circuit.open(now + CALM_SECONDS)
    assert circuit.next_wait() == WAITS[0]
