"""What clients delete while another worker takes it over."""

import asyncio

import pytest

from responses_app.protocol.errors import ApiError
from responses_app.stores.base import AcceptedResponse, ClaimLost
from tests.kit.fakes import ANSWER, FakeEngine, FakeStore, Site


@pytest.mark.parametrize("moment", ["before it is accepted again", "before it starts"])
async def test_one_that_is_deleted_while_it_is_taken_over_never_runs(moment: str) -> None:
    store = SlowToAccept(before=moment == "before it is accepted again")
    engine = FakeEngine([["<|channel|>final<|message|>Half", asyncio.Event(), ANSWER]])
    site = Site(engine, store, worker="a")
    lost = await site.begin(input="hi", background=True)
    await lost.until("response.output_text.delta")
    response_id = lost.reader.source.response_id
    (claimed,) = (await store.reclaim("b", dead_before=float("inf"))).claimed
    heir = Site(FakeEngine([[ANSWER]]), store, worker="b")
    again = asyncio.create_task(heir.service.run_again(claimed))
    await store.accepting.wait()
    await heir.responses.delete("default", response_id)
    store.go_on.set()
    with pytest.raises(ClaimLost):
        await again
    assert (list(heir.registry.running), heir.engine.requests) == ([], [])
    with pytest.raises(ApiError) as unknown:
        await heir.responses.response("default", response_id)
    assert unknown.value.status == 404
    await site.registry.aclose()


class SlowToAccept(FakeStore):
    """A store that takes long to accept a response again, before or behind writing it."""

    def __init__(self, *, before: bool) -> None:
        super().__init__()
        self._before = before
        self.accepting = asyncio.Event()
        self.go_on = asyncio.Event()

    async def accept(self, accepted: AcceptedResponse) -> None:
        if not self._before:
            await super().accept(accepted)
        if accepted.again:
            self.accepting.set()
            await self.go_on.wait()
        if self._before:
            await super().accept(accepted)
