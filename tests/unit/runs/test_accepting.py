"""A stored response is kept before anybody hears of it, and only as long as it is kept can it be continued."""

import asyncio
from collections.abc import Collection

import pytest

from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.prompt.chain import ChainLink
from responses_app.protocol.requests.requests import parse_create
from responses_app.runs.plan.plan import Origin
from responses_app.stores.base import AcceptedResponse, StoreError
from tests.kit.fakes import FakeEngine, Reading, Site, run_settings
from tests.kit.laws import assert_laws
from tests.kit.waiting import eventually


class TestAccepted:
    """A stored response is kept before anybody hears of it."""

    @staticmethod
    def hold_back(site: Site) -> tuple[asyncio.Event, asyncio.Event]:
        """Let acceptances wait; return what says that one waits, and what lets it go on."""
        waits, go = asyncio.Event(), asyncio.Event()
        accept = site.store.accept

        async def slowly(accepted: AcceptedResponse) -> None:
            waits.set()
            await go.wait()
            await accept(accepted)

        site.store.accept = slowly  # type: ignore[method-assign]
        return waits, go

    async def test_it_is_kept_before_its_first_event(self) -> None:
        site = Site()
        waits, go = self.hold_back(site)

        async def begin() -> tuple[Reading, JsonObject | None]:
            reading = await site.begin(input="hi")
            return reading, await site.store.response("default", reading.run.response_id)

        beginning = asyncio.create_task(begin())
        await waits.wait()
        assert not beginning.done(), "nobody can read it yet"
        assert site.registry.running == []
        go.set()
        reading, kept = await beginning
        assert kept is not None
        assert kept["status"] == "in_progress"
        assert_laws(await reading.to_the_end())

    async def test_those_that_are_refused_while_the_store_is_away_wait_without_their_input(self) -> None:
        """Else each of them would cost memory as its body did, until the store is back."""
        site = Site()
        site.store.failure = StoreError("away")
        for _ in range(2):
            assert (await site.refusal(input="long " * 100)).status == 503
        assert [stored.input_items for stored in site.service.unsaved] == [(), ()]
        assert "long" not in str(list(site.service.unsaved))

    async def test_what_is_not_stored_waits_for_nothing(self) -> None:
        site = Site()
        self.hold_back(site)
        assert (await site.ask(input="hi", store=False))["status"] == "completed"

    async def test_one_that_cannot_be_kept_is_refused(self) -> None:
        site = Site()
        site.store.failure = StoreError("no route to /secret")
        error = await site.refusal(input="hi")
        assert (error.status, error.code, error.headers) == (503, "server_is_overloaded", {"retry-after": "2"})
        assert "secret" not in error.message
        assert (len(site.registry), site.engine.requests) == (0, [])

    async def test_a_client_that_leaves_meanwhile_leaves_nothing_running(self) -> None:
        site = Site(FakeEngine([["<|channel|>final<|message|>It", asyncio.Event()]]))
        waits, go = self.hold_back(site)
        beginning = asyncio.create_task(site.begin(input="hi"))
        await waits.wait()
        beginning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await beginning
        stopping = asyncio.create_task(site.registry.aclose())
        await asyncio.sleep(0)
        go.set()
        await stopping
        assert len(site.registry) == 0
        assert [stored.response["status"] for stored in site.store.saved] == ["cancelled"]

    async def test_a_client_that_leaves_meanwhile_has_cancelled(self) -> None:
        site = Site(FakeEngine([["<|channel|>final<|message|>It", asyncio.Event()]]))
        waits, go = self.hold_back(site)
        beginning = asyncio.create_task(site.begin(input="hi"))
        await waits.wait()
        beginning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await beginning
        go.set()
        await eventually(lambda: bool(site.store.saved))
        assert [stored.response["status"] for stored in site.store.saved] == ["cancelled"]

    async def test_what_is_being_accepted_takes_a_place(self) -> None:
        site = Site(settings=run_settings(responses_max_in_flight=1))
        waits, go = self.hold_back(site)
        beginning = asyncio.create_task(site.begin(input="hi"))
        await waits.wait()
        assert (await site.refusal(input="hi")).status == 503
        go.set()
        await (await beginning).to_the_end()


class TestForgotten:
    """A connection remembers what it made; whether that can be continued is the store's word."""

    @staticmethod
    async def made(site: Site, **fields: object) -> ChainLink:
        reading = await site.begin(input="one", **fields)
        await reading.to_the_end()
        assert reading.run.link is not None
        return reading.run.link

    @staticmethod
    async def go_on(site: Site, link: ChainLink, **fields: object) -> JsonObject:
        request = parse_create({"input": "two", "previous_response_id": link.response_id, **fields})
        reader = await site.service.create(
            request, Origin(transport="test", project="default"), recall={link.response_id: link}.get
        )
        return (await Reading(site, reader).to_the_end())[-1]

    @pytest.mark.parametrize("store", [True, False])
    async def test_a_deleted_response_is_not_continued(self, store: bool) -> None:
        site = Site()
        link = await self.made(site)
        assert (await self.go_on(site, link, store=store))["type"] == "response.completed"
        await site.store.delete("default", link.response_id)
        with pytest.raises(ApiError) as refused:
            await self.go_on(site, link, store=store)
        error = refused.value
        assert (error.status, error.code) == (400, "previous_response_not_found")
        assert (len(site.registry), len(site.engine.requests)) == (0, 2)

    async def test_what_was_never_stored_is_continued(self) -> None:
        site = Site()
        link = await self.made(site, store=False)
        assert (await self.go_on(site, link))["type"] == "response.completed"

    async def test_what_continued_a_deleted_response_goes_on(self) -> None:
        site = Site()
        first = await self.made(site)
        second = await site.begin(input="two", store=False, previous_response_id=first.response_id)
        await second.to_the_end()
        await site.responses.delete("default", first.response_id)
        assert second.run.link is not None
        assert (await self.go_on(site, second.run.link))["type"] == "response.completed"

    async def test_a_deletion_is_told_to_all_memories(self) -> None:
        site = Site()
        told: list[Collection[str]] = []
        site.forgetting.memories.add(told.append)
        link = await self.made(site)
        await site.responses.delete("default", link.response_id)
        site.forgetting.memories.discard(told.append)
        assert told == [{link.response_id}]
