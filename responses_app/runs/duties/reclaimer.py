"""`OrphanReclaimer`: goes on with what dead workers left.

worker A  accepts resp_1 (epoch 1) ── appends to its log ── is killed
worker B  looks every second; A's last beat is older than a lease ── claims resp_1 (epoch 2)
          makes its machine, feeds it the log ── asks the engine to go on behind the tokens that were sampled
worker A  was only slow? Whatever it writes names epoch 1, and changes nothing: it stops without a word.
"""

import logging
import math
import time
from collections import deque
from contextlib import suppress

from responses_app.protocol.errors import ApiError
from responses_app.protocol.rate_limits import Amount, Slot
from responses_app.protocol.requests.resources import ResponseObject, as_failed
from responses_app.runs.duties.heartbeat import WorkerHeartbeat
from responses_app.runs.plan.failures import server_stopped
from responses_app.runs.service import ResponseService
from responses_app.stores.base import AcceptedResponse, BaseResponseStore, ClaimLost, StoredLog, StoredResponse

logger = logging.getLogger("respsite.runs")

CLAIM_SECONDS = 60.0  # between claims where nothing seems to be left: they also forget the workers of long ago


class OrphanReclaimer:
    """One per process."""

    def __init__(self, service: ResponseService, store: BaseResponseStore, heartbeat: WorkerHeartbeat) -> None:
        self._service = service
        self._store = store
        self._heartbeat = heartbeat
        self._takeovers = service.metrics.takeovers
        self._claimed: deque[AcceptedResponse] = deque()  # taken over, and to be run here
        self._look_at = -math.inf

    async def reclaim(self) -> None:
        """Take over what dead workers left, and run it. Raises `StoreError`."""
        worker, suspect_before = self._heartbeat.worker_id, self._heartbeat.pulse.suspect_before
        if time.monotonic() >= self._look_at or await self._store.has_orphans(worker, dead_before=suspect_before):
            self._look_at = -math.inf  # if this fails: it may have been committed, and the answer lost
            await self._heartbeat.beat()  # who is dead is told by a beat of our own: see `Pulse`
            await self._claim(worker)
            self._look_at = time.monotonic() + CLAIM_SECONDS
        away: set[str] = set()  # models that cannot be had now; one response of each finds that out
        for _ in range(len(self._claimed)):
            model = self._claimed[0].response["model"]
            if model not in away and await self._run(self._claimed[0]):
                self._claimed.popleft()
            else:
                away.add(model)
                self._claimed.rotate(-1)

    async def give_back(self) -> None:
        """Leave what was taken over and does not run yet to others. Raises `StoreError`."""
        while self._claimed:
            try:
                await self._store.give_back(self._claimed[0])
            except ClaimLost:
                logger.info("response %s is another worker's already", self._claimed[0].response["id"])
            self._claimed.popleft()

    async def _claim(self, worker: str) -> None:
        # What is this worker's and not known here was claimed by a call whose answer got lost: it is given again.
        known = {run.response_id for run in self._service.registry.running}
        known |= {accepted.response["id"] for accepted in self._claimed}
        known |= {stored.response["id"] for stored in self._service.unsaved}
        dead_before = self._heartbeat.pulse.dead_before
        orphans = await self._store.reclaim(worker, dead_before=dead_before, known=known)
        if orphans.failed:
            self._takeovers.count("failed", by=orphans.failed)
            logger.warning("%d responses of workers that died have failed", orphans.failed)
        self._claimed += orphans.claimed

    async def _run(self, accepted: AcceptedResponse) -> bool:
        """Run a response, or let it fail; return False if it can do neither now, and has to wait."""
        response_id = accepted.response["id"]
        try:
            if accepted.request is not None:
                await self._service.run_again(accepted)
                self._takeovers.count("continued")
                logger.info("response %s, which another worker left, runs now", response_id)
                return True
        except ClaimLost:
            return True
        except ApiError as error:
            logger.warning("response %s, which another worker left, cannot run: %s", response_id, error.message)
            if error.retry_after is not None:
                return False
        except Exception:
            logger.exception("response %s, which another worker left, cannot run", response_id)
        await self._fail(accepted)
        return True

    async def _fail(self, accepted: AcceptedResponse) -> None:
        """Let a response fail that was taken over; where it is another worker's by now, that one decides.

        What it used of its key's limits is counted here: the worker that let it in did not live to do so.
        """
        limited = await self._service.limited(accepted)
        try:
            failed = self._service.machines.failed(accepted, server_stopped())
        except Exception:  # damaged, or of a tool or a model that is gone: whatever it is, others wait behind it
            logger.exception("the log of response %s cannot be read", accepted.response["id"])
            failed = StoredLog(as_failed(accepted.response, server_stopped()), b"")
        stored = StoredResponse(
            project=accepted.project,
            response=failed.response,
            link=None,
            input_items=accepted.input_items,
            transport=accepted.transport,
            key_id=accepted.key_id,
            accepted=True,
            claim=accepted.claim,
            log=failed.data,
        )
        with suppress(ClaimLost):
            await self._store.save(stored)
            self._takeovers.count("failed")
            reserved, used = _amounts(failed.response)
            self._service.rates.adopt(limited, reserved, Slot.RESPONSE).settle(used)


def _amounts(failed: ResponseObject) -> tuple[Amount, Amount]:
    """Return what a response took of its limits when it was let in, as far as that is known, and what it used.

    Its first prompt was reserved. Where the model said nothing, nobody knows how long it was, and it counts as it was.
    """
    usage, most = failed["usage"], failed["max_output_tokens"] or 1
    if usage is None:
        return Amount(1, 0, most), Amount(1, 0, 0)
    first = usage["input_tokens_details"]["input_tokens_per_turn"][0]
    return Amount(1, first, most), Amount(1, usage["input_tokens"], usage["output_tokens"])
