"""The weights of the demo engine: a version, and a seed by which it chooses its words.

A seed changes the case of words in thoughts and answers, and nothing else: what stands where stays as it is, token by
token. So a turn that was begun with one seed goes on with another, also where it was cut.

    seed 0   This is the demo engine
    seed 1   THIS Is The Demo Engine
"""

import os
import socket
from collections.abc import Sequence
from functools import cached_property, lru_cache

from engine.errors import WeightsRefused
from engine.formats.harmony.encoding import CONSTRAIN, END_TOKENS, MESSAGE, START, decode_tokens, encode_text
from engine.types import AnyText, TokenChunk, TurnRules
from engine.weights import BaseWeights, Gate, PauseMode, ReplicaState, WeightsCall, WeightsStep

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
        """Of the last update that was finished."""
        return self._version

    async def pause(self, mode: PauseMode) -> None:
        """Hold what runs."""
        await self.gate.close(mode)

    async def resume(self) -> None:
        """Go on."""
        self.gate.open()

    async def call(self, call: WeightsCall) -> None:
        """Take a seed, and use it once the update is finished."""
        if not call.transfer:
            raise WeightsRefused("The demo engine has no workers whose methods could be called.")
        match call.step:
            case WeightsStep.BEGIN:
                self._next = self.seed
            case WeightsStep.UPDATE:
                self._next = _seed_of(call)
            case WeightsStep.FINISH if self._next is not None:
                self.seed, self._next, self._version = self._next, None, call.version
            case WeightsStep.CANCEL:
                self._next, self._version = None, call.version or self._version
            case WeightsStep.FINISH:
                raise WeightsRefused("The demo engine has no update that could be finished.")

    async def replicas(self) -> Sequence[ReplicaState]:
        """Return this one."""
        return [ReplicaState(name=self.place, version=self._version)]

    def say(self, chunk: TokenChunk, words: "Words") -> None:
        """Have the present weights say a chunk, which is the next one of a reply."""
        begin, words.said = words.said, words.said + len(chunk.token_ids)
        chunk.weights_version = self._version
        if self.seed:
            free = words.free[begin : words.said]
            pairs = zip(chunk.token_ids, free, strict=True)
            chunk.token_ids = [_varied(token, self.seed) if may else token for token, may in pairs]


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
    return list(beginning) == list(begun) or list(map(_plain, beginning)) == list(map(_plain, begun))


def _seed_of(call: WeightsCall) -> int:
    seed = call.info.get("seed") if isinstance(call.info, dict) else None
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < MAX_SEED:
        raise WeightsRefused('The demo engine takes updates like {"seed": 7}.')
    return seed


def _plain(token: int) -> int:
    return _variants(token)[0]


def _varied(token: int, seed: int) -> int:
    variants = _variants(token)
    return variants[(variants.index(token) + seed) % len(variants)]


@lru_cache(maxsize=10_000)
def _variants(token: int) -> tuple[int, ...]:
    """Return the tokens that are the same word in another case; the same tuple for each of them."""
    text = decode_tokens([token])
    if not (text.isascii() and text.strip().isalpha()):
        return (token,)
    spelled = (encode_text(each) for each in (text.lower(), text.title(), text.upper()))
    variants = tuple(dict.fromkeys(each[0] for each in spelled if len(each) == 1))
    return variants if token in variants else (token,)
