"""Webhooks are sent: the duty of each worker to make deliveries of events, and to send what is due.

    a transaction ends a response ── one row in the outbox
    any worker    makes deliveries of it, one for each endpoint that wants it
    worker A      claims an endpoint for a while ── sends what is due there ── notes what came of it, lets go of it
    worker A dies before that: its claim runs out ── worker B claims the endpoint, and sends the same ids again

So an event may arrive twice, and is never lost. An endpoint is served by one worker at a time, and of each object only
the oldest message is under way: so those of one object arrive in order. A message that fails is sent again with growing
pauses; the others do not wait for it. Where nothing at all arrives, the endpoint pauses as a whole, so that a dead one
costs hardly anything, and each one has a task of its own, so that a slow one holds up no other.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable

from responses_app.kit.duty import end_tasks, keep_looking
from responses_app.kit.errors import StoreError
from responses_app.resources.webhooks.model import WebhookDelivery
from responses_app.resources.webhooks.sender import WebhookSender
from responses_app.resources.webhooks.store import Attempt, Claimed, Webhooks

logger = logging.getLogger("respsite.runs")

POLL_SECONDS = 1.0  # between looks for what other workers, or time, have made due
ENDPOINTS_AT_ONCE = 32  # that one worker serves
PROJECT_ENDPOINTS_AT_ONCE = 8  # of one project
MESSAGES_AT_ONCE = 8  # to one endpoint
LEASE_MARGIN_SECONDS = 5.0  # beyond the time of an attempt: to note what came of it
PURGE_SECONDS = 60.0
CLOSE_SECONDS = 3.0  # for what is under way, in a stop
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 4 * 3600.0  # seconds between attempts of one message
JITTER = 0.2  # share of a pause, up or down: what failed together need not come together
ENDPOINT_PAUSE, LONGEST_ENDPOINT_PAUSE = 1.0, 300.0  # seconds, where nothing arrives at an endpoint


class WebhookDeliverer:
    """Sends what is due, for one worker. `now` is the store's Unix time."""

    def __init__(
        self,
        store: Webhooks,
        sender: WebhookSender,
        *,
        worker: str,
        now: Callable[[], float],
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._sender = sender
        self._worker = worker
        self._now = now
        self._jitter = jitter  # from 0 to 1
        self._rung = asyncio.Event()  # set when there may be something to do
        self._serving: dict[asyncio.Task[None], str] = {}  # the project of each endpoint that is served
        self._task: asyncio.Task[None] | None = None
        self._purge_at = 0.0  # by the loop's clock

    def start(self) -> None:
        """Begin to look for what is due."""
        self._task = keep_looking(self._look, self._rung, seconds=POLL_SECONDS, what="sending webhooks", logger=logger)

    async def aclose(self) -> None:
        """Stop; what is under way then is sent again, by others, once its claim has run out. Safe to call twice."""
        await end_tasks([self._task])
        if self._serving:
            await asyncio.wait(self._serving, timeout=CLOSE_SECONDS)
        await end_tasks(list(self._serving))
        await self._sender.aclose()

    async def _look(self) -> None:
        if await self._store.has_work():
            await self._send_due()
        loop = asyncio.get_running_loop()
        if loop.time() >= self._purge_at:
            # Where there was something, there may be more.
            self._purge_at = loop.time() + (0.0 if await self._store.purge() else PURGE_SECONDS)

    async def _send_due(self) -> None:
        if await self._store.dispatch():
            self._rung.set()
        while len(self._serving) < ENDPOINTS_AT_ONCE:
            counted = Counter(self._serving.values())
            full = [project for project, number in counted.items() if number >= PROJECT_ENDPOINTS_AT_ONCE]
            lease = self._sender.seconds + LEASE_MARGIN_SECONDS
            claimed = await self._store.claim(self._worker, lease_seconds=lease, most=MESSAGES_AT_ONCE, without=full)
            if claimed is None:
                break
            task = asyncio.create_task(self._serve(claimed), name=f"webhooks of {claimed.endpoint.pk}")
            self._serving[task] = claimed.endpoint.project
            task.add_done_callback(self._has_served)

    def _has_served(self, task: "asyncio.Task[None]") -> None:
        self._serving.pop(task)
        self._rung.set()  # there may be more for this endpoint, and there is room for another

    async def _serve(self, claimed: Claimed) -> None:
        """Send to one endpoint what is due there, and note what came of it."""
        try:
            attempts = await asyncio.gather(*(self._attempt(claimed, message) for message in claimed.due))
            failed = bool(attempts) and all(attempt.problem for attempt in attempts)
            pause = 0.0
            if failed:
                logger.info("webhook endpoint %s cannot be reached: %s", claimed.endpoint.pk, attempts[0].problem)
                pause = self._spread(_grown(ENDPOINT_PAUSE, claimed.endpoint.failures, LONGEST_ENDPOINT_PAUSE))
            await self._store.settle(claimed, attempts, worker=self._worker, pause=pause)
        except StoreError as problem:  # they are sent again, with the same ids, once the claim has run out
            logger.warning("what came of webhooks of %s is not kept: %s", claimed.endpoint.pk, problem)
        except Exception:
            logger.exception("sending webhooks of %s broke", claimed.endpoint.pk)

    async def _attempt(self, claimed: Claimed, message: WebhookDelivery) -> Attempt:
        sent = await self._sender.send(claimed.endpoint, message.event_id, message.body, at=self._now())
        pause = self._spread(_grown(FIRST_PAUSE, message.attempts, LONGEST_PAUSE)) if sent.problem else 0.0
        return Attempt(key=message.pk, status_code=sent.status_code, problem=sent.problem, pause=pause)

    def _spread(self, pause: float) -> float:
        return pause * (1 + JITTER * (2 * self._jitter() - 1))


def _grown(first: float, times: int, longest: float) -> float:
    """Return a pause that doubles each time."""
    return min(longest, first * 2.0 ** min(times, 30))
