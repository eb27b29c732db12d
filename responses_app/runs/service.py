"""`ResponseService`: where all transports bring requests. A request goes in, a reader of its response comes out."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from engine.backends.base import BaseEngine
from engine.errors import EngineError
from engine.types import EngineInfo, Session
from responses_app.auth.scopes import check_named, named_by
from responses_app.kit.retention import keeps_nothing
from responses_app.limits.rates import Rates
from responses_app.limits.suspects import Running
from responses_app.observing.metrics import Metrics
from responses_app.observing.traces import Traces
from responses_app.protocol import ids
from responses_app.protocol.api_keys import is_by_session
from responses_app.protocol.chat.completion import StoredChoice
from responses_app.protocol.engine_details import EngineDetails
from responses_app.protocol.errors import ApiError, JsonObject, invalid_request, invalid_value, unsupported_parameter
from responses_app.protocol.events.dialects import OPENAI, Dialect
from responses_app.protocol.fields import IgnoredFields, missing
from responses_app.protocol.ids import PublicId
from responses_app.protocol.items import compaction
from responses_app.protocol.items.items import identified
from responses_app.protocol.items.resources import INPUT_IMAGES, image_urls
from responses_app.protocol.prompt.replaying import turn_of_output
from responses_app.protocol.rate_limits import Amount, LimitedSubject
from responses_app.protocol.requests.create_fields import ENCRYPTED_REASONING
from responses_app.protocol.requests.requests import CreateRequest, new_response, parse_create
from responses_app.protocol.requests.resources import ResponseObject
from responses_app.protocol.response.steps import AgentsAllowed, OutputOptions
from responses_app.protocol.rollouts.generations import RecordedResponse
from responses_app.protocol.sealing import Sealer
from responses_app.protocol.session.tool_outputs import TOOL_MODE, WAIT
from responses_app.runs.admission import Admission, Approving, Naming, as_conflict
from responses_app.runs.driving.persistence import RunPersistence
from responses_app.runs.driving.run import Run
from responses_app.runs.driving.unsaved import UnsavedEnds, UsageBook
from responses_app.runs.known_turns import OF_MESSAGES, KnownTurns
from responses_app.runs.log.journal import EventJournal, ResponseReader
from responses_app.runs.log.run_log import LiveLogs, Machines, RunLog, as_begun
from responses_app.runs.plan.failures import engine_errors, refusal, store_errors
from responses_app.runs.plan.history import History, Recall, with_known_turns
from responses_app.runs.plan.offering import ServedTools, with_fixed_versions
from responses_app.runs.plan.pictures import named_in
from responses_app.runs.plan.plan import Origin, RunPlan, record_rollout, rollout_of
from responses_app.runs.plan.planning import Draft, check_grammar, count_prompt, make_plan, plan_to_compact
from responses_app.runs.plan.served import ServedModel, ServedModels
from responses_app.runs.plan.settings import RunSettings
from responses_app.runs.plan.stores import Stores
from responses_app.runs.plan.turns import FairThreads
from responses_app.runs.registry.registry import RunRegistry
from responses_app.runs.retention import RetentionWatch
from responses_app.runs.rollouts import Rollouts
from responses_app.stores.base import AcceptedResponse, Claim

if TYPE_CHECKING:
    from responses_app.resources.projects.callers import KeyStore
    from responses_app.stores.redis_turns import RedisTurns

logger = logging.getLogger("respsite.runs")

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(slots=True)
class ResponseService:
    """Where all transports bring requests: a request goes in, a reader of its response comes out."""

    machines: Machines  # make the machines of responses
    stores: Stores
    history: History
    registry: RunRegistry  # owns what runs
    sealer: Sealer
    new_id: Callable[[str], str]  # prefix of an id → a new one
    now: Callable[[], float]  # Unix seconds
    settings: RunSettings
    worker: str  # the id of this process among the workers
    live: LiveLogs  # keeps the logs of what runs
    rates: Rates  # the limits of keys and projects
    metrics: Metrics
    usage: UsageBook  # takes down what was used by all that is not stored
    traces: Traces = field(default_factory=lambda: Traces(enabled=False))  # of what no request here asks for
    keys: "KeyStore | None" = None  # whose limits hold; None where there are no keys
    running: Running = field(default_factory=Running)  # requests, as they are found where this worker dies
    shared_turns: "RedisTurns | None" = None  # what workers share of what was said in chats
    server_tools: ServedTools = field(default_factory=ServedTools)  # this server's tools
    threads: FairThreads = field(default_factory=FairThreads)  # for work that takes long
    # How long each project keeps things
    retention: RetentionWatch = field(default_factory=RetentionWatch.of_none)
    models: ServedModels = field(init=False)  # ordered: a request without `model` uses the first
    unsaved: UnsavedEnds = field(init=False)
    naming: Naming = field(init=False)
    admission: Admission = field(init=False)
    known_turns: KnownTurns = field(init=False)
    approving: Approving = field(init=False)
    rollouts: Rollouts = field(init=False)

    def __post_init__(self) -> None:
        self.models = self.machines.models
        self.unsaved = UnsavedEnds(self.stores.responses, self.settings)
        self.naming = Naming(self.stores.responses, self.registry, new_id=self.new_id)
        self.admission = Admission(self.registry, self.rates)
        self.known_turns = KnownTurns(
            self.settings, sealer=self.sealer, shared=self.shared_turns, retentions=self.retention.table
        )
        self.approving = Approving(self.stores, self.registry, now=self.now)
        self.rollouts = Rollouts(
            self.stores.rollouts,
            served=self.models.named,
            new_id=self.new_id,
            now=self.now,
            retention=self.retention,
            over=self.end_session,
        )

    async def create(
        self,
        request: CreateRequest,
        origin: Origin,
        *,
        recall: Recall = lambda _: None,
        dialect: Dialect = OPENAI,
        details: EngineDetails | None = None,
        chat: StoredChoice | None = None,
    ) -> ResponseReader:
        """Prepare a request, start its run, and return a reader of it, whose events have the names of `dialect`.

        `recall` finds the chains that the caller's connection remembers; `details` are filled while it runs; `chat`
        is kept with it, if it is stored. Raises `ApiError` for everything that can be known before `response.created`.
        """
        request, origin = await self.rollouts.entered(request, origin)
        model, plan = await self._plan(request, origin, recall, dialect=dialect)
        if details is not None:
            details.begin(model.engine, plan.format)
            details.check_prompts(len(plan.generation.prompt_token_ids))
            plan.details = details
        plan.chat = chat
        await self._prepare(plan, model)
        run = self._run(plan, model)
        self._note(plan)
        # Approvals before admission: a response that may not make its calls takes nothing of the limits.
        async with self.approving.claimed(run) if plan.tools.approved else nullcontext():
            await self.admission.admit(run)
        # Nothing is awaited between the admission and `attach`, so its reader misses no event.
        images = image_urls(plan.input_items) if INPUT_IMAGES in (request.include or ()) else ()
        return self.registry.attach(run, dialect=dialect.hiding if request.hides_sizes else dialect, images=images)

    async def compact(self, request: CreateRequest, origin: Origin) -> tuple[ResponseReader, list[JsonObject]]:
        """Start the run of a request that only compacts; return its reader, and the user's messages, which its client
        keeps. Raises `ApiError` as `create` does.
        """
        request, origin = await self.rollouts.entered(request, origin)
        with store_errors():
            model, draft, info = await self._draft(request, origin, lambda _: None)
            before = await self.history.said_before(origin.project, draft.context.parent)
        with engine_errors(origin.request_id):
            plan, messages = await self._in_thread(draft, plan_to_compact, draft, model.engine, info, before=before)
        await self._prepare(plan, model)
        run = self._run(plan, model)
        await self.admission.admit(run)
        return self.registry.attach(run), identified(messages, self.new_id)

    async def count_input_tokens(self, request: CreateRequest, origin: Origin, *, dialect: Dialect = OPENAI) -> int:
        """Return how many tokens the prompt of a request would have, even if they are too many for the model.

        Raises `ApiError` for everything else that `create` refuses. It counts as a request, and its tokens do not.
        """
        await self.rates.admit(origin.limited, Amount(requests=1), None)  # takes nothing that is to be settled
        with store_errors():
            model, draft, info = await self._draft(request, origin, lambda _: None, dialect=dialect, runs=False)
        with engine_errors(origin.request_id):
            if not draft.is_long:
                return count_prompt(draft, model.engine, info)
            return await self._in_thread(draft, count_prompt, draft, model.engine, info)

    def end_session(self, session: Session) -> None:
        """Have the engines let go of what they keep of a session that is over."""
        for model in self.models:
            model.engine.end_session(session)

    async def is_stored(self, project: str, store: object, *, background: bool) -> bool:
        """Whether a response of a project is stored whose request says so, at least for as long as it may be polled.

        Raises `StoreError`.
        """
        retentions = await self.retention.current()
        wanted = store is not False or background  # with `store: false` nobody could poll it
        return self.settings.responses_store and wanted and not retentions.keeps_nothing(project)

    async def run_again(self, accepted: AcceptedResponse) -> None:
        """Run a durable response that another worker has accepted, or go on behind what came to it there.

        Raises `ApiError` where that cannot be: its model is gone, or what it continues. Raises `ClaimLost`, and
        `BrokenLog`.
        """
        with store_errors():
            limited = await self.limited(accepted)
            await self._check_key(accepted)
        await self.admission.admit_again(await self._behind(accepted, limited))

    async def recorded_so_far(self, accepted: AcceptedResponse) -> RecordedResponse | None:
        """Return what a durable response that cannot go on adds to its roll-out, as its log has it; None without one.

        Its prompts are rendered again. Raises whatever keeps them from that.
        """
        if rollout_of(accepted.request or {}) is None:
            return None
        return (await self._behind(accepted, ())).recorded_so_far()

    async def _behind(self, accepted: AcceptedResponse, limited: Sequence[LimitedSubject]) -> Run:
        """Return the run of a response of another worker, to go on behind what came to it there."""
        rollout = rollout_of(accepted.request or {})
        with store_errors():
            weights = await self.rollouts.wanted(accepted.project, rollout)
        fields = accepted.request or {}
        waits = fields.get(TOOL_MODE) == WAIT
        origin = Origin(
            transport=accepted.transport,
            project=accepted.project,
            key_id=accepted.key_id,
            limited=limited,
            awaits_tools=waits,
            span=self.traces.under(None),
            comes_again=True,  # only what outlives its worker is run again
            rollout=rollout,
            weights=weights,
        )
        # Its model is the one that it has begun with, whatever the name that was asked for means here.
        # The items are those that were kept: what was named by ids then may be gone by now.
        known = {"model": accepted.response["model"], "input": list(accepted.input_items)}
        request = parse_create({**fields, **known}, engine_fields=True)
        # What was sealed elsewhere was taken when it was accepted, or was refused then.
        request = request.model_copy(update={"ignored": IgnoredFields(foreign_seals=True)})
        model, plan = await self._plan(request, origin, lambda _: None, accepted=accepted)
        await self._prepare(plan, model)
        run = self._run(plan, model, accepted)
        if accepted.log:
            # On a thread: a log may be long, and nobody else knows this run yet.
            await asyncio.to_thread(run.go_on_behind, accepted.log)
        return run

    async def _check_key(self, accepted: AcceptedResponse) -> None:
        """Raise `ApiError` where the key of a response was deleted: nobody knows any more what it might do."""
        if self.keys is None or not accepted.key_id or is_by_session(accepted.key_id):
            return
        if await self.keys.get(accepted.key_id) is None:
            raise ApiError(
                f"The API key '{accepted.key_id}' of this response was deleted.", status=401, code="invalid_api_key"
            )

    async def limited(self, accepted: AcceptedResponse) -> Sequence[LimitedSubject]:
        """Return those whose limits hold for a response, whether its key still opens. Raises `StoreError`."""
        if self.keys is None or not accepted.key_id:
            return ()
        if is_by_session(accepted.key_id):
            return await self.keys.limits_of_project(accepted.project)
        key = await self.keys.get(accepted.key_id)
        return key.limited if key is not None else ()

    async def _plan(
        self,
        request: CreateRequest,
        origin: Origin,
        recall: Recall,
        *,
        dialect: Dialect = OPENAI,
        accepted: AcceptedResponse | None = None,
    ) -> tuple[ServedModel, RunPlan]:
        try:
            with store_errors():
                model, draft, info = await self._draft(request, origin, recall, dialect=dialect, accepted=accepted)
                # Before the plan: the chain of a later leg names what its whole turn continues.
                if accepted is None:
                    named = await self.naming.public_id(origin.project, draft.request, draft.context, dialect)
                else:
                    known = accepted.response.get("public_id")
                    named = PublicId(*known) if known else None
                draft.public = named
        except ApiError as error:
            raise as_conflict(error) if dialect.one_id_a_turn else error from None
        with engine_errors(origin.request_id):
            if draft.is_long:
                plan = await self._in_thread(draft, make_plan, draft, model.engine, info)
            else:
                plan = make_plan(draft, model.engine, info)
            if plan.grammar is not None:
                await check_grammar(plan, plan.grammar, model.engine)
        return model, plan

    async def _prepare(self, plan: RunPlan, model: ServedModel) -> None:
        """Have a plan recorded where a roll-out wants it, and keep what its prompts show.

        Before its response is accepted: another worker may go on with it. Raises `ApiError`.
        """
        if plan.origin.rollout is not None or plan.request.wants_tokens:
            record_rollout(plan, model, now=self.now, rule=self.rollouts.rule(plan.origin.weights, model))
        if plan.format.sees:
            with store_errors():
                await plan.pictures.keep(
                    plan.response_id, plan.new_pictures, stored=plan.stored, shown=plan.prompt_pictures
                )

    async def _in_thread(
        self, draft: Draft, work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Return what `work` makes of a draft on a thread."""
        project = draft.origin.project
        if draft.format.renders_elsewhere:
            return await self.threads.wait(project, work, *args, **kwargs)
        return await self.threads.run(project, draft.size, work, *args, **kwargs)

    async def _draft(
        self,
        request: CreateRequest,
        origin: Origin,
        recall: Recall,
        *,
        dialect: Dialect = OPENAI,
        accepted: AcceptedResponse | None = None,
        runs: bool = True,
    ) -> tuple[ServedModel, Draft, EngineInfo]:
        if not (request.input or request.previous_response_id or request.conversation or request.warm_up):
            raise missing("input")
        model = self.models.chosen(request.model, origin.models)
        # Before anything is looked up: without the right, a key is not told either what there is.
        check_named(origin.scopes, named_by(request, runs=runs))
        tier = self.settings.tier(request.service_tier)
        self._check(request, model.engine)
        # Early, since a full server has to refuse cheaply; the admission checks again.
        self.registry.check_capacity()
        stored = await self.is_stored(origin.project, request.store, background=bool(request.background))
        unkept = not stored and self.retention.table.keeps_nothing(origin.project)
        if unkept:
            _check_unkept(request)
        try:
            info = await model.ready()
        except EngineError as error:
            raise refusal(error, origin.request_id) from error
        if accepted is None and origin.weights is not None:  # what has begun ends where other weights come
            self.rollouts.check(origin.weights, model)
        pictures = named_in(accepted.request) if accepted and accepted.request else {}
        try:
            context = await self.history.context(
                origin, request, recall, dialect=dialect, model_format=model.format, named_pictures=pictures
            )
        except ApiError as error:
            raise _unkept_parent(error) if unkept else error from None
        if origin.transport not in OF_MESSAGES:
            context = await with_known_turns(request, context, partial(self.known_turns.recall, origin.project))
        if self.server_tools.skills is not None and request.tools_json:
            request = await with_fixed_versions(request, self.server_tools.skills, origin.project)
        if accepted is not None:
            response_id = accepted.response["id"]
        else:
            response_id = origin.decided.id if origin.decided is not None else self.new_id(ids.RESPONSE)
        draft = Draft(
            response_id=response_id,
            created_at=accepted.response["created_at"] if accepted else self.now(),
            request=request,
            origin=origin,
            format=model.format.at_effort(request.effort),
            told=self.models.told,
            context=context,
            input_items=identified(context.own.raw, self.new_id),
            tier=tier,
            stored=stored,
            unkept=unkept,
            tools=await self.server_tools.offered(
                request, context, project=origin.project, response_id=response_id, unkept=unkept
            ),
            seal=partial(self.sealer.seal, compaction.PURPOSE, origin.project),
            late_tools=context.late_tools,
            asked=self._asked(request),
            agents=self._agents(request, origin) if request.multi_agent is not None else None,
        )
        return model, draft, info

    def _run(self, plan: RunPlan, model: ServedModel, accepted: AcceptedResponse | None = None) -> Run:
        response = as_begun(accepted.response) if accepted else self._new_response(plan, model)
        decided = plan.origin.decided
        claim = accepted.claim if accepted else Claim(self.worker, decided.epoch if decided else 1)
        journal = EventJournal(max_lag_bytes=self.settings.stream_max_lag_bytes, kept=plan.resumable)
        log = None
        if plan.stored:
            log = RunLog(
                plan.response_id,
                claim,
                live=self.live,
                journal=journal,
                only_kept=plan.durable,
                from_the_first=plan.origin.awaits_tools,
            )
        run = Run(
            plan,
            self.settings,
            model=model,
            machine=self.machines.of(plan.origin.project, response, plan.request.tools),
            journal=journal,
            persistence=RunPersistence(
                plan,
                self.stores,
                claim=claim,
                now=self.now,
                ends=self.unsaved,
                usage=self.usage,
                log=log,
            ),
            queue=self.registry.queue,
        )
        if plan.says_turn and plan.origin.transport not in OF_MESSAGES:
            run.remember = partial(self._remember, run)
        return run

    async def _remember(self, run: Run) -> None:
        """Remember what the model has said in a whole response, for clients that give it back. Raises nothing."""
        said, seen = run.said, turn_of_output(run.response()["output"])
        if said is None:  # a stop string has cut it
            return
        known = seen.known(said, texts=1) if seen.key is not None else None
        # The pictures of a tool are kept for the response that was shown them.
        shows = run.plan.format.sees and any(run.plan.format.pictures_of(each.tokens) for each in said.messages)
        if seen.key is not None and known is not None and not shows:
            await self.known_turns.remember(run.plan.origin.project, seen.key, known)

    def _agents(self, request: CreateRequest, origin: Origin) -> AgentsAllowed | None:
        """Return how far the agents of a request may go. Raises `ApiError` where it asks for more than there may be."""
        if not request.with_agents or request.multi_agent is None:
            return None
        wanted, most = request.multi_agent.max_concurrent_subagents, self.settings.multi_agent_max_concurrent
        if wanted > most:
            path = "multi_agent.max_concurrent_subagents"
            raise invalid_value(path, f"{wanted}. At most {most} work at once here (MULTI_AGENT_MAX_CONCURRENT).")
        return AgentsAllowed(replace(self.settings.agent_limits, concurrent=wanted), calls_client=origin.awaits_tools)

    def _asked(self, request: CreateRequest) -> OutputOptions:
        wants_summary = request.reasoning is not None and request.reasoning.wanted_summary is not None
        sealed = ENCRYPTED_REASONING in (request.include or ())
        return OutputOptions(
            sealed=sealed,
            summaries=self.settings.summaries if wants_summary else None,
            stops=tuple(request.stop or ()),
            stop_tokens=tuple(request.stop_token_ids or ()),
            objects=sealed,  # many clients read the arguments of a call and write them again
        )

    def _new_response(self, plan: RunPlan, model: ServedModel) -> ResponseObject:
        response = new_response(
            plan.request,
            response_id=plan.response_id,
            created_at=int(plan.created_at),
            model=model.name,
            store=plan.lasting,
            service_tier=plan.tier,
        )
        if plan.public is not None:
            response |= {"public_id": plan.public, "previous_response_id": plan.continues}
        if plan.shown is not None:
            response |= {"input_messages": plan.shown, "output_messages": []}
        return response

    def _check(self, request: CreateRequest, engine: BaseEngine) -> None:
        """Refuse what this server, as it is configured, cannot do; raises `ApiError`.

        An `include` that cannot be served is left out silently.
        """
        if request.top_logprobs and not engine.supports_logprobs:
            raise unsupported_parameter("top_logprobs", "The engine here gives no log probabilities; leave it out.")
        if request.priority and not engine.supports_priority:
            raise unsupported_parameter("priority", "The engine here takes requests as they come; leave it out.")
        if request.cache_salt is not None and not engine.supports_cache_salt:
            raise unsupported_parameter("cache_salt", "The engine here cannot keep its cache apart; leave it out.")
        if request.background and not self.settings.responses_store:
            raise invalid_request(
                "A background response must be stored, and this server stores none (RESPONSES_STORE=off). Leave "
                "'background' out and read the answer as it comes.",
                param="background",
                code="invalid_value",
            )

    def _note(self, plan: RunPlan) -> None:
        """Log what an operator may look for later: nothing that the client is told."""
        if plan.request.cache_salt is not None and plan.request.prompt_cache_key is not None:
            logger.warning("response %s: its cache_salt counts, and not its prompt_cache_key", plan.response_id)
        if plan.public is not None:
            logger.info("response %s is leg %d of '%s'", plan.response_id, plan.public.leg, plan.public.name)
        if plan.omitted:
            logger.info("response %s: %d parts the model cannot read were left out", plan.response_id, plan.omitted)


def _check_unkept(request: CreateRequest) -> None:
    """Refuse what a project that keeps nothing cannot have. Raises `ApiError`."""
    if request.background:
        raise keeps_nothing(
            "A background response must be stored",
            "Leave 'background' out and read the answer as it comes.",
            param="background",
        )
    if request.conversation_id is not None:
        raise keeps_nothing(
            "A conversation is stored",
            "Send its items in 'input', or continue a response on the WebSocket that made it.",
            param="conversation",
        )


def _unkept_parent(error: ApiError) -> ApiError:
    """Say of a response that cannot be continued why that is so in a project that keeps nothing."""
    if error.code != "previous_response_not_found":
        return error
    return ApiError(
        f"{error.message} This project keeps nothing (its retention is 'never'): only the WebSocket that made a "
        "response can continue it. Send the conversation in 'input'.",
        status=error.status,
        type=error.type,
        code=error.code,
        param=error.param,
    )
