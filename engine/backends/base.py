"""The contract every engine fulfils, and what engines share; `tests/contracts/engine.py` runs over each of them.

- `BaseEngine` is the contract; `CheckingEngine` one that finds out what it can be held to by trying it.
- `room`: how many tokens a generation may have.
- `load_vocabulary` loads Harmony's, once in a process.
- `restart_pause`: how long to wait before an engine that did not start, or has died, is started again.
- `OptionReader` reads an operator's options; what is wrong with one is told in one sentence.
"""

import asyncio
import math
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from hashlib import blake2b
from typing import TypeVar
from uuid import uuid4

from engine.errors import (
    EngineConfigurationError,
    EngineOverloaded,
    GenerationFailed,
    GrammarRefused,
    NotRendered,
    PromptTooLong,
)
from engine.types import (
    ChatPrompt,
    EngineInfo,
    GenerationRequest,
    SamplingOptions,
    Session,
    TokenChunk,
    TurnGrammar,
    digest_of,
)
from engine.weights import BaseWeights

# It holds for an engine that a worker starts or reaches, for vLLM's in a worker, and for the engine core that workers
# share. A vLLM server of a pool is tried again more often: see `Circuit`.
RESTART_SECONDS = (1, 2, 5, 10, 30)  # before each attempt; the last one repeats
MAX_CHARACTERS = 1024 * 1024  # of one grammar, as the engine is given it
MAX_REMEMBERED = 1024  # grammars; an answer is a few dozen bytes
COMPILE_SECONDS = 60.0  # that one may take: bounded strings take 2 to 4 s on two cores, once

Default = TypeVar("Default")


class BaseEngine(ABC):
    """One model behind one alias in one process.

    Life: construct with options (cheap, no I/O), `check()`, `await start()`, any number of `generate()` at once,
    `await aclose()`. A closed engine stays closed. Everything runs on one event loop.
    """

    # What it can do; a backend that learns it from a server sets it in `start()`.
    supports_priority: bool = False
    supports_cache_salt: bool = False
    supports_logprobs: bool = False
    supports_prompt_logprobs: bool = False
    supports_kv_transfer: bool = False  # takes and gives `kv_transfer_params`
    supports_grammar: bool = False  # can hold the model to a `TurnGrammar`
    supports_prefill: bool = False  # a one-token generation leaves the prompt in a prefix cache
    # Takes the pictures of a request. Whether its model sees them is the format's to say, too (`ModelFormat.sees`).
    supports_pictures: bool = False
    # What a trainer may do to it; None where nothing can be done.
    weights: BaseWeights | None = None

    def __init__(self, *, model: str, options: Mapping[str, object] | None = None) -> None:
        """Keep `model` (what the engine loads) and its backend's own `options`, which `check()` and `start()` read."""
        self.model = model
        self.options = dict(options or {})

    def check(self) -> None:  # noqa: B027 - most backends have nothing to check
        """Raise `EngineConfigurationError` if the options cannot work. Loads nothing and opens nothing."""

    @abstractmethod
    async def start(self) -> EngineInfo:
        """Load the model or reach the server, and say what it is.

        Raises `EngineConfigurationError` where trying again cannot help, `EngineUnavailable` where it can.
        """

    async def check_grammar(self, grammar: TurnGrammar) -> None:  # noqa: B027 - some find out only while they generate
        """Return if this engine can hold a model to a grammar, which then costs little; else raise `GrammarRefused`."""

    def render(self, chat: ChatPrompt) -> Sequence[int]:
        """Return the prompt that the model's own chat template makes of a conversation. Blocks: never on the loop.

        Raises `NotRendered` where the template refuses it, `PromptTooLong`, and `EngineUnavailable`.
        """
        raise NotRendered(f"{type(self).__name__} renders nothing.")

    def tokenize(self, text: str) -> Sequence[int]:
        """Return a text that is a whole prompt as tokens, as the model's tokenizer reads it. Blocks as `render` does.

        Raises `NotRendered` for a text that it does not take, and `EngineUnavailable`.
        """
        raise NotRendered(f"{type(self).__name__} has no tokenizer.")

    @abstractmethod
    def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenChunk, None]:
        """Yield what the model samples, chunk by chunk; the last chunk has a finish reason.

        Closing the generator (or cancelling the task inside it) aborts the generation in the engine.
        Raises `EngineUnavailable`, `EngineOverloaded`, `PromptTooLong`, `GrammarRefused` before the first chunk, and
        `EngineUnavailable`, `GenerationFailed` or `GrammarBroken` between chunks; of these, `GenerationCut` says that
        the engine can go on behind what it has yielded, if it is asked to, and `GrammarCut` that it can once. At any
        time it raises `TurnEnded`, where a trainer has it end what runs.
        """

    def end_session(self, session: Session) -> None:  # noqa: B027 - most engines keep nothing of sessions
        """Let go of what is kept of a session that is over, now or soon. Its ids are not asked for any more."""

    @property
    def weights_version(self) -> str | None:
        """The version of the weights that new tokens come from; None where it is not known."""
        return None if self.weights is None else self.weights.version

    async def health(self) -> None:  # noqa: B027 - healthy unless a backend knows better
        """Return if the engine can take a request now, else raise `EngineUnavailable`."""

    def replicas(self) -> Mapping[str, int]:
        """Return how many replicas there are `serving`, `away` and `leaving`; nothing for an engine that has none."""
        return {}

    @abstractmethod
    async def aclose(self) -> None:
        """Abort what runs and let go of everything. Safe to call twice, and before `start()` is done."""


class CheckingEngine(BaseEngine):
    """An engine that tries each grammar once, and remembers what came of it: it keeps what it has compiled itself."""

    def __init__(self, *, model: str, options: Mapping[str, object] | None = None) -> None:
        super().__init__(model=model, options=options)
        # Why one is refused, "" for the good ones; the least recently used first.
        self._known: OrderedDict[bytes, str] = OrderedDict()

    @abstractmethod
    async def _compile(self, grammar: TurnGrammar) -> None:
        """Have a grammar compiled. Raises `GrammarRefused` or `GenerationFailed` for one that cannot be used.

        Whatever else it raises is the engine's fault, and not remembered.
        """

    async def _sample_one(self, grammar: TurnGrammar, prompt: Sequence[int]) -> None:
        """Generate one token under a grammar."""
        request = GenerationRequest(
            request_id=f"grammar-{uuid4().hex}",
            prompt_token_ids=prompt,
            sampling=SamplingOptions(max_output_tokens=1),
            session=Session(id=digest_of(grammar.structural_tag)),
            grammar=grammar,
        )
        async with aclosing(self.generate(request)) as chunks:
            async for _ in chunks:
                pass

    async def check_grammar(self, grammar: TurnGrammar) -> None:
        """Have the engine compile a grammar, unless it has been asked about it before."""
        tag = grammar.structural_tag
        if len(tag) > MAX_CHARACTERS:
            raise GrammarRefused(
                f"The tools and the answer's format make a grammar of {len(tag)} characters; at most {MAX_CHARACTERS} "
                "are allowed."
            )
        # A digest: 1024 grammars themselves could be a gigabyte.
        key = blake2b(tag.encode(), digest_size=16).digest()
        if key not in self._known:
            # Two that come at once are both compiled: the engine keeps what it has compiled, so that costs little.
            self._known[key] = await self._reason(grammar)
            if len(self._known) > MAX_REMEMBERED:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        if self._known[key]:
            raise GrammarRefused(self._known[key])

    async def _reason(self, grammar: TurnGrammar) -> str:
        try:
            async with asyncio.timeout(COMPILE_SECONDS):
                await self._compile(grammar)
        # Not remembered: a busy engine may compile it in time later.
        except TimeoutError:
            raise EngineOverloaded(f"A grammar was not compiled within {COMPILE_SECONDS:g} s.") from None
        except GrammarRefused as error:
            return error.reason
        except GenerationFailed as error:
            return f"The engine cannot use the grammar that the tools and the answer's format make: {error}"
        return ""


def room(request: GenerationRequest, max_model_len: int, *, added: int = 0) -> int:
    """Return how many tokens a generation may have at most; raises `PromptTooLong`.

    `added` are those that pictures are known to add to the prompt.
    """
    prompt_tokens = len(request.prompt_token_ids) + added
    if prompt_tokens >= max_model_len:
        raise PromptTooLong(prompt_tokens=prompt_tokens, max_model_len=max_model_len)
    limit = request.sampling.max_output_tokens
    # At least one token: a prompt that fills the model was refused above.
    return max_model_len - prompt_tokens if limit is None else min(max_model_len - prompt_tokens, limit)


_loading = threading.Lock()  # two threads that miss a cache at once would both do the work


async def load_vocabulary() -> None:
    """Load Harmony's vocabulary, on a thread: 0.5 s the first time in a process, and nothing later.

    A model and its embeddings start beside each other: the second waits for what the first loads.
    """
    await asyncio.to_thread(load_vocabulary_here)


def load_vocabulary_here() -> None:
    """Load it on this thread."""
    from engine.formats.harmony.encoding import load_encoding  # here: other models need none of it

    with _loading:
        load_encoding()


def restart_pause(failed: int) -> int:
    """Return the seconds before the next attempt, where so many in a row have failed."""
    return RESTART_SECONDS[min(failed, len(RESTART_SECONDS) - 1)]


class OptionReader:
    """Reads values that an operator gave; says in one sentence what is wrong with one. `None` means not given."""

    def __init__(self, place: str, values: Mapping[str, object], *, known: Collection[str]) -> None:
        """Refuse names that are not `known`. `place` begins every sentence: `The demo engine`."""
        self._place = place
        self._values = values
        for name in values:
            if name not in known:
                raise EngineConfigurationError(f"{place} does not know {name!r}; it knows {', '.join(sorted(known))}.")

    def whole_number(self, name: str, default: Default, *, minimum: int) -> int | Default:
        """Return a whole number of at least `minimum`."""
        value = self._values.get(name)
        if value is None:
            return default
        # `True` is an `int` in Python, and no number of an operator's.
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.wrong(name, f"a whole number of {minimum} or more")
        return value

    def seconds(self, name: str) -> float:
        """Return a time, 0 where none was given."""
        value = self._number(name)
        if value is None:
            return 0.0
        if value < 0:
            raise self.wrong(name, "a number of 0 or more")
        return value

    def rate(self, name: str) -> float | None:
        """Return how many of something per second."""
        value = self._number(name)
        if value is not None and value <= 0:
            raise self.wrong(name, "a number above 0")
        return value

    def text(self, name: str) -> str | None:
        """Return a string."""
        value = self._values.get(name)
        if value is None or isinstance(value, str):
            return value
        raise self.wrong(name, "a string")

    def choice(self, name: str, choices: Collection[str]) -> str | None:
        """Return one of `choices`."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, str) or value not in choices:
            raise self.wrong(name, f"one of {', '.join(choices)}")
        return value

    def token_ids(self, name: str) -> tuple[int, ...] | None:
        """Return a list of token ids."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(_is_token_id(each) for each in value):
            raise self.wrong(name, "a list of token ids")
        return tuple(value)

    def wrong(self, name: str, expected: str) -> EngineConfigurationError:
        """Return the error that says what `name` should have been."""
        shown = repr(self._values.get(name))
        shown = shown if len(shown) <= 80 else f"{shown[:79]}…"
        return EngineConfigurationError(f"{self._place} needs {name} to be {expected}, not {shown}.")

    def _number(self, name: str) -> float | None:
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.wrong(name, "a number")
        return float(value)


# Ids are packed as unsigned 32-bit integers (`as_tokens`).
def _is_token_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32
