"""What the engines without a model share: starting, closing, and cutting a completion into chunks."""

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import ClassVar

from engine.backends.base import BaseEngine, OptionReader, room
from engine.backends.threads import load_vocabulary
from engine.errors import EngineUnavailable
from engine.types import EngineInfo, FinishReason, GenerationRequest, TokenChunk

SHORT_PAUSE = 0.1  # seconds, which a closing engine lets pass
DEFAULT_MAX_MODEL_LEN = 131_072  # what gpt-oss takes


class SimulatedEngine(BaseEngine):
    """An engine without a model: it starts after `start_seconds`, and takes `max_model_len` tokens.

    With `sees` it takes pictures.
    """

    backend: ClassVar[str]  # its name in ENGINE, in messages and in `EngineInfo`
    known_options: ClassVar[tuple[str, ...]] = ("max_model_len", "sees", "start_seconds")
    sees: ClassVar[bool] = False  # whether it looks at pictures, where the option `sees` says nothing

    def __init__(self, *, model: str, options: Mapping[str, object] | None = None) -> None:
        """Keep the options; `check()` and `start()` read them."""
        super().__init__(model=model, options=options)
        # Now and not in `check()`: a model's format is made of it before.
        self.supports_pictures = self.options.get("sees", self.sees) is True
        self._max_model_len = DEFAULT_MAX_MODEL_LEN
        self._start_seconds = 0.0
        self._started = False
        self._closed = asyncio.Event()  # an event, so that a long pause ends with it

    def check(self) -> None:
        """Raise `EngineConfigurationError` for an unknown option or a wrong value."""
        self._read_options(OptionReader(f"The {self.backend} engine", self.options, known=self.known_options))

    async def start(self) -> EngineInfo:
        """Pretend to load a model.

        Raises `EngineConfigurationError` as `check()` does, and `EngineUnavailable` once the engine is closed.
        """
        self.check()
        await self._pause(self._start_seconds)
        # Needed to spell tokens, even without a model.
        await load_vocabulary()
        await self._load()
        # It may have been closed while it loaded.
        self._require_open()
        self._started = True
        return EngineInfo(backend=self.backend, model=self.model, max_model_len=self._max_model_len)

    async def health(self) -> None:
        """Return while the engine is started and not closed, else raise `EngineUnavailable`."""
        self._require_open()
        if not self._started:
            raise EngineUnavailable(f"The {self.backend} engine is not started yet.")

    async def aclose(self) -> None:
        """End what runs with `EngineUnavailable`, and take no more."""
        self._closed.set()

    def _read_options(self, options: OptionReader) -> None:
        """Keep what the options say; a subclass reads its own as well."""
        self._max_model_len = options.whole_number("max_model_len", DEFAULT_MAX_MODEL_LEN, minimum=2)
        self._start_seconds = options.seconds("start_seconds")
        if not isinstance(self.options.get("sees", False), bool):
            raise options.wrong("sees", "true or false")

    async def _load(self) -> None:
        """Load what a subclass needs before its first generation."""

    async def _admit(self, request: GenerationRequest) -> int:
        """Return how many tokens this generation may have, or raise what keeps it from starting."""
        await self.health()
        return room(request, self._max_model_len)

    async def _pause(self, seconds: float | None = 0.0) -> None:
        """Let the loop run for `seconds`, `None` for ever; raise `EngineUnavailable` once the engine is closed."""
        # A pause of 0 lets other tasks have their turn, as a real engine does between two tokens.
        if seconds is not None and seconds <= SHORT_PAUSE:  # nearly always; a wait for two things costs more
            await asyncio.sleep(seconds)
        else:
            with suppress(TimeoutError):  # the pause is over, and the engine was not closed during it
                async with asyncio.timeout(seconds):
                    await self._closed.wait()
        self._require_open()

    def _require_open(self) -> None:
        if self._closed.is_set():
            raise EngineUnavailable(f"The {self.backend} engine is closed.")


def cut_into_chunks(
    token_ids: Sequence[int],
    *,
    chunk_tokens: int,
    finish_reason: FinishReason,
    cached_tokens: int | None,
    prompt_tokens: int | None = None,
    also_at: Collection[int] = (),
) -> Iterator[TokenChunk]:
    """Yield chunks of at most `chunk_tokens`, cut at the positions `also_at` too; the last has the finish reason."""
    begins = sorted({0, *range(0, len(token_ids), chunk_tokens), *also_at})  # 0 also of no tokens: one chunk ends them
    for begin, end in pairwise(begins):
        yield TokenChunk(token_ids=token_ids[begin:end])
    yield TokenChunk(
        token_ids=token_ids[begins[-1] :],
        finish_reason=finish_reason,
        cached_tokens=cached_tokens,
        prompt_tokens=prompt_tokens,
    )
