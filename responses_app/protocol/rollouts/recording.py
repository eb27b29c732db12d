"""`Recorder`: what one response adds to its roll-out, gathered from what its machine is told.

    hand ── ask(prompt), note(chunk) … ───┐
    run  ── take(TurnBegan, …) ───────────┴──> Recorder ── finish() ──> the calls of the engine, as they are kept

It sees the very inputs that the machine sees, and those stand in the log. So a worker that goes on behind the log of
another one feeds its recorder with that (`take_logged`), and has what the other one had: a turn that was cut in its
middle is one call.

For each token there is one call, of `note`, which puts a chunk into a list. All else is done once for many of them.

A turn may end before the engine does, for example behind a call of a tool. What the engine still gave is not read by
anybody, is no part of any prompt, and is dropped here, too; only its number is kept.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from typing import Protocol

from engine.errors import EngineError, WeightsNotServed
from engine.formats.base import ModelFormat, Tokens, as_tokens
from engine.types import (
    UNKNOWN,
    FinishReason,
    GenerationRequest,
    SamplingOptions,
    TokenChunk,
    TokenLogprob,
    WeightsSpan,
)
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.output.stream import ResponseStream
from responses_app.protocol.response.steps import Failed, Generate, Input, OfAgent, Sampled, TurnBegan
from responses_app.protocol.response.turns import TurnReader
from responses_app.protocol.rollouts.generations import (
    EngineCall,
    Recorded,
    RecordedResponse,
    Times,
    Tops,
    add_span,
    as_logprobs,
    numbers,
    spans_of,
)
from responses_app.protocol.rollouts.placing import common
from responses_app.protocol.rollouts.requests import RolloutRef
from responses_app.protocol.rollouts.weights import FINISHED, RolloutStale, WeightsRule, broken_rule, untold
from responses_app.protocol.usage import TurnUsage

NOT_TOLD = float("nan")  # the log probability of a token that the engine did not tell
MOST_CHUNKS = 256  # that wait to be put together
_TOKENS, _VERSION, _WEIGHTS = attrgetter("token_ids"), attrgetter("weights_version"), attrgetter("weights")
_FINISH, _LOGPROB, _TOP = attrgetter("finish_reason"), attrgetter("logprob"), attrgetter("top")


@dataclass(slots=True)
class SampledTokens:
    """The tokens of one call, as they come."""

    # As they came: put together many at once, which takes a tenth of the time that it would take one by one.
    chunks: list[TokenChunk] = field(default_factory=list)
    tokens: "Tokens[int]" = field(default_factory=as_tokens)  # of the chunks before those
    logprobs: "array[float]" = field(default_factory=as_logprobs)  # of the same tokens
    tops: list[tuple[tuple[int, float], ...]] = field(default_factory=list)  # too, where there are any
    versions: list[WeightsSpan] = field(default_factory=list)  # as they were told with their chunks
    weights: Sequence[WeightsSpan] | None = None  # of the last tokens, where the engine has told them at their end
    finish: FinishReason | None = None
    has_logprobs: bool = False  # of any token

    def add(self, chunk: TokenChunk) -> None:
        """Add a chunk."""
        self.chunks.append(chunk)
        # An object a token takes thirty times the memory of the token, so not all of a long turn wait.
        if len(self.chunks) == MOST_CHUNKS:
            self.gather()

    def gather(self) -> None:
        """Put the chunks together."""
        chunks, self.chunks = self.chunks, []
        if not chunks:
            return
        begin = len(self.tokens)
        self.tokens.extend(chain.from_iterable(map(_TOKENS, chunks)))
        self._gather_logprobs(chunks, len(self.tokens) - begin)
        if len(set(map(_VERSION, chunks))) == 1:  # nearly always
            self._add_version(chunks[0].weights_version, len(self.tokens) - begin)
        else:
            for chunk in chunks:
                self._add_version(chunk.weights_version, len(chunk.token_ids))
        for weights in filter(None, map(_WEIGHTS, chunks)):
            self.weights = weights
        for finish in filter(None, map(_FINISH, chunks)):
            self.finish = finish

    def _gather_logprobs(self, chunks: Sequence[TokenChunk], count: int) -> None:
        told = list(chain.from_iterable(chunk.logprobs or () for chunk in chunks))
        if len(told) == count:
            self.logprobs.extend(map(_LOGPROB, told))
            tops = list(map(_TOP, told))
        else:
            tops = []
            for chunk in chunks:
                each = chunk.logprobs or ()
                self.logprobs.extend(map(_LOGPROB, each))
                tops.extend(map(_TOP, each))
                missing = len(chunk.token_ids) - len(each)
                self.logprobs.extend([NOT_TOLD] * missing)
                tops.extend([()] * missing)
        self.has_logprobs = self.has_logprobs or bool(told)
        if self.tops or any(tops):
            self.tops.extend([()] * (len(self.logprobs) - len(tops) - len(self.tops)))
            self.tops.extend(tops)

    def _add_version(self, version: str | None, count: int) -> None:
        """Add tokens of a version of weights; None is that of the tokens before."""
        if version is None and self.versions:
            version = self.versions[-1].version
        add_span(self.versions, WeightsSpan(None if version == UNKNOWN else version, count))

    def shown(self, count: int) -> "tuple[Tokens[int], array[float] | None, Tops | None, list[WeightsSpan]]":
        """Return the first `count` tokens with all that is known of them, once they are put together."""
        return (
            self.tokens[:count],
            self.logprobs[:count] if self.has_logprobs else None,
            self.tops[:count] if any(self.tops[:count]) else None,
            spans_of(self._corrected(self.versions, len(self.tokens)), 0, count),
        )

    def _corrected(self, weights: list[WeightsSpan], count: int) -> list[WeightsSpan]:
        """Return versions as the engine has told them at the end: those before were known when tokens came."""
        if self.weights is None:
            return weights
        # What was sampled before a cut was told by another call of the engine, or by none.
        corrected = spans_of(weights, 0, max(0, count - sum([span.tokens for span in self.weights])))
        for span in self.weights:
            add_span(corrected, span)
        return corrected


class Agent(Protocol):
    """The machine of an agent, as far as turns are recorded."""

    reader: TurnReader
    stream: ResponseStream


@dataclass(slots=True)
class _TurnRequest:
    """A turn as the engine was asked for it."""

    generate: Generate
    prompt: "Tokens[int]"
    sampling: JsonObject
    grammar: bool  # one holds it
    images: Sequence[tuple[int, str]]
    queued: int | None
    asked: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AboutPrompts:
    """What is known of a response's prompts beside their tokens."""

    model: str = ""  # who reads them
    instructions: int = 0  # tokens before the first message, where that is known
    compacted: bool = False  # they begin with a summary of what came before
    format: ModelFormat | None = None  # how they are written; None where nothing is said of their messages and pictures


@dataclass(slots=True)
class _OpenCall:
    asked: _TurnRequest
    usage: TurnUsage  # the machine counts there what it has read
    reader: TurnReader  # whose turn it is while that goes on
    agent: str | None
    sampled: SampledTokens = field(default_factory=SampledTokens)
    first_token: int | None = None


def asking_logprobs(request: GenerationRequest) -> GenerationRequest:
    """Return the request of the engine, with the log probability of each token."""
    if request.sampling.top_logprobs is not None:
        return request
    return replace(request, sampling=request.sampling.but(top_logprobs=0))


def as_asked(sampling: SamplingOptions) -> JsonObject:
    """Return the options of sampling as JSON has them: there the ids of `logit_bias` are texts."""
    return {
        name: {str(key): each for key, each in value.items()} if isinstance(value, Mapping) else value
        for name, value in sampling.named().items()
    }


class Recorder:
    """Records one response. `now` is Unix time.

    `hides`: its client has not asked for log probabilities. `logged`: another worker may go on behind its log, which
    has what is recorded, too.
    """

    def __init__(  # noqa: PLR0913 - all that is known of a response
        self,
        response_id: str,
        ref: RolloutRef,
        *,
        now: Callable[[], float],
        hides: bool,
        logged: bool = False,
        about: AboutPrompts = AboutPrompts(),
        rule: WeightsRule | None = None,
    ) -> None:
        self.ref = ref
        self.rule = rule  # of the weights of what comes; None where the roll-out says nothing of them
        self._response_id = response_id
        self._now = now
        self._hides = hides
        self.logged = logged
        self._about = about
        self._compacted = about.compacted
        self._queued: dict[int, int] = {}  # by the numbers of agents
        self._asked: dict[int, _TurnRequest] = {}
        self._open: dict[int, _OpenCall] = {}
        self._versions: dict[int, str | None] = {}  # of the weights that sampled last, as the log has it
        self._latest: dict[int, Recorded] = {}  # what has ended last
        self._begins: list[int] = []  # of the root: how many items were done before each of its turns
        self._broken: str | None = None  # how what is open ends, where a rule has ended it
        self.calls: list[Recorded] = []  # those that have ended

    @property
    def model(self) -> str:
        """Who answers."""
        return self._about.model

    def queue(self, agent: int) -> None:
        """Note that a turn begins to wait for the engine."""
        self._queued[agent] = self._time()

    def ask(self, generate: Generate, request: GenerationRequest) -> None:
        """Note the engine's request, before the machine is told that the turn has begun."""
        agent, prompt, written = generate.agent, _held(request.prompt_token_ids), self._about.format
        places = written.picture_places(prompt) if request.pictures and written is not None else ()
        sampling = as_asked(request.sampling)
        self._asked[agent] = _TurnRequest(
            generate=generate,
            prompt=prompt,
            sampling=sampling if generate.budget is None else {**sampling, "max_tokens": generate.budget},
            grammar=request.grammar is not None,
            images=list(zip(places, [each.digest for each in request.pictures], strict=False)),
            queued=self._queued.pop(agent, None),
            asked=self._time(),
        )

    def asked_of(self, request: GenerationRequest, *, logprobs: bool) -> GenerationRequest:
        """Return the engine's request with the weights that are wanted, and for `logprobs` with those of each token."""
        if self.rule is not None:
            request = replace(request, weights=self.rule.version)
        return asking_logprobs(request) if logprobs else request

    def note(self, chunk: TokenChunk, agent: int) -> Sequence[TokenLogprob] | None:
        """Note a chunk, before the machine is told it; return the log probabilities that the client sees."""
        call = self._open.get(agent)
        if call is not None:
            if call.first_token is None and chunk.token_ids:
                call.first_token = self._time()
            call.sampled.add(chunk)
        return None if self._hides else chunk.logprobs

    def mark(self, sampled: Sampled, chunk: TokenChunk, agent: int) -> None:
        """Put the records of a chunk where the log has them, and no client sees them."""
        if self._hides:
            sampled.recorded = chunk.logprobs
        version = chunk.weights_version
        if version is not None and version != self._versions.get(agent):
            sampled.weights_version = self._versions[agent] = version
        sampled.weights = chunk.weights

    def take(self, input: Input, agent_of: Callable[[int], Agent], *, at: int | None = None) -> None:
        """Take an input that the machine has just received, where it may begin or end a turn.

        `agent_of` gives the machine of an agent by its number. `at` says when the input came, in Unix milliseconds, if
        it was not now.
        """
        agent, told = (input.agent, input.input) if isinstance(input, OfAgent) else (0, input)
        if isinstance(told, Failed):
            self._broken = FINISHED.get(told.error["code"])
        call = self._begin(agent, agent_of) if isinstance(told, TurnBegan) else self._open.get(agent)
        if call is not None and call.reader.turn is None:
            self._end(agent, at, by_machine=isinstance(told, Sampled))

    def take_logged(self, input: Input, agent_of: Callable[[int], Agent], *, at: int | None) -> None:
        """Take an input that the machine has just received, as it stands in the log of another worker."""
        agent, told = (input.agent, input.input) if isinstance(input, OfAgent) else (0, input)
        call = self._open.get(agent)
        if isinstance(told, Sampled) and self.rule is not None:
            self.rule.note(told.weights_version)
        if isinstance(told, Sampled) and call is not None:
            if told.token_ids and call.first_token is None:
                call.first_token = at or self._time()
            call.sampled.add(
                TokenChunk(
                    token_ids=told.token_ids,
                    finish_reason=told.finish,
                    logprobs=told.logprobs if told.recorded is None else told.recorded,
                    weights_version=told.weights_version,
                    weights=told.weights,
                )
            )
        self.take(input, agent_of, at=at)

    def finish(self) -> Sequence[Recorded]:
        """End the open calls, and return all calls."""
        for agent in list(self._open):
            self._end(agent, None, by_machine=False)
        return self.calls

    def with_tokens(self, output: Sequence[JsonObject]) -> list[JsonObject]:
        """Return the output of a response, in which the last item of each turn has the turn's tokens.

        The fields are those that NeMo Gym trains on. Turns of agents below the root, and those without an item, have
        none.
        """
        items = [dict(item) for item in output]
        of_turns = {each.call.turn: each for each in self.calls if each.call.agent is None}
        for turn, begin in enumerate(self._begins):
            end = self._begins[turn + 1] if turn + 1 < len(self._begins) else len(items)
            said = [item for item in items[begin:end] if not str(item["type"]).endswith("_output")]
            recorded = of_turns.get(turn)
            if said and recorded is not None:
                call = recorded.call
                said[-1] |= {
                    "prompt_token_ids": recorded.prompt.tolist(),
                    "generation_token_ids": call.sampled.tolist(),
                    "generation_log_probs": None if call.logprobs is None else numbers(call.logprobs),
                }
        return items

    def _begin(self, agent: int, agent_of: Callable[[int], Agent]) -> _OpenCall | None:
        asked, its = self._asked.pop(agent, None), agent_of(agent)
        if asked is None or its.reader.turn is None:
            return None
        if agent in self._open:
            self._end(agent, None, by_machine=True)
        self._versions.pop(agent, None)  # what the log says of a turn begins with its weights
        if not agent:
            self._begins.append(len(its.stream.output))
        name = None if not agent or its.stream.agent is None else str(its.stream.agent["agent_name"])
        call = self._open[agent] = _OpenCall(asked, its.reader.turn.usage, its.reader, name)
        return call

    def _end(self, agent: int, at: int | None, *, by_machine: bool) -> None:
        call = self._open.pop(agent)
        call.sampled.gather()
        given = len(call.sampled.tokens)
        read = min(call.usage.output_tokens, given)
        if not read:
            return
        tokens, logprobs, tops, weights = call.sampled.shown(read)
        finish = call.sampled.finish or (FinishReason.STOP if by_machine else FinishReason.ABORT)
        asked, generate = call.asked, call.asked.generate
        summary = generate.summary or generate.aside
        recorded = self._latest[agent] = behind(
            self._latest.get(agent),
            EngineCall(
                response_id=self._response_id,
                api=self.ref.api,
                branch=self.ref.branch,
                agent=call.agent,
                turn=generate.turn,
                sampled=tokens,
                logprobs=logprobs,
                tops=tops,
                finish=self._broken or finish.value,
                times=Times(asked.queued, asked.asked, call.first_token, at or self._time()),
                weights=weights,
                sampling=asked.sampling,
                grammar=asked.grammar,
                images=asked.images,
                summary=summary,
                compacted=self._compacted and not summary,
                reasoning=call.usage.reasoning_tokens,
                instructions=self._about.instructions,
                dropped=given - read,
                vocabulary="" if self._about.format is None else self._about.format.vocabulary_name,
            ),
            asked.prompt,
        )
        self.calls.append(recorded)
        if generate.summary:
            self._compacted = True  # what follows begins with it

    def _time(self) -> int:
        return int(self._now() * 1000)


def _held(prompt: Sequence[int]) -> "Tokens[int]":
    """Return a prompt as it may be kept: prompts of plans do not change, and are not copied."""
    return prompt if isinstance(prompt, array) else as_tokens(prompt)


def behind(before: Recorded | None, call: EngineCall, prompt: "Tokens[int]") -> Recorded:
    """Return a call that takes no memory for the tokens that its prompt shares with the call before it."""
    if before is None:
        return Recorded(call, prompt)
    shared = common(before.whole(), prompt, 0)
    return Recorded(call, prompt[shared:], before, shared) if shared else Recorded(call, prompt)


class CompletionRecorder:
    """Records one completion of a raw prompt. `now` is Unix time."""

    def __init__(
        self,
        ref: RolloutRef,
        request: GenerationRequest,
        *,
        now: Callable[[], float],
        vocabulary: str = "",
        rule: WeightsRule | None = None,
    ) -> None:
        self._ref = ref
        self._rule = rule
        self._broken: str | None = None  # how it ends, where the rule has ended it
        self._request = request
        self._vocabulary = vocabulary
        self._now = now
        self._sampled = SampledTokens()
        self._queued = self._time()
        self._asked: int | None = None
        self._first_token: int | None = None

    @property
    def has_tokens(self) -> bool:
        """Whether there is anything to record."""
        self._sampled.gather()
        return len(self._sampled.tokens) > 0

    def ask(self) -> None:
        """Note that the engine is asked now."""
        self._asked = self._time()

    def take(self, chunk: TokenChunk) -> None:
        """Take a chunk of the engine's. Raises `WeightsNotServed`, `RolloutStale`."""
        try:
            if self._rule is not None:
                self._rule.take(chunk)
        except (WeightsNotServed, RolloutStale) as error:
            self.end(error)
            if chunk.weights is not None:
                self._sampled.add(untold(chunk))
            raise
        if chunk.token_ids and self._first_token is None:
            self._first_token = self._time()
        self._sampled.add(chunk)

    def end(self, error: EngineError) -> None:
        """Note the error that has ended it."""
        broken = broken_rule(error)
        self._broken = None if broken is None else FINISHED[str(broken.code)]

    def recorded(self, project: str, model: str) -> RecordedResponse:
        """Return all of it."""
        request, sampled = self._request, self._sampled
        sampled.gather()
        tokens, logprobs, tops, weights = sampled.shown(len(sampled.tokens))
        call = EngineCall(
            response_id=request.request_id,
            api=self._ref.api,
            branch=self._ref.branch,
            sampled=tokens,
            logprobs=logprobs,
            tops=tops,
            finish=self._broken or (sampled.finish or FinishReason.ABORT).value,
            times=Times(self._queued, self._asked, self._first_token, self._time()),
            weights=weights,
            sampling=as_asked(request.sampling),
            grammar=request.grammar is not None,
            vocabulary=self._vocabulary,
        )
        return RecordedResponse(
            project=project,
            rollout=self._ref,
            response_id=request.request_id,
            model=model,
            calls=(Recorded(call, _held(request.prompt_token_ids)),),
        )

    def _time(self) -> int:
        return int(self._now() * 1000)
