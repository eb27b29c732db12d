"""The one way from the admin to what runs: views have threads of their own, runs belong to the server's event loop."""

import asyncio
from collections.abc import Collection

from asgiref.sync import async_to_sync

from responses_app.runs.registry import RunRegistry

CANCELLED = "it was cancelled in the admin"
DELETED = "it was deleted in the admin"
WAIT_SECONDS = 5.0  # for what was cancelled to end, so that the next page shows it


def cancel_responses(response_ids: Collection[str]) -> int:
    """Cancel the responses of these that run in this process, and return how many they were.

    Those of other workers, and those that have ended, are left as they are.
    """
    return async_to_sync(_cancel)(response_ids)


def forget_runs(response_ids: Collection[str]) -> None:
    """Tell this process that these responses were deleted: what runs of them is not kept, their streams go."""
    async_to_sync(_forget)(response_ids)


# What follows runs on the event loop of the server, which the view's thread belongs to.


async def _cancel(response_ids: Collection[str]) -> int:
    registry = _registry()
    runs = [run for response_id in response_ids if (run := registry.get(response_id)) is not None]
    for run in runs:
        registry.cancel(run, reason=CANCELLED)
    if runs:
        await asyncio.wait([asyncio.ensure_future(registry.wait_for_end(run)) for run in runs], timeout=WAIT_SECONDS)
    return len(runs)


async def _forget(response_ids: Collection[str]) -> None:
    registry = _registry()
    for response_id in response_ids:
        run = registry.get(response_id) or registry.sessions.get(response_id)
        if run is None:
            continue
        run.deleted = True
        registry.sessions.drop(response_id)
        if run.plan.background:
            registry.cancel(run, reason=DELETED)


def _registry() -> RunRegistry:
    from responses_app.wiring import get_site  # here, since every command of manage.py loads the admin

    return get_site().registry
