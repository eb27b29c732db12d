"""An engine without a model that answers in real Harmony, so that a server can be tried and tested on any machine."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from weakref import WeakValueDictionary

from engine.backends.base import OptionReader
from engine.backends.demo.arguments import require_makeable
from engine.backends.demo.looks import Looks, expanded_length
from engine.backends.demo.replies import NOTHING_SEEN, is_raw, raw_reply_tokens, reply_tokens, without_thought
from engine.backends.demo.weights import DemoWeights, Words, is_begun
from engine.backends.simulated import SimulatedEngine, cut_into_chunks
from engine.backends.transcript import turn_beginnings
from engine.types import EngineInfo, FinishReason, GenerationRequest, TokenChunk, TurnGrammar, TurnRules

LONG_PROMPT = 1000  # tokens, of up to 128 characters each: 30 ms to read and to answer
AT_ONCE = 8  # answers without a pace, which take turns of the event loop: more of them would end no sooner


class DemoEngine(SimulatedEngine):
    """Answers by the rules in `replies`.

    Options: `tokens_per_second` (none: as fast as the loop turns), `chunk_tokens`, `max_model_len`, `sees` (off: it
    takes no pictures) and `start_seconds`, which pretends to load a model.
    """

    backend = "demo"
    sees = True
    supports_grammar = True
    known_options = (*SimulatedEngine.known_options, "chunk_tokens", "tokens_per_second")

    def __init__(self, *, model: str, options: Mapping[str, object] | None = None) -> None:
        """Keep the options; `check()` and `start()` read them."""
        super().__init__(model=model, options=options)
        self._chunk_tokens = 1
        self._tokens_per_second: float | None = None
        self._looks = Looks()
        # By project: it has one long prompt read at once, since all threads share the interpreter with the event loop.
        self._reading: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.weights: DemoWeights = DemoWeights()

    async def start(self) -> EngineInfo:
        """Pretend to load a model. Answers that have no pace are made in turns, which projects share."""
        info = await super().start()
        return replace(info, at_once=AT_ONCE) if self._tokens_per_second is None else info

    async def check_grammar(self, grammar: TurnGrammar) -> None:
        """Make up everything that could be asked for, and raise `GrammarRefused` for what cannot be."""
        await asyncio.to_thread(require_makeable, grammar.rules)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenChunk, None]:
        """Yield the reply; nothing is kept of a generation, so closing it needs no more."""
        limit = await self._admit(request)
        rules = request.grammar.rules if request.grammar else None
        seen = await self._looks.at(request.pictures)
        answer = partial(_rest_of_reply, request.prompt_token_ids, rules, seen)
        if rules is not None:  # a pattern may take seconds to match
            reply = await asyncio.to_thread(answer)
        elif len(request.prompt_token_ids) > LONG_PROMPT:
            async with self._reading.setdefault(request.session.project, asyncio.Lock()):
                reply = await asyncio.to_thread(answer)
        else:
            reply = answer()
        finish_reason = FinishReason.STOP if len(reply) <= limit else FinishReason.LENGTH
        words = Words(reply, rules)
        prompt_tokens = expanded_length(request.prompt_token_ids) if request.pictures else None
        async with self.weights.gate.generation() as name:
            self._require_open()
            chunks = self._chunks(reply[:limit], finish_reason, name, prompt_tokens=prompt_tokens)
            async with aclosing(chunks):
                async for chunk in chunks:
                    self.weights.say(chunk, words)
                    yield chunk

    async def _chunks(
        self, reply: Sequence[int], finish_reason: FinishReason, name: object, *, prompt_tokens: int | None
    ) -> AsyncGenerator[TokenChunk, None]:
        """Yield a reply at the engine's speed, of which nothing passes its closed gate."""
        if self._tokens_per_second is not None:
            rate = self._tokens_per_second
            async with aclosing(self._paced(reply, finish_reason, rate, name, prompt_tokens=prompt_tokens)) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        for chunk in cut_into_chunks(
            reply,
            chunk_tokens=self._chunk_tokens,
            finish_reason=finish_reason,
            cached_tokens=0,
            prompt_tokens=prompt_tokens,
        ):
            await self._pause()
            await self._passed(name)
            yield chunk

    async def _paced(
        self, reply: Sequence[int], finish_reason: FinishReason, rate: float, name: object, *, prompt_tokens: int | None
    ) -> AsyncGenerator[TokenChunk, None]:
        """Yield `rate` tokens a second; to a reader that comes late, all that are due in one chunk, as vLLM does."""
        clock = asyncio.get_running_loop().time
        began, begin, end = clock(), 0, 0
        # An empty reply is one chunk, too: it has the finish reason.
        while end < len(reply) or not reply:
            end = min(begin + self._chunk_tokens, len(reply))
            await self._pause(began + end / rate - clock())
            held = clock()
            await self._passed(name)
            began += clock() - held  # nothing falls due while the engine is paused
            # What is due by now, however long the reader took.
            end = min(max(end, int((clock() - began) * rate)), len(reply))
            if end == len(reply):
                yield TokenChunk(
                    token_ids=reply[begin:], finish_reason=finish_reason, cached_tokens=0, prompt_tokens=prompt_tokens
                )
                return
            yield TokenChunk(token_ids=reply[begin:end])
            begin = end

    async def _passed(self, name: object) -> None:
        await self.weights.gate.passed(name)
        self._require_open()

    async def aclose(self) -> None:
        """End what runs with `EngineUnavailable`, what a pause holds too."""
        await super().aclose()
        self.weights.gate.open()

    def _read_options(self, options: OptionReader) -> None:
        super()._read_options(options)
        self._chunk_tokens = options.whole_number("chunk_tokens", 1, minimum=1)
        self._tokens_per_second = options.rate("tokens_per_second")


def _rest_of_reply(
    prompt: Sequence[int], rules: TurnRules | None, seen: Mapping[str, str] = NOTHING_SEEN
) -> Sequence[int]:
    """Return the reply to a prompt, without what of it the prompt ends with: a turn that was cut goes on."""
    if is_raw(prompt):
        return raw_reply_tokens(prompt)
    for begin in turn_beginnings(prompt):
        begun = list(prompt[begin:])
        whole = reply_tokens(prompt[:begin], rules, seen)
        # A prompt may begin an answer itself, and so leave out the thought.
        for reply in (whole, without_thought(whole)):
            if is_begun(reply, begun):
                return reply[len(begun) :]
    return reply_tokens(prompt, rules, seen)
