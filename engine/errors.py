"""The errors of engines, as a tree.

EngineError                    anything an engine raises on purpose
├── EngineConfigurationError   the operator's options cannot work; the message is one sentence for the operator
├── EngineUnavailable          not started yet, stopped, died, or out of reach; try again after `retry_after` seconds
│   └── GenerationCut          what sampled this generation went away in its middle; the engine can go on with it
│       └── GrammarCut         it broke in its middle under a grammar, by a fault of the server's or of the grammar's
├── EngineOverloaded           no room for this request now; try again after `retry_after` seconds
├── PromptTooLong              prompt and reserved output do not fit `max_model_len`
├── GrammarRefused             the engine cannot hold a model to this grammar: a schema or grammar of the request's
├── EmbeddingRefused           the embedding model does not take this input, or these dimensions
├── PicturesRefused            the engine does not take the pictures of a prompt: too many, or one that it cannot read
├── NotRendered                the model's chat template does not take this conversation
├── WeightsRefused             the engine does not take a change of its weights
├── WeightsNotServed           the request wants weights of a version that no replica has
├── TurnEnded                  who trains the model had everything ended that was running; it may be sent again
├── GenerationFailed           this one generation broke; others go on
│   └── PictureGone            a picture of its prompt is not there any more
└── GrammarBroken              what was sampled is not what the grammar allows, so the generation was ended
"""

import os
from collections.abc import Sequence


class EngineError(Exception):
    """Anything an engine raises on purpose; its text is for logs, never for clients."""


class EngineConfigurationError(EngineError):
    """The operator's options cannot work; the message is one sentence for the operator."""


class EngineUnavailable(EngineError):
    """The engine is not started yet, stopped, died, or out of reach; `retry_after` is in seconds."""

    def __init__(self, message: str, *, retry_after: int = 5) -> None:
        super().__init__(message)
        self.retry_after = retry_after  # seconds


class GenerationCut(EngineUnavailable):
    """The sampler of this generation went away in its middle; the engine has, or may have soon, another that goes on.

    Going on is a request of its own: its prompt is the first one with all tokens behind it that were yielded. `at` is
    where it was, for `GenerationRequest.avoid`.
    """

    def __init__(self, message: str, *, retry_after: int = 5, at: str = "") -> None:
        super().__init__(message, retry_after=retry_after)
        self.at = at  # the URL of the replica; "" where there is only one


class GrammarCut(GenerationCut):
    """A generation under a grammar broke in its middle, and its server does not say why.

    A server that has a fault of its own and one that has sampled past the grammar's mask say the same. A turn that
    breaks like this again, on another replica where there is one, has broken by its grammar (`GrammarBroken`).
    """


class EngineOverloaded(EngineError):
    """The engine has no room for this request now; `retry_after` is in seconds."""

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after  # seconds


class PromptTooLong(EngineError):
    """The prompt has `prompt_tokens` tokens and the model takes `max_model_len`."""

    def __init__(self, *, prompt_tokens: int, max_model_len: int) -> None:
        super().__init__(f"The prompt has {prompt_tokens} tokens; the model takes {max_model_len}.")
        self.prompt_tokens = prompt_tokens
        self.max_model_len = max_model_len


class GrammarRefused(EngineError):
    """The engine cannot hold a model to this grammar; `reason` is one sentence that the client may read."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class EmbeddingRefused(EngineError):
    """An embedding model does not take this; `reason` is for the client to read, about the request's field `param`."""

    def __init__(self, reason: str, *, param: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.param = param


class PicturesRefused(EngineError):
    """The engine does not take the pictures of a prompt; `reason` is one sentence that the client may read."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NotRendered(EngineError):
    """The model's chat template does not take this conversation."""


class WeightsRefused(EngineError):
    """The engine does not take a change of its weights; `reason` is one sentence that whoever trains it may read."""

    def __init__(self, reason: str, *, changed: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.changed = changed  # some of the weights may be new, and some old


class WeightsNotServed(EngineError):
    """A request is to be answered by weights of the version `wanted`, and there are those of `served` alone."""

    def __init__(self, wanted: str, served: Sequence[str]) -> None:
        super().__init__(f"The weights {wanted} are wanted, and there are {', '.join(served) or 'none'}.")
        self.wanted = wanted
        self.served = served


class TurnEnded(EngineError):
    """The engine was paused, and ended all that was running then. Nothing is wrong with the request."""


class GenerationFailed(EngineError):
    """This one generation broke; the engine and other generations go on."""


class PictureGone(GenerationFailed):
    """A picture of the prompt is not there any more: it was deleted since the message was accepted."""


class GrammarBroken(EngineError):
    """The sampled tokens break their grammar, so the generation was ended; others go on."""


MAX_REASON = 400  # characters
_SILENT: Sequence[tuple[tuple[type[BaseException], ...], str]] = (
    ((TimeoutError,), "no answer in time"),
    ((ConnectionError, EOFError), "the connection broke"),
    ((MemoryError,), "there is no memory left"),
)


def reason_of(error: BaseException) -> str:
    """Return why something failed, for a sentence: on one line, without a full stop, and never empty.

    The system's words where it has some; the name of the exception where nobody has any, as `str` of a timeout is "".
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    error = getattr(error, "os_error", error)  # of aiohttp's
    # `strerror` of errors of name resolution and of TLS: their numbers are negative, or OpenSSL's, and no `errno`.
    number = None if "SSL" in type(error).__name__ else getattr(error, "errno", None)
    known = os.strerror(number) if isinstance(number, int) and number > 0 else getattr(error, "strerror", None)
    said = " ".join(str(known or error)[: 2 * MAX_REASON].split()).rstrip(".")
    if isinstance(error, KeyError):  # whose text is the key alone
        said = f"KeyError {said}"
    if said:
        return said if len(said) <= MAX_REASON else f"{said[: MAX_REASON - 1]}…"
    words = next((words for kinds, words in _SILENT if isinstance(error, kinds)), None)
    if words is None and error.__cause__ is not None:
        return reason_of(error.__cause__)
    return words or type(error).__name__
