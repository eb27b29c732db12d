"""Responses by their id: `ResponsesById` reads, resumes, cancels and deletes them. What runs here comes first.

`ResponseWatch`: a response as somebody watches it: what it has said so far, and its timeline, whoever runs it. Each
look reads the log anew: of a response that runs here the one in memory, else the one in the store. The worker that runs
it is asked to keep its log while somebody looks, as for a follower (see `runs.log.following`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, TypeVar

from responses_app.kit.errors import StoreError
from responses_app.protocol.errors import ApiError, JsonObject, invalid_request, overloaded, response_not_found
from responses_app.protocol.events.dialects import OPENAI, Dialect
from responses_app.protocol.ids import milliseconds_of
from responses_app.protocol.items.resources import INPUT_IMAGES, image_urls
from responses_app.protocol.output.stream import LocalProtocolError
from responses_app.protocol.requests.resources import RUNNING, ResponseObject, Status, as_known
from responses_app.protocol.response.input_codec import BrokenLog, decode_timed
from responses_app.protocol.response.response import ResponseMachine
from responses_app.protocol.response.steps import Input
from responses_app.protocol.response.timeline import Timeline, timeline_of, untimed
from responses_app.runs.driving.run import Run
from responses_app.runs.log.following import Followers, OtherWorkers
from responses_app.runs.log.journal import EventSource, ResponseReader
from responses_app.runs.log.run_log import Machines, end_of_failure
from responses_app.runs.plan.failures import not_answered, out_of_reach, store_errors
from responses_app.runs.registry.registry import Forgetting, RunRegistry
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
    """A look at a response of this process or its store. `machines` makes the machines that read logs."""

    def __init__(
        self, store: BaseResponseStore, registry: RunRegistry, *, machines: Machines, others: OtherWorkers
    ) -> None:
        self._store = store
        self._registry = registry
        self._machines = machines
        self._others = others
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def look(self, project: str, response_id: str) -> Watched:
        """Return a stored response as it stands. Raises `ApiError`: 404 where the project has none, 503."""
        # The log is taken before the wait for a free place: it may be older then, but it is whole.
        stored = self._here(project, response_id) or await self._stored(project, response_id)
        async with self._at_once:
            response, timeline = await asyncio.to_thread(self._read, project, stored)
        return Watched(stored.response["id"], response, timeline, int(self._registry.now() * 1000))

    def _here(self, project: str, response_id: str) -> StoredLog | None:
        run = self._registry.find(project, response_id)
        return None if run is None or not run.plan.stored or run.journal.closed else run.recorded()

    async def _stored(self, project: str, response_id: str) -> StoredLog:
        stored = await log_of(self._store, project, response_id)
        if stored.response["status"] in RUNNING and self._others.reaches_others:
            await self._others.ask_to_follow(response_id)
        return stored

    def _read(self, project: str, stored: StoredLog) -> tuple[ResponseObject, Timeline]:
        """Read a log; pure computation. What cannot be read is told as what has no log."""
        response = stored.response
        created = milliseconds_of(response["id"]) or response["created_at"] * 1000
        if stored.data:
            machine = self._machines.begun(project, response)
            try:
                timeline = timeline_of(_inputs(stored, machine), machine, created=created)
            except (BrokenLog, LocalProtocolError):
                logger.exception("the log of response %s cannot be read", response["id"])
            else:
                # The stored body of a response that runs is the one it was accepted with: its log knows more.
                running = response["status"] in RUNNING and machine.stream.has_begun
                return machine.stream.snapshot() if running else as_known(response), timeline
        return as_known(response), untimed(created, response["usage"])


def _inputs(stored: StoredLog, machine: ResponseMachine) -> Iterator[tuple[Input, int | None]]:
    yield from decode_timed(stored.data)
    # A response that a dead worker left has no end in its log: its body tells it.
    for input_ in end_of_failure(stored.response, has_begun=machine.stream.has_begun):
        yield input_, None


Result = TypeVar("Result")

CANCEL_SECONDS = 5.0  # how long what was cancelled may take to end, here or on another worker
FIRST_LOOK_SECONDS = 0.005  # until the first look at whether it did on another worker; each next pause is twice as long
MAX_LOOK_SECONDS = 0.1
KNOWN_SECONDS = 1.0  # for the store to say whether what runs here has been deleted elsewhere
LONG_LOG = 4_000  # bytes: some 1,000 tokens, 5 ms of the loop
HUGE_LOG = 64_000  # some 16,000 tokens, 6 MiB of events: they are made as they are read, not all before


@dataclass(frozen=True, slots=True)
class Cancelled:
    """How many responses were cancelled `here`, in this process, and how many other workers were `asked` to cancel."""

    here: int = 0
    asked: int = 0


Arguments = ParamSpec("Arguments")


def known_as(
    find: Callable[Concatenate["ResponsesById", str, str, Arguments], Awaitable[Result]],
) -> Callable[Concatenate["ResponsesById", str, str, Arguments], Awaitable[Result]]:
    """Find a response by its own id, or by what clients call it: of several the newest."""

    async def by_either_id(
        self: "ResponsesById", project: str, name: str, /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        try:
            return await find(self, project, name, *args, **kwargs)
        except ApiError as error:
            # An own id is tried first: it is nearly always one, and then costs no second query.
            if error.status != 404:
                raise
            with store_errors():
                leg = await self._store.newest_leg(project, name)
            if leg is None:
                raise
            return await find(self, project, leg.response_id, *args, **kwargs)

    return by_either_id


class ResponsesById:
    """The responses of a project, as its clients name them.

    Every method raises `ApiError`: 404 for what the project does not have, 503 where the store is away. `machines` make
    a finished response's stream again of its log, `followers` that of one that another worker runs.
    """

    def __init__(
        self,
        store: BaseResponseStore,
        registry: RunRegistry,
        forgetting: Forgetting,
        *,
        machines: Machines,
        followers: Followers,
        others: OtherWorkers,
    ) -> None:
        self._store = store
        self._registry = registry
        self._forgetting = forgetting
        self._machines = machines
        self._followers = followers
        self._others = others
        self._watch = ResponseWatch(store, registry, machines=machines, others=others)

    @known_as
    async def watch(self, project: str, response_id: str) -> Watched:
        """Return a response as it stands, with its timeline."""
        return await self._watch.look(project, response_id)

    @known_as
    async def response(self, project: str, response_id: str) -> ResponseObject:
        """Return a response as it stands."""
        return await self._response(project, response_id)

    async def _response(self, project: str, response_id: str) -> ResponseObject:
        run = await self._running(project, response_id)
        if run is not None:
            return run.response()
        stored = await self._stored(project, response_id)
        return await self._so_far(project, response_id) if stored["status"] in RUNNING else stored

    async def _so_far(self, project: str, response_id: str) -> ResponseObject:
        """Return a response of another worker with what its log tells: its client may have to answer its calls."""
        stored = await log_of(self._store, project, response_id)
        try:
            # A thread costs more than a short log.
            if len(stored.data) > LONG_LOG:
                return await asyncio.to_thread(self._machines.so_far, project, stored)
            return self._machines.so_far(project, stored)
        except (BrokenLog, LocalProtocolError):
            logger.exception("the log of response %s cannot be read", response_id)
            return stored.response

    @known_as
    async def input_items(self, project: str, response_id: str) -> Sequence[JsonObject]:
        """Return what a response was asked, oldest first."""
        run = await self._running(project, response_id)
        if run is not None:
            return run.plan.input_items
        with store_errors():
            items = await self._store.input_items(project, response_id)
        if items is None:
            raise response_not_found(response_id)
        return items

    @known_as
    async def follow(
        self,
        project: str,
        response_id: str,
        *,
        starting_after: int | None = None,
        dialect: Dialect = OPENAI,
        include: Collection[str] = (),
    ) -> ResponseReader:
        """Return a reader of a response's stream, from its first event on or behind the event `starting_after`.

        `include` may ask for the images of its input, which some dialects tell.
        """
        tells_images = INPUT_IMAGES in include
        images = image_urls(await self.input_items(project, response_id)) if tells_images else ()
        # This ends a run whose response was deleted elsewhere, so that `_run` below does not find it.
        await self._running(project, response_id)  # else it is not known any more
        run = self._run(project, response_id)
        if run is not None and run.journal.closed:
            await self._stored(project, response_id)  # it may have been deleted elsewhere, or be past its time
        source: EventSource
        # Asked last, since its events may be forgotten during a wait.
        if run is None or not run.journal.has_after(starting_after) or run.is_behind(starting_after):
            source = await self._logged(project, response_id, starting_after)
        else:
            source = run
        _check_number(starting_after, source.journal.last_number)
        return self._registry.attach(
            source, starting_after=-1 if starting_after is None else starting_after, dialect=dialect, images=images
        )

    async def _logged(self, project: str, response_id: str, starting_after: int | None) -> EventSource:
        """Return a response's stream, made of its log: all of it, or what comes, where another worker runs it."""
        stored = await log_of(self._store, project, response_id)
        if stored.response["status"] in RUNNING:
            return self._followers.follow(project, stored, starting_after=starting_after)
        is_long = len(stored.data) > LONG_LOG
        try:
            if len(stored.data) > HUGE_LOG:
                last = await asyncio.to_thread(self._machines.last_number, project, stored)
                if last is not None:
                    _check_number(starting_after, last)
                    return self._followers.follow(project, stored, starting_after=starting_after)
            replay = self._machines.replay
            replayed = await asyncio.to_thread(replay, project, stored) if is_long else replay(project, stored)
        except (BrokenLog, LocalProtocolError):
            logger.exception("the log of response %s cannot be read", response_id)
            replayed = None
        if replayed is None:
            raise stream_not_kept(response_id)
        return replayed

    @known_as
    async def cancel(self, project: str, response_id: str) -> ResponseObject:
        """Cancel a background response and return it; once more is not an error."""
        run = await self._running(project, response_id)
        if run is not None and run.plan.background:
            self._registry.cancel(run, reason="its client cancelled it")
            # The answer shows the end, so it waits until the run has stored it.
            await self._registry.wait_for_end(run, CANCEL_SECONDS)
            if not run.journal.closed:
                raise overloaded(
                    "The response is cancelled, but its end cannot be stored yet: the database does not answer. "
                    "Try again.",
                    retry_after=5,
                )
            if run.status.value not in RUNNING:  # else it has gone to another worker
                return run.response()
        response = await self._response(project, response_id)
        if not response.get("background"):
            raise invalid_request("Cannot cancel a synchronous response: only background ones.", param="response_id")
        if response["status"] == Status.CANCELLED.value:
            return response
        if response["status"] not in RUNNING:
            raise invalid_request(f"Cannot cancel a {response['status']} response.", param="response_id")
        return await self._cancel_elsewhere(project, response_id)

    async def cancel_all(self, responses: Mapping[str, bool], *, reason: str) -> Cancelled:
        """Cancel responses of any project: their ids, and whether they are in the background; wait for their ends here.

        Other workers can be asked about background ones only. What cannot be asked about, and what has just ended, is
        left as it is.
        """
        runs = {response_id: run for response_id in responses if (run := self._registry.get(response_id)) is not None}
        for run in runs.values():
            self._registry.cancel(run, reason=reason)
        if runs:
            # All are told before any is waited for: one slow end does not use up the time of the others.
            ends = [asyncio.ensure_future(self._registry.wait_for_end(run)) for run in runs.values()]
            await asyncio.wait(ends, timeout=CANCEL_SECONDS)
        asked = 0
        for response_id, background in responses.items():
            if background and response_id not in runs and self._others.reaches_others:
                if not await self._others.ask_to_cancel(response_id):
                    break  # the others cannot be reached now
                asked += 1
        return Cancelled(len(runs), asked)

    def cancel_here(self, response_ids: Collection[str]) -> None:
        """Cancel the background responses among these that this process runs: another worker was asked to."""
        for response_id in response_ids:
            run = self._registry.get(response_id)
            if run is not None and run.plan.background:
                self._registry.cancel(run, reason="its client cancelled it")

    async def _cancel_elsewhere(self, project: str, response_id: str) -> ResponseObject:
        if not self._others.reaches_others:
            raise out_of_reach()
        if await self._others.ask_to_cancel(response_id):
            for pause in _looks():
                await asyncio.sleep(pause)
                response = await self._stored(project, response_id)
                if response["status"] not in RUNNING:
                    return response
        raise not_answered()

    async def delete(self, project: str, response_id: str) -> None:
        """Forget a response, everywhere, and of a turn that has one id all legs. What runs is cancelled.

        What it continues and what continues it stay.
        """
        run = self._run(project, response_id)
        with store_errors():
            # An own id first. Only where it is none, and nothing of that id runs here, it may be the name of a turn's
            # legs.
            known = await self._store.delete(project, response_id)
            gone = [response_id] if known or run is not None else await self._delete_legs(project, response_id)
        if not gone:
            raise response_not_found(response_id)
        await self._forgetting.everywhere(gone, reason="its client deleted it")

    async def _delete_legs(self, project: str, name: str) -> list[str]:
        """Delete all that clients call so, once more where another worker has accepted a leg just then."""
        gone: list[str] = []
        while more := await self._store.delete_legs(project, name):
            gone += more
        return gone

    def _run(self, project: str, response_id: str) -> Run | None:
        """Return the run of a response of this process; one that is not stored is not found by its id."""
        run = self._registry.find(project, response_id)
        return run if run is not None and run.plan.stored else None

    async def _running(self, project: str, response_id: str) -> Run | None:
        """Return the run of a response that has not ended here; one that was deleted elsewhere ends now.

        Without Redis nobody tells of that. While the store does not answer, what runs here is known.
        """
        run = self._run(project, response_id)
        # Only of a run that the store has accepted: one that it does not know yet is not deleted.
        if run is not None and run.claim is not None and not run.journal.closed:
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(KNOWN_SECONDS):
                    if not await self._store.knows(project, response_id):
                        self._forgetting.here([response_id])
                        return None
        return run if run is not None and not run.journal.closed else None

    async def _stored(self, project: str, response_id: str) -> ResponseObject:
        with store_errors():
            response = await self._store.response(project, response_id)
        if response is None:
            raise response_not_found(response_id)
        return as_known(response)


async def log_of(store: BaseResponseStore, project: str, response_id: str) -> StoredLog:
    """Return a stored response with its log. Raises `ApiError`: 404 where the project has none, 503."""
    with store_errors():
        stored = await store.log(project, response_id)
    if stored is None:
        raise response_not_found(response_id)
    return stored


def _looks() -> Iterator[float]:
    """Yield the seconds to wait before each look at a response that another worker was asked to cancel."""
    pause, left = FIRST_LOOK_SECONDS, CANCEL_SECONDS
    while left > 0:
        yield pause
        left -= pause
        pause = min(2 * pause, MAX_LOOK_SECONDS)


def _check_number(starting_after: int | None, last: int) -> None:
    if starting_after is not None and starting_after > last:
        raise invalid_request(
            f"Invalid value for 'starting_after': the stream's last event so far is {last}.",
            param="starting_after",
            code="invalid_value",
        )


def stream_not_kept(response_id: str) -> ApiError:
    """The events that a reader asks for are not there (400)."""
    return invalid_request(
        f"The stream of response '{response_id[:80]}' cannot be picked up again: the version of this server that ran "
        "it kept no log, or its log cannot be read. Get the response without 'stream'.",
        param="stream",
        code="stream_not_kept",
    )
