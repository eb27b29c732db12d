"""An engine that plays completions from a script, for tests, in their process and in real server processes.

A script is a list of `ScriptEntry`, given by a test or read from a JSON file.
"""

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from engine.backends.base import OptionReader
from engine.backends.simulated import PromptTranscript, SimulatedEngine, cut_into_chunks, turn_beginnings
from engine.errors import EngineConfigurationError, EngineOverloaded, EngineUnavailable, GenerationFailed, PromptTooLong
from engine.formats.harmony.encoding import encode_harmony
from engine.formats.harmony.grammar import problem_of_turn
from engine.types import FinishReason, GenerationRequest, RankedToken, TokenChunk, TokenLogprob


class Fault(Enum):
    """The ways in which a generation goes wrong."""

    UNAVAILABLE = "unavailable"
    OVERLOADED = "overloaded"
    FAILED = "failed"
    PROMPT_TOO_LONG = "prompt_too_long"
    CRASH = "crash"  # an exception that no engine raises on purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptEntry:
    """One completion, and when and how it is played."""

    when: str | None = None  # what must occur in the last message of the prompt
    told: str | None = None  # what must occur in what the developer says in the prompt
    asked: str | None = None  # what must occur in what the user says in the prompt
    after_calls: int | None = None  # how many calls the assistant must have made in the prompt
    say: str | None = None  # a transcript of Harmony
    tokens: tuple[int, ...] | None = None  # the same as tokens
    times: int | None = None  # how often it may be played; None: without limit
    chunk_tokens: int = 1  # tokens in each chunk
    delay: float = 0.0  # seconds before each chunk
    finish: FinishReason = FinishReason.STOP
    hang_after: int | None = None  # tokens after which it waits until it is closed, or `wait_for_file` exists
    wait_for_file: Path | None = None
    fault: Fault | None = None
    fault_after: int = 0  # tokens after which it raises `fault`
    cached_tokens: int | None = None  # None: the engine does not tell

    @classmethod
    def read(cls, place: str, value: object) -> "ScriptEntry":
        """Read an entry; `place` is where it stands: `script[0]`.

        Raises `EngineConfigurationError`, which names the place and the field.
        """
        if not isinstance(value, Mapping):
            raise EngineConfigurationError(f"{place} is to be an object, not {type(value).__name__}.")
        options = OptionReader(place, value, known=cls.__slots__)
        finish = options.choice("finish", (FinishReason.STOP.value, FinishReason.LENGTH.value))
        fault = options.choice("fault", tuple(each.value for each in Fault))
        path = options.text("wait_for_file")
        # `OptionReader` wants a default, so those of the fields stand here again.
        entry = cls(
            when=options.text("when"),
            told=options.text("told"),
            asked=options.text("asked"),
            after_calls=options.whole_number("after_calls", None, minimum=0),
            say=options.text("say"),
            tokens=options.token_ids("tokens"),
            times=options.whole_number("times", None, minimum=1),
            chunk_tokens=options.whole_number("chunk_tokens", 1, minimum=1),
            delay=options.seconds("delay"),
            finish=FinishReason(finish) if finish else FinishReason.STOP,
            hang_after=options.whole_number("hang_after", None, minimum=0),
            wait_for_file=Path(path) if path else None,
            fault=Fault(fault) if fault else None,
            fault_after=options.whole_number("fault_after", 0, minimum=0),
            cached_tokens=options.whole_number("cached_tokens", None, minimum=0),
        )
        if entry.say is not None and entry.tokens is not None:
            raise EngineConfigurationError(f"{place} has both say and tokens; it needs one of them.")
        if entry.say is None and entry.tokens is None and entry.fault is None:
            raise EngineConfigurationError(f"{place} needs say, tokens or fault.")
        if entry.wait_for_file is not None and entry.hang_after is None:
            raise EngineConfigurationError(f"{place} has wait_for_file and needs hang_after with it.")
        if entry.fault_after and entry.fault is None:
            raise EngineConfigurationError(f"{place} has fault_after and needs fault with it.")
        return entry

    def fits(self, last: str, transcript: PromptTranscript) -> bool:
        """Whether it is played behind a prompt; `last` is the text of its last message."""
        if self.when is not None and self.when not in last:
            return False
        for text, role in ((self.told, "developer"), (self.asked, "user")):
            if text is not None and not any(text in each.text() for each in transcript.of(role)):
                return False
        if self.after_calls is None:
            return True
        return self.after_calls == sum(message.called is not None for message in transcript.messages)

    def completion(self) -> tuple[int, ...]:
        """Return all tokens of the completion."""
        if self.tokens is not None:
            return self.tokens
        return tuple(encode_harmony(self.say or ""))


def read_script_file(path: Path) -> Sequence[object]:
    """Return the list in a JSON file; raises `EngineConfigurationError`."""
    try:
        script = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EngineConfigurationError(f"The script {path} cannot be read as JSON: {error}.") from error
    if not isinstance(script, list):
        raise EngineConfigurationError(f"The script {path} is to be a list of entries, not {type(script).__name__}.")
    return script


def read_script(script: Sequence[object]) -> list[ScriptEntry]:
    """Read all entries; raises `EngineConfigurationError`."""
    return [ScriptEntry.read(f"script[{index}]", entry) for index, entry in enumerate(script)]


logger = logging.getLogger("respsite.engine")

FILE_POLL_SECONDS = 0.02  # between two looks for the file of `wait_for_file`


@dataclass(slots=True)
class _Part:
    """An entry that was made ready to be played."""

    entry: ScriptEntry
    completion: tuple[int, ...]  # all tokens of the entry
    left: int | None  # how often it still may be played; None: without limit

    def chunks(self, limit: int, *, behind: int = 0) -> Iterator[TokenChunk]:
        """Cut the completion, at its points of interest too, and at `limit` if it is longer.

        It begins `behind` the first tokens, where the turn was cut there and goes on.
        """
        entry, rest = self.entry, self.completion[behind:]
        whole = len(rest) <= limit
        points = (entry.hang_after, entry.fault_after if entry.fault else None)
        return cut_into_chunks(
            rest[:limit],
            chunk_tokens=entry.chunk_tokens,
            finish_reason=entry.finish if whole else FinishReason.LENGTH,
            cached_tokens=entry.cached_tokens,
            also_at=[
                point - behind
                # A point that lies behind the limit is never reached: no chunk begins there.
                for point in points
                if point is not None and point >= behind and (whole or point - behind < limit)
            ],
        )


@dataclass(slots=True)
class _Generation:
    """One generation that runs, for the counters and the journal."""

    request: GenerationRequest
    behind: int = 0  # tokens of the entry that were said before
    sampled: list[int] = field(default_factory=list)  # the tokens that were given so far, for the journal
    ended: bool = False  # counted and written down already


class ScriptedEngine(SimulatedEngine):
    """Plays the first entry of its script that fits the prompt: its last message, its developer, its calls so far.

    Options: `script` (a list of entries, or the path of a JSON file that holds one), `journal` (the path of a file
    that gets a line of JSON for every generation that ended), `max_model_len`, `sees`, `start_seconds`.

    A completion that breaks its request's grammar is refused: no engine that has one would have sampled it.

    Tests in the same process may read `requests`, `running` and `aborted`, and set `available`.
    """

    backend = "scripted"
    supports_priority = True
    supports_cache_salt = True
    supports_logprobs = True
    supports_prompt_logprobs = True
    supports_kv_transfer = True
    supports_grammar = True
    known_options = (*SimulatedEngine.known_options, "journal", "script")

    def __init__(self, *, model: str, options: Mapping[str, object] | None = None) -> None:
        super().__init__(model=model, options=options)
        self.requests: deque[GenerationRequest] = deque(maxlen=1000)  # all that were asked for, refused ones too
        self.running = 0  # generations
        self.aborted = 0  # generations that were closed or cancelled before their last chunk
        self.available = True  # set by tests: whether `health` finds it well
        self._script: str | Sequence[object] = ()  # the path of a file, or the entries themselves
        self._journal: Path | None = None
        self._parts: list[_Part] = []  # the script in its order, once loaded

    async def health(self) -> None:
        """Raise `EngineUnavailable` also while a test wants it so."""
        await super().health()
        if not self.available:
            raise EngineUnavailable("The scripted engine was told to be unavailable.")

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenChunk, None]:
        """Play an entry; raises `GenerationFailed` where none fits."""
        self.requests.append(request)
        limit = await self._admit(request)
        part, behind = self._choose(request)
        if request.grammar is not None:
            entry = part.entry
            cut = entry.finish is FinishReason.LENGTH or entry.fault is not None or entry.hang_after is not None
            problem = problem_of_turn(request.grammar.rules, part.completion, cut=cut)
            if problem is not None:
                logger.error("the script breaks the grammar of its request: %s", problem)
                raise GenerationFailed(f"The script breaks the grammar of its request: {problem}.")
        with self._following(request, behind) as generation:
            for chunk in part.chunks(limit, behind=behind):
                # Before the chunk: `fault_after` 0 fails before anything is said.
                await self._wait_and_fail(part.entry, generation)
                chunk = with_logprobs(chunk, request.sampling.top_logprobs)
                _add_details(chunk, request, first=not generation.sampled)
                generation.sampled.extend(chunk.token_ids)
                if chunk.finish_reason is not None:  # who got the last chunk may forget to close the generator
                    self._end(generation, chunk.finish_reason.value)
                yield chunk

    def _read_options(self, options: OptionReader) -> None:
        super()._read_options(options)
        script = self.options.get("script")
        if not isinstance(script, str | Path | list | tuple):
            raise options.wrong("script", "a list of entries or the path of a JSON file")
        self._script = str(script) if isinstance(script, Path) else script
        if not isinstance(self._script, str):
            read_script(self._script)
        journal = options.text("journal")
        self._journal = Path(journal) if journal else None

    async def _load(self) -> None:
        script = self._script
        if isinstance(script, str):
            script = await asyncio.to_thread(read_script_file, Path(script))
        self._parts = []
        for index, entry in enumerate(read_script(script)):
            completion = entry.completion()
            for name, point in (("hang_after", entry.hang_after or 0), ("fault_after", entry.fault_after)):
                if point > len(completion):
                    raise EngineConfigurationError(
                        f"script[{index}] has {name} {point}, but its completion has {len(completion)} tokens."
                    )
            self._parts.append(_Part(entry, completion, entry.times))

    def _choose(self, request: GenerationRequest) -> tuple[_Part, int]:
        """Return the entry that fits, and how many of its tokens the prompt ends with: a turn that was cut goes on."""
        text, prompt = "", request.prompt_token_ids
        # The earliest beginning first: a turn that was cut may have said several messages already.
        for begin in turn_beginnings(prompt):
            transcript, begun = PromptTranscript(prompt[:begin]), tuple(prompt[begin:])
            last = transcript.last
            text = last.text() if last else ""
            for part in self._parts:
                if part.left != 0 and part.entry.fits(text, transcript):
                    # Fits by its words, but says something else than the prompt: another beginning may fit.
                    if part.completion[: len(begun)] != begun:
                        break
                    part.left = None if part.left is None else part.left - 1
                    return part, len(begun)
        raise GenerationFailed(f"The script has no entry for {text[:80]!r}.")

    async def _wait_and_fail(self, entry: ScriptEntry, generation: _Generation) -> None:
        # In tokens of the entry, whatever the prompt has of them already.
        position = generation.behind + len(generation.sampled)
        await self._pause(entry.delay)
        if position == entry.hang_after:
            path = entry.wait_for_file
            if path is None:
                await self._pause(None)
            while path is not None and not path.exists():
                await self._pause(FILE_POLL_SECONDS)
        if entry.fault is not None and position == entry.fault_after:
            raise self._exception(entry.fault, generation.request)

    def _exception(self, fault: Fault, request: GenerationRequest) -> Exception:
        match fault:
            case Fault.UNAVAILABLE:
                return EngineUnavailable("scripted: unavailable")
            case Fault.OVERLOADED:
                return EngineOverloaded("scripted: overloaded")
            case Fault.FAILED:
                return GenerationFailed("scripted: failed")
            case Fault.PROMPT_TOO_LONG:
                return PromptTooLong(prompt_tokens=len(request.prompt_token_ids), max_model_len=self._max_model_len)
            case Fault.CRASH:
                return RuntimeError("scripted crash: secret detail")

    @contextmanager
    def _following(self, request: GenerationRequest, behind: int) -> Iterator[_Generation]:
        generation = _Generation(request, behind)
        self.running += 1
        outcome = "error"
        try:
            yield generation
        # Closing the generator and cancelling its task are both how a caller aborts.
        except (GeneratorExit, asyncio.CancelledError):
            outcome = FinishReason.ABORT.value
            raise
        finally:
            self._end(generation, outcome)

    def _end(self, generation: _Generation, outcome: str) -> None:
        """Count and write down how a generation ended, once."""
        if generation.ended:
            return
        generation.ended = True
        self.running -= 1
        self.aborted += outcome == FinishReason.ABORT.value
        if self._journal is not None:
            line = {
                "request_id": generation.request.request_id,
                "prompt_tokens": list(generation.request.prompt_token_ids),
                "sampled_tokens": generation.sampled,
                "finish": outcome,
                "priority": generation.request.priority,
                "cache_salt": generation.request.cache_salt,
            }
            if generation.request.pictures:
                line["pictures"] = [picture.digest for picture in generation.request.pictures]
            with self._journal.open("a", encoding="utf-8") as journal:
                journal.write(json.dumps(line) + "\n")


def _add_details(chunk: TokenChunk, request: GenerationRequest, *, first: bool) -> None:
    """Add made-up log probabilities of the prompt, -0.25 for a token and 1 less for each alternative, and give back the
    request's `kv_transfer_params`.
    """
    top = request.sampling.prompt_logprobs
    if top is not None and first:
        tokens = request.prompt_token_ids
        chunk.prompt_logprobs = [None, *(_ranked(token, top) for token in tokens[1:])]
    if chunk.finish_reason is not None:
        chunk.kv_transfer_params = request.kv_transfer_params


def _ranked(token: int, top: int) -> tuple[RankedToken, ...]:
    # Made-up alternatives are the ids below; 0 is the least that an id can be.
    return tuple(RankedToken(max(0, token - place), -0.25 - place, place + 1) for place in range(max(1, top)))


def with_logprobs(chunk: TokenChunk, top: int | None) -> TokenChunk:
    """Add made-up log probabilities, if any are asked for: -0.25 for a token, 1 less for each alternative to it."""
    if top is None:
        return chunk
    chunk.logprobs = [
        TokenLogprob(token, -0.25, tuple([(max(0, token - place), -0.25 - place) for place in range(top)]))
        for token in chunk.token_ids
    ]
    return chunk
