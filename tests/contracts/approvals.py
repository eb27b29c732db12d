"""What every store of approval claims does."""

import asyncio

from responses_app.stores.approvals import ApprovalHolder, ApprovalStore
from tests.contracts.files import NOW, Hands

REQUESTS = ["mcpr_1", "", "é👍" * 500, "\x00\ud800"]  # where items are replayed, ids are the client's


class ApprovalsContract:
    """Give a subclass the fixture `claims`, a store with the clock `hands`."""

    async def test_who_comes_first_holds_it_until_he_lets_go(self, claims: ApprovalStore, hands: Hands) -> None:
        for request_id in REQUESTS:
            first = ApprovalHolder("resp_1", NOW)
            assert await claims.claim("p", request_id, "resp_1") == first
            hands.time += 5
            assert await claims.claim("p", request_id, "resp_2") == first
            assert await claims.claim("p", request_id, "resp_1") == first
            assert (await claims.claim("another", request_id, "resp_3")).response_id == "resp_3"
            await claims.release("p", request_id, "resp_2")
            assert await claims.claim("p", request_id, "resp_2") == first
            await claims.release("p", request_id, "resp_1")
            assert await claims.claim("p", request_id, "resp_2") == ApprovalHolder("resp_2", NOW + 5)
            hands.time = NOW

    async def test_another_takes_it_over_only_from_whom_it_knows(self, claims: ApprovalStore, hands: Hands) -> None:
        await claims.claim("p", "mcpr_1", "resp_1")
        hands.time += 1
        second = ApprovalHolder("resp_2", NOW + 1)
        assert await claims.claim("p", "mcpr_1", "resp_2", instead_of="resp_1") == second
        assert await claims.claim("p", "mcpr_1", "resp_3", instead_of="resp_1") == second

    async def test_of_many_at_once_one_gets_it(self, claims: ApprovalStore) -> None:
        names = [f"resp_{number}" for number in range(8)]
        holders = await asyncio.gather(*(claims.claim("p", "mcpr_1", name) for name in names))
        assert len({holder.response_id for holder in holders}) == 1
        before = holders[0].response_id
        others = [name for name in names if name != before]
        taken = (claims.claim("p", "mcpr_1", name, instead_of=before) for name in others)
        assert len({holder.response_id for holder in await asyncio.gather(*taken)} - {before}) == 1
