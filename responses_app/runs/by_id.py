"""`ResponsesById`: responses by their id: read, resume, cancel, delete. What runs here is found before the store."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from responses_app.protocol.errors import ApiError, JsonObject, invalid_request, overloaded, response_not_found
from responses_app.protocol.input_codec import BrokenLog
from responses_app.protocol.resources import TERMINAL_STATUSES, Status
from responses_app.protocol.stream import LocalProtocolError
from responses_app.runs.forgetting import Forgetting, OtherWorkers
from responses_app.runs.history import store_away
from responses_app.runs.registry import RunRegistry
from responses_app.runs.replay import Replay
from responses_app.runs.run import ResponseRun
from responses_app.stores.base import BaseResponseStore, StoredLog, StoreError

logger = logging.getLogger("respsite.runs")

_TERMINAL = frozenset(status.value for status in TERMINAL_STATUSES)

CANCEL_SECONDS = 5.0  # how long another worker may take to cancel what it runs
LOOK_SECONDS = 0.1  # between looks at whether it did
LONG_LOG = 4_000  # bytes: some 1,000 tokens, 5 ms of the loop


class ResponsesById:
    """Every method raises `ApiError`: 404 for what the project does not have, 503 where the store is away.

    `replay` makes a finished response's stream again of its log.
    """

    def __init__(
        self,
        store: BaseResponseStore,
        registry: RunRegistry,
        forgetting: Forgetting,
        *,
        replay: Callable[[StoredLog], Replay | None],
        others: OtherWorkers | None = None,
    ) -> None:
        self._store = store
        self._registry = registry
        self._forgetting = forgetting
        self._replay = replay
        self._others = others

    async def response(self, project: str, response_id: str) -> JsonObject:
        """Return a response as it stands."""
        run = self._registry.find(project, response_id)
        if run is not None and run.plan.stored and not run.journal.closed:
            return run.response()
        return await self._stored(project, response_id)

    async def input_items(self, project: str, response_id: str) -> Sequence[JsonObject]:
        """Return what a response was asked, oldest first."""
        run = self._registry.find(project, response_id)
        if run is not None and run.plan.stored and not run.journal.closed:
            return run.plan.input_items
        try:
            items = await self._store.input_items(project, response_id)
        except StoreError as error:
            raise store_away() from error
        if items is None:
            raise response_not_found(response_id)
        return items

    async def stream(self, project: str, response_id: str, *, starting_after: int | None) -> ResponseRun | Replay:
        """Return what has the stream that goes on behind the event `starting_after`: a run here, or its log."""
        run: ResponseRun | Replay | None = self._registry.find(project, response_id)
        if run is None or not run.journal.has_after(starting_after):
            run = await self._replayed(project, response_id)
        if starting_after is not None and starting_after > run.journal.last_number:
            raise invalid_request(
                f"Invalid value for 'starting_after': the stream's last event so far is {run.journal.last_number}.",
                param="starting_after",
                code="invalid_value",
            )
        if run.journal.closed and not isinstance(run, Replay):
            await self._stored(project, response_id)  # it may have been deleted elsewhere, or be past its time
        return run

    async def _replayed(self, project: str, response_id: str) -> Replay:
        """Return a finished response's stream, made again of its log."""
        try:
            stored = await self._store.log(project, response_id)
        except StoreError as error:
            raise store_away() from error
        if stored is None:
            raise response_not_found(response_id)
        if stored.response["status"] not in _TERMINAL:
            raise streamed_elsewhere(response_id)
        is_long = len(stored.data) > LONG_LOG
        try:
            replayed = await asyncio.to_thread(self._replay, stored) if is_long else self._replay(stored)
        except (BrokenLog, LocalProtocolError):
            logger.exception("the log of response %s cannot be read", response_id)
            replayed = None
        if replayed is None:
            raise stream_not_kept(response_id)
        return replayed

    async def cancel(self, project: str, response_id: str) -> JsonObject:
        """Cancel a background response and return it; once more is no error."""
        run = self._registry.find(project, response_id)
        if run is not None and run.plan.background and not run.journal.closed:
            self._registry.cancel(run, reason="its client cancelled it")
            await self._registry.wait_for_end(run)
            if not run.lost:
                return run.response()
        response = await self.response(project, response_id)
        if not response.get("background"):
            raise invalid_request("Cannot cancel a synchronous response: only background ones.", param="response_id")
        if response["status"] == Status.CANCELLED.value:
            return response
        if response["status"] in _TERMINAL:
            raise invalid_request(f"Cannot cancel a {response['status']} response.", param="response_id")
        return await self._cancel_elsewhere(project, response_id)

    def cancel_here(self, response_id: str) -> None:
        """Cancel a background response that this process runs, if it does: another worker was asked to."""
        run = self._registry.get(response_id)
        if run is not None and run.plan.background:
            self._registry.cancel(run, reason="its client cancelled it")

    async def _cancel_elsewhere(self, project: str, response_id: str) -> JsonObject:
        if self._others is None or not self._others.reaches_others:
            raise overloaded(
                "Another worker runs this response, and workers reach each other through Redis only (REDIS_URL).",
                retry_after=5,
            )
        if await self._others.ask_to_cancel(response_id):
            for _ in range(round(CANCEL_SECONDS / LOOK_SECONDS)):
                response = await self._stored(project, response_id)
                if response["status"] in _TERMINAL:
                    return response
                await asyncio.sleep(LOOK_SECONDS)
        raise overloaded("The worker that runs this response did not answer. Try again.", retry_after=5)

    async def delete(self, project: str, response_id: str) -> None:
        """Forget a response, everywhere; what it continues and what continues it stay. One that runs is cancelled."""
        run = self._registry.find(project, response_id)
        try:
            known = await self._store.delete(project, response_id)
        except StoreError as error:
            raise store_away() from error
        if not known and (run is None or not run.plan.stored):
            raise response_not_found(response_id)
        await self._forgetting.everywhere([response_id], reason="its client deleted it")

    async def _stored(self, project: str, response_id: str) -> JsonObject:
        try:
            response = await self._store.response(project, response_id)
        except StoreError as error:
            raise store_away() from error
        if response is None:
            raise response_not_found(response_id)
        return response


def stream_not_kept(response_id: str) -> ApiError:
    """The events that a reader asks for are not there (400)."""
    return invalid_request(
        f"The stream of response '{response_id[:80]}' cannot be picked up again: the version of this server that ran "
        "it kept no log. Get the response without 'stream'.",
        param="stream",
        code="stream_not_kept",
    )


def streamed_elsewhere(response_id: str) -> ApiError:
    """The response runs, and its events are another worker's (400)."""
    return invalid_request(
        f"Response '{response_id[:80]}' runs on another worker, and only that one has its stream so far. Send the "
        "request to that worker, or get the response without 'stream' until its status is final.",
        param="stream",
        code="stream_not_kept",
    )
