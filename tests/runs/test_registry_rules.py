"""The registry: graces of readers, places of runs, and how it closes."""

import asyncio
import time

import pytest

from responses_app.protocol.errors import ApiError
from responses_app.protocol.resources import Status
from responses_app.runs.registry import RunLimits
from responses_app.runs.resumable import ResumableLimits
from responses_app.runs.run import ResponseRun
from tests.runs.fakes import ANSWER, FakeEngine, Reading, Site
from tests.waiting import eventually

HALF = "<|channel|>final<|message|>Half of it"


def hanging(*, grace: float = 0.0, max_runs: int = 10, gate: asyncio.Event | None = None) -> Site:
    """Return a site whose engine says a half and then waits, for ever where there is no `gate`."""
    limits = RunLimits(max_runs=max_runs, reconnect_grace=grace)
    return Site(FakeEngine([[HALF, gate or asyncio.Event(), ANSWER]]), run_limits=limits)


async def half_said(site: Site, **fields: object) -> Reading:
    """Begin a streamed response; return its reader once the model has said a half."""
    reading = await site.begin(**{"input": "hi", "transport": "sse", **fields})
    await site.engine.waits.wait()
    return reading


async def close(site: Site, **patience: float) -> None:
    """Close the registry; a test that would wait for ever fails."""
    async with asyncio.timeout(10):
        await site.registry.aclose(**patience)


async def ended(site: Site, run: ResponseRun) -> None:
    """Return when a run has ended and is forgotten."""
    async with asyncio.timeout(10):
        await site.registry.wait_for_end(run)
    await eventually(lambda: run not in site.registry.running)


def runs(site: Site, reading: Reading) -> bool:
    return site.registry.get(reading.reader.response_id) is not None


GRACE = 30.0


@pytest.fixture
async def graces(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.TimerHandle]:
    """The timers of all graces of a test, so that it need not wait for them."""
    loop, timers = asyncio.get_running_loop(), []
    call_later = loop.call_later

    def noted(delay: float, *args: object, **options: object) -> asyncio.TimerHandle:
        timer = call_later(delay, *args, **options)  # type: ignore[arg-type]
        if delay == GRACE:
            timers.append(timer)
        return timer

    monkeypatch.setattr(loop, "call_later", noted)
    return timers


class TestGraces:
    async def test_who_comes_back_in_time_ends_the_grace_and_the_next_one_is_whole(
        self, graces: list[asyncio.TimerHandle]
    ) -> None:
        site = hanging(grace=GRACE)
        first = await half_said(site)
        first.leave()
        assert [timer.cancelled() for timer in graces] == [False]
        second = await site.follow(first.reader.response_id)
        assert [timer.cancelled() for timer in graces] == [True]
        second.leave()
        assert [timer.cancelled() for timer in graces] == [True, False]
        assert runs(site, first)
        await close(site)

    async def test_the_grace_begins_with_the_last_reader_to_leave(self, graces: list[asyncio.TimerHandle]) -> None:
        site = hanging(grace=GRACE)
        first = await half_said(site)
        second = await site.follow(first.reader.response_id)
        first.leave()
        assert graces == []
        second.leave()
        assert len(graces) == 1
        await close(site)

    async def test_nothing_is_left_of_the_grace_of_one_that_ended_meanwhile(
        self, graces: list[asyncio.TimerHandle]
    ) -> None:
        gate = asyncio.Event()
        site = hanging(grace=GRACE, gate=gate)
        reading = await half_said(site)
        run = reading.run
        reading.leave()
        gate.set()
        await ended(site, run)
        assert run.status is Status.COMPLETED
        assert [timer.cancelled() for timer in graces] == [True]

    async def test_one_that_has_ended_needs_no_grace(self, graces: list[asyncio.TimerHandle]) -> None:
        site = Site(run_limits=RunLimits(reconnect_grace=GRACE))
        reading = await site.begin(input="hi", transport="sse")
        await reading.to_the_end()
        reading.leave()
        assert graces == []

    async def test_without_a_grace_it_ends_at_once(self) -> None:
        site = hanging()
        reading = await half_said(site)
        reading.leave()
        await ended(site, reading.run)

    async def test_the_log_says_why_a_run_was_given_up(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", logger="respsite")
        for grace, why in ((0.0, "its reader left"), (0.01, "its reader left and did not come back")):
            caplog.clear()
            site = hanging(grace=grace)
            (await half_said(site)).leave()
            await eventually(lambda: len(site.registry) == 0)  # noqa: B023
            assert why in caplog.text
            assert ("did not come back" in caplog.text) == (grace > 0)

    async def test_a_background_run_needs_no_reader(self) -> None:
        site = hanging()
        reading = await half_said(site, background=True)
        run = reading.run
        reading.leave()
        await asyncio.sleep(0.02)
        assert runs(site, reading)
        site.registry.cancel(run, reason="the test is over")
        await ended(site, run)

    async def test_leaving_twice_is_leaving_once(self, graces: list[asyncio.TimerHandle]) -> None:
        site = hanging(grace=GRACE)
        reading = await half_said(site)
        reading.leave()
        reading.leave()
        assert [timer.cancelled() for timer in graces] == [False], "its grace does not begin again"
        await close(site)

    async def test_leaving_twice_does_not_count_for_another_reader(self) -> None:
        site = hanging()
        first = await half_said(site)
        second = site.registry.attach(first.run)
        first.leave()
        first.leave()
        await asyncio.sleep(0)
        assert runs(site, first)
        second.leave()
        await eventually(lambda: len(site.registry) == 0)


class TestPlaces:
    async def test_what_is_being_accepted_takes_a_place(self) -> None:
        registry = hanging(max_runs=2).registry
        with registry.admission(), registry.admission(), pytest.raises(ApiError), registry.admission():
            raise AssertionError("there is no place")
        registry.check_capacity()

    async def test_a_place_is_given_back_by_what_could_not_be_accepted(self) -> None:
        registry = hanging(max_runs=1).registry
        for _ in range(3):
            with pytest.raises(ValueError, match="refused"), registry.admission():
                raise ValueError("refused")
        registry.check_capacity()

    async def test_runs_and_those_to_come_share_the_places(self) -> None:
        site = hanging(max_runs=2)
        reading = await half_said(site)
        with site.registry.admission():
            with pytest.raises(ApiError) as refused:
                site.registry.check_capacity()
            assert refused.value.headers == {"retry-after": "2"}
        site.registry.check_capacity()
        reading.leave()

    async def test_what_runs_is_listed_until_it_has_ended(self) -> None:
        gate = asyncio.Event()
        site = hanging(gate=gate)
        reading = await half_said(site)
        run = reading.run
        assert list(site.registry.running) == [run]
        gate.set()
        await reading.to_the_end()
        await ended(site, run)
        await ended(site, run)


class TestFinding:
    async def test_what_is_not_kept_is_found_while_it_runs(self) -> None:
        site = hanging()
        reading = await half_said(site, transport="json")
        run = reading.run
        assert len(site.registry.resumable) == 0
        assert site.registry.find("default", run.response_id) is run
        reading.leave()
        await ended(site, run)
        assert site.registry.find("default", run.response_id) is None

    async def test_a_project_finds_its_own(self) -> None:
        site = hanging()
        reading = await half_said(site)
        response_id = reading.reader.response_id
        assert site.registry.find("default", response_id) is reading.run
        assert site.registry.find("other", response_id) is None
        assert site.registry.find("default", "resp_unknown") is None
        reading.leave()

    async def test_one_that_has_ended_is_found_while_its_stream_is_kept(self) -> None:
        site = Site()
        reading = await site.begin(input="hi", transport="sse")
        await reading.to_the_end()
        response_id = reading.reader.response_id
        found = site.registry.find("default", response_id)
        assert found is not None
        assert found.response_id == response_id
        assert site.registry.get(response_id) is None
        site.registry.resumable.drop(response_id)
        assert site.registry.find("default", response_id) is None

    async def test_what_was_deleted_is_not_found_and_ends(self) -> None:
        site = hanging()
        reading = await half_said(site)
        run = reading.run
        site.registry.forget(run, reason="its client deleted it")
        assert site.registry.find("default", run.response_id) is None
        assert len(site.registry.resumable) == 0
        await reading.to_the_end()
        await eventually(lambda: len(site.registry) == 0)
        assert run.status is Status.CANCELLED

    async def test_what_another_worker_took_over_ends_here_and_is_not_kept(self) -> None:
        site = hanging()
        reading = await half_said(site, background=True)
        run = reading.run
        site.registry.lose(run.response_id)
        site.registry.lose("resp_unknown")
        await ended(site, run)
        assert len(site.registry.resumable) == 0
        assert site.store.saved == []
        assert site.engine.running == 0


class TestReaders:
    async def test_who_lets_go_cancels_nothing_that_another_one_reads(self) -> None:
        site = hanging()
        first = await half_said(site)
        site.registry.attach(first.run).leave()
        await asyncio.sleep(0)
        assert runs(site, first)
        first.reader.cancel("its client cancelled it")
        await first.to_the_end()
        assert first.reader.status is Status.CANCELLED

    async def test_a_reader_may_begin_behind_an_event(self) -> None:
        site = hanging()
        first = await half_said(site)
        events = first.take()
        second = Reading(site, site.registry.attach(first.run, starting_after=2))
        assert second.take() == events[3:]
        first.leave()
        second.leave()
        await eventually(lambda: len(site.registry) == 0)


class TestCancelling:
    async def test_one_whose_end_is_decided_is_not_cancelled_and_the_log_does_not_say_so(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", logger="respsite")
        site = Site()
        site.store.gate = asyncio.Event()
        run = (await site.begin(input="hi")).run
        await site.store.saving.wait()
        site.registry.cancel(run, reason="too late")
        site.store.gate.set()
        await ended(site, run)
        assert run.status is Status.COMPLETED
        assert "too late" not in caplog.text

    async def test_one_that_is_not_of_this_process_is_left_alone(self) -> None:
        elsewhere, here = hanging(), hanging()
        reading = await half_said(elsewhere)
        here.registry.cancel(reading.run, reason="asked to")
        assert runs(elsewhere, reading)
        await close(elsewhere)


class TestClosing:
    async def test_a_server_that_stops_says_when_to_try_again(self) -> None:
        site = hanging()
        await close(site)
        with pytest.raises(ApiError, match="stopping") as refused:
            site.registry.check_capacity()
        assert (refused.value.status, refused.value.headers) == (503, {"retry-after": "2"})

    async def test_the_grace_is_over_for_those_who_do_not_end(self) -> None:
        site = hanging()
        reading = await half_said(site)
        began = time.monotonic()
        await close(site, grace=0.05)
        assert 0.04 < time.monotonic() - began < 5
        assert (await reading.to_the_end())[-1]["response"]["error"]["code"] == "server_error"  # type: ignore[index]
        assert site.registry.draining

    async def test_a_hurry_ends_the_grace(self) -> None:
        site = hanging()
        reading = await half_said(site)
        closing = asyncio.create_task(site.registry.aclose(grace=60))
        await asyncio.sleep(0.01)
        assert not closing.done()
        site.registry.hurry()
        async with asyncio.timeout(5):
            await closing
        assert (await reading.to_the_end())[-1]["response"]["status"] == "failed"  # type: ignore[index]

    async def test_after_a_hurry_there_is_none(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", logger="respsite")
        site = hanging()
        await half_said(site)
        site.registry.hurry()
        await close(site, grace=60)
        assert "to end" not in caplog.text, "no time is promised that is not given"

    async def test_all_that_run_share_the_grace(self) -> None:
        gates = [asyncio.Event(), asyncio.Event()]
        site = Site(FakeEngine([[HALF, gates[0], ANSWER], [HALF, gates[1], ANSWER]]))
        readings = [await site.begin(input="hi") for _ in gates]
        await eventually(lambda: site.engine.running == 2)
        closing = asyncio.create_task(site.registry.aclose(grace=60))
        for gate in gates:
            await asyncio.sleep(0.01)
            assert not closing.done()
            gate.set()
        async with asyncio.timeout(5):
            await closing
        for reading in readings:
            assert (await reading.to_the_end())[-1]["response"]["status"] == "completed"  # type: ignore[index]

    async def test_what_is_being_accepted_is_waited_for_and_stopped_too(self) -> None:
        site = hanging()
        site.registry.enter()
        closing = asyncio.create_task(site.registry.aclose())
        await asyncio.sleep(0.05)
        assert not closing.done()
        site.registry.leave()
        async with asyncio.timeout(5):
            await closing

    async def test_readers_have_a_moment_to_hear_the_end(self) -> None:
        site = hanging()
        reading = await half_said(site)
        closing = asyncio.create_task(site.registry.aclose(last_words=60))
        await reading.to_the_end()
        await asyncio.sleep(0.05)
        assert not closing.done(), "it has not let go"
        reading.leave()
        async with asyncio.timeout(5):
            await closing

    async def test_and_no_longer_than_that_moment(self) -> None:
        site = hanging()
        reading = await half_said(site)
        began = time.monotonic()
        await close(site, last_words=0.1)
        assert 0.08 < time.monotonic() - began < 5
        reading.leave()

    async def test_nobody_waits_for_a_reader_that_was_dropped(self) -> None:
        words = ["<|channel|>final<|message|>", *["word " * 50] * 50, ANSWER]
        site = Site(FakeEngine([words]), max_lag_bytes=5_000)
        reading = await site.begin(input="hi")
        await eventually(lambda: len(site.registry) == 0)
        await close(site, last_words=60)
        assert site.engine.running == 0
        del reading

    async def test_no_stream_is_kept_afterwards(self) -> None:
        site = Site(run_limits=RunLimits(resumable=ResumableLimits()))
        reading = await site.begin(input="hi", transport="sse")
        await reading.to_the_end()
        reading.leave()
        assert len(site.registry.resumable) == 1
        await close(site)
        assert len(site.registry.resumable) == 0
