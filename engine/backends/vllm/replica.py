"""One of the vLLM servers: what it can do, whether it is there, and what its refusals mean.

`Circuit` says when a server that fails is left alone, and when it is tried again. Pure: times come as arguments.

    closed ──── it is away, or fails MAX_FAILURES times in FAILURE_SECONDS ───> open
       ^                                                                         │
       └──────────────────── a probe of it works (after WAITS) ──────────────────┘

The circuit breaker of M. Nygard, "Release It!" (2007). The waits go on where they were for one that works for a moment
only: with a server that dies 5 s after each start, the probes come after 0, 1, 2, 5, 10, 10, … s.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import uuid4

from engine import orjson
from engine.backends.client import AnswerReader, OutOfReach, Refusal, ServerClient, Silent, shown
from engine.backends.vllm.async_llm import REJECTED
from engine.backends.vllm.pictures import TOO_LONG, KeptPictures, refused
from engine.backends.vllm.routers import NO_ROUTER, Router
from engine.backends.vllm.wire import COMPLETIONS, GENERATE, TokenStream, WholeAnswer, Wire, is_whole
from engine.errors import (
    EngineConfigurationError,
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    GenerationCut,
    GenerationFailed,
    GrammarCut,
    GrammarRefused,
    NotRendered,
    PromptTooLong,
)
from engine.formats.harmony.encoding import END
from engine.formats.harmony.grammar import Special, to_structural_tag
from engine.formats.harmony.prompt import generation_start
from engine.types import ChatPrompt, GenerationRequest, SamplingOptions, TokenChunk, TurnGrammar, TurnRules

MAX_FAILURES = 3  # broken generations in `FAILURE_SECONDS`, after which a server is left alone
FAILURE_SECONDS = 10.0  # how long a failure counts
WAITS = (0.0, 1.0, 2.0, 5.0, 10.0)  # seconds before each probe; the last one repeats
CALM_SECONDS = 30.0  # one that was used for so long begins with the first wait
FIRST_PRIORITY = -1  # lower runs first: what a server can do is found out before anything that waits there
# Renders a conversation by the server's chat template; generates nothing.
RENDER = "/v1/chat/completions/render"
TOKENIZE = "/tokenize"
RENDER_FLAGS = "start it with --enable-scale-out, and without --tokens-only or --skip-tokenizer-init"
FLAGS = "start it with --tokens-only or --enable-scale-out"
CHANGED = (401, 403, 404, 405)  # statuses of a server that is no longer what it was: another key, model, endpoint
# Words in vLLM's refusals of a grammar; it has no code for them.
OF_GRAMMARS = ("structural tag", "structured output", "grammar", "json schema")
FAILED = "Internal server error"  # what a vLLM server says where its engine ended a generation with an error
# There in vLLM's development mode alone.
WEIGHTS = "/weight_info"
RESUME = "/resume"
ANY_TOKEN = 0  # every vocabulary has it
_ANY: dict[str, object] = {"type": "sequence", "elements": [{"type": "token", "token": ANY_TOKEN}]}
ONE_OF_ANY = orjson.dumps({"type": "structural_tag", "format": _ANY}).decode()
ONE_TOKEN = to_structural_tag([Special(END)])  # no model begins with it

logger = logging.getLogger("respsite.engine")


class Circuit:
    """Whether one server is used: open until it was found to work for the first time. Times are in seconds."""

    def __init__(self) -> None:
        self.is_closed = False  # whether it is used
        self._closed_at = 0.0
        # When the last ones were, by the loop's clock; a success clears them.
        self._failures: deque[float] = deque(maxlen=MAX_FAILURES)
        self._probes = 0  # how many were waited for in a row: the place in `WAITS`

    def note_failure(self, now: float) -> bool:
        """Note that it broke a generation; return whether it does so too often."""
        self._failures.append(now)
        return len(self._failures) == MAX_FAILURES and now - self._failures[0] <= FAILURE_SECONDS

    def note_success(self) -> None:
        """Note that a generation came to its end."""
        self._failures.clear()

    def is_suspect(self, now: float) -> bool:
        """Whether it failed just now, and has not worked since."""
        return bool(self._failures) and now - self._failures[-1] <= FAILURE_SECONDS

    def open(self, now: float) -> None:
        """Use it no more until a probe works."""
        if self.is_closed:
            self.is_closed = False
            # One that works for a moment only goes on waiting where it was.
            if now - self._closed_at >= CALM_SECONDS:
                self._probes = 0

    def next_wait(self) -> float:
        """Return how many seconds to wait before the next probe of an open one."""
        wait = WAITS[min(self._probes, len(WAITS) - 1)]
        self._probes += 1
        return wait

    def close(self, now: float) -> None:
        """Use it again: a probe has worked."""
        self.is_closed = True
        self._closed_at = now
        self._failures.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaService:
    """The abilities of a server, as it was found."""

    wire: Wire  # how generations are asked for
    takes_priorities: bool  # else every request is sent as priority 0
    takes_grammars: bool = False  # it has a tokenizer, and was seen to hold a token to a grammar
    max_model_len: int  # prompt and output together


class ReplicaFailed(GenerationFailed):
    """A server broke a generation by a fault of its own: another one may do it."""


class Replica:
    """A server with `model` on it. `running` counts generations on it; `doubted` is set where it is to be looked at.

    `pool` are the servers of its pool, itself among them.
    """

    def __init__(
        self,
        client: ServerClient,
        *,
        model: str,
        pool: Collection["Replica"],
        harmony: bool = True,
        router: Router = NO_ROUTER,
        max_model_len: int | None = None,
    ) -> None:
        self.client = client
        self._router = router  # what stands behind its URL
        self._max_model_len = max_model_len  # the longest context, where the server does not say it
        self.running = 0  # generations, counted by `VllmServerEngine`
        self.circuit = Circuit()  # whether it is used
        self.doubted = asyncio.Event()  # wakes its watcher before the next look is due
        self._service: ReplicaService | None = None  # the last one that was found, kept while the server is away
        self._model = model
        self._harmony = harmony  # else any other token is as good to try it with
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self.problem = ""  # why it is not used, as it was logged last
        self._pictures = KeptPictures()  # what the server has of ours
        self._version: str | None = None
        self.versions = 0  # how often another version of its weights was noted
        self.wanted = ""  # the version that it must have to be used; empty for any
        self.ends = False  # a pause has ended what was running there, not a failure of the server
        self.may_be_paused = False  # it has not confirmed `/resume` after a pause that is over
        self.is_leaving_out = False  # it is about to be paused, while others serve

    def __str__(self) -> str:
        return self.client.name

    @property
    def version(self) -> str | None:
        """The version of its weights, where it tells."""
        return self._version

    @version.setter
    def version(self, version: str | None) -> None:
        """Note the version that it has now."""
        self.versions += version != self._version
        self._version = version

    @property
    def service(self) -> ReplicaService | None:
        """What it can do; None while it is not used."""
        return self._service if self.circuit.is_closed else None

    @property
    def is_suspect(self) -> bool:
        """Whether it broke a generation just now."""
        return self.circuit.is_suspect(self._loop.time())

    @property
    def others_serve(self) -> bool:
        """Whether what it does can go elsewhere: the last one is used for as long as it is there."""
        return any(each.service for each in self._pool if each is not self)

    # What it can do.

    async def inspect(self) -> ReplicaService:
        """Ask the server what it serves, and have it generate one token in each way there is until one works.

        Raises `EngineConfigurationError` where an operator has to change something, `EngineUnavailable` where it may
        pass. vLLM 0.32 takes any priority, whatever its scheduling policy; older ones refuse all but 0 without
        `--scheduling-policy priority`.
        """
        seconds = self.client.timeouts.silence
        try:
            async with asyncio.timeout(seconds):
                max_model_len = await self._find_model()
                if self.client.is_held:
                    raise EngineUnavailable(f"{self} is not used before the pause of the others has ended.")
                await self.ask_version()
                if problem := self.disagreement():
                    raise EngineUnavailable(problem)
                # A pause of it that is over everywhere else ends here: nobody asks for that again. Another one may have
                # begun since that was looked at.
                if self.may_be_paused and not self.client.is_held:
                    with suppress(Refusal):  # it was started anew, perhaps, without doors
                        await self.resume()
                service = await self._find_wire(max_model_len)
                return replace(service, takes_grammars=await self._takes_grammars(service))
        except TimeoutError as error:
            raise EngineUnavailable(f"{self} generated no token within {seconds:g} s.") from error

    async def _find_model(self) -> int:
        """Return the longest context of our model there."""
        status, content = await self.client.get("/v1/models")
        if status in (401, 403):
            raise EngineConfigurationError(
                f"{self} refuses our key with {status}: ENGINE_API_KEY is to be what it was given as --api-key."
            )
        models = _models(content) if status == 200 else None
        if models is None:
            raise EngineUnavailable(f"{self} answers {status} to GET /v1/models, and not like vLLM.")
        if self._model not in models:
            served = shown(", ".join(models)) or "nothing"
            raise EngineConfigurationError(f"{self} does not serve MODEL={self._model}; it serves {served}.")
        longest = models[self._model] or max(filter(None, models.values()), default=None)  # an adapter's own is null
        longest = longest or self._max_model_len
        if longest is None:
            raise EngineConfigurationError(
                f"{self} does not say max_model_len, so it is not a vLLM server. Is it a router? Then set "
                "max_model_len in ENGINE_OPTIONS."
            )
        return longest

    async def ask_version(self) -> None:
        """Ask which weights it has. Raises `EngineUnavailable`."""
        status, content = await self.client.get(WEIGHTS)
        try:
            self.version = str(orjson.loads(content)["weight_version"]) if status == 200 else None
        except (ValueError, LookupError, TypeError):
            self.version = None

    def disagreement(self) -> str:
        """Say that it has other weights than are wanted, and than others that are used; empty where it has not.

        Where no other one has them, it is used as it is: all may have been started anew.
        """
        others_have = any(each.service and each.version == self.wanted for each in self._pool if each is not self)
        if not (self.wanted and self.version != self.wanted and others_have):
            return ""
        return f"{self} has the weights {shown(self.version or 'of an unknown version')}, and others {self.wanted}."

    async def resume(self) -> None:
        """Have it sample again. Raises `EngineUnavailable`, `Refusal`."""
        self.may_be_paused = True
        await self.client.post(RESUME, b"{}", seconds=self.client.timeouts.connect, is_repeatable=True)
        self.may_be_paused = False

    async def _find_wire(self, max_model_len: int) -> ReplicaService:
        """Return the first way in which the server generates a token."""
        # The one made for tokens first. With each, a low priority first: a refusal of it says that priorities are not
        # taken.
        for wire in (GENERATE, COMPLETIONS):
            for priority in (FIRST_PRIORITY, 0):
                service = ReplicaService(wire=wire, takes_priorities=priority != 0, max_model_len=max_model_len)
                try:
                    await self._try(service, priority)
                except Refusal as refusal:
                    # No such endpoint: no need to try it with another priority.
                    if wire is GENERATE and refusal.status in (403, 404, 405):
                        break
                    # Only 400 and 422 can be about the priority.
                    if priority == 0 or refusal.status not in (400, 422):
                        raise self._no_tokens(wire, refusal) from refusal
                else:
                    return service
        raise AssertionError("the last attempt has worked or raised")

    async def _takes_grammars(self, service: ReplicaService) -> bool:
        """Whether the server holds a token to a grammar that allows one only: it needs a tokenizer for that."""
        grammar = TurnGrammar(TurnRules(), ONE_TOKEN if self._harmony else ONE_OF_ANY)
        try:
            # Where it enforces nothing, the model begins as it likes: with this token it cannot have begun by chance.
            return await self.first_token(service, grammar=grammar) == [END if self._harmony else ANY_TOKEN]
        except (Refusal, GenerationFailed) as error:
            logger.info("%s enforces no grammars: %s", self, error)
            return False

    async def first_token(
        self, service: ReplicaService, *, priority: int = 0, grammar: TurnGrammar | None = None
    ) -> list[int]:
        """Have the server generate one token; raises as `ServerClient.stream()` does."""
        request = GenerationRequest(
            request_id=f"respsite-{uuid4().hex}",
            prompt_token_ids=generation_start() if self._harmony else (ANY_TOKEN,),
            sampling=SamplingOptions(temperature=0.0),
            priority=priority,
            grammar=grammar,
        )
        async with aclosing(self.stream(request, service, max_tokens=1)) as chunks:
            return [token async for chunk in chunks for token in chunk.token_ids]

    async def _try(self, service: ReplicaService, priority: int) -> None:
        try:
            tokens = await self.first_token(service, priority=priority)
        except GenerationFailed as error:
            raise EngineUnavailable(f"{self} gives no token: {error}") from error
        if not tokens:
            raise EngineConfigurationError(f"{self} is too old to give token ids over {service.wire.path}: {FLAGS}.")

    def _no_tokens(self, wire: Wire, refusal: Refusal) -> EngineError:
        if refusal.status == 429 or refusal.status >= 500:
            return EngineUnavailable(f"{self} gives no token over {wire.path}: {refusal}.")
        if wire is GENERATE:
            return EngineConfigurationError(f"{self} refuses to generate a token: {refusal}.")
        return EngineConfigurationError(f"{self} has no endpoint that gives tokens: {FLAGS} ({refusal}).")

    async def rendered(self, chat: ChatPrompt) -> list[int]:
        """Return the prompt of a conversation, by the server's chat template.

        No choice of tools is named: a server takes any but `none` only where it has a tool parser of its own, and with
        that it renders them all the same. Raises `NotRendered`, `PromptTooLong` and `EngineUnavailable`.
        """
        body = {"model": self._model, "messages": chat.messages, "chat_template_kwargs": chat.template_kwargs}
        if chat.tools:
            body |= {"tools": chat.tools, "tool_choice": "none"}
        return await self._tokens(RENDER, body, "token_ids")

    async def tokenized(self, text: str) -> list[int]:
        """Return a text as a whole prompt, by the server's tokenizer. Raises as `rendered` does."""
        return await self._tokens(TOKENIZE, {"model": self._model, "prompt": text}, "tokens")

    async def _tokens(self, path: str, body: Mapping[str, object], field: str) -> list[int]:
        try:
            content = await self.client.post(path, orjson.dumps(body))
            return [int(token) for token in orjson.loads(content)[field]]
        except Refusal as refusal:
            problem = f"{self} answered {refusal}"
            if refusal.status in (400, 422):
                if any(words in refusal.text for words in TOO_LONG) and self.service:
                    longest = self.service.max_model_len
                    # The server does not say how long the prompt was, only that it is too long.
                    raise PromptTooLong(prompt_tokens=longest, max_model_len=longest) from refusal
                raise NotRendered(problem) from refusal
            if refusal.status in CHANGED:
                problem += f": it has no {path}, so {RENDER_FLAGS}"
            raise EngineUnavailable(problem) from refusal
        except (ValueError, LookupError, TypeError) as error:
            raise EngineUnavailable(f"{self} answers {path} not like vLLM 0.32.") from error

    # Generations.

    def stream(
        self, request: GenerationRequest, service: ReplicaService, *, max_tokens: int
    ) -> AsyncGenerator[TokenChunk, None]:
        """Yield what the server samples, over the wire of `service`; raises as `ServerClient.stream()` does."""
        # vLLM refuses any other one without `--scheduling-policy priority`.
        priority = request.priority if service.takes_priorities else 0
        wire, more = service.wire, self._router.fields(request)
        body = partial(wire.body, request, model=self._model, max_tokens=max_tokens, priority=priority, more=more)
        answer = partial(self._answer, request, wire, max_tokens)
        return self._pictures.streamed(request, body, answer) if request.pictures else answer(body())

    def _answer(
        self, request: GenerationRequest, wire: Wire, max_tokens: int, body: bytes
    ) -> AsyncGenerator[TokenChunk, None]:
        top, has_pictures = request.sampling.top_logprobs, len(request.pictures) > 0
        tokens: AnswerReader = (
            WholeAnswer(wire, request.prompt_token_ids, top_logprobs=top, has_pictures=has_pictures)
            if is_whole(request)
            else TokenStream(wire, max_tokens=max_tokens, top_logprobs=top, has_pictures=has_pictures)
        )
        headers = {**request.trace_headers, **self._router.headers(request)}
        return self.client.stream(wire.path, body, tokens, headers=headers)

    def explain(
        self, error: Refusal | EngineUnavailable | GenerationFailed, request: GenerationRequest, *, begun: bool
    ) -> EngineError:
        """Return what an error means for a request, and draw the consequences for the server.

        It is `GenerationCut`, `EngineUnavailable`, `EngineOverloaded` or `ReplicaFailed` where another server may do
        better.
        """
        # A router may know nothing of a session that is over: that says nothing of how it serves the others.
        if request.session.final:
            return GenerationFailed(f"{self} answered {error}" if isinstance(error, Refusal) else str(error))
        meant = self._meaning(error, request, begun=begun)
        # Something was yielded, so the next server has to go on behind it, and must not begin anew.
        if begun and isinstance(meant, EngineUnavailable | EngineOverloaded | ReplicaFailed):
            cut = GrammarCut if isinstance(meant, GrammarCut) else GenerationCut
            return cut(str(meant), at=self.client.url)
        return meant

    def _meaning(
        self, error: Refusal | EngineUnavailable | GenerationFailed, request: GenerationRequest, *, begun: bool
    ) -> EngineError:
        if isinstance(error, OutOfReach):
            self.lose(str(error))
            return error
        if isinstance(error, EngineUnavailable | GenerationFailed):
            self.note_failure(str(error))
            # A silence may be this request's own (a long queue): it counts against the server, and may go to another
            # one.
            return ReplicaFailed(str(error)) if isinstance(error, Silent) else error
        problem = f"{self} answered {error}"
        if error.status in CHANGED:
            self.lose(problem)
            return EngineUnavailable(problem)
        if request.grammar is not None and error.text == FAILED:
            self.doubted.set()  # nothing is counted against it: where the grammar is at fault, it works
            problem = f"{problem}. {REJECTED}."
            return GrammarCut(problem) if begun else ReplicaFailed(problem)
        # 503 is not among them: a full queue is not a failure.
        if error.status in (500, 502, 504):
            self.note_failure(problem)
        return self._refused(error, problem, len(request.prompt_token_ids))

    def _refused(self, refusal: Refusal, problem: str, prompt_tokens: int) -> EngineError:
        """Return what a refusal means."""
        if refusal.status in (429, 503):  # vLLM's full queue is a 503
            return EngineOverloaded(problem, retry_after=refusal.retry_after or 1)
        if refusal.status in (502, 504):
            return EngineUnavailable(problem, retry_after=refusal.retry_after or 5)
        if refusal.status == 400 and self.service:
            longest = self.service.max_model_len
            if meant := refused(refusal.text, prompt_tokens=prompt_tokens, max_model_len=longest):
                return meant
        if refusal.status in (400, 422) and any(words in refusal.text.lower() for words in OF_GRAMMARS):
            return GrammarRefused(f"The engine's server refuses the grammar: {refusal.text}")
        # What is left of the 4xx is the request's own fault, and the same anywhere.
        return ReplicaFailed(problem) if refusal.status >= 500 else GenerationFailed(problem)

    # Whether it is used.

    def note_failure(self, problem: str) -> None:
        """Count a generation that it broke, and have it looked at; too many, and it is not used until a probe works."""
        # The last one that serves is used on, however often it fails: nothing would be better without it.
        if self.circuit.note_failure(self._loop.time()) and self.others_serve:
            self.lose(problem)
        elif self.circuit.is_closed:
            self.doubted.set()

    def lose(self, problem: str) -> None:
        """Use the server no more until a probe of it works."""
        # Said once: a server that is away fails at every look in the same way.
        if problem != self.problem:
            logger.warning("not used until it is better: %s", problem)
            self.problem = problem
        # One that is away already keeps its place in the waits.
        if self.circuit.is_closed:
            self.circuit.open(self._loop.time())
            self.doubted.set()

    def use(self, service: ReplicaService) -> None:
        """Use the server, as what it turned out to be."""
        self._service, self.problem = service, ""
        self.circuit.close(self._loop.time())


def _models(content: bytes) -> dict[str, int | None] | None:
    """Return `max_model_len` by the names of the served models, None where this is not a list of models."""
    try:
        cards: list[dict[str, Any]] = orjson.loads(content)["data"]
        lengths = {str(card["id"]): card.get("max_model_len") for card in cards}
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    # Booleans, and numbers that cannot be lengths, count as unknown.
    return {name: length if isinstance(length, int) and length > 1 else None for name, length in lengths.items()}
