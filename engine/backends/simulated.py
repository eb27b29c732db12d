"""The common parts of engines without a model: starting, closing, chunks of an answer, and prompts read into messages.

Messages are found by token id, so text that merely looks like `<|start|>` cannot pass for one; text is decoded only
when somebody asks for it.
"""

import asyncio
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar

from engine.backends.base import BaseEngine, OptionReader, load_vocabulary, room
from engine.errors import EngineUnavailable
from engine.formats.base import PicturePart
from engine.formats.harmony.encoding import (
    END,
    END_TOKENS,
    FINAL,
    FUNCTIONS,
    MESSAGE,
    START,
    decode_tokens,
    encode_text,
)
from engine.formats.harmony.parser import parse_header
from engine.formats.harmony.prompt import content_parts, places_of
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
        super().__init__(model=model, options=options)
        # Now and not in `check()`: a model's format is made of it before.
        self.supports_pictures = self.options.get("sees", self.sees) is True
        self._max_model_len = DEFAULT_MAX_MODEL_LEN
        self._start_seconds = 0.0
        self._started = False
        self._closed = asyncio.Event()  # an event, so that a long pause ends with it

    def check(self) -> None:
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
        self._require_open()
        if not self._started:
            raise EngineUnavailable(f"The {self.backend} engine is not started yet.")

    async def aclose(self) -> None:
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


MAX_BEGINNINGS = 8  # messages of one turn that are looked at

IMAGE = "[image]"
_SPEAKERS = ("system", "developer", "user", "assistant")  # every other role is a tool
# The author: what stands before the first space or special token of a header, `functions.f` in `functions.f to=…`.
_ROLE = re.compile(r"[^\s<]*")


def turn_beginnings(token_ids: Sequence[int]) -> list[int]:
    """Return where the turn that this prompt asks for may begin, the earliest first; the prompt's end is the usual one.

    A turn that was cut is gone on with by a prompt that ends with what it has said so far. That may be several messages
    of the assistant, so the turn may begin behind any `<|start|>assistant` that only such messages follow.
    """
    assistant = encode_text("assistant")
    begins: list[int] = []
    position = len(token_ids)
    while position > 0 and len(begins) < MAX_BEGINNINGS:
        position -= 1
        if token_ids[position] != START:
            continue
        # Behind `<|start|>assistant`: one token, and those of the name.
        begin = position + 1 + len(assistant)
        role = list(token_ids[position + 1 : begin])
        if begin > len(token_ids) and role == list(assistant[: len(role)]):
            continue  # it was cut in this header, so it began before
        if role != list(assistant):
            break
        begins.append(begin)
    return begins[::-1] or [len(token_ids)]


@dataclass(frozen=True, slots=True)
class TranscriptMessage:
    """One message of a prompt."""

    header: str  # between `<|start|>` and `<|message|>`, special tokens as text
    token_ids: Sequence[int]  # of the whole prompt
    content_begin: int  # where its text begins in the prompt
    content_end: int  # one behind its last token of text

    @property
    def role(self) -> str:
        """Return who wrote it: `user`, `developer`, `assistant`, `functions.NAME`."""
        role = _ROLE.match(self.header)
        return role[0] if role else ""

    @property
    def output_of(self) -> str | None:
        """Return the name of the tool whose output this is, without the namespace of the client's functions."""
        role = self.role
        return role.removeprefix(FUNCTIONS) if role and role not in _SPEAKERS else None

    @property
    def called(self) -> str | None:
        """Return the name of the tool that the assistant calls with this message, named as in `output_of`."""
        recipient = parse_header(self.header).recipient if self.role == "assistant" else None
        return recipient.removeprefix(FUNCTIONS) if recipient else None

    @property
    def is_final(self) -> bool:
        """Return whether it is an answer of the assistant."""
        return self.role == "assistant" and parse_header(self.header).channel == FINAL

    def text(self) -> str:
        """Decode the content, with `IMAGE` for each picture."""
        return "".join(part if isinstance(part, str) else IMAGE for part in self._parts())

    def pictures(self) -> list[str]:
        """Return the digests of its pictures."""
        return [part.digest for part in self._parts() if not isinstance(part, str)]

    def _parts(self) -> Sequence[str | PicturePart]:
        return content_parts(self.token_ids[self.content_begin : self.content_end])


class PromptTranscript:
    """The messages of a prompt; the one it ends with, which the model is to write, is left out."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        """Find where messages begin and which are the user's; nothing else is read before somebody asks."""
        self._token_ids = token_ids
        # Where each message begins, and where the next one does; the last one ends with the prompt.
        self._bounds = list(pairwise([*places_of(START, token_ids), len(token_ids)]))
        if self._bounds and token_ids[-1] not in END_TOKENS:  # the message that the model is to go on with
            self._bounds.pop()
        self._user_positions = self._positions_of("user")

    @property
    def messages(self) -> tuple[TranscriptMessage, ...]:
        """Return all messages."""
        return tuple(self._read(range(len(self._bounds))))

    @property
    def last(self) -> TranscriptMessage | None:
        """Return the last message."""
        return next(self._read(reversed(range(len(self._bounds)))), None)

    @property
    def user_messages(self) -> int:
        """Count the messages of the user."""
        return len(self._user_positions)

    @property
    def last_user(self) -> TranscriptMessage | None:
        """Return the last message of the user."""
        return next(self._read(self._user_positions[-1:]), None)

    def of_user(self) -> Iterator[TranscriptMessage]:
        """Yield the messages of the user."""
        return self._read(self._user_positions)

    def since_last_user(self) -> tuple[TranscriptMessage, ...]:
        """Return the messages after the last one of the user, those that only repeat it left out.

        Some clients send it again with the outputs of the calls that came of it.
        """
        place = len(self._user_positions) - 1
        while place > 0 and self._repeats(place):
            place -= 1
        after = self._user_positions[place] + 1 if self._user_positions else 0
        return tuple(self._read(range(after, len(self._bounds))))

    def _repeats(self, place: int) -> bool:
        """Whether one of the user's messages begins no turn.

        The last turn has made calls and has not answered, and the message says the same again, or stands before an
        output of such a call.
        """
        before, position = self._user_positions[place - 1 : place + 1]
        between = tuple(self._read(range(before + 1, position)))
        if not any(message.called for message in between) or any(message.is_final for message in between):
            return False
        follows = next(self._read(range(position + 1, min(position + 2, len(self._bounds)))), None)
        if follows is not None and follows.output_of is not None:
            return True
        earlier, later = self._read((before, position))
        return earlier.text() == later.text()

    def with_user(self, message: TranscriptMessage, text: str) -> "PromptTranscript":
        """Return it with a message of the user in place of all from the user's last one up to `message`."""
        begin = self._bounds[self._user_positions[-1]][0] if self._user_positions else 0
        end = next(end for start, end in self._bounds if start < message.content_begin <= end)
        said = [START, *encode_text("user"), MESSAGE, *encode_text(text), END]
        return PromptTranscript([*self._token_ids[:begin], *said, *self._token_ids[end:]])

    def of(self, role: str) -> Iterator[TranscriptMessage]:
        """Yield the messages of the system, or of the developer."""
        return self._read(self._positions_of(role))

    def _positions_of(self, role: str) -> list[int]:
        # Compared as tokens: nothing has to be decoded to find who wrote a message.
        header = [*_role_tokens(role), MESSAGE]
        size = len(header) + 1
        return [
            position
            for position, (start, _) in enumerate(self._bounds)
            if list(self._token_ids[start + 1 : start + size]) == header
        ]

    def _read(self, positions: Iterable[int]) -> Iterator[TranscriptMessage]:
        for position in positions:
            start, end = self._bounds[position]
            try:
                message = self._token_ids.index(MESSAGE, start, end)
            except ValueError:
                continue  # a header without a message
            header = _header_text(tuple(self._token_ids[start + 1 : message]))
            # A message may lack its end: one that was cut, and that another one follows.
            ended = self._token_ids[end - 1] in END_TOKENS
            yield TranscriptMessage(header, self._token_ids, message + 1, end - 1 if ended else end)


@lru_cache(maxsize=4)
def _role_tokens(role: str) -> tuple[int, ...]:
    return tuple(encode_text(role))


@lru_cache(maxsize=1024)  # roles, channels and the names of functions: a handful in use
def _header_text(token_ids: tuple[int, ...]) -> str:
    return decode_tokens(token_ids)
