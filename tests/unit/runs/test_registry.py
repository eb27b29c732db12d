"""The registry owns the runs: their places, who reads, finds and ends them, graces, and how it closes."""

import asyncio
import time

import pytest

from responses_app.protocol.errors import ApiError
from responses_app.protocol.requests.resources import Status
from responses_app.protocol.response.steps import StopReason
from responses_app.runs.log.journal import ReaderTooSlow
from tests.kit.fakes import ANSWER, FakeEngine, Site, run_settings
from tests.kit.waiting import eventually
from tests.unit.runs.readers import HALF, Held, close, ended, half_said, hanging, hung, id_of, idle, response_of, runs


async def test_the_last_reader_to_leave_cancels_the_run_and_the_generation_is_closed() -> None:
    site, reading = await hung()
    second = site.registry.attach(reading.run)
    assert site.engine.running == 1
    second.leave()
    assert len(site.registry) == 1
    reading.leave()
    await idle(site)
    assert (reading.run.status, reading.run.link) == (Status.CANCELLED, None)
    assert site.engine.running == 0


@pytest.mark.parametrize("turns", range(4))  # of the loop, from the last token on
async def test_what_is_cancelled_while_it_comes_to_its_end_has_the_end_that_is_kept(turns: int) -> None:
    last = asyncio.Event()
    site = Site(FakeEngine([[HALF, last, ANSWER]]))
    site.store.gate = asyncio.Event()
    reading = await site.begin(input="hi")
    await site.engine.waits.wait()
    last.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    site.registry.cancel(reading.run, reason="asked to")
    await site.store.saving.wait()
    site.store.gate.set()
    status = (await response_of(reading))["status"]
    assert status in ("cancelled", "completed")
    assert [stored.response["status"] for stored in site.store.saved] == [status]


async def test_one_that_goes_on_here_again_is_known_when_the_run_before_has_ended() -> None:
    site = hanging()
    before = (await site.begin(input="hi", background=True)).run
    await site.engine.waits.wait()
    [task] = [task for task in asyncio.all_tasks() if task.get_name() == before.response_id]
    [claimed] = (await site.store.reclaim("heir", dead_before=0.0)).claimed
    await site.service.run_again(claimed)
    again = site.registry.get(before.response_id)
    assert before.stop(StopReason.CANCELLED)
    await asyncio.wait([task])
    await asyncio.sleep(0)  # whoever is told of its end
    assert site.registry.get(before.response_id) is again is not before
    await site.registry.aclose()


def wordy(stream_max_lag_bytes: int) -> Site:
    """Return a site whose model says much, with a bound for how far readers may be behind."""
    words = ["<|channel|>final<|message|>", *["word " * 50] * 50, ANSWER]
    return Site(FakeEngine([words]), settings=run_settings(stream_max_lag_bytes=stream_max_lag_bytes))


async def test_a_slow_reader_is_dropped_and_its_run_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    site = wordy(20_000)
    reading = await site.begin(input="hi")
    await idle(site)
    with pytest.raises(ReaderTooSlow):
        reading.take()
    assert reading.run.status is Status.CANCELLED
    assert site.engine.running == 0
    assert "STREAM_MAX_LAG_BYTES" in caplog.text


async def test_a_slow_reader_does_not_end_the_run_of_another() -> None:
    site = wordy(8_000)
    reading = await site.begin(input="hi")
    slow = site.registry.attach(reading.run)
    events = await reading.to_the_end()
    with pytest.raises(ReaderTooSlow):
        slow.take()
    assert events[-1]["response"]["status"] == "completed"


GRACE = 30.0
Timers = list[asyncio.TimerHandle]


@pytest.fixture
async def graces(monkeypatch: pytest.MonkeyPatch) -> Timers:
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
    async def test_who_comes_back_in_time_ends_the_grace_and_the_next_one_is_whole(self, graces: Timers) -> None:
        site, first = await hung(reconnect_grace_seconds=GRACE)
        first.leave()
        assert [timer.cancelled() for timer in graces] == [False]
        second = await site.follow(id_of(first))
        assert [timer.cancelled() for timer in graces] == [True]
        second.leave()
        assert [timer.cancelled() for timer in graces] == [True, False]
        assert runs(site, first)

    async def test_the_grace_begins_with_the_last_reader_to_leave(self, graces: Timers) -> None:
        site, first = await hung(reconnect_grace_seconds=GRACE)
        second = await site.follow(id_of(first))
        first.leave()
        assert graces == []
        second.leave()
        assert len(graces) == 1

    async def test_nothing_is_left_of_the_grace_of_one_that_ended_meanwhile(self, graces: Timers) -> None:
        gate = asyncio.Event()
        site, reading = await hung(gate, reconnect_grace_seconds=GRACE)
        run = reading.run
        reading.leave()
        gate.set()
        await ended(site, run)
        assert run.status is Status.COMPLETED
        assert [timer.cancelled() for timer in graces] == [True]

    async def test_who_comes_back_at_another_worker_has_come_back(self) -> None:
        site, reading = await hung(reconnect_grace_seconds=0.01)
        reading.leave()
        reading.run.follow()  # as that worker asks it
        await asyncio.sleep(0.05)
        assert runs(site, reading)
        assert not reading.run.finishing

    async def test_the_log_says_why_a_run_was_given_up(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", logger="respsite")
        for grace, why in ((0.0, "its reader left"), (0.01, "its reader left and did not come back")):
            caplog.clear()
            site = hanging(reconnect_grace_seconds=grace)
            (await half_said(site)).leave()
            await idle(site)
            assert why in caplog.text
            assert ("did not come back" in caplog.text) == (grace > 0)

    async def test_leaving_twice_is_leaving_once(self, graces: Timers) -> None:
        _, reading = await hung(reconnect_grace_seconds=GRACE)
        reading.leave()
        reading.leave()
        assert [timer.cancelled() for timer in graces] == [False], "its grace does not begin again"

    async def test_leaving_twice_does_not_count_for_another_reader(self) -> None:
        site, first = await hung()
        second = site.registry.attach(first.run)
        first.leave()
        first.leave()
        await asyncio.sleep(0)
        assert runs(site, first)
        second.leave()
        await idle(site)


class TestPlaces:
    async def test_runs_and_those_to_come_share_the_places(self) -> None:
        site, _ = await hung(responses_max_in_flight=2)
        with site.registry.admission():
            error = await site.refusal(input="hi")
            assert (error.status, error.code, error.headers) == (503, "server_is_overloaded", {"retry-after": "2"})
            assert "RESPONSES_MAX_IN_FLIGHT" in error.message
            with pytest.raises(ApiError), site.registry.admission():
                raise AssertionError("there is no place")
        site.registry.check_capacity()


class TestClosing:
    async def test_a_server_that_stops_says_when_to_try_again(self) -> None:
        site = hanging()
        for _ in range(2):
            await close(site)
            error = await site.refusal(input="hi")
            assert (error.status, error.headers) == (503, {"retry-after": "2"})
            assert "stopping" in error.message

    async def test_the_grace_is_over_for_those_who_do_not_end(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", logger="respsite")
        site, reading = await hung()
        began = time.monotonic()
        await close(site, grace=0.05)
        assert 0.04 < time.monotonic() - began < 5
        assert (await reading.to_the_end())[-1]["response"]["error"]["code"] == "server_error"  # type: ignore[index]
        assert site.registry.draining
        assert "1 responses are running; they have 0.05 s to end" in caplog.text
        assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing waits any more"

    async def test_a_hurry_ends_the_grace(self) -> None:
        site, reading = await hung()
        closing = asyncio.create_task(site.registry.aclose(grace=60))
        await asyncio.sleep(0.01)
        assert not closing.done()
        site.registry.hurry.set()
        await asyncio.wait_for(closing, 5)
        assert (await reading.to_the_end())[-1]["response"]["status"] == "failed"  # type: ignore[index]

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
        await asyncio.wait_for(closing, 5)
        for reading in readings:
            assert (await reading.to_the_end())[-1]["response"]["status"] == "completed"  # type: ignore[index]

    @pytest.mark.parametrize("background", [False, True])
    async def test_what_is_being_accepted_has_the_grace_too(self, background: bool, gate: asyncio.Event) -> None:
        site = hanging(gate)
        accepting = Held(site.store, "accept")
        creating = asyncio.create_task(site.begin(input="hi", background=background))
        await accepting.waits.wait()
        closing = asyncio.create_task(site.registry.aclose(grace=60))
        await asyncio.sleep(0.05)
        assert not closing.done()
        accepting.go_on.set()
        reading = await creating
        await asyncio.sleep(0.05)
        gate.set()
        await asyncio.wait_for(closing, 5)
        assert (await reading.to_the_end())[-1]["response"]["status"] == "completed"  # type: ignore[index]

    async def test_what_generates_beside_responses_has_the_grace_too(self, site: Site) -> None:
        site.registry.take_places(1)
        closing = asyncio.create_task(site.registry.drain(grace=60))
        await asyncio.sleep(0.05)
        assert not closing.done()
        site.registry.give_place()
        await asyncio.wait_for(closing, 5)

    async def test_readers_have_a_moment_to_hear_the_end(self) -> None:
        site, reading = await hung()
        closing = asyncio.create_task(site.registry.aclose(last_words=60))
        await reading.to_the_end()
        await asyncio.sleep(0.05)
        assert not closing.done(), "it has not let go"
        reading.leave()
        await asyncio.wait_for(closing, 5)

    async def test_and_no_longer_than_that_moment(self) -> None:
        site, _ = await hung()
        began = time.monotonic()
        await close(site, last_words=0.1)
        assert 0.08 < time.monotonic() - began < 5

    async def test_nobody_waits_for_a_reader_that_was_dropped(self) -> None:
        site = wordy(5_000)
        reading = await site.begin(input="hi")
        await idle(site)
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
