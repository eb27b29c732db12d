"""What was decided before a run starts: `RunPlan`, with the request's `Origin` and its `RequestTools`.

`session_of`: which session a request belongs to, for every endpoint, by the first of these that a request has.

    1  a key of its client (`prompt_cache_key`, `continuation_id`), unless that is the name of 4 again
    2  its roll-out, and the branch of that
    3  its conversation
    4  the session of its coding agent, by the agent's own headers
    5  the first response of its chain

A request that has none of the first four, and sends all that was said again, is a session of its own: nothing but its
prompt says what it continues.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from engine.formats.base import FunctionTool, ModelFormat, RenderedMessage, Tokens, ToolNamespace, as_tokens
from engine.types import CallRule, GenerationRequest, SamplingOptions, Session, TurnGrammar, digest_of
from responses_app.observing.traces import NO_SPAN, Span
from responses_app.protocol.api_keys import DEFAULT_PROJECT, Caller
from responses_app.protocol.chat.completion import StoredChoice
from responses_app.protocol.engine_details import EngineDetails
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.ids import PublicId
from responses_app.protocol.items.client_tools import NO_CLIENT_TOOLS, ClientTool, ClientTools, by_model, by_programs
from responses_app.protocol.items.offers import (
    PROGRAMS,
    ApprovedCall,
    Offer,
    OfferedTool,
    PausedProgram,
    about_programs,
)
from responses_app.protocol.items.tool_search import is_deferred
from responses_app.protocol.prompt.chain import ChainLink, LinkTokens
from responses_app.protocol.prompt.prompt import PromptWriter
from responses_app.protocol.rate_limits import Amount, LimitedSubject
from responses_app.protocol.requests.requests import CreateRequest, RulesOfTurns
from responses_app.protocol.response.steps import AgentsAllowed, Declared, Mode, Offered, OutputOptions, RunStarted
from responses_app.protocol.rollouts.recording import AboutPrompts, Recorder
from responses_app.protocol.rollouts.requests import NO_HARNESS, NOWHERE, HarnessSession, RolloutRef, branch_of
from responses_app.protocol.rollouts.weights import WeightsRule, WeightsWanted
from responses_app.protocol.tiers import BEHIND_ALL, ServiceTier
from responses_app.runs.plan.pictures import ShownPictures
from responses_app.runs.plan.served import ServedModel
from responses_app.tools.base import BaseTool, ToolUse

if TYPE_CHECKING:
    from responses_app.resources.conversations.model import Conversation

BEHIND_SHARE = 0.75  # of its window a response that may take hours lets all others go first


@dataclass(frozen=True, slots=True)
class ToolEntry:
    """One of a request's `tools` that this server runs."""

    tool: BaseTool  # what makes its calls
    use: ToolUse  # how the request declares it, and for whom it is called
    offer: Offer | None  # what the model may call; None until its server has listed that

    @property
    def server(self) -> str:
        """The label of its server."""
        return str(self.use.declared.get("server_label") or "")


@dataclass(frozen=True, slots=True)
class RequestTools:
    """The tools of a request that this server runs. It never changes: what a server lists makes another one."""

    entries: tuple[ToolEntry, ...] = ()  # those that can be had here, in the order of the request
    approved: Sequence[ApprovedCall] = ()  # calls that the user has approved, and that are to be made
    # What tools left in the chain before, by the type of items
    states: Mapping[str, JsonObject] = field(default_factory=dict)
    search: Offer | None = None  # the search for tools: what is deferred is not told, and called once it is found
    found: frozenset[str] = frozenset()  # deferred tools that were found, as the model calls them
    agents: Offer | None = None  # what agents do to each other, which no tool carries out
    functions: Sequence[ClientTool] = ()  # of the client's, that programs may call
    programs: Sequence[PausedProgram] = ()  # that go on before the model does

    @property
    def namespaces(self) -> tuple[ToolNamespace, ...]:
        """What the model is told before the conversation; what a search has found stands in that."""
        told = [self._told(entry, entry.offer) for entry in self.entries if entry.offer and entry.offer.tools]
        return (*filter(None, told), *(own.namespace for own in (self.search, self.agents) if own is not None))

    @property
    def _own(self) -> list[Offer]:
        """What is offered and no entry carries out."""
        return [own for own in (self.search, self.agents) if own is not None]

    def _told(self, entry: ToolEntry, offer: Offer) -> ToolNamespace | None:
        declared = entry.use.declared
        if declared["type"] == PROGRAMS:
            return replace(offer.namespace, description=about_programs(self._told_to_programs()))
        return None if self.defers(entry) or not by_model(declared) else offer.namespace

    def _told_to_programs(self) -> Iterator[tuple[str, FunctionTool]]:
        yield from ((tool.name, function) for tool, function in self.of_programs())
        for each in self.functions:
            function = each.declaration()
            if each.output_schema:
                function = replace(function, description=f"{function.description} Gives: {each.output_schema}")
            yield each.called, function

    def of_programs(self) -> Iterator[tuple[OfferedTool, FunctionTool]]:
        """Yield the tools that programs may call."""
        for entry in self.entries:
            if entry.offer is not None and by_programs(entry.use.declared):
                for tool, function in zip(entry.offer.tools, entry.offer.namespace.functions, strict=True):
                    if not self.defers(entry) or tool.name in self.found:
                        yield tool, function

    @property
    def deferred(self) -> dict[str, Offer]:
        """What servers offer of which the model is not told, by their labels."""
        return {entry.server: entry.offer for entry in self.entries if entry.offer and self.defers(entry)}

    def defers(self, entry: ToolEntry) -> bool:
        """Whether the tools of an entry are to be found before the model is told of them."""
        return self.search is not None and is_deferred(entry.use.declared)

    @property
    def is_pending(self) -> bool:
        """Whether there is a server that has not listed its tools yet."""
        return any(entry.offer is None for entry in self.entries)

    @property
    def offered(self) -> Offered | None:
        """What the machine is told; None for nothing."""
        if not (self.entries or self.states or self._own):
            return None
        tools = [tool for tool, _ in self.rules()]
        pending = [entry.server for entry in self.entries if entry.offer is None]
        return Offered(tools, pending, self.approved, self.states, self.programs)

    def rules(self) -> Iterator[tuple[OfferedTool, CallRule]]:
        """Yield the tools that the model can call, and what the grammar of a turn knows of them."""
        for entry in self.entries:
            if entry.offer is not None:
                for tool, rule in zip(entry.offer.tools, entry.offer.rules(), strict=True):
                    if self.may_call(entry, tool):
                        yield tool, rule
        for own in self._own:
            yield from zip(own.tools, own.rules(), strict=True)

    def may_call(self, entry: ToolEntry, tool: OfferedTool) -> bool:
        """Whether the model may call a tool of an entry itself."""
        return by_model(entry.use.declared) and (not self.defers(entry) or tool.name in self.found)

    def entry_of(self, name: str) -> ToolEntry | None:
        """Return the entry whose tool the model calls by this name; None where no entry offers it."""
        named = self._named(name)
        return None if named is None else named[0]

    def reading(self, name: str) -> tuple[ToolEntry, OfferedTool] | None:
        """Return the tool that the model calls by this name, with its entry, if its calls may begin early."""
        named = self._named(name)
        return named if named is not None and named[1].may_begin_early else None

    def _named(self, name: str) -> tuple[ToolEntry, OfferedTool] | None:
        offered = ((entry, tool) for entry in self.entries if entry.offer is not None for tool in entry.offer.tools)
        return next((each for each in offered if each[1].name == name), None)

    def server(self, label: str) -> ToolEntry:
        """Return the entry of a server, which is there."""
        return next(entry for entry in self.entries if entry.server == label)

    def with_offer(self, label: str, offer: Offer) -> "RequestTools":
        """Return it with what a server has listed."""
        return replace(
            self,
            entries=tuple(
                replace(entry, offer=offer) if entry.server == label and entry.offer is None else entry
                for entry in self.entries
            ),
        )

    def with_found(self, names: Iterable[str], offers: Mapping[str, Offer]) -> "RequestTools":
        """Return it with deferred tools that were found; `offers` are those of their servers, by label."""
        entries = tuple(replace(entry, offer=offers.get(entry.server, entry.offer)) for entry in self.entries)
        return replace(self, entries=entries, found=self.found.union(names))


NO_TOOLS = RequestTools()


@dataclass(frozen=True, slots=True)
class DecidedResponse:
    """What was decided of a response before its request was read."""

    id: str
    epoch: int  # of the claim by which it is accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a request came from: for ownership, for limits and for the log."""

    transport: str  # one of `TRANSPORTS` in `observing.metrics`
    project: str
    request_id: str = ""  # over WebSocket that of the connection
    key_id: str = ""  # of its API key; "" without one
    models: Sequence[str] = ()  # that its key may use; none mean all
    scopes: Sequence[str] = ()  # what its key may do; none mean all
    limited: Sequence[LimitedSubject] = ()  # its key and its project, as far as limits hold for them
    # The response does not end with calls of its client's tools, but waits for their outputs
    awaits_tools: bool = False
    span: Span = NO_SPAN  # the request's, and then the response's: what is done for it is traced below it
    # Its client may send the request again, on any worker, and gets this response then: see `runs.idempotency`
    comes_again: bool = False
    decided: DecidedResponse | None = None  # what was decided of the response before
    behind_all: bool = False  # the engine serves it only where others leave room
    rollout: RolloutRef | None = None  # that it is part of, and is recorded for
    weights: WeightsWanted | None = None  # what its roll-out wants of the weights; None where it says nothing of them
    harness: HarnessSession = NO_HARNESS  # whose conversation it is, as a coding agent says it
    kin: str = ""  # what it has in common with others that only begin as it does: attempts at one task

    @classmethod
    def of(  # noqa: PLR0913 - all that is known of it
        cls,
        caller: Caller,
        transport: str,
        *,
        request_id: str,
        awaits_tools: bool = False,
        span: Span = NO_SPAN,
        decided: DecidedResponse | None = None,
        rollout: RolloutRef | None = None,
    ) -> "Origin":
        """Return the origin of what this caller asks for."""
        return cls(
            transport=transport,
            project=caller.project,
            request_id=request_id,
            key_id=caller.key_id,
            models=caller.models,
            scopes=caller.scopes,
            limited=caller.limited,
            awaits_tools=awaits_tools,
            span=span,
            comes_again=decided is not None,
            decided=decided,
            rollout=rollout,
            harness=NO_HARNESS if rollout is None else rollout.harness,
        )

    def priority(self, usual: int) -> int:
        """Return how soon the engine is to begin, where that of its tier is `usual`; less is sooner."""
        return BEHIND_ALL if self.behind_all else usual


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """What happens before a response answers: its first turn sums up what came before."""

    kept: Sequence[RenderedMessage]  # follows the summary as it was
    sampling: SamplingOptions | None  # the answer's; None where only the compaction is asked for
    writer: PromptWriter  # writes the prompt of what follows
    seal: Callable[[bytes], str]  # makes what the client gets of the summary
    stands_for: frozenset[str] = frozenset()  # digests of the user's messages that the client gets beside it


@dataclass(slots=True, kw_only=True)  # not frozen: that takes four times as long to make
class RunPlan:
    """Everything that was decided before a run starts. What changes later makes a plan of its own (`replace`)."""

    response_id: str
    created_at: float  # Unix seconds
    request: CreateRequest
    origin: Origin
    format: ModelFormat  # how its model is written to
    link: ChainLink  # the chain with the request's own input at its end
    parent: ChainLink | None  # what it continues; None for a new chain
    conversation: "Conversation | None"  # to which its items are added
    input_messages: Sequence[RenderedMessage]  # what the input was rendered to
    context_items: Sequence[JsonObject]  # of which: those of the conversation that the chain lacks, and the request's
    input_items: Sequence[JsonObject]  # the request's own, each with an id
    generation: GenerationRequest  # the first turn's
    pictures: ShownPictures  # that its prompts show
    draft: "Tokens[int]" = field(default_factory=as_tokens)  # of which its prompt was made (`ModelFormat.prompt_of`)
    stored: bool  # it is kept behind its end; with `store: false`, in the background, for a few minutes
    unkept: bool = False  # its project keeps nothing: what its tools have made goes with its end
    writer: PromptWriter  # writes its prompts, also the later ones
    omitted: int = 0  # parts of the request that the model cannot read
    tools: RequestTools = NO_TOOLS  # those that this server runs
    is_held: bool = False  # the engine can hold the model to `rules`
    client_tools: ClientTools  # that the model can call: those of the request, and those that came later
    late_tools: Sequence[JsonObject] = ()  # declared in the conversation, not in the request
    rules: RulesOfTurns | None = None  # what its turns are held to; None where they are free
    grammar: TurnGrammar | None = None  # of the first turn
    compaction: CompactionPlan | None = None  # what is to be summed up first
    shown: list[JsonObject] | None = None  # what the model reads, in its own words, where the request asks to see it
    asked: OutputOptions = field(default_factory=OutputOptions)  # what is wanted of reasoning items
    public: PublicId | None = None  # what clients call the response, where that is not its own id
    tier: ServiceTier = "default"  # the service tier that runs
    priority: int = 0  # how urgent it is, also to an engine that does not ask: less is sooner
    details: EngineDetails | None = None  # what its client wants to know of the engine's work
    recorder: Recorder | None = None  # of the roll-out that it is part of
    agents: AgentsAllowed | None = None  # how far its agents may go; None: it has none
    chat: StoredChoice | None = None  # what it is as a choice of a chat completion
    background: bool = field(init=False)  # it was asked for in the background
    durable: bool = field(init=False)  # it outlives its readers and its worker: its log is kept from the first on
    resumable: bool = field(init=False)  # its events are kept, so that its stream can be picked up again
    window: float | None = field(init=False)  # in how many seconds it is to be done; None where that is not said

    def __post_init__(self) -> None:
        self.background = bool(self.request.background)
        self.durable = self.background or (self.stored and self.origin.comes_again)
        self.resumable = self.stored and (self.durable or self.origin.transport in ("sse", "websocket"))
        options = self.request.background_options
        self.window = None if options is None else options.window_seconds

    @property
    def lasting(self) -> bool:
        """Whether it is stored as its client wants it: it can be continued, and its items can be named."""
        return self.stored and self.request.store is not False

    @property
    def started(self) -> RunStarted:
        """How it starts."""
        budget, waits = self.generation.sampling.max_output_tokens, self.origin.awaits_tools
        if self.request.warm_up:
            return RunStarted(Mode.WARM_UP)
        if self.compaction is None:
            return RunStarted(Mode.ANSWER, budget, waits)
        return RunStarted(Mode.COMPACT if self.compaction.sampling is None else Mode.COMPACT_AND_ANSWER, budget, waits)

    @property
    def says_turn(self) -> bool:
        """Whether all that it says is one turn of its model: nothing of its client comes in between."""
        return not (
            self.origin.awaits_tools or self.request.warm_up or self.agents is not None or self.compaction is not None
        )

    @property
    def declarations(self) -> list[Declared | Offered | AgentsAllowed]:
        """What its machine is told before it says anything."""
        declared = Declared(self.late_tools) if self.late_tools else None
        return [each for each in (declared, self.tools.offered, self.agents) if each is not None]

    @property
    def amount(self) -> Amount:
        """What it takes of the limits until it ends: of its output as much as it asks for."""
        return Amount(1, len(self.generation.prompt_token_ids), self.request.max_output_tokens or 1)

    @property
    def new_pictures(self) -> set[str]:
        """The digests of the pictures of its input, and of what it continues that is not stored."""
        if not self.format.sees:
            return set()
        found = set(self.format.pictures_of(self.link.own.tokens))
        for link in self.parent.unstored() if self.parent else ():
            found.update(self.format.pictures_of(link.own.tokens))
        return found

    @property
    def prompt_pictures(self) -> Sequence[str]:
        """The digests of the pictures that its prompt shows."""
        return self.format.pictures_of(self.draft) if self.format.sees else ()

    @property
    def stored_parent(self) -> str:
        """The stored response it continues by its id, which the store must still know; "" for none."""
        named = self.request.previous_response_id is not None
        return self.parent.response_id if named and self.parent and self.parent.stored else ""

    @property
    def continues(self) -> str | None:
        """What the response says that it continues: what its whole turn does, where a turn has one id."""
        if self.parent is not None and self.public is not None and self.public.leg > 1:
            return self.parent.continues
        return self.request.previous_response_id

    def in_queue(self, now: float) -> tuple[str, ServiceTier, int, float]:
        """Return where it stands in a queue: project, tier, priority, and for how many seconds all others go first.

        What may take hours lets them for most of its time.
        """
        late = 0.0 if self.window is None else max(0.0, self.created_at + self.window * BEHIND_SHARE - now)
        return self.origin.project, self.tier, self.priority, late

    def ended(self) -> "RunPlan":
        """Return what may be asked of it behind its end: nothing of its prompts and tools, which may be large."""
        nothing = as_tokens()
        own = LinkTokens(kinds="", lengths=(), tokens=nothing, settles=False, ends_final=False)
        link = ChainLink(
            response_id=self.response_id,
            parent=None,
            root_id=self.link.root_id,
            started_on=self.link.started_on,
            own=own,
            settled=nothing,
            calls={},
            total_bytes=0,
        )
        request = {"input": [], "input_json": [], "tools": NO_CLIENT_TOOLS, "tools_json": [], "private": {}}
        return replace(
            self,
            request=self.request.model_copy(update=request),
            link=link,
            parent=None,
            conversation=None,
            input_messages=(),
            context_items=(),
            input_items=(),
            generation=GenerationRequest(request_id=self.generation.request_id, prompt_token_ids=nothing),
            draft=nothing,
            tools=NO_TOOLS,
            client_tools=NO_CLIENT_TOOLS,
            late_tools=(),
            rules=None,
            grammar=None,
            compaction=None,
            # It knows the tokens that the client asked to see with the response.
            recorder=self.recorder if self.request.wants_tokens else None,
        )


def session_of(origin: Origin, *, root: str, key: str | None = None, conversation: str | None = None) -> Session:
    """Return the session of a request; `root` is the id of its chain's first response."""
    project, rollout, harness = origin.project, origin.rollout, origin.harness
    if key is not None and key != harness.name:
        return _session(project, key, shared=True)
    if rollout is not None and rollout.name:
        return session_of_branch(project, rollout.name, rollout.branch, parent=_parent_branch(rollout))
    if conversation is not None:
        return session_of_conversation(project, conversation)
    if harness.name:
        return _session(project, harness.name, parent=digest_of(project, harness.parent) if harness.parent else "")
    return _session(project, root)


def session_of_conversation(project: str, conversation: str) -> Session:
    """Return the session of a conversation."""
    return _session(project, conversation)


def session_of_branch(project: str, rollout: str, branch: str, *, parent: str = "") -> Session:
    """Return the session of a branch of a roll-out; `parent` is the branch that began it."""
    begun_by = digest_of(project, rollout, parent) if parent else ""
    return Session(id=digest_of(project, rollout, branch), parent=begun_by, project=_project(project))


def _session(project: str, name: str, *, parent: str = "", shared: bool = False) -> Session:
    return Session(id=digest_of(project, name), parent=parent, project=_project(project), shared=shared)


def _project(project: str) -> str:
    """Return how a project is called outside: the default one, where nobody is asked for a key, has no name there."""
    return "" if project == DEFAULT_PROJECT else digest_of(project)


def _parent_branch(rollout: RolloutRef) -> str:
    harness = rollout.harness
    if not harness.parent:
        return ""
    return branch_of(harness.session, "" if harness.parent == harness.session else harness.parent)


ROLLOUT = "respsite_rollout"  # of the request, as it is kept for another worker


def record_rollout(plan: RunPlan, model: ServedModel, *, now: Callable[[], float], rule: WeightsRule | None) -> None:
    """Have what a plan generates recorded, for its roll-out or for its client, who wants the tokens."""
    ref = plan.origin.rollout
    if plan.request.warm_up:
        return
    prompt, written = plan.generation.prompt_token_ids, plan.format
    # Where a template renders the whole, nobody knows how much of it stands before the first message.
    rest = 0 if written.renders_elsewhere else len(plan.link.prompt_tokens()) + len(written.generation_start())
    plan.recorder = Recorder(
        plan.response_id,
        ref or NOWHERE,
        now=now,
        logged=plan.durable,
        hides=plan.request.logprobs is None or not model.engine.supports_logprobs,
        about=AboutPrompts(
            model=model.name,
            instructions=max(0, len(prompt) - rest) if rest else 0,
            # By a summary among them, or by one that is asked for (`compaction_trigger`) and written here.
            compacted=any(str(item["type"]).startswith("compaction") for item in plan.input_items),
            format=written,
        ),
        rule=rule,
    )


def rollout_fields(ref: RolloutRef) -> JsonObject:
    """Return the fields that are kept of a roll-out with its request."""
    return {"name": ref.name, "branch": ref.branch, "api": ref.api, "id": ref.id}


def rollout_of(fields: Mapping[str, Any]) -> RolloutRef | None:
    """Return the roll-out that is kept with a request, or `None`."""
    kept = fields.get(ROLLOUT)
    return RolloutRef(**kept) if kept else None
