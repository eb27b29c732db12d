"""The inputs of a response: everything that comes to it from outside. Whoever has them has the whole response.

A run is its response object as it began and the list of these, in order: the same list gives the same events, with the
same ids and numbers, wherever it is read. So they are what is logged (see `input_codec`), and they hold no time but the
one that clients see.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from engine.types import FinishReason, TokenLogprob
from responses_app.protocol.errors import JsonObject


class Mode(Enum):
    """What a response does when it starts."""

    ANSWER = "answer"
    WARM_UP = "warm_up"  # generate nothing
    COMPACT = "compact"  # sum up what came before, and nothing else
    COMPACT_AND_ANSWER = "compact_and_answer"


class StopReason(Enum):
    """Why a response is to end before the model does."""

    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    STEERED = "steered"  # at the end of the item that is being said
    SERVER_STOPPED = "server_stopped"


@dataclass(frozen=True, slots=True)
class Enqueued:
    """It waits for its turn."""


@dataclass(frozen=True, slots=True)
class Declared:
    """The conversation declares tools of the client's, beside those of the request; before all other inputs."""

    tools: Sequence[JsonObject]


@dataclass(frozen=True, slots=True)
class Started:
    """It starts. `budget` is how many tokens it may sample in all its turns; None: as many as the model gives."""

    mode: Mode = Mode.ANSWER
    budget: int | None = None


@dataclass(frozen=True, slots=True)
class TurnBegan:
    """A generation was asked for; its prompt has `prompt_tokens` tokens."""

    prompt_tokens: int


@dataclass(slots=True)  # not frozen: there is one a token, and a frozen one takes four times as long to make
class Sampled:
    """What the model sampled since the last chunk. `finish` comes with the last one of a turn."""

    token_ids: Sequence[int]
    finish: FinishReason | None = None
    cached_tokens: int | None = None
    logprobs: Sequence[TokenLogprob] | None = None


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The prompt of a warm-up lies in the engine's prefix cache, or does not: it is done either way."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """The summary is sealed. `budget` is what the answer behind it may sample."""

    text: str
    budget: int | None = None


@dataclass(frozen=True, slots=True)
class ToolReturned:
    """A tool of this server gave something back, or failed; `text` is what the model reads of it."""

    text: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """Something broke; `error` is what clients see, `{code, message}`."""

    error: JsonObject


@dataclass(frozen=True, slots=True)
class Stopped:
    """Somebody ends it."""

    reason: StopReason


@dataclass(frozen=True, slots=True)
class Ended:
    """Its end is kept, at `at` (Unix seconds). With `error` it could not be kept, and so has failed."""

    at: int
    error: JsonObject | None = None


Input = (
    Declared | Enqueued | Started | TurnBegan | Sampled | Prefilled | Sealed | ToolReturned | Failed | Stopped | Ended
)  # in the order of a response's life
