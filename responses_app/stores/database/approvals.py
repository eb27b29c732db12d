"""Claims of approved calls in the database, which all workers share.

An answer to a request for approval may come twice at the same time, on two workers. Both would make the call, so the
response to each claims the request first, and one of them gets it.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b

from django.db.backends.base.base import BaseDatabaseWrapper

from responses_app.kit.errors import StoreError
from responses_app.kit.table import Store
from responses_app.models import ApprovalClaim

KEPT = timedelta(days=1)  # far longer than any response runs
TRIES = 5  # where others claim and let go of the same meanwhile


@dataclass(frozen=True, slots=True)
class ApprovalHolder:
    """The response that makes an approved call, and when it claimed that, in Unix seconds."""

    response_id: str  # may be one that no store knows
    claimed_at: float  # Unix seconds; renewed while it runs, where it is not stored


class DatabaseApprovalStore(Store[None]):
    """Keeps who holds each request for approval of a project in the database `using`; all methods raise `StoreError`.

    `timeout` bounds, in seconds, whatever waits for the database.

    `now` is the clock, in Unix seconds. What is older than `KEPT` goes with the next claim of anybody.
    """

    unlimited = None

    async def claim(self, project: str, request_id: str, response_id: str, *, instead_of: str = "") -> ApprovalHolder:
        """Claim a request that nobody holds, or that the response `instead_of` holds; return who holds it then.

        Of several that claim the same at once, one gets it. To claim again what one holds changes nothing.
        """
        at, digest = datetime.fromtimestamp(self._now(), UTC), _digest(request_id)
        new_claim = ApprovalClaim(project=project, request_id=digest, response_id=response_id, claimed_at=at)

        def write(connection: BaseDatabaseWrapper) -> ApprovalHolder | None:
            claims = ApprovalClaim.objects.using(connection.alias)
            claims.filter(claimed_at__lt=at - KEPT).delete()
            # Whoever inserts first holds it: the rule is the unique index, not a look before the write.
            claims.bulk_create([new_claim], ignore_conflicts=True)
            ours = claims.filter(project=project, request_id=digest)
            if instead_of:
                ours.filter(response_id=instead_of).update(response_id=response_id, claimed_at=at)
            row = ours.first()
            # None where its holder let go of it between the insert and this look: then the claim is free, and tried
            # again.
            return None if row is None else ApprovalHolder(row.response_id, row.claimed_at.timestamp())

        for _ in range(TRIES):
            holder = await self._threads.run(write)
            if holder is not None:
                return holder
        raise StoreError(f"the claim of {request_id} could not be kept: others let go of it each time")

    async def release(self, project: str, request_id: str, response_id: str) -> None:
        """Let go of a request, if this response holds it."""

        def write(connection: BaseDatabaseWrapper) -> None:
            claims = ApprovalClaim.objects.using(connection.alias)
            claims.filter(project=project, request_id=_digest(request_id), response_id=response_id).delete()

        await self._threads.run(write)


def _digest(request_id: str) -> str:
    """Return what stands for an id, which may be a client's: of any length, with characters that no database takes."""
    return blake2b(request_id.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()
