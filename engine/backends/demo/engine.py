"""An engine without a model that answers in real Harmony, so that a server can be tried and tested on any machine.

Its weights are a version, and a seed by which it chooses its words. A seed changes the case of words in thoughts and
answers, and nothing else: what stands where stays as it is, token by token. So a turn that was begun with one seed goes
on with another, also where it was cut.

    seed 0   This is the demo engine
    seed 1   THIS Is The Demo Engine

Of a picture it says the format, the size and the mean colour.
"""

import asyncio
import os
import socket
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from io import BytesIO
from weakref import WeakValueDictionary

from engine.backends.base import OptionReader
from engine.backends.demo.arguments import require_makeable
from engine.backends.demo.replies import NOTHING_SEEN, is_raw, raw_reply_tokens, reply_tokens, without_thought
from engine.backends.simulated import SimulatedEngine, cut_into_chunks, turn_beginnings
from engine.errors import GenerationFailed, WeightsRefused
from engine.formats.harmony.encoding import CONSTRAIN, END_TOKENS, MESSAGE, START, decode_tokens, encode_text
from engine.formats.harmony.prompt import pictures_in
from engine.types import (
    AnyText,
    EngineInfo,
    FinishReason,
    GenerationRequest,
    PictureSource,
    TokenChunk,
    TurnGrammar,
    TurnRules,
)
from engine.weights import BaseWeights, Gate, PauseMode, ReplicaState, WeightsCall, WeightsStep

MAX_KEPT = 4096  # descriptions, of some 30 characters each; the least recently used goes first
PICTURE_TOKENS = 64  # that a picture counts as in a prompt, whatever its size


class Looks:
    """Pictures that were seen: each is loaded once, however often it is in a prompt."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, str] = OrderedDict()

    async def at(self, pictures: Sequence[PictureSource]) -> Mapping[str, str]:
        """Return a description of each picture, by its digest. Raises `GenerationFailed` for one it cannot read."""
        seen: dict[str, str] = {}
        for picture in pictures:
            if picture.digest not in self._kept:
                self._kept[picture.digest] = await asyncio.to_thread(described, await picture.load())
            self._kept.move_to_end(picture.digest)
            seen[picture.digest] = self._kept[picture.digest]
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return seen


def described(content: bytes) -> str:
    """Return the description of a picture: `PNG, 8 × 8, mostly #ff0000`. Raises `GenerationFailed`."""
    from PIL import Image  # here: a server's start does not wait for it

    try:
        with Image.open(BytesIO(content)) as image:
            # One pixel that is the mean of all: transparent ones count as what they would be.
            red, green, blue = image.convert("RGB").resize((1, 1), Image.Resampling.BOX).tobytes()
            return f"{image.format}, {image.width} × {image.height}, mostly #{red:02x}{green:02x}{blue:02x}"
    # Pillow's own say for what is not a picture, is cut, or is far too large.
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise GenerationFailed(f"A picture cannot be read: {type(error).__name__}: {error}") from error


def expanded_length(prompt: Sequence[int]) -> int:
    """Return how long a prompt is with `PICTURE_TOKENS` for each picture."""
    return len(prompt) + sum(PICTURE_TOKENS - (end - begin) for begin, end, _ in pictures_in(prompt))


FIRST = "default"  # what vLLM calls the weights that it was started with, too
MAX_SEED = 2**31


class DemoWeights(BaseWeights):
    """The doors of one demo engine: `update` takes `{"seed": 7}`."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.seed = 0
        self._version = FIRST
        self._next: int | None = None  # the seed of an update that has begun

    @property
    def place(self) -> str:
        """Each process has an engine of its own."""
        return f"{socket.gethostname()}:{os.getpid()}"

    @property
    def version(self) -> str:
        return self._version

    async def pause(self, mode: PauseMode) -> None:
        await self.gate.close(mode)

    async def resume(self) -> None:
        self.gate.open()

    async def call(self, call: WeightsCall) -> None:
        """Take a seed, and use it once the update is finished."""
        if not call.transfer:
            raise WeightsRefused("The demo engine has no workers whose methods could be called.")
        match call.step:
            case WeightsStep.BEGIN:
                self._next = self.seed
            case WeightsStep.UPDATE:
                seed = call.info.get("seed") if isinstance(call.info, dict) else None
                if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < MAX_SEED:
                    raise WeightsRefused('The demo engine takes updates like {"seed": 7}.')
                self._next = seed
            case WeightsStep.FINISH if self._next is not None:
                self.seed, self._next, self._version = self._next, None, call.version
            case WeightsStep.CANCEL:
                self._next, self._version = None, call.version or self._version
            case WeightsStep.FINISH:
                raise WeightsRefused("The demo engine has no update that could be finished.")

    async def replicas(self) -> Sequence[ReplicaState]:
        return [ReplicaState(name=self.place, version=self._version)]

    def say(self, chunk: TokenChunk, words: "Words") -> None:
        """Have the present weights say a chunk, which is the next one of a reply."""
        begin, words.said = words.said, words.said + len(chunk.token_ids)
        chunk.weights_version = self._version
        if self.seed:
            free = words.free[begin : words.said]
            pairs = zip(chunk.token_ids, free, strict=True)
            chunk.token_ids = [self._varied(token) if may else token for token, may in pairs]

    def _varied(self, token: int) -> int:
        variants = _variants(token)
        return variants[(variants.index(token) + self.seed) % len(variants)]


class Words:
    """A reply, of which weights choose the words."""

    def __init__(self, reply: Sequence[int], rules: TurnRules | None) -> None:
        self._reply = reply
        # What a rule is about is said as it is, whatever the weights.
        self._is_free = rules is None or isinstance(rules.answer, AnyText)
        self.said = 0  # tokens

    @cached_property
    def free(self) -> Sequence[bool]:
        """Whether the word at each place may change; made only where weights change any."""
        return free_places(self._reply) if self._is_free else [False] * len(self._reply)


def free_places(reply: Sequence[int]) -> list[bool]:
    """Return which tokens of a reply are words of a thought or an answer: no header, and nothing of a call."""
    free, is_text, header = [], False, list[int]()
    for token in reply:
        if token == MESSAGE:
            is_text = CONSTRAIN not in header and " to=" not in decode_tokens(header)
        elif token in END_TOKENS or token == START:
            is_text, header = False, []
        elif not is_text:
            header.append(token)
        free.append(is_text and token != MESSAGE)
    return free


def is_begun(reply: Sequence[int], begun: Sequence[int]) -> bool:
    """Whether a reply begins like this, whatever weights said it."""
    beginning = reply[: len(begun)]
    return list(beginning) == list(begun) or list(map(_variants, beginning)) == list(map(_variants, begun))


@lru_cache(maxsize=10_000)
def _variants(token: int) -> tuple[int, ...]:
    """Return the tokens that are the same word in another case; the same tuple for each of them."""
    text = decode_tokens([token])
    if not (text.isascii() and text.strip().isalpha()):
        return (token,)
    spelled = (encode_text(each) for each in (text.lower(), text.title(), text.upper()))
    variants = tuple(dict.fromkeys(each[0] for each in spelled if len(each) == 1))
    return variants if token in variants else (token,)


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
