"""The registry: the places of runs, who finds and who cancels them, and how it closes."""

import asyncio
import time

import pytest

from responses_app.protocol.errors import ApiError
from responses_app.protocol.requests.resources import Status
from tests.kit.fakes import ANSWER, FakeEngine, Reading, Site, SlowStore, run_settings
from tests.kit.waiting import eventually
from tests.unit.runs.halves import HALF, close, ended, half_said, hanging, runs


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
        response_id = reading.reader.source.response_id
        assert site.registry.find("default", response_id) is reading.run
        assert site.registry.find("other", response_id) is None
        assert site.registry.find("default", "resp_unknown") is None
        reading.leave()

    async def test_one_that_has_ended_is_found_while_its_stream_is_kept(self) -> None:
        site = Site()
        reading = await site.begin(input="hi", transport="sse")
        await reading.to_the_end()
        response_id = reading.reader.source.response_id
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

    async def test_what_is_not_stored_is_not_among_what_was_deleted(self) -> None:
        site = hanging()
        reading = await half_said(site, store=False)
        site.forgetting.here([reading.run.response_id])
        assert site.registry.find("default", reading.run.response_id) is reading.run
        reading.leave()
        await ended(site, reading.run)

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
        assert first.reader.source.status is Status.CANCELLED

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

    async def test_the_grace_is_over_for_those_who_do_not_end(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", logger="respsite")
        site = hanging()
        reading = await half_said(site)
        began = time.monotonic()
        await close(site, grace=0.05)
        assert 0.04 < time.monotonic() - began < 5
        assert (await reading.to_the_end())[-1]["response"]["error"]["code"] == "server_error"  # type: ignore[index]
        assert site.registry.draining
        assert "1 responses are running; they have 0.05 s to end" in caplog.text
        assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing waits any more"

    async def test_no_grace_promises_nothing_and_an_idle_server_needs_none(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", logger="respsite")
        await close(Site(), grace=60)
        site = hanging()
        await half_said(site)
        await close(site)
        assert "to end" not in caplog.text

    async def test_a_hurry_ends_the_grace(self) -> None:
        site = hanging()
        reading = await half_said(site)
        closing = asyncio.create_task(site.registry.aclose(grace=60))
        await asyncio.sleep(0.01)
        assert not closing.done()
        site.registry.hurry.set()
        async with asyncio.timeout(5):
            await closing
        assert (await reading.to_the_end())[-1]["response"]["status"] == "failed"  # type: ignore[index]

    async def test_after_a_hurry_there_is_none(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", logger="respsite")
        site = hanging()
        await half_said(site)
        site.registry.hurry.set()
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

    @pytest.mark.parametrize("background", [False, True])
    async def test_what_is_being_accepted_has_the_grace_too(self, background: bool) -> None:
        gate = asyncio.Event()
        site = Site(FakeEngine([[HALF, gate, ANSWER]]), SlowStore())
        assert isinstance(site.store, SlowStore)
        creating = asyncio.create_task(site.begin(input="hi", background=background))
        await eventually(lambda: site.store.accepting == 1)
        closing = asyncio.create_task(site.registry.aclose(grace=60))
        await asyncio.sleep(0.05)
        assert not closing.done()
        site.store.go_on.set()
        reading = await creating
        await asyncio.sleep(0.05)
        gate.set()
        async with asyncio.timeout(5):
            await closing
        assert (await reading.to_the_end())[-1]["response"]["status"] == "completed"  # type: ignore[index]

    async def test_what_generates_beside_responses_has_the_grace_too(self) -> None:
        site = Site()
        site.registry.take_places(1)
        closing = asyncio.create_task(site.registry.drain(grace=60))
        await asyncio.sleep(0.05)
        assert not closing.done()
        site.registry.give_place()
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
        site = Site(FakeEngine([words]), settings=run_settings(stream_max_lag_bytes=5_000))
        reading = await site.begin(input="hi")
        await eventually(lambda: len(site.registry) == 0)
        await close(site, last_words=60)
        assert site.engine.running == 0
        del reading

    async def test_no_stream_is_kept_afterwards(self) -> None:
        site = Site(settings=run_settings(responses_max_in_flight=2000))
        reading = await site.begin(input="hi", transport="sse")
        await reading.to_the_end()
        reading.leave()
        assert len(site.registry.resumable) == 1
        await close(site)
        assert len(site.registry.resumable) == 0
