"""`RunPersistence`: what a run tells the store, from its acceptance to its end."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from engine.formats.base import MessageKind, RenderedMessage, as_tokens
from responses_app.kit.errors import StoreError
from responses_app.limits.rates import Ticket
from responses_app.limits.suspects import current_name
from responses_app.observing.metrics import Measured
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.items.items import SampledMessage, fingerprint
from responses_app.protocol.items.offers import is_of_root
from responses_app.protocol.prompt.chain import ChainLink, new_link, with_pictures, with_states
from responses_app.protocol.rate_limits import Amount
from responses_app.protocol.requests.resources import CONTINUABLE, Ending, ResponseObject, Status, as_failed
from responses_app.protocol.requests.server_tools import ITEMS, SHELL_ITEM, SHELL_OUTPUT
from responses_app.protocol.response.response import ResponseMachine
from responses_app.protocol.response.steps import Await, Ended
from responses_app.protocol.rollouts.generations import RecordedResponse
from responses_app.protocol.rollouts.requests import NOWHERE
from responses_app.protocol.session.tool_outputs import TOOL_MODE, WAIT
from responses_app.resources.conversations.fields import ConversationAppend
from responses_app.resources.usage.fields import UsedTokens
from responses_app.resources.webhooks.messages import message_of_wait
from responses_app.runs.driving.unsaved import UnsavedEnd, UnsavedEnds, UsageBook
from responses_app.runs.log.run_log import RunLog
from responses_app.runs.plan.failures import failure, unanswered
from responses_app.runs.plan.pictures import NAMED_PICTURES
from responses_app.runs.plan.plan import ROLLOUT, RunPlan, rollout_fields
from responses_app.runs.plan.stores import Stores
from responses_app.stores.base import AcceptedResponse, Claim, ClaimLost, NameTaken, ParentGone, StoredResponse

logger = logging.getLogger("respsite.runs")


AGAIN_SECONDS = 0.5  # before an end that could not be kept is tried again, beside the pauses of the store's own
BACKGROUND_PATIENCE = 3600.0  # seconds: nobody waits for a response in the background as for an answer
# Types of items that this server's tools make.
_OF_SERVER_TOOLS = frozenset(("mcp_list_tools", SHELL_ITEM, SHELL_OUTPUT, *ITEMS.values()))
_CHOSEN = frozenset(status.value for status in CONTINUABLE)  # what can be a choice of a chat completion
NOT_MEASURED = Measured(first_token_ms=None, duration_ms=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """How a run ended, as it is kept."""

    response: ResponseObject  # with its terminal status
    link: ChainLink | None = None  # its part of the chain; None for one that cannot be continued
    sampled: Sequence[SampledMessage] = ()  # the items that clients can name, with their tokens
    measured: Measured
    log: bytes = b""  # all of it; empty where there is none


@dataclass(frozen=True, slots=True)
class KeptEnd:
    """How a run has ended, as its readers are to be told."""

    ended: Ended  # what the machine is to be told: with an error where the end could not be kept
    link: ChainLink | None  # what later responses continue
    problem: ApiError | None = None  # why it could not be kept as it was decided


class RunPersistence:
    """Keeps one response; does nothing for one that is not stored, which has no `log` either.

    `claim` is this process's, `now` its clock. `ends` takes an end that the store does not, `usage` what one used that
    is not stored.
    """

    def __init__(  # noqa: PLR0913 - all that it is made of
        self,
        plan: RunPlan,
        stores: Stores,
        *,
        claim: Claim,
        now: Callable[[], float],
        ends: UnsavedEnds,
        usage: UsageBook,
        log: RunLog | None = None,
    ) -> None:
        self.now = now
        self._patience = ends.settings.database_patience_seconds
        self._defer = ends.add  # takes an end that the store does not
        self._usage = usage
        self._plan = plan
        # A plan made anew for a summary begins a chain of its own, and names no parent.
        self._continues = plan.continues  # which a later plan of the same response may not tell
        self._store = stores.responses
        self._conversations = stores.conversations
        self._rollouts = stores.rollouts
        self.claim = claim
        self.log = log
        self.accepted = False  # the store has the response
        self.unsaved: UnsavedEnd | None = None  # its end, where that waits for the store
        self._is_queued = False  # in the store
        self._told_waits: set[str] = set()  # of which webhooks were told here; as many as turns at most
        self._noting: asyncio.Task[None] | None = None  # the note that it has begun, while that is on its way
        self._refused_by: StoreError | None = None  # why the store did not take what it was told last

    async def accept(self, response: ResponseObject, *, again: bool = False) -> None:
        """Keep the response before it runs; `again`: another worker has kept it already.

        Raises `StoreError`; `ParentGone` where the stored response that it continues is gone, kept or not; `NameTaken`.
        Else nobody knows whether one that raised is kept or will be: if so, it ends as failed, unless it is for another
        try.
        """
        plan = self._plan
        if plan.stored:
            try:
                await self._store.accept(self._as_accepted(response, again=again))
            # These say for certain that nothing was kept. After any other error the commit may have happened.
            except (ClaimLost, NameTaken, ParentGone):
                raise
            except StoreError as problem:
                if not again:
                    self._refuse(as_failed(response, failure(problem, plan.origin.request_id)))
                raise
            self.accepted = True
            self._is_queued = response["status"] == Status.QUEUED.value
        elif plan.stored_parent and not await self._store.knows(plan.origin.project, plan.stored_parent):
            raise ParentGone(plan.stored_parent)

    async def begin(self, *, may_wait: Callable[[], bool]) -> None:
        """Note that a response in the background has begun to answer; while the store is away, it waits with that.

        Raises `ClaimLost`, also where the response has to be left to another worker: `may_wait` says that this one
        stops. Raises `StoreError` where it cannot be noted.
        """
        plan = self._plan
        if not (plan.stored and plan.background):
            return
        if not await self._done_in_time(self._note_begin, may_wait):
            raise StoreError("that it has begun cannot be kept") if may_wait() else ClaimLost(plan.response_id)

    async def keep_inputs(self, may_wait: Callable[[], bool]) -> bool:
        """Keep all that came so far, also while nobody follows it; while the store is away, it waits with that.

        Return False where it cannot be kept. Raises `ClaimLost`. What is not stored is this worker's alone.
        """
        return self.log is None or not self.accepted or await self._done_in_time(self.log.keep, may_wait)

    async def _note_begin(self) -> None:
        await self._store.begin(self._plan.origin.project, self._plan.response_id, self.claim)

    def tell_wait(self, machine: ResponseMachine, wait: Await) -> None:
        """Tell webhooks that a response in the background waits for its client, with what its log says of that.

        A wait is told once: one that goes on, for the outputs that are left or on another worker, is the same.
        """
        plan = self._plan
        if self.log is None or not plan.background:
            return
        mark = f"{machine.number} {len(machine.turns)}"  # a turn has at most one wait behind it
        if mark not in self._told_waits:
            self._told_waits.add(mark)
            output = machine.stream.output
            told = message_of_wait(plan.response_id, output, wait.call_ids, wait=mark)
            self.log.tell(plan.origin.project, told)

    def note_start(self) -> None:
        """Note soon that a response which waited for the engine has it: who asks another worker reads that.

        It does not wait for the store, which may be away: `keep` does. In the background `begin` notes it.
        """
        if self._is_queued and not self._plan.background:
            self._noting = asyncio.create_task(self._note_start(), name=f"start of {self._plan.response_id}")

    def leave(self) -> None:
        """The response runs here no more: nothing of it is noted any longer. `keep` has waited for what was asked."""
        if self._noting is not None:
            self._noting.cancel()

    async def _note_start(self) -> None:
        plan = self._plan
        try:
            await self._note_begin()
        except StoreError as problem:  # also one that was deleted, or is another worker's: its end tells what then
            logger.info("response %s: that it has the engine is not kept: %s", plan.response_id, problem)
        except Exception:  # whatever it is, it costs the response nothing: its end waits for this
            logger.exception("response %s: that it has the engine is not kept", plan.response_id)

    @property
    def goes_on_elsewhere(self) -> bool:
        """Whether another worker that takes it over goes on with it, or lets it fail behind its log.

        All others the store lets fail by itself, and no worker counts what they used.
        """
        return self._plan.durable or (self.log is not None and self.log.is_kept)

    def count(self, ticket: Ticket, used: Amount) -> None:
        """Count what the response used: where its end waits for the store, once it is known who counts it."""
        if self.unsaved is not None:
            self.unsaved.count(ticket, used, elsewhere=self.goes_on_elsewhere)
        else:
            ticket.settle(used)

    def note_usage(self, model: str, tokens: Callable[[], UsedTokens]) -> None:
        """Take down what the response has used, which has ended; that of a stored one is kept with its end."""
        plan = self._plan
        if not plan.stored:
            self._usage.note(plan.origin, model, "responses", tokens(), of=plan.response_id)

    async def give_back(self, response: ResponseObject) -> None:
        """Leave a durable response to whichever worker looks first, with all that came to it: it goes on there.

        Where the store does not take it now, they find it once this worker is dead to them. Raises nothing.
        """
        assert self.log is not None, "durable responses are stored"
        try:
            await self.log.flush()
            await self._store.give_back(self._as_accepted(response, again=True))
            logger.info("response %s goes to another worker: the server stops", response["id"])
        except StoreError as problem:
            logger.error("response %s could not be given to another worker now: %s", response["id"], problem)
        except Exception:
            logger.exception("response %s could not be given to another worker now: the store broke", response["id"])

    def _refuse(self, response: ResponseObject) -> None:
        """Let the response fail later, if it was accepted: its acceptance was not answered, and it is not to run.

        Its input, if it is kept, is kept already. Here it would wait with every request that is refused while the store
        is away, and one may have MAX_BODY_BYTES.
        """
        end = self._stored(RunEnd(response=response, measured=NOT_MEASURED))
        self.unsaved = self._defer(replace(end, accepted=True, input_items=()))

    def replan(self, plan: RunPlan) -> None:
        """Keep what another plan makes of the same response: its chain begins anew."""
        self._plan = plan

    def _as_accepted(self, response: ResponseObject, *, again: bool) -> AcceptedResponse:
        plan = self._plan
        return AcceptedResponse(
            project=plan.origin.project,
            response=response,
            claim=self.claim,
            input_items=tuple(plan.input_items),
            transport=plan.origin.transport,
            key_id=plan.origin.key_id,
            request=self._request() if plan.durable else None,
            again=again,
            parent=plan.stored_parent,
            public=plan.public,
            request_name=current_name(),
        )

    def _request(self) -> JsonObject:
        """Return what another worker needs to run it; a public id may stand for a later response there."""
        request, parent = self._plan.request, self._plan.parent
        fields = {**request.as_json(), **({TOOL_MODE: WAIT} if self._plan.origin.awaits_tools else {})}
        if self._plan.recorder is not None and self._is_recorded:
            fields[ROLLOUT] = rollout_fields(self._plan.recorder.ref)
        if self._plan.pictures.named:
            fields[NAMED_PICTURES] = dict(self._plan.pictures.named)
        if request.previous_response_id is None or parent is None:
            return fields
        return {**fields, "previous_response_id": parent.response_id}

    def link(self, machine: ResponseMachine, status: Status) -> ChainLink | None:
        """Return the response's part of its chain; None for one that cannot be continued."""
        if status not in CONTINUABLE:
            return None
        plan, stream = self._plan, machine.stream
        link = new_link(
            plan.parent,
            response_id=plan.response_id,
            started_on=plan.link.started_on,
            messages=[*plan.input_messages, *stream.messages],
            items=[*plan.context_items, *stream.output],
            in_background=plan.client_tools.in_background,
        )
        link = with_states(link, machine.server.news)
        if not plan.lasting:
            link = with_pictures(link, plan.pictures.held(plan.format.pictures_of(link.own.tokens)))
        return replace(link, stored=plan.lasting, public=plan.public, continues=self._continues)

    async def keep(
        self, machine: ResponseMachine, ending: Ending, measured: Measured, *, may_wait: Callable[[], bool]
    ) -> KeptEnd | None:
        """Keep the end that a machine has decided; if it cannot be kept for long, as a failure later.

        None, and nothing is kept, where a durable response is for another worker, since this one stops: then
        `may_wait` is false. Raises `ClaimLost`.
        """
        ended = Ended(int(self.now()))
        link = self.link(machine, ending.status)
        end = RunEnd(
            response=machine.outcome(ended.at),
            link=link,
            sampled=_known_items(machine),
            measured=measured,
            log=self._whole_log(ended),
        )
        try:
            saved = await self._done_in_time(partial(self._save, end), may_wait)
        finally:
            if self._noting is not None:  # it was asked for before, so it is over by now, or very soon
                await self._noting
        if saved:
            return KeptEnd(ended, link)
        if self._plan.durable and not may_wait():
            return None
        return self.fail(machine, measured)

    def fail(self, machine: ResponseMachine, measured: Measured) -> KeptEnd:
        """Keep later that a response has failed, whose end is decided and cannot be kept; return how it ends now."""
        request_id = self._plan.origin.request_id
        error = failure(self._refused_by, request_id)
        ended = Ended(int(self.now()), error)
        try:
            end = RunEnd(response=machine.outcome(ended.at, error), measured=measured, log=self._whole_log(ended))
        except Exception:  # then no reader can be shown it either; what came so far is kept without its log
            logger.exception("response %s: its end cannot be made", self._plan.response_id)
            end = RunEnd(response=as_failed(machine.stream.kept(), error), measured=measured)
        if self._plan.stored:
            self.unsaved = self._defer(self._stored(end))
        return KeptEnd(ended, None, unanswered(self._refused_by, request_id))

    def _whole_log(self, last: Ended) -> bytes:
        return b"" if self.log is None else self.log.whole(last)

    async def _done_in_time(self, act: Callable[[], Awaitable[None]], may_wait: Callable[[], bool]) -> bool:
        """Tell the store, again while it is away; return False if that failed. Raises `ClaimLost`.

        Trying again may keep what was kept already, its answer lost on the way: the store takes that for one.
        """
        # The loop's clock cannot go back. Without patience, or where nothing is kept, there is one try; also where a
        # conversation would get its items twice.
        clock = asyncio.get_running_loop().time
        patience = self._patience if not self._plan.background else max(self._patience, BACKGROUND_PATIENCE)
        ends_at = clock() + (patience if self._patience and (self._plan.stored or self._may_record_again) else 0.0)
        while True:
            try:
                await act()
                return True
            # It is a `StoreError`, too, and no reason to try again.
            except ClaimLost:
                raise
            except StoreError as problem:
                if not (problem.passing and may_wait() and clock() + AGAIN_SECONDS < ends_at):
                    logger.error("response %s could not be stored: %s", self._plan.response_id, problem)
                    self._refused_by = problem
                    return False
            except Exception:
                logger.exception("response %s: the store broke", self._plan.response_id)
                return False
            await asyncio.sleep(AGAIN_SECONDS)

    async def _save(self, end: RunEnd) -> None:
        if self._plan.stored:
            await self._store.save(self._stored(end))
            return
        recorded = self.recorded()
        if recorded is not None:
            await self._rollouts.keep(recorded)
        append = self._append(end.response, end.link)
        if append is not None:  # a conversation keeps its items, whoever made them
            await self._conversations.append(self._plan.origin.project, append.conversation_id, append.items)

    def _append(self, response: ResponseObject, link: ChainLink | None) -> ConversationAppend | None:
        """Return what the response adds to its conversation; one that cannot be continued adds nothing."""
        conversation = self._plan.conversation
        if conversation is None or link is None:
            return None
        inputs = (item for item in self._plan.input_items if item["type"] != "compaction_trigger")  # it only asks
        items = (*inputs, *response["output"])
        return ConversationAppend(conversation_id=conversation.id, items=items, read_version=conversation.version)

    def _stored(self, end: RunEnd) -> StoredResponse:
        plan = self._plan
        return StoredResponse(
            project=plan.origin.project,
            response=end.response,
            link=end.link,
            input_items=tuple(plan.input_items),
            sampled=tuple(end.sampled) if plan.lasting else (),
            transport=plan.origin.transport,
            key_id=plan.origin.key_id,
            first_token_ms=end.measured.first_token_ms,
            duration_ms=end.measured.duration_ms,
            conversation=self._append(end.response, end.link),
            accepted=self.accepted,
            claim=self.claim,
            log=end.log,
            chat=plan.chat if end.response["status"] in _CHOSEN else None,
            recorded=self.recorded(),
        )

    @property
    def _is_recorded(self) -> bool:
        """Whether it is part of a roll-out."""
        return self._plan.recorder is not None and self._plan.recorder.ref is not NOWHERE

    @property
    def _may_record_again(self) -> bool:
        """Whether all that is kept of it is what it adds to its roll-out, which is kept once however often it is."""
        return self._is_recorded and self._plan.conversation is None

    def recorded(self) -> RecordedResponse | None:
        """Return what the response adds to its roll-out, if it is part of one."""
        plan, recorder = self._plan, self._plan.recorder
        if recorder is None or not self._is_recorded:
            return None
        return RecordedResponse(
            project=plan.origin.project,
            rollout=recorder.ref,
            response_id=plan.response_id,
            model=recorder.model,
            calls=tuple(recorder.finish()),
        )


def _known_items(machine: ResponseMachine) -> list[SampledMessage]:
    """Return the items that clients can name by their ids. Those of this server's tools have no tokens of their own:
    where they come back, they are rendered anew. Those of agents below the root are not read by the root at all.
    """
    stream = machine.stream
    known = {item.id for item in stream.sampled}
    others = (
        item
        for item in machine.all_output
        if item["id"] not in known and (item["type"] in _OF_SERVER_TOOLS or not is_of_root(item))
    )
    silent = RenderedMessage(MessageKind.OTHER, as_tokens())
    return [*stream.sampled, *(SampledMessage(str(item["id"]), fingerprint(item), silent) for item in others)]
