"""`Recorder`: what one response adds to its roll-out, gathered from what its machine is told.

    hand ── ask(prompt) ──────────────────┐
    run  ── take(TurnBegan, Sampled, …) ──┴──> Recorder ── finish() ──> the calls of the engine, as they are kept

It sees the very inputs that the machine sees, and those stand in the log. So a worker that goes on behind the log of
another one feeds its recorder with that, and has what the other one had: a turn that was cut in its middle is one call.

A turn may end before the engine does, for example behind a call of a tool. What the engine still gave is not read by
anybody, is no part of any prompt, and is dropped here, too; only its number is kept.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from engine.formats.base import ModelFormat, Tokens, as_tokens
from engine.types import FinishReason, GenerationRequest, SamplingOptions, TokenChunk, TokenLogprob, WeightsSpan
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.response.response import ResponseMachine
from responses_app.protocol.response.steps import Generate, Input, OfAgent, Sampled, TurnBegan, input_of
from responses_app.protocol.response.turns import TurnReader
from responses_app.protocol.rollouts.generations import (
    EngineCall,
    Recorded,
    RecordedResponse,
    RolloutRef,
    Times,
    Tops,
    add_span,
    spans_of,
)
from responses_app.protocol.rollouts.packing import as_logprobs, numbers

NOT_TOLD = float("nan")  # the log probability of a token that the engine did not tell


@dataclass(slots=True)
class SampledTokens:
    """The tokens of one call, as they come."""

    # As they came, and put together once they are all there: one by one that would cost a token more than its parsing.
    # No version is that of the tokens before.
    chunks: list[tuple[Sequence[int], Sequence[TokenLogprob] | None, str | None]] = field(default_factory=list)
    weights: Sequence[WeightsSpan] | None = None  # of the last tokens, where the engine has told them at their end

    @property
    def count(self) -> int:
        """How many there are."""
        return sum([len(tokens) for tokens, _, _ in self.chunks])

    def shown(self, count: int) -> "tuple[Tokens[int], array[float] | None, Tops | None, list[WeightsSpan]]":
        """Return the first `count` tokens with all that is known of them."""
        tokens, logprobs, tops = as_tokens(), as_logprobs(), list[tuple[tuple[int, float], ...]]()
        weights, present = list[WeightsSpan](), None
        for sampled, told, version in self.chunks:
            present = present if version is None else version
            tokens.extend(sampled)
            add_span(weights, WeightsSpan(present, len(sampled)))
            logprobs.extend([NOT_TOLD] * len(sampled) if told is None else [each.logprob for each in told])
            tops.extend([()] * len(sampled) if told is None else [each.top for each in told])
        has_logprobs = any(told is not None for _, told, _ in self.chunks)
        return (
            tokens[:count],
            logprobs[:count] if has_logprobs else None,
            tops[:count] if any(tops[:count]) else None,
            spans_of(self._corrected(weights, len(tokens)), 0, count),
        )

    def _corrected(self, weights: list[WeightsSpan], count: int) -> list[WeightsSpan]:
        """Return versions as the engine has told them at the end: those before are what was known when tokens came."""
        if self.weights is None:
            return weights
        # What was sampled before a cut was told by another call of the engine, or by none.
        corrected = spans_of(weights, 0, max(0, count - sum([span.tokens for span in self.weights])))
        for span in self.weights:
            add_span(corrected, span)
        return corrected


class _Usage(Protocol):
    output_tokens: int
    reasoning_tokens: int


@dataclass(slots=True)
class _Asked:
    """What the engine was asked for a turn."""

    generate: Generate
    prompt: "Tokens[int]"
    sampling: JsonObject
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
    asked: _Asked
    usage: _Usage  # the machine counts there what it has read
    reader: TurnReader  # whose turn it is while that goes on
    agent: str | None
    sampled: SampledTokens = field(default_factory=SampledTokens)
    first_token: int | None = None
    finish: FinishReason | None = None


def asking_logprobs(request: GenerationRequest) -> GenerationRequest:
    """Return what the engine is asked, with the log probability of each token."""
    if request.sampling.top_logprobs is not None:
        return request
    return replace(request, sampling=replace(request.sampling, top_logprobs=0))


def as_asked(sampling: SamplingOptions) -> JsonObject:
    """Return what was asked of sampling, as JSON has it: there the ids of `logit_bias` are texts."""
    return {
        name: {str(key): each for key, each in value.items()} if isinstance(value, Mapping) else value
        for name, value in sampling.named().items()
    }


class Recorder:
    """Records one response. `hides`: its client has not asked for log probabilities. `now` is Unix time."""

    def __init__(
        self,
        response_id: str,
        ref: RolloutRef,
        *,
        now: Callable[[], float],
        hides: bool,
        about: AboutPrompts = AboutPrompts(),
    ) -> None:
        self.ref = ref
        self._response_id = response_id
        self._now = now
        self._hides = hides
        self._about = about
        self._compacted = about.compacted
        self._queued: dict[int, int] = {}  # by the numbers of agents
        self._asked: dict[int, _Asked] = {}
        self._open: dict[int, _OpenCall] = {}
        self._versions: dict[int, str | None] = {}  # of the weights that sampled last
        self._begins: list[int] = []  # of the root: how many items were done before each of its turns
        self.calls: list[Recorded] = []  # those that have ended

    @property
    def model(self) -> str:
        """Who answers."""
        return self._about.model

    def queue(self, agent: int) -> None:
        """Note that a turn begins to wait for the engine."""
        self._queued[agent] = self._time()

    def ask(self, generate: Generate, request: GenerationRequest) -> None:
        """Note what the engine is asked: before the machine is told that the turn has begun."""
        agent, prompt, written = generate.agent, as_tokens(request.prompt_token_ids), self._about.format
        places = written.picture_places(prompt) if request.pictures and written is not None else ()
        sampling = as_asked(request.sampling)
        self._asked[agent] = _Asked(
            generate=generate,
            prompt=prompt,
            sampling=sampling if generate.budget is None else {**sampling, "max_tokens": generate.budget},
            images=list(zip(places, [each.digest for each in request.pictures], strict=False)),
            queued=self._queued.pop(agent, None),
            asked=self._time(),
        )

    def asked_of(self, request: GenerationRequest) -> GenerationRequest:
        """Return what the engine is asked: the log probability of each token, too."""
        return asking_logprobs(request)

    def mark(self, sampled: Sampled, chunk: TokenChunk, agent: int) -> None:
        """Put what is to be recorded of a chunk where it is recorded from, and no client sees it."""
        if self._hides:
            sampled.recorded, sampled.logprobs = sampled.logprobs, None
        version = chunk.weights_version
        if version is not None and version != self._versions.get(agent):
            sampled.weights_version = self._versions[agent] = version
        sampled.weights = chunk.weights

    @staticmethod
    def strip(input: Input) -> None:
        """Take from an input what only a recorder reads: no other worker goes on behind the log that it stands in."""
        told = input_of(input)
        if isinstance(told, Sampled):
            told.recorded = told.weights_version = told.weights = None

    def take(self, input: Input, machine: ResponseMachine, *, at: int | None = None) -> None:
        """Take what the machine has just been told; `at` says when, in Unix milliseconds, if that was not now."""
        agent, told = (input.agent, input.input) if isinstance(input, OfAgent) else (0, input)
        call = self._open.get(agent)
        if isinstance(told, Sampled):
            if call is not None:
                self._sampled(call, told, at)
        elif isinstance(told, TurnBegan):
            call = self._begin(agent, machine)
        if call is not None and call.reader.turn is None:
            self._end(agent, at, by_machine=isinstance(told, Sampled))

    def finish(self) -> Sequence[Recorded]:
        """End what is open, and return all calls."""
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

    def _begin(self, agent: int, machine: ResponseMachine) -> _OpenCall | None:
        asked, its = self._asked.pop(agent, None), machine.machine_of(agent)
        if asked is None or its.reader.turn is None:
            return None
        self._versions.pop(agent, None)  # what the log says of a turn begins with its weights
        if not agent:
            self._begins.append(len(its.stream.output))
        name = None if not agent or its.stream.agent is None else str(its.stream.agent["agent_name"])
        call = self._open[agent] = _OpenCall(asked, its.reader.turn.usage, its.reader, name)
        return call

    def _sampled(self, call: _OpenCall, told: Sampled, at: int | None) -> None:
        if told.token_ids and call.first_token is None:
            call.first_token = at or self._time()
        call.finish = told.finish or call.finish
        logprobs = told.logprobs if told.recorded is None else told.recorded
        call.sampled.chunks.append((told.token_ids, logprobs, told.weights_version))
        call.sampled.weights = told.weights or call.sampled.weights

    def _end(self, agent: int, at: int | None, *, by_machine: bool) -> None:
        call = self._open.pop(agent)
        given = call.sampled.count
        read = min(call.usage.output_tokens, given)
        if not read:
            return
        tokens, logprobs, tops, weights = call.sampled.shown(read)
        finish = call.finish or (FinishReason.STOP if by_machine else FinishReason.ABORT)
        asked, generate = call.asked, call.asked.generate
        summary = generate.summary or generate.aside
        self.calls.append(
            Recorded(
                EngineCall(
                    response_id=self._response_id,
                    api=self.ref.api,
                    branch=self.ref.branch,
                    agent=call.agent,
                    turn=generate.turn,
                    sampled=tokens,
                    logprobs=logprobs,
                    tops=tops,
                    finish=finish.value,
                    times=Times(asked.queued, asked.asked, call.first_token, at or self._time()),
                    weights=weights,
                    sampling=asked.sampling,
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
        )
        if generate.summary:
            self._compacted = True  # what follows begins with it

    def _time(self) -> int:
        return int(self._now() * 1000)


class CompletionRecorder:
    """Records one completion of a raw prompt. `now` is Unix time."""

    def __init__(
        self, ref: RolloutRef, request: GenerationRequest, *, now: Callable[[], float], vocabulary: str = ""
    ) -> None:
        self._ref = ref
        self._request = request
        self._vocabulary = vocabulary
        self._now = now
        self._sampled = SampledTokens()
        self._finish: FinishReason | None = None
        self._queued = self._time()
        self._asked: int | None = None
        self._first_token: int | None = None

    @property
    def has_tokens(self) -> bool:
        """Whether there is anything to record."""
        return self._sampled.count > 0

    def ask(self) -> None:
        """Note that the engine is asked now."""
        self._asked = self._time()

    def take(self, chunk: TokenChunk) -> None:
        """Take what the engine has sampled."""
        if chunk.token_ids and self._first_token is None:
            self._first_token = self._time()
        self._finish = chunk.finish_reason or self._finish
        self._sampled.chunks.append((chunk.token_ids, chunk.logprobs, chunk.weights_version))
        self._sampled.weights = chunk.weights or self._sampled.weights

    def recorded(self, project: str, model: str) -> RecordedResponse:
        """Return all of it."""
        request = self._request
        tokens, logprobs, tops, weights = self._sampled.shown(self._sampled.count)
        call = EngineCall(
            response_id=request.request_id,
            api=self._ref.api,
            branch=self._ref.branch,
            sampled=tokens,
            logprobs=logprobs,
            tops=tops,
            finish=(self._finish or FinishReason.ABORT).value,
            times=Times(self._queued, self._asked, self._first_token, self._time()),
            weights=weights,
            sampling=as_asked(request.sampling),
            vocabulary=self._vocabulary,
        )
        return RecordedResponse(
            project=project,
            rollout=self._ref.name,
            response_id=request.request_id,
            model=model,
            calls=(Recorded(call, as_tokens(request.prompt_token_ids)),),
        )

    def _time(self) -> int:
        return int(self._now() * 1000)
