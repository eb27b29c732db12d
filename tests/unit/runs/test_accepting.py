"""A stored response is kept before anybody hears of it, and only as long as it is kept can it be continued."""

import asyncio
from collections.abc import Collection

import pytest

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.prompt.chain import ChainLink
from responses_app.protocol.requests.requests import parse_create
from responses_app.runs.plan.plan import Origin
from responses_app.stores.base import StoreError
from tests.kit.fakes import FakeEngine, Reading, Site, run_settings
from tests.kit.laws import assert_laws
from tests.kit.waiting import eventually
from tests.unit.runs.readers import Held, idle, refused


class TestAccepted:
    """A stored response is kept before anybody hears of it."""

    async def test_it_is_kept_before_its_first_event(self, site: Site) -> None:
        accepting = Held(site.store, "accept")

        async def begin() -> tuple[Reading, JsonObject | None]:
            reading = await site.begin(input="hi")
            return reading, await site.store.response("default", reading.run.response_id)

        beginning = asyncio.create_task(begin())
        await accepting.waits.wait()
        assert not beginning.done(), "nobody can read it yet"
        assert site.registry.running == []
        accepting.go_on.set()
        reading, kept = await beginning
        assert kept["status"] == "in_progress"
        assert_laws(await reading.to_the_end())

    async def test_those_that_are_refused_while_the_store_is_away_wait_without_their_input(self, site: Site) -> None:
        """Else each of them would cost memory as its body did, until the store is back."""
        site.store.failure = StoreError("away")
        for _ in range(2):
            assert (await site.refusal(input="long " * 100)).status == 503
        assert [stored.input_items for stored in site.service.unsaved] == [(), ()]
        assert "long" not in str(list(site.service.unsaved))

    async def test_what_is_not_stored_waits_for_nothing(self, site: Site) -> None:
        Held(site.store, "accept")
        assert (await site.ask(input="hi", store=False))["status"] == "completed"

    async def test_one_that_cannot_be_kept_is_refused(self, site: Site) -> None:
        site.store.failure = StoreError("no route to /secret")
        error = await site.refusal(input="hi")
        assert (error.status, error.code, error.headers) == (503, "server_is_overloaded", {"retry-after": "2"})
        assert "secret" not in error.message
        assert (len(site.registry), site.engine.requests) == (0, [])

    @pytest.mark.parametrize("stops", [True, False])
    async def test_a_client_that_leaves_meanwhile_has_cancelled_and_leaves_nothing_running(self, stops: bool) -> None:
        site = Site(FakeEngine([["<|channel|>final<|message|>It", asyncio.Event()]]))
        accepting = Held(site.store, "accept")
        beginning = asyncio.create_task(site.begin(input="hi"))
        await accepting.waits.wait()
        beginning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await beginning
        stopping = asyncio.create_task(site.registry.aclose() if stops else asyncio.sleep(0))
        await asyncio.sleep(0)
        accepting.go_on.set()
        await stopping
        await eventually(lambda: bool(site.store.saved))
        await idle(site)
        assert [stored.response["status"] for stored in site.store.saved] == ["cancelled"]

    async def test_what_is_being_accepted_takes_a_place(self) -> None:
        site = Site(settings=run_settings(responses_max_in_flight=1))
        accepting = Held(site.store, "accept")
        beginning = asyncio.create_task(site.begin(input="hi"))
        await accepting.waits.wait()
        assert (await site.refusal(input="hi")).status == 503
        accepting.go_on.set()
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
    async def test_a_deleted_response_is_not_continued(self, store: bool, site: Site) -> None:
        link = await self.made(site)
        assert (await self.go_on(site, link, store=store))["type"] == "response.completed"
        await site.store.delete("default", link.response_id)
        error = await refused(self.go_on(site, link, store=store))
        assert (error.status, error.code) == (400, "previous_response_not_found")
        assert (len(site.registry), len(site.engine.requests)) == (0, 2)

    async def test_what_continued_a_deleted_response_goes_on(self, site: Site) -> None:
        first = await self.made(site)
        second = await site.begin(input="two", store=False, previous_response_id=first.response_id)
        await second.to_the_end()
        await site.responses.delete("default", first.response_id)
        assert second.run.link is not None
        assert (await self.go_on(site, second.run.link))["type"] == "response.completed"

    async def test_a_deletion_is_told_to_all_memories(self, site: Site) -> None:
        told: list[Collection[str]] = []
        site.forgetting.memories.add(told.append)
        link = await self.made(site)
        await site.responses.delete("default", link.response_id)
        site.forgetting.memories.discard(told.append)
        assert told == [{link.response_id}]
