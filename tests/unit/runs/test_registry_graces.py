"""The registry: a run whose last reader has left ends, at once or after its grace."""

import asyncio

import pytest

from responses_app.protocol.requests.resources import Status
from tests.kit.fakes import Site, run_settings
from tests.kit.waiting import eventually
from tests.unit.runs.halves import close, ended, half_said, hanging, runs

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
        second = await site.follow(first.reader.source.response_id)
        assert [timer.cancelled() for timer in graces] == [True]
        second.leave()
        assert [timer.cancelled() for timer in graces] == [True, False]
        assert runs(site, first)
        await close(site)

    async def test_the_grace_begins_with_the_last_reader_to_leave(self, graces: list[asyncio.TimerHandle]) -> None:
        site = hanging(grace=GRACE)
        first = await half_said(site)
        second = await site.follow(first.reader.source.response_id)
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
        site = Site(settings=run_settings(reconnect_grace_seconds=GRACE))
        reading = await site.begin(input="hi", transport="sse")
        await reading.to_the_end()
        reading.leave()
        assert graces == []

    async def test_without_a_grace_it_ends_at_once(self) -> None:
        site = hanging()
        reading = await half_said(site)
        reading.leave()
        await ended(site, reading.run)

    async def test_who_comes_back_at_another_worker_has_come_back(self) -> None:
        site = hanging(grace=0.01)
        reading = await half_said(site)
        reading.leave()
        reading.run.follow()  # as that worker asks it
        await asyncio.sleep(0.05)
        assert runs(site, reading)
        assert not reading.run.finishing
        await close(site)

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
