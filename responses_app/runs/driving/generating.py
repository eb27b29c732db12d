"""A turn, as the engine is asked for it: its prompt, its grammar, and how it goes on where it was cut.

A turn that is cut goes on behind what of it was sampled: where its worker died, on another worker that has its log;
where only a replica of the engine died, here. Both are the same: the machine wants a `Generate` that has begun.
Example: of a turn with a prompt of 9 tokens and a budget of 50, 20 tokens were sampled when the replica went away. The
engine is asked again with a prompt of 29 tokens and a budget of 30, and readers see nothing of it but a pause.

`Continuing`: how often, and how long, a turn that is cut is tried again.

The number is bounded, since a request may be what kills the replicas that get it. The time is, since a client waits: it
is there for the moment in which all that ran on a dead replica comes to those that are left, and finds them full.

`DelayedTexts`: text that is held back for a while, so that fewer and longer deltas are made of it (STREAM_DELTA_MS).

It stands before the machine, which knows no clock: what is held back has not happened yet, for readers and for the log.
Only text of an item whose text has begun is held back; whatever begins or ends something takes along what waits, in
its place. So between two deltas of a response are at least `seconds`, but for those next to an item's edges. Example
with 0.1 s, and a token every 0.04 s:

    token at        0.00   0.04   0.08        0.12   0.16   0.20 (the last)
    told at         0.00                0.10                0.20

`Guess`: what the model would have written on, behind the call that ended its turn, with SERVER_TOOL_EARLY=predicted.

A turn ends with its first call of a tool of this server, even where the model goes on to write another one. It nearly
always asks for that one as soon as it has read what the first one gave. So while the first one runs, the engine goes on
with what it was writing, and what comes of that is nothing but a guess: which calls are begun early (`EarlyCalls`).

    turn 0     <tool_call> a </tool_call> <tool_call>│ b </tool_call> <tool_call> c </tool_call>
               what the response has said            │ what is predicted: b and c begin while a runs
    turn 1     <tool_call> b </tool_call>              b is there, or nearly

The tokens of a guess are no part of the response: neither its log nor its usage has them. They cost time of the engine,
so a guess is made only while nobody waits for a turn there, behind all that others ask for, of a model that was
writing on, and it ends with the first thing that is not a call.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from functools import partial

from engine.backends.base import BaseEngine
from engine.errors import (
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    GenerationCut,
    GenerationFailed,
    GrammarBroken,
    GrammarCut,
    WeightsNotServed,
)
from engine.formats.base import ItemEnded, ItemKind, ItemStarted, Text, Tokens, TurnEvent, TurnParser, as_tokens
from engine.types import AnyText, FinishReason, GenerationRequest, TokenChunk, TurnGrammar
from responses_app.observing.traces import NO_SPAN, Span
from responses_app.protocol.response.response import ResponseMachine
from responses_app.protocol.response.steps import (
    CallTool,
    Command,
    Generate,
    Input,
    OfAgent,
    Sampled,
    TurnBegan,
    input_of,
)
from responses_app.protocol.rollouts.recording import Recorder
from responses_app.protocol.rollouts.weights import RolloutStale, untold
from responses_app.protocol.tiers import BEHIND_ALL
from responses_app.runs.driving.early import EarlyCalls
from responses_app.runs.plan.plan import RunPlan
from responses_app.runs.plan.turns import TurnPlace

logger = logging.getLogger("respsite.runs")


async def prefill(engine: BaseEngine, plan: RunPlan, place: TurnPlace) -> None:
    """Leave the prompt in the engine's prefix cache, if it can. Where that fails, a warm-up is one all the same."""
    if plan.details is not None:
        plan.details.prompt_token_ids = plan.generation.prompt_token_ids
    if engine.supports_prefill:
        pictures = plan.pictures.sources(plan.format.pictures_of(plan.draft))
        await _prefill(engine, replace(plan.generation, pictures=pictures), plan, place)


async def prefill_ahead(engine: BaseEngine, plan: RunPlan, machine: ResponseMachine, place: TurnPlace) -> None:
    """Leave in the engine's prefix cache what a response has said so far, unless others wait for the engine."""
    if not engine.supports_prefill or place.would_wait:
        return
    # Of a turn `aside`: no grammar is compiled for a token that is dropped.
    said = Generate(0, tuple(machine.stream.messages), budget=1, aside=True, agent=machine.number)
    request = await request_of(plan, said, cuts=0, avoid="")
    await _prefill(engine, replace(request, request_id=f"{request.request_id}-ahead"), plan, place)


async def _prefill(engine: BaseEngine, generation: GenerationRequest, plan: RunPlan, place: TurnPlace) -> None:
    # Engines know no generation of no tokens: one is sampled, and dropped.
    sampling = generation.sampling.but(max_output_tokens=1, top_logprobs=None)
    try:
        async with place.turn(), aclosing(engine.generate(replace(generation, sampling=sampling))) as chunks:
            async for _ in chunks:
                pass
    except EngineError as error:
        logger.warning("response %s: not prefilled: %s: %s", plan.response_id, type(error).__name__, error)


async def request_of(plan: RunPlan, generate: Generate, *, cuts: int, avoid: str) -> GenerationRequest:
    """Return what `request_for` returns, of a thread where that takes long."""
    if plan.format.renders_elsewhere and generate.said:
        return await asyncio.to_thread(request_for, plan, generate, cuts=cuts, avoid=avoid)
    return request_for(plan, generate, cuts=cuts, avoid=avoid)


def request_for(plan: RunPlan, generate: Generate, *, cuts: int = 0, avoid: str = "") -> GenerationRequest:
    """Return what generates a turn, behind what of it was sampled already.

    `cuts`: how often it was cut here; what was asked then may still run somewhere, and so ids differ. `avoid`: where it
    was cut last.
    """
    generation = plan.generation
    prompt, draft = _prompt(plan, generate)
    agent = f"-a{generate.agent}" if generate.agent else ""
    return replace(
        generation,
        # For example "resp_1-0" for the first turn, "resp_1.2-0" for the same turn after two cuts, "resp_1-a2-0" for
        # the first one of the second agent.
        request_id=f"{plan.response_id}{f'.{cuts}' if cuts else ''}{agent}-{generate.turn}",
        prompt_token_ids=prompt,
        pictures=plan.pictures.sources(plan.format.pictures_of(draft)),
        sampling=generation.sampling.but(max_output_tokens=generate.budget),
        session=generation.session.child(f"agent {generate.agent}") if generate.agent else generation.session,
        avoid=avoid,
        grammar=None if generate.aside else _grammar(plan, generate),
    )


def asked_again(plan: RunPlan, machine: ResponseMachine, input_: Input) -> None:
    """Note for a roll-out what the engine was asked on another worker: the prompt is the same one, rendered again."""
    if plan.recorder is None or not isinstance(input_of(input_), TurnBegan):
        return
    due = machine.machine_of(input_.agent if isinstance(input_, OfAgent) else 0).due
    if isinstance(due, Generate):
        plan.recorder.ask(due, request_for(plan, due))


def generated(
    engine: BaseEngine, plan: RunPlan, generate: Generate, request: GenerationRequest, span: Span
) -> AsyncGenerator[TokenChunk, None]:
    """Return what the engine samples, traced below `span`.

    Raises `GrammarBroken` before the end of a content that does not fit its rule.
    """
    if span is not NO_SPAN:
        request = replace(request, trace_headers=span.headers)
    if plan.details is not None and not generate.aside:
        request = plan.details.asked_of(request)
    if plan.recorder is not None:
        request = plan.recorder.asked_of(request, logprobs=engine.supports_logprobs)
    chunks = engine.generate(request)
    if request.grammar is None or not request.grammar.loose:
        return chunks
    return _checked(chunks, plan, generate, request.grammar)


async def _checked(
    chunks: AsyncGenerator[TokenChunk, None], plan: RunPlan, generate: Generate, grammar: TurnGrammar
) -> AsyncGenerator[TokenChunk, None]:
    """Yield chunks; a content that was cut in its middle is checked before its end is told to anybody.

    No engine can be held to the rest of a content. A model that has begun one nearly always ends it well.
    """
    # The parser reads all of the turn again, so that it stands where the model stands.
    tokens, parser = list(generate.sampled), plan.format.parser([rule.name for rule in grammar.rules.calls])
    parser.feed(tokens)
    async with aclosing(chunks):
        async for chunk in chunks:
            tokens.extend(chunk.token_ids)
            # Checked at the end of an item, and of the whole turn: the chunk with that end is not passed on before.
            ended = any(isinstance(event, ItemEnded) for event in parser.feed(chunk.token_ids))
            if ended or any(map(parser.is_end, chunk.token_ids)):
                problem = await asyncio.to_thread(plan.format.problem_of, grammar.rules, tokens)
                if problem is not None:  # it shows what the model said, and so stays out of the log
                    raise GrammarBroken("What went on behind a cut does not fit its schema or grammar.")
            yield chunk


def _grammar(plan: RunPlan, generate: Generate) -> TurnGrammar | None:
    """Return what the turn is held to: a call that was demanded is not demanded again, and a summary is free."""
    if plan.rules is None or generate.summary:
        return None
    # What the request says of calls and of the answer is about the root.
    is_free = generate.after_call or generate.agent
    rules = plan.rules.after_call if is_free else plan.rules.first
    if generate.agent:
        may_call_client = plan.agents is not None and plan.agents.calls_client
        calls = tuple(rule for rule in rules.calls if rule.hosted or may_call_client)
        rules = replace(rules, answer=AnyText(), calls=calls)
    if not generate.hosted:
        rules = replace(rules, calls=tuple(rule for rule in rules.calls if not rule.hosted))
    return plan.format.grammar(rules, generate.sampled)


def _prompt(plan: RunPlan, generate: Generate) -> "tuple[Sequence[int], Tokens[int]]":
    """Return the plan's prompt with everything said in this response, and what of this turn was said already.

    And the draft of which it was made, without the latter.
    """
    prompt, draft = plan.generation.prompt_token_ids, plan.draft
    if generate.said:
        start = plan.format.generation_start()
        # The draft ends with the head of the model's message. What was said goes before it, and the head behind all.
        draft = plan.draft[: -len(start)]
        for message in generate.said:
            draft.extend(message.tokens)
        draft.extend(start)
        prompt = plan.format.prompt_of(draft)
    if not generate.sampled:
        return prompt, draft
    # A copy: the plan's own prompt stays as it is for the next turn.
    longer = as_tokens(prompt)
    longer.extend(generate.sampled)
    return longer, draft


def as_sampled(chunk: TokenChunk, generate: Generate, recorder: Recorder | None = None) -> Sampled:
    """Return what the engine gave, as the machine is told it, and the recorder of a roll-out."""
    prompt_tokens = chunk.prompt_tokens
    if prompt_tokens is not None:  # of the turn's own prompt: what was sampled before a cut stands behind it
        prompt_tokens -= len(generate.sampled)
    logprobs = chunk.logprobs if recorder is None else recorder.note(chunk, generate.agent)
    sampled = Sampled(chunk.token_ids, chunk.finish_reason, chunk.cached_tokens, logprobs, prompt_tokens)
    if recorder is not None and recorder.logged:
        recorder.mark(sampled, chunk, generate.agent)
    return sampled


def hold_to_rule(recorder: Recorder | None, chunk: TokenChunk, generate: Generate, tell: "Tell") -> None:
    """Raise `WeightsNotServed` or `RolloutStale` for a chunk of weights that its roll-out does not want.

    It is not told then; but who sampled what came before is, where the engine has told that only now.
    """
    if recorder is None or recorder.rule is None:
        return
    try:
        recorder.rule.take(chunk)
    except (WeightsNotServed, RolloutStale):
        if chunk.weights is not None:
            tell(as_sampled(untold(chunk), generate, recorder))
        raise


def unlogged_finish(plan: RunPlan, generate: Generate) -> FinishReason | None:
    """Return why a turn that was cut has ended all the same; None where it has not.

    The worker that began it may have logged the turn's last token without the engine's reason for the end.
    """
    if generate.budget == 0:
        return FinishReason.LENGTH
    if generate.sampled and generate.sampled[-1] in plan.generation.sampling.stop_token_ids:
        return FinishReason.STOP
    return None


MAX_CUTS = 4  # of one turn; the next one ends it
GO_ON_SECONDS = 5.0  # from a cut until the engine takes the turn again
RETRY_SECONDS = 0.2  # between two attempts at that


class Continuing:
    """How a turn that was cut is tried again: how often, for how long, and where not.

    `is_cut`: another worker began it, and died.
    """

    def __init__(self, engine: BaseEngine, *, is_cut: bool = False) -> None:
        self.cuts = 0  # how often the turn was cut
        self.avoid = ""  # the replica at which it was cut last; empty for none
        self._engine = engine
        # By the loop's clock, how long it is tried; None before a cut.
        self._until = asyncio.get_running_loop().time() + GO_ON_SECONDS if is_cut else None
        self._grammar_cut = False  # it broke once already in a way that its grammar may have caused

    async def wait(self, error: EngineError) -> None:
        """Return when the turn is to be tried again; raises `error`, or what it means, where it ends with it."""
        # Once may be the replica's fault. Twice in one turn it is the grammar's, and another try would end the same
        # way.
        if self._grammar_cut and isinstance(error, GrammarCut | GenerationFailed):
            raise GrammarBroken(str(error)) from error
        if isinstance(error, GenerationCut):
            if self.cuts == MAX_CUTS:
                raise error
            self._grammar_cut = self._grammar_cut or isinstance(error, GrammarCut)
            self.cuts += 1
            self.avoid = error.at
            self._until = asyncio.get_running_loop().time() + GO_ON_SECONDS
            await asyncio.sleep(0)  # a turn that something else has ended meanwhile is cancelled here
        # Without a cut `_is_over` holds, too: an engine that refuses a turn from the start is not asked again.
        elif not isinstance(error, EngineUnavailable | EngineOverloaded) or self._is_over:
            raise error
        else:
            await asyncio.sleep(RETRY_SECONDS)
        await self._engine_is_there()

    @property
    def _is_over(self) -> bool:
        """Whether it has not been cut, or the time is over since it was."""
        return self._until is None or asyncio.get_running_loop().time() >= self._until

    async def _engine_is_there(self) -> None:
        """Return when the engine can take a request: to plan a long turn that nobody takes is work for nothing."""
        while True:
            try:
                await self._engine.health()
            except EngineUnavailable:
                if self._is_over:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return


Tell = Callable[[Sampled], Command | None]  # what was sampled → what is to be done next


@contextmanager
def delayed(tell: Tell, only_adds: Callable[[Sequence[int]], bool], *, seconds: float) -> Iterator[Tell]:
    """Give what is to be told of a turn's chunks in the place of `tell`; what waits at the end is told then.

    `only_adds` says whether tokens are nothing but more text of an item that grows.
    """
    if not seconds:
        yield tell
        return
    texts = DelayedTexts(seconds, tell, only_adds)
    try:
        yield texts.take
    finally:
        texts.flush()


class DelayedTexts:
    """The text of one turn that waits."""

    def __init__(self, seconds: float, tell: Tell, only_adds: Callable[[Sequence[int]], bool]) -> None:
        self._seconds = seconds
        self._tell = tell
        self._only_adds = only_adds
        self._loop = asyncio.get_running_loop()
        self._waiting: Sampled | None = None  # what is held back
        self._timer: asyncio.TimerHandle | None = None  # set only while something is held back
        # When something was passed on last, on the loop's clock; so the first text waits for nothing
        self._told_at = -seconds
        self._problem: Exception | None = None  # of the timer, for whoever comes next

    def take(self, sampled: Sampled) -> Command | None:
        """Take what was sampled, tell it now or later, and return what is to be done next."""
        # `flush` raises the problem of the timer, if there is one.
        if self._problem is not None or not _can_be_one(self._waiting, sampled):
            self.flush()
        whole = sampled if self._waiting is None else _joined(self._waiting, sampled)
        due = self._told_at + self._seconds
        if sampled.finish is None and self._loop.time() < due and self._only_adds(sampled.token_ids):
            self._waiting = whole
            if self._timer is None:
                self._timer = self._loop.call_at(due, self._ring)
            return None
        self._waiting = None
        return self._tell_now(whole)

    def _ring(self) -> None:
        self._timer = None
        try:
            self.flush()
        except Exception as problem:  # noqa: BLE001 - it is the run's, which gets it with what comes next
            self._problem = problem

    def flush(self) -> None:
        """Tell what waits."""
        # Forgotten before it is raised: the end of the turn flushes once more.
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            command = self._tell_now(waiting)
            assert command is None, "more text of an item asks for nothing"

    def _tell_now(self, sampled: Sampled) -> Command | None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self._told_at = self._loop.time()
        return self._tell(sampled)


def _can_be_one(first: Sampled | None, then: Sampled) -> bool:
    if first is None:
        return True
    same = (first.logprobs is None, first.recorded is None) == (then.logprobs is None, then.recorded is None)
    return same and then.weights_version is None


def _joined(first: Sampled, then: Sampled) -> Sampled:
    """Return what was sampled in two chunks as one; both have log probabilities, or neither."""
    logprobs = None if first.logprobs is None else [*first.logprobs, *(then.logprobs or ())]
    recorded = None if first.recorded is None else [*first.recorded, *(then.recorded or ())]
    # An engine tells it with its first chunk, or with its last one.
    cached = then.cached_tokens if first.cached_tokens is None else first.cached_tokens
    tokens = [*first.token_ids, *then.token_ids]
    prompt = then.prompt_tokens if first.prompt_tokens is None else first.prompt_tokens
    return replace(
        then,
        token_ids=tokens,
        cached_tokens=cached,
        logprobs=logprobs,
        prompt_tokens=prompt,
        recorded=recorded,
        weights_version=first.weights_version,
    )


MAX_TOKENS = 256  # of one guess
MAX_READ = 4096  # tokens of a turn that is read again for a guess; on the event loop that takes some 25 ms

Begin = Callable[[str, str], bool]  # the name and the arguments of a call → whether one behind it may be begun, too


class Guess:
    """What may follow one turn. `early` begins the calls."""

    def __init__(
        self,
        plan: RunPlan,
        generate: Generate,
        machine: ResponseMachine,
        engine: BaseEngine,
        place: TurnPlace,
        early: EarlyCalls,
    ) -> None:
        self._plan = plan
        self._generate = generate
        self._machine = machine
        self._engine = engine
        self._place = place
        self._early = early
        self._said = as_tokens(generate.sampled)  # by the model in its turn, also behind the end that the machine saw

    def telling(self, tell: Tell) -> Tell:
        """Return what tells what was sampled, and begins a guess where that ends the turn."""

        def told(sampled: Sampled) -> Command | None:
            command = tell(sampled)
            self._said.extend(sampled.token_ids)
            if command is not None and self._is_worth_it(command, sampled):
                self._early.predict(self._predict())
            return command

        return told

    def _is_worth_it(self, command: Command, sampled: Sampled) -> bool:
        plan = self._plan
        return (
            isinstance(command, CallTool)
            and sampled.finish is None  # the model was not done
            and plan.tools.reading(command.name) is not None
            and plan.recorder is None  # a roll-out has all that the engine was asked
            and plan.agents is None  # they work at once as it is
            and plan.request.max_tool_calls is None
            and plan.request.parallel_tool_calls is not False
            and not self._machine.calls.unanswered  # what its client does meanwhile may change what is read
            and len(self._said) <= MAX_READ
        )

    async def _predict(self) -> None:
        """Begin the calls that the model would have written behind the one that has ended its turn."""
        plan, generate, place = self._plan, self._generate, self._place
        reader = _CallReader(plan.format.parser(self._machine.reader.functions), partial(self._early.begin, plan))
        if place.would_wait or place.is_behind_all:
            return
        try:
            if not reader.read(self._said):
                return
            asked = await request_of(plan, replace(generate, sampled=self._said, budget=MAX_TOKENS), cuts=0, avoid="")
            priority = BEHIND_ALL if self._engine.supports_priority else asked.priority
            asked = replace(asked, request_id=f"{asked.request_id}-early", priority=priority)
            async with aclosing(self._engine.generate(asked)) as chunks:
                async for chunk in chunks:
                    if not reader.read(chunk.token_ids) or place.would_wait:
                        return
        except EngineError as error:
            logger.debug("response %s: no guess: %s: %s", plan.response_id, type(error).__name__, error)
        except Exception:
            logger.exception("response %s: its guess broke", plan.response_id)


class _CallReader:
    """Reads a turn up to its first call, and then on, as long as there are only calls."""

    def __init__(self, parser: TurnParser, begin: Begin) -> None:
        self._parser = parser
        self._begin = begin
        self._name: str | None = None  # of the open call of a tool of this server
        self._text: list[str] = []  # of that
        self._is_behind = False  # the first one has ended: it is the one that the response has asked for

    def read(self, token_ids: Sequence[int]) -> bool:
        """Take tokens, and begin the calls that end with them; return whether there may be more."""
        return all(self._take(each) for each in self._parser.feed(token_ids))

    def _take(self, event: TurnEvent) -> bool:
        match event:
            case ItemStarted():
                self._name = event.name if event.kind is ItemKind.HOSTED_CALL else None
                self._text.clear()
                return self._name is not None or not self._is_behind
            case Text():
                self._text.append(event.text)
            case ItemEnded() if self._name is not None and not event.truncated:
                if self._is_behind:
                    return self._begin(self._name, "".join(self._text))
                self._is_behind = True
        return True
