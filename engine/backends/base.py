"""The contract every engine fulfils; `tests/contracts/engine.py` runs over each of them."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence

from engine.errors import NotRendered
from engine.grammar import TurnGrammar
from engine.types import ChatPrompt, EngineInfo, GenerationRequest, TokenChunk


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

    def __init__(self, *, model: str, options: Mapping[str, object] | None = None) -> None:
        """Keep `model` (what the engine loads) and its backend's own `options`."""
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
        the engine can go on behind what it has yielded, if it is asked to, and `GrammarCut` that it can once.
        """

    async def health(self) -> None:  # noqa: B027 - healthy unless a backend knows better
        """Return if the engine can take a request now, else raise `EngineUnavailable`."""

    def replicas(self) -> Mapping[str, int]:
        """Return how many replicas there are `serving`, `away` and `leaving`; nothing for an engine that has none."""
        return {}

    @abstractmethod
    async def aclose(self) -> None:
        """Abort what runs and let go of everything. Safe to call twice, and before `start()` is done."""
