"""The log of a run: its inputs as bytes, and `LiveLogs`, which keeps the logs of what still runs.

Whoever has a response's plan and its inputs has all its events, with the same ids and numbers (see
`protocol.response.input_codec`). So what is kept of a run is its inputs, about 4 bytes a token. When that is done:

    every stored response          with its end, in the same transaction
    in the background, and what    from its first input on, at most every `BACKGROUND_SECONDS`,
    waits for outputs of tools     or every `FOLLOWED_SECONDS` while somebody reads it
    what another worker follows    from the moment it asks on, at most every `FOLLOWED_SECONDS`

The logs of all runs of a process are appended to in one transaction. Example: 50 background responses at 60 tokens/s
are 4 transactions a second, with 50 rows of 60 bytes each.

What may be done only once outside (a call of a tool that must not be repeated) waits until its asking is kept, whatever
is kept otherwise: `RunLog.keep`. So whoever takes the response over knows that it may have been done.

Readers of a background response hear only what is kept. If its worker is killed, another one goes on behind the kept
log, and samples again what was not kept; no reader has heard that, so none hears it twice, or in two versions. What
follows from the request alone (`response.created`, that it waits, that it starts) is told at once: it would be the
same.

`Machines`: the machine of any response, of which its worker, its followers and a replay make the same events.

A finished response's stream is made again of its log: the same events, with the same ids and numbers. Nothing of the
stream itself is kept but its inputs (about 4 bytes a token). The response's body tells how it began: what it was asked
is echoed there, and what became of it is made anew from the inputs.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import TypeVar

from engine.formats.base import ModelFormat
from responses_app.kit.duty import end_tasks
from responses_app.kit.errors import StoreError
from responses_app.protocol.errors import ResponseError
from responses_app.protocol.events.events import Event, EventType
from responses_app.protocol.ids import DerivedIds, milliseconds_of
from responses_app.protocol.items.client_tools import ClientTools, read_tools
from responses_app.protocol.output.stream import ResponseStream
from responses_app.protocol.prompt.replaying import SEAL_PURPOSE, ItemSeals
from responses_app.protocol.requests.resources import TERMINAL_STATUSES, ResponseObject, Status, as_failed
from responses_app.protocol.response.input_codec import decode, encode, encode_one
from responses_app.protocol.response.response import ResponseMachine
from responses_app.protocol.response.root import root_machine
from responses_app.protocol.response.steps import Ended, Enqueued, Failed, Input, OfAgent, RunStarted, Sampled
from responses_app.protocol.response.turns import Budget
from responses_app.protocol.sealing import Sealer
from responses_app.resources.webhooks.messages import WebhookMessage
from responses_app.runs.log.journal import EventJournal, EventSource
from responses_app.runs.plan.served import ServedModels
from responses_app.stores.base import AcceptedResponse, BaseResponseStore, Claim, ClaimLost, LogAppend, StoredLog

logger = logging.getLogger("respsite.runs")

BACKGROUND_SECONDS = 0.25  # between transactions where nobody reads: so much is sampled again if the worker dies
FOLLOWED_SECONDS = 0.1  # between transactions where somebody waits for what is kept
INTEREST_SECONDS = 10.0  # how long a follower's question holds; it asks again before that is over
RETRY_SECONDS = 1.0  # after the store has failed
KEEP_SECONDS = 5.0  # how long a caller waits until something is kept


class RunLog:
    """What came to one response; `journal` has its readers. `only_kept`: they hear only what is kept.

    `from_the_first`: it is kept from its first input on, whoever follows it.
    """

    def __init__(
        self,
        response_id: str,
        claim: Claim,
        *,
        live: "LiveLogs",
        journal: EventJournal,
        only_kept: bool,
        from_the_first: bool = False,
    ) -> None:
        self.response_id = response_id
        self.claim = claim
        self._live = live
        self._journal = journal
        self._only_kept = only_kept
        self._from_the_first = from_the_first
        self._is_text = False  # what came last was tokens, and nothing else
        self._waiters: set[asyncio.Future[None]] = set()  # for the next append
        self._written: set[asyncio.Future[None]] = set()  # for the append that is being written
        self._data = bytearray()  # all inputs so far
        self._kept = 0  # bytes of it that are in the store for sure
        # Events that wait until they are kept, and where the log ends that they come of.
        self._unpublished: deque[tuple[int, Sequence[Event]]] = deque()
        self._messages: list[tuple[str, WebhookMessage]] = []  # for webhooks of a project, not kept for sure yet
        self._followed_until = 0.0  # by the loop's clock
        self.goes_on = False  # behind what another worker has kept
        self.closed = False  # its end is kept, or will be: nothing is appended any more

    def take(self, input_: Input, events: Sequence[Event]) -> None:
        """Note an input and what came of it."""
        its = input_.input if isinstance(input_, OfAgent) else input_  # no call: on the path of each token
        was_text, self._is_text = self._is_text, isinstance(its, Sampled) and its.finish is None
        # Tokens that only continue an item need no time of their own: that keeps the log at 4 bytes a token.
        only_goes_on = was_text and self._is_text and not any(each.type is EventType.ITEM_ADDED for each in events)
        self._data += encode_one(input_, None if only_goes_on else self._at())
        if self.closed or not self._only_kept:
            self._journal.extend(events)
            is_kept_live = self._from_the_first or (self._followed_until and self.is_followed)
            if is_kept_live and not self.closed:
                self._live.note(self)
        # What follows from the request alone is told at once, unless something before it has to wait.
        elif isinstance(input_, Enqueued | RunStarted) and not self._unpublished:
            self._journal.extend(events)
        else:
            if events:
                self._unpublished.append((len(self._data), events))
            self._live.note(self)

    def tell(self, project: str, message: WebhookMessage) -> None:
        """Tell webhooks something with the next append, which is soon: in one transaction."""
        self._messages.append((project, message))
        self._live.note(self, now=True)

    def go_on_behind(self, data: bytes) -> None:
        """Begin with what another worker has kept, and told."""
        self._data[:] = data
        self._kept = len(data)
        self.goes_on = True

    def whole(self, last: Input) -> bytes:
        """Return the log as it will be with its last input."""
        return bytes(self._data) + encode_one(last, self._at())

    @property
    def size(self) -> int:
        """The bytes of all that it has."""
        return len(self._data)

    def so_far(self) -> bytes:
        """Return the log as it is now, kept or not."""
        return bytes(self._data)

    def _at(self) -> int | None:
        """Return the time, in Unix milliseconds."""
        return None if self._live.now is None else int(self._live.now() * 1000)

    def end(self) -> None:
        """Publish what still waits: the response's end is kept, or it will be kept later."""
        self.closed = True
        self._publish_up_to(len(self._data))
        # Whoever waits for an append need not any more: the end has the whole log with it.
        self._release(self._waiters)
        self._release(self._written)
        if self.is_followed:
            self._live.ring(self.response_id)

    async def keep(self) -> None:
        """Return once all that came so far is kept, soon, by an append that begins after this: so the response was this
        worker's then. Raises `StoreError` where it cannot be kept now, and `ClaimLost`.
        """
        if self.closed:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        self._live.note(self, now=True)  # never beside it: two appends at once could keep a part twice
        try:
            async with asyncio.timeout(KEEP_SECONDS):
                await waiter
        except TimeoutError:
            raise _not_kept(self.response_id) from None
        finally:
            self._waiters.discard(waiter)
            self._written.discard(waiter)

    async def flush(self) -> None:
        """Keep it now, since another worker is to go on. Raises `StoreError`, and `ClaimLost`."""
        append = self.news()
        # Without news there is still an answer to be had: whether the response is this worker's.
        if append.data or self._written:
            if self.response_id in await self._live.append([append]):
                raise ClaimLost(f"{self.response_id} is not {self.claim.worker}'s any more")
            self.has_kept(append)

    @property
    def is_kept(self) -> bool:
        """Whether any of it is in the store, for whoever takes the response over."""
        return self._kept > 0

    # What `LiveLogs` does with it.

    @property
    def is_followed(self) -> bool:
        """Whether a reader on another worker follows it."""
        return asyncio.get_running_loop().time() < self._followed_until

    @property
    def is_awaited(self) -> bool:
        """Whether anybody, here or elsewhere, waits for what is kept."""
        return self.is_followed or (self._only_kept and self._journal.readers > 0)

    def follow(self) -> None:
        """Keep it while it runs: somebody follows it, for the next `INTEREST_SECONDS`."""
        self._followed_until = asyncio.get_running_loop().time() + INTEREST_SECONDS
        if not self.closed:
            self._live.note(self)

    @property
    def wants_answer(self) -> bool:
        """Whether it is to be appended to even where it has no news: somebody wants to know whose the response is."""
        return bool(self._waiters or self._written)

    def news(self) -> LogAppend:
        """Return what is not kept for sure: it is appended now."""
        # Who comes after this waits for the next append: this one may have begun before its question.
        self._written |= self._waiters
        self._waiters.clear()
        data = bytes(self._data[self._kept :])
        return LogAppend(
            response_id=self.response_id,
            claim=self.claim,
            position=self._kept,
            data=data,
            project=self._messages[0][0] if self._messages else "",
            messages=tuple(message for _, message in self._messages),
        )

    def has_kept(self, append: LogAppend) -> None:
        """Go on behind what is kept now, and publish what waited for that."""
        # An append that was tried twice may be answered out of order: what is kept never becomes less.
        self._kept = max(self._kept, append.position + len(append.data))
        self._messages = [each for each in self._messages if each[1] not in append.messages]
        self._publish_up_to(self._kept)
        self._release(self._written)

    def has_lost(self) -> None:
        """Tell whoever waits that nothing more is kept: the response is another worker's, or was deleted."""
        for waiter in self._waiters | self._written:
            if not waiter.done():
                waiter.set_exception(ClaimLost(f"{self.response_id} is not {self.claim.worker}'s any more"))

    @staticmethod
    def _release(waiters: "Collection[asyncio.Future[None]]") -> None:
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _publish_up_to(self, position: int) -> None:
        """Publish what comes of the log up to a position, as one lot: its readers had no chance to take it before."""
        lot: list[Event] = []
        while self._unpublished and self._unpublished[0][0] <= position:
            lot += self._unpublished.popleft()[1]
        if not self._journal.closed:  # as it is where another worker goes on
            self._journal.extend(lot)


class LiveLogs:
    """Keeps the logs of the runs of this process: all that have news in one transaction, and not too often.

    `tell` rings the bell for those who follow, `lose` stops what another worker took over, `gone` what was deleted.
    `now` (Unix seconds) dates the inputs with which a phase of a response may begin or end, see
    `protocol.response.timeline`.
    """

    def __init__(
        self,
        store: BaseResponseStore,
        *,
        lose: Callable[[str], None],
        gone: Callable[[str], None],
        tell: Callable[[Collection[str]], Coroutine[None, None, object]],
        now: Callable[[], float] | None = None,
    ) -> None:
        self.now = now
        self._store = store
        self._lose = lose
        self._gone = gone
        self._tell = tell
        self._news: dict[str, RunLog] = {}  # by response id
        self._rung: set[str] = set()  # responses whose followers are to be told
        self._keeping: asyncio.Task[None] | None = None  # the transaction under way; never two
        self._telling: asyncio.Task[object] | None = None  # of its own: Redis may take long
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0  # when the next transaction may begin, by the loop's clock
        self._failed = False  # and it was said

    def note(self, log: RunLog, *, now: bool = False) -> None:
        """Keep a log soon, or `now`: it has news."""
        self._news[log.response_id] = log
        if now:
            self._due = 0.0
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        self._schedule()

    def ring(self, response_id: str) -> None:
        """Tell those who follow a response that there is more of it in the store."""
        self._rung.add(response_id)
        self._schedule()

    async def append(self, appends: Sequence[LogAppend]) -> Collection[str]:
        """Append to logs now; return which responses are not this worker's any more. Raises `StoreError`."""
        appended = await self._store.append(appends)
        for response_id in appended.lost:
            self._lose(response_id)
        for response_id in appended.gone:
            self._gone(response_id)
        return appended.lost | appended.gone

    async def aclose(self) -> None:
        """Stop; what runs has ended before."""
        self._news.clear()
        self._rung.clear()
        if self._timer is not None:
            self._timer.cancel()
        await end_tasks((self._keeping, self._telling))

    def _schedule(self) -> None:
        """See to it that what is to be done is done: at once, or once it is due; one thing at a time."""
        if self._keeping is None and self._timer is None and (self._news or self._rung):
            loop = asyncio.get_running_loop()
            if loop.time() < self._due:
                self._timer = loop.call_at(self._due, self._begin)
            else:
                self._begin()

    def _begin(self) -> None:
        self._timer = None
        self._keeping = asyncio.create_task(self._keep_all(), name="live logs")
        self._keeping.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._keeping = None
        if task.cancelled():
            return
        problem = task.exception()
        if problem is not None:
            logger.error("the logs of running responses cannot be kept", exc_info=problem)
            self._due = asyncio.get_running_loop().time() + RETRY_SECONDS
        self._schedule()

    async def _keep_all(self) -> None:
        """Keep what has news, all of it at once."""
        # Taken now: what is noted during the transaction comes with the next one.
        logs = [log for log in self._news.values() if not log.closed]
        self._news.clear()
        pause = BACKGROUND_SECONDS
        if logs and not await self._keep(logs):
            pause = RETRY_SECONDS
        else:
            self._rung.update(log.response_id for log in logs if log.is_followed)
            # Unless the bell is being rung: what came since is told the next time.
            if self._rung and (self._telling is None or self._telling.done()):
                rung, self._rung = self._rung, set()
                self._telling = asyncio.create_task(self._tell(rung), name="bell")
            # Somebody came during the transaction, and waits: no pause before the next one.
            if any(log.wants_answer for log in self._news.values()):
                pause = 0.0
            elif any(log.is_awaited for log in logs):
                pause = FOLLOWED_SECONDS
        self._due = asyncio.get_running_loop().time() + pause

    async def _keep(self, logs: Sequence[RunLog]) -> bool:
        """Append to these logs; return whether that could be done."""
        awaited = {log.response_id for log in logs if log.wants_answer}
        appends = [log.news() for log in logs]
        try:
            not_ours = await self.append(
                [each for each in appends if each.data or each.messages or each.response_id in awaited]
            )
        except StoreError as problem:
            if not self._failed:
                logger.warning("the logs of %d running responses cannot be kept now: %s", len(logs), problem)
            self._failed = True
            self._note_again(logs)
            return False
        except Exception:
            self._note_again(logs)
            raise
        self._failed = False
        for log, append in zip(logs, appends, strict=True):
            if log.response_id in not_ours:
                log.has_lost()
            elif not log.closed:  # one that ended meanwhile has published all
                try:
                    log.has_kept(append)
                except Exception:  # its own end tells its readers, and the others wait for nothing
                    logger.exception("response %s: what is kept of it cannot be told", log.response_id)
                await asyncio.sleep(0)  # after an outage each has much to tell: beats and requests are not to wait
        return True

    def _note_again(self, logs: Sequence[RunLog]) -> None:
        self._news.update({log.response_id: log for log in logs if not log.closed})


def _not_kept(response_id: str) -> StoreError:
    problem = StoreError(f"the log of {response_id} could not be kept in {KEEP_SECONDS:g} s")
    problem.passing = True
    return problem


Machine = TypeVar("Machine", bound=ResponseMachine)


def as_begun(response: ResponseObject) -> ResponseObject:
    """Return a response object as it was when it began."""
    status = Status.QUEUED if response["background"] else Status.IN_PROGRESS
    begun: ResponseObject = {
        **response,
        "status": status.value,
        "output": [],
        "completed_at": None,
        "usage": None,
        "error": None,
        "incomplete_details": None,
    }
    if "output_messages" in begun:
        begun["output_messages"] = []
    return begun


def end_of_failure(response: ResponseObject, *, has_begun: bool) -> Sequence[Input]:
    """Return the last inputs of a response that its worker left behind, behind those its log has; none if it ended.

    None either for one that has usage and no log: an older version ran it, which kept none. So nobody knows its events.

    `Failed` is ignored where the log decides how it ends (the model had ended, and its worker died before that was
    kept), so `Ended` has the error, too: what continues such a response was not kept, so it is not completed.
    """
    error = response["error"]
    if response["status"] != Status.FAILED.value or error is None:
        return ()
    end: list[Input] = [Failed(error), Ended(0, error)]
    if has_begun:
        return end
    if response["usage"] is not None:
        return ()
    return [*([Enqueued()] if response["background"] else []), RunStarted(), *end]


def machine_of(
    response: ResponseObject,
    model_format: ModelFormat,
    *,
    key: bytes,
    seal: Callable[[str, bytes], str],
    tools: ClientTools | None = None,
) -> ResponseMachine:
    """Return the machine of a response that has said nothing yet.

    `key` makes its ids, and is the same on all workers. `seal` seals for its project what stands in a place, such as an
    item: the same for the same. `tools` are the client's, where they have been read already. Which tools of this server
    it may call comes with its inputs.
    """
    response_id = response["id"]
    client_tools = ClientTools(read_tools(response["tools"])) if tools is None else tools
    created_ms = milliseconds_of(response_id) or response["created_at"] * 1000
    new_id, forbids = DerivedIds(response_id, created_ms=created_ms, key=key), response["tool_choice"] == "none"

    def make(stream: type[ResponseStream], machine: type[Machine], budget: Budget | None) -> Machine:
        return machine(
            stream(response, new_id=new_id, tools=client_tools, seals=ItemSeals(model_format, seal=seal)),
            model_format,
            functions=None if forbids else client_tools.names,
            one_call=response["parallel_tool_calls"] is False,
            summary_style=str(response["reasoning"].get("summary") or "auto"),
            max_tool_calls=response["max_tool_calls"],
            budget=budget,
        )

    if response.get("multi_agent"):
        return root_machine(make)
    return make(ResponseStream, ResponseMachine, None)


@dataclass(frozen=True, slots=True)
class Machines:
    """Makes machines, the same ones on every worker."""

    models: ServedModels  # those of this server
    id_key: bytes  # makes the ids inside responses: the same on all workers
    sealer: Sealer  # with the same secrets on all workers

    def of(self, project: str, response: ResponseObject, tools: ClientTools | None = None) -> ResponseMachine:
        """Return the machine of a project's response, which is as it began; `tools`: see `machine_of`."""

        def seal(place: str, data: bytes) -> str:
            return self.sealer.seal_again(SEAL_PURPOSE, project, data, place=f"{response['id']} {place}")

        model = self.models.named(response["model"]) or self.models.first  # its own may be served no more
        model_format = model.format.at_effort(response["reasoning"].get("effort"))
        return machine_of(response, model_format, key=self.id_key, seal=seal, tools=tools)

    def begun(self, project: str, response: ResponseObject) -> ResponseMachine:
        """Return the machine of a project's response that has gone on, as it was when it began."""
        return self.of(project, as_begun(response))

    # What follows is pure computation, 3 to 6 µs an event: in a thread where a log is long. All of it raises
    # `BrokenLog`.

    def replay(self, project: str, stored: StoredLog) -> EventSource | None:
        """Make a finished response's stream again, as a run here would have made it; None where its log was not kept.

        None, too, where its model is served no more, and no served one reads its tokens as it did.
        """
        response, machine = stored.response, self.begun(project, stored.response)
        journal = EventJournal(max_lag_bytes=0, kept=True)  # nothing is appended while somebody reads
        journal.fill(event for input_ in decode(stored.data) for event in machine.receive(input_).events)
        if not journal.closed:
            end = end_of_failure(response, has_begun=machine.stream.has_begun)
            journal.fill(event for input_ in end for event in machine.receive(input_).events)
        if not journal.closed:
            return None
        # Another model may read the same tokens as other text: then the replay would not be what clients have seen.
        is_served = self.models.named(response["model"]) is not None
        if not (is_served or machine.stream.snapshot()["output"] == response["output"]):
            return None
        return EventSource(response["id"], journal, machine)

    def last_number(self, project: str, stored: StoredLog) -> int | None:
        """Return the number of a log's last event; None where the log does not tell how the response ended."""
        machine, last = self.begun(project, stored.response), -1
        for input_ in decode(stored.data):
            # Only the last one's number is wanted, so no event is written as JSON.
            for event in machine.receive(input_).events[-1:]:
                last = event.sequence_number
        return last if machine.status in TERMINAL_STATUSES else None

    def so_far(self, project: str, stored: StoredLog) -> ResponseObject:
        """Return a response that another worker runs, with what of its output is kept."""
        machine = self.begun(project, stored.response)
        for input_ in decode(stored.data):
            machine.receive(input_)
        return machine.stream.snapshot() if machine.stream.has_begun else stored.response

    def failed(self, accepted: AcceptedResponse, error: ResponseError) -> StoredLog:
        """Return a response that was taken over, and its log, as they are once it has failed behind the log it has.

        It fails even where that log decides another end, since that was never kept, nor what can be continued.
        """
        machine = self.begun(accepted.project, accepted.response)
        for input_ in decode(accepted.log):
            machine.receive(input_)
        # `Ended` is written into the log, and not given to the machine: `outcome` tells how the response is with it.
        *before, end = end_of_failure(as_failed(accepted.response, error), has_begun=machine.stream.has_begun)
        for input_ in before:
            machine.receive(input_)
        return StoredLog(machine.outcome(0, error), accepted.log + encode([*before, end]))
