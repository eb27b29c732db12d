"""How the admin cancels what runs. Its views run on threads, and runs belong to the server's event loop."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from asgiref.sync import async_to_sync

from responses_app.runs.by_id import Cancelled

if TYPE_CHECKING:
    from responses_app.wiring.site import Site

CANCELLED = "it was cancelled in the admin"
DELETED = "it was deleted in the admin"


def cancel_responses(running: Mapping[str, bool]) -> Cancelled:
    """Cancel responses: their ids, and whether they are background ones, the only ones others can be asked about.

    What runs elsewhere and cannot be asked about, and what has just ended, is left as it is.
    """
    return async_to_sync(_cancel)(running)


def forget_runs(response_ids: Collection[str]) -> None:
    """Tell all workers that these responses were deleted: what runs of them ends, their streams go."""
    async_to_sync(_forget)(response_ids)


# What follows runs on the event loop of the server, which the view's thread belongs to.


async def _cancel(running: Mapping[str, bool]) -> Cancelled:
    return await _site().responses.cancel_all(running, reason=CANCELLED)


async def _forget(response_ids: Collection[str]) -> None:
    await _site().forgetting.everywhere(response_ids, reason=DELETED)


def _site() -> "Site":
    from responses_app.wiring.wiring import get_site  # here, since every command of respsite manage loads the admin

    return get_site()
