"""`ApprovalStore`: claims of approved calls in the database, which all workers share.

An answer to a request for approval may come twice at the same time, on two workers. Both would make the call, so the
response to each claims the request first, and one of them gets it.
"""

from dataclasses import dataclass
from datetime import timedelta
from hashlib import blake2b

from responses_app.kit.errors import StoreError
from responses_app.kit.table import Store, reads
from responses_app.models import ApprovalClaim

KEPT = timedelta(days=1)  # far longer than any response runs
TRIES = 5  # where others claim and let go of the same meanwhile


@dataclass(frozen=True, slots=True)
class ApprovalHolder:
    """The response that makes an approved call, and when it claimed that, in Unix seconds."""

    response_id: str  # may be one that no store knows
    claimed_at: float  # Unix seconds; renewed while it runs, where it is not stored


class ApprovalStore(Store[None]):
    """The store of the holder of each request for approval of a project. Every method raises `StoreError`.

    What is older than `KEPT` goes with the next claim of anybody.
    """

    unlimited = None

    async def claim(self, project: str, request_id: str, response_id: str, *, instead_of: str = "") -> ApprovalHolder:
        """Claim a request that nobody holds, or that the response `instead_of` holds; return who holds it then.

        Of several that claim the same at once, one gets it. To claim again what one holds changes nothing.
        """
        for _ in range(TRIES):
            # None where its holder let go of it between the insert and the look: then the claim is free.
            if (holder := await self._claim(project, _digest(request_id), response_id, instead_of)) is not None:
                return holder
        raise StoreError(f"the claim of {request_id} could not be kept: others let go of it each time")

    @reads
    def _claim(self, project: str, digest: str, response_id: str, instead_of: str) -> ApprovalHolder | None:
        at, claims = self._at(), ApprovalClaim.objects.using(self._using)
        claims.filter(claimed_at__lt=at - KEPT).delete()
        # Whoever inserts first holds it: the rule is the unique index, not a look before the write.
        new = ApprovalClaim(project=project, request_id=digest, response_id=response_id, claimed_at=at)
        claims.bulk_create([new], ignore_conflicts=True)
        ours = claims.filter(project=project, request_id=digest)
        if instead_of:
            ours.filter(response_id=instead_of).update(response_id=response_id, claimed_at=at)
        row = ours.first()
        return None if row is None else ApprovalHolder(row.response_id, row.claimed_at.timestamp())

    @reads
    def release(self, project: str, request_id: str, response_id: str) -> None:
        """Let go of a request, if this response holds it."""
        claims = ApprovalClaim.objects.using(self._using)
        claims.filter(project=project, request_id=_digest(request_id), response_id=response_id).delete()


def _digest(request_id: str) -> str:
    """Return what stands for an id, which may be a client's: of any length, with characters that no database takes."""
    return blake2b(request_id.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()
