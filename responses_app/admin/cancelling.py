"""The one way from the admin to what runs: views have threads of their own, runs belong to the server's event loop."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from asgiref.sync import async_to_sync

if TYPE_CHECKING:
    from responses_app.wiring import Site

CANCELLED = "it was cancelled in the admin"
DELETED = "it was deleted in the admin"
WAIT_SECONDS = 5.0  # for what was cancelled to end, so that the next page shows it


@dataclass(frozen=True, slots=True)
class Cancelled:
    """How many responses were cancelled `here`, in this process, and how many other workers were `asked` to cancel."""

    here: int = 0
    asked: int = 0


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
    site = _site()
    runs = {response_id: run for response_id in running if (run := site.registry.get(response_id)) is not None}
    for run in runs.values():
        site.registry.cancel(run, reason=CANCELLED)
    if runs:
        ends = [asyncio.ensure_future(site.registry.wait_for_end(run)) for run in runs.values()]
        await asyncio.wait(ends, timeout=WAIT_SECONDS)
    asked = 0
    for response_id, background in running.items():
        if background and response_id not in runs and site.relay.reaches_others:
            if not await site.relay.ask_to_cancel(response_id):
                break  # the others cannot be reached now
            asked += 1
    return Cancelled(len(runs), asked)


async def _forget(response_ids: Collection[str]) -> None:
    await _site().forgetting.everywhere(response_ids, reason=DELETED)


def _site() -> "Site":
    from responses_app.wiring import get_site  # here, since every command of manage.py loads the admin

    return get_site()
