"""`ResponseWatch`: a response as somebody watches it: what it has said so far, and its timeline, whoever runs it.

Each look reads the log anew: of a response that runs here the one in memory, else the one in the store. The worker that
runs it is asked to keep its log while somebody looks, as for a follower (see `runs.log.following`).
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from responses_app.protocol.ids import milliseconds_of
from responses_app.protocol.output.stream import LocalProtocolError
from responses_app.protocol.requests.resources import RUNNING, ResponseObject, as_known
from responses_app.protocol.response.input_codec import BrokenLog, decode_timed
from responses_app.protocol.response.inputs import Input
from responses_app.protocol.response.response import ResponseMachine
from responses_app.protocol.response.timeline import Timeline, timeline_of, untimed
from responses_app.runs.log.others import OtherWorkers
from responses_app.runs.log.replay import as_begun, end_of_failure
from responses_app.runs.planning.history import log_of
from responses_app.runs.registry.registry import RunRegistry
from responses_app.stores.base import BaseResponseStore, StoredLog

logger = logging.getLogger("respsite.runs")

AT_ONCE = 2  # looks that read a log: a long one takes a thread some 10 ms for 3,000 tokens


@dataclass(frozen=True, slots=True)
class Watched:
    """A response as clients know it, with what of its output there is, and its timeline; `now` is Unix milliseconds.

    `response_id` is its own id, also where clients know it by another one.
    """

    response_id: str
    response: ResponseObject
    timeline: Timeline
    now: int

    @property
    def is_running(self) -> bool:
        """Whether more will come."""
        return self.response["status"] in RUNNING


class ResponseWatch:
    """Of one process. `machine` makes the machine of a project's response of its object as it began."""

    def __init__(
        self,
        store: BaseResponseStore,
        registry: RunRegistry,
        *,
        machine: Callable[[str, ResponseObject], ResponseMachine],
        others: OtherWorkers | None = None,
    ) -> None:
        self._store = store
        self._registry = registry
        self._machine = machine
        self._others = others
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def look(self, project: str, response_id: str) -> Watched:
        """Return a stored response as it stands. Raises `ApiError`: 404 where the project has none, 503."""
        stored = self._here(project, response_id) or await self._stored(project, response_id)
        async with self._at_once:
            response, timeline = await asyncio.to_thread(self._read, project, stored)
        return Watched(stored.response["id"], response, timeline, int(self._registry.now() * 1000))

    def _here(self, project: str, response_id: str) -> StoredLog | None:
        run = self._registry.find(project, response_id)
        return None if run is None or not run.plan.stored or run.journal.closed else run.recorded()

    async def _stored(self, project: str, response_id: str) -> StoredLog:
        stored = await log_of(self._store, project, response_id)
        if stored.response["status"] in RUNNING and self._others is not None and self._others.reaches_others:
            await self._others.ask_to_follow(response_id)
        return stored

    def _read(self, project: str, stored: StoredLog) -> tuple[ResponseObject, Timeline]:
        """Read a log; pure computation. What cannot be read is told as what has no log."""
        response = stored.response
        created = milliseconds_of(response["id"]) or response["created_at"] * 1000
        if stored.data:
            machine = self._machine(project, as_begun(response))
            try:
                timeline = timeline_of(_inputs(stored, machine), machine, created=created)
            except (BrokenLog, LocalProtocolError):
                logger.exception("the log of response %s cannot be read", response["id"])
            else:
                running = response["status"] in RUNNING and machine.stream.has_begun
                return machine.stream.snapshot() if running else as_known(response), timeline
        return as_known(response), untimed(created, response["usage"])


def _inputs(stored: StoredLog, machine: ResponseMachine) -> Iterator[tuple[Input, int | None]]:
    yield from decode_timed(stored.data)
    for given in end_of_failure(stored.response, has_begun=machine.stream.has_begun):
        yield given, None
