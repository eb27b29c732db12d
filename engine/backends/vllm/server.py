"""Tokens in and tokens out over HTTP, to one or several running vLLM servers that serve the same model."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from uuid import uuid4

import aiohttp

from engine.backends.base import CheckingEngine, OptionReader, load_vocabulary, room
from engine.backends.client import Refusal, ServerClient, Timeouts, open_session, unless
from engine.backends.vllm.pictures import Expansions
from engine.backends.vllm.pool import ReplicaPool
from engine.backends.vllm.pool_weights import PoolWeights, versions_of
from engine.backends.vllm.replica import ANY_TOKEN, Replica, ReplicaFailed, ReplicaService
from engine.backends.vllm.routers import NO_ROUTER, Router, router_of
from engine.backends.vllm.server_lists import ServerList, as_source, named_servers
from engine.errors import (
    EngineConfigurationError,
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    GenerationCut,
    GenerationFailed,
    GrammarRefused,
    TurnEnded,
    WeightsNotServed,
)
from engine.formats.harmony.prompt import generation_start
from engine.types import (
    NO_SESSION,
    UNKNOWN,
    ChatPrompt,
    EngineInfo,
    FinishReason,
    GenerationRequest,
    SamplingOptions,
    Session,
    TokenChunk,
    TurnGrammar,
)
from engine.weights import ENDED

logger = logging.getLogger("respsite.engine")

CONNECT_SECONDS = 5.0  # seconds, for a connection
SILENCE_SECONDS = 120.0  # seconds without a byte: queueing and prefill count
LOOK_SECONDS = 0.75  # between two looks at a server
REFRESH_SECONDS = 5.0  # between two looks at a list that may change
MAX_CONNECTIONS = 4096  # generations that run at once, over all servers; each has a connection of its own
MAX_ENDINGS = 64  # sessions whose end a router is told at a time; the end of one more is not told
MAX_FAILED = 3  # servers that a request may break on before its first token: it may be what breaks them
KNOWN = (
    *("urls", "api_key", "harmony", "connect_seconds", "silence_seconds", "health_seconds", "refresh_seconds"),
    *("max_connections", "kv_transfer", "router", "router_objective", "router_fairness", "max_model_len"),
)


class VllmServerEngine(CheckingEngine):
    """Several vLLM servers, the same model on each; `ReplicaChoice` says which of them a request goes to.

    Options: `urls` (see `server_lists`), `api_key`, `harmony` (off: the model is not a gpt-oss), `connect_seconds` (for
    a connection, and for an answer that generates nothing), `silence_seconds` (a generation that sends no byte for so
    long has failed: queueing and prefill count), `health_seconds` (between two looks at each server),
    `refresh_seconds` (between two looks at a list of servers that may change), `max_connections`, `kv_transfer` (on:
    the servers have a connector for caches, and may be told by whoever asks where to read them), `router` (what stands
    before the servers; `router_objective` and `router_fairness`: see `LlmD`), `max_model_len` (the longest context,
    where `/v1/models` does not say it).
    """

    supports_priority = True
    supports_cache_salt = True
    supports_logprobs = True
    supports_prompt_logprobs = True
    supports_prefill = True

    def __init__(self, *, model: str, options: Mapping[str, object] | None = None) -> None:
        super().__init__(model=model, options=options)
        self._servers = ServerList(())
        self._api_key = ""
        self._timeouts = Timeouts(connect=CONNECT_SECONDS, silence=SILENCE_SECONDS, look=LOOK_SECONDS)
        self._refresh_seconds = REFRESH_SECONDS
        self._harmony = True
        # Where `start()` ran: renderings come from threads, and are sent there.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._max_connections = MAX_CONNECTIONS
        self._router: Router = NO_ROUTER
        self._max_model_len: int | None = None
        self._endings: set[asyncio.Task[None]] = set()  # that tell a router of sessions that are over
        self._expansions = Expansions()
        self._session: aiohttp.ClientSession | None = None
        self._pool: ReplicaPool | None = None
        self.weights: PoolWeights = PoolWeights(self._opened_pool)
        self._started = False
        self._closed = asyncio.Event()  # an event, as a start that waits has to be ended by it

    def check(self) -> None:
        options = OptionReader("The vllm-server engine", self.options, known=KNOWN)
        secret = "ENGINE_URL has a user or a password in it: a key belongs into ENGINE_API_KEY."
        self._servers = ServerList(
            named_servers(
                options,
                self.options.get("urls"),
                as_source,
                secret=secret,
                expected="a list of URLs like http://127.0.0.1:8001",
            )
        )
        self._api_key = options.text("api_key") or ""
        if not (self._api_key.isascii() and self._api_key.isprintable()):
            raise EngineConfigurationError("ENGINE_API_KEY has characters that no HTTP header can carry.")
        self._timeouts = Timeouts(
            connect=options.rate("connect_seconds") or CONNECT_SECONDS,
            silence=options.rate("silence_seconds") or SILENCE_SECONDS,
            look=options.rate("health_seconds") or LOOK_SECONDS,
        )
        self._harmony = self.options.get("harmony") is not False
        self.supports_kv_transfer = self.options.get("kv_transfer", False) is True
        if not isinstance(self.options.get("kv_transfer", False), bool):
            raise options.wrong("kv_transfer", "true or false")
        self._refresh_seconds = options.rate("refresh_seconds") or REFRESH_SECONDS
        self._max_connections = options.whole_number("max_connections", MAX_CONNECTIONS, minimum=1)
        self._max_model_len = options.whole_number("max_model_len", None, minimum=2)
        self._router = router_of(options)

    async def start(self) -> EngineInfo:
        """Reach the servers and find out what they can do; one that answers is enough, the others are watched.

        Raises `EngineConfigurationError` where one of them serves another model, refuses our key or gives no tokens;
        `EngineUnavailable` where none is reached, and once the engine is closed.
        """
        self.check()
        self._require_open()
        self._loop = asyncio.get_running_loop()
        if self._harmony:
            await load_vocabulary()
        self._require_open()
        if self._pool is None:
            self._session = open_session(self._api_key)
            make = partial(self._replica, self._session)
            self._pool = ReplicaPool(self._servers, make, refresh_seconds=self._refresh_seconds)
        pool = self._pool
        await unless(self._closed, pool.inspect(), error=_closed)
        self._require_open()
        pool.watch()
        self._started = True
        # Of those that answered: a grammar that one of them cannot enforce is not to be promised. `generate` asks
        # again.
        self.supports_grammar = all(service.takes_grammars for service in pool.services)
        self.supports_priority = any(service.takes_priorities for service in pool.services)
        self.supports_pictures = not self._harmony and any(service.wire.takes_pictures for service in pool.services)
        return EngineInfo(
            backend="vllm-server",
            model=self.model,
            # The shortest: a chain may go to any of them.
            max_model_len=min(service.max_model_len for service in pool.services),
            detail=_described(pool.replicas),
        )

    def _replica(self, session: aiohttp.ClientSession, url: str, pool: Collection[Replica]) -> Replica:
        return Replica(
            ServerClient(url, session=session, timeouts=self._timeouts),
            model=self.model,
            pool=pool,
            harmony=self._harmony,
            router=self._router,
            max_model_len=self._max_model_len,
        )

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenChunk, None]:
        """Yield what a server samples. One that cannot take the request is skipped for the next."""
        pool, replicas = self._candidates(request.session, kin=request.kin, avoid=request.avoid)
        replicas = _with_weights(request.weights, replicas)
        # Of those that are used now, not of the start: one that came later may take less.
        longest = min(each.service.max_model_len for each in replicas if each.service)
        max_tokens = room(request, longest, added=self._expansions.of(request.pictures))
        if pool.running >= self._max_connections:
            raise EngineOverloaded(f"{self._max_connections} generations run; max_connections allows no more.")
        problem: EngineError = EngineUnavailable("Every vLLM server went away.")
        failed, begun = 0, False
        for replica in replicas:
            service = replica.service
            if service is None or (request.grammar and not service.takes_grammars):  # it may be lost by now
                continue
            if request.pictures and not service.wire.takes_pictures:
                continue
            try:
                # `aclosing`: leaving in the middle has to close the connection now, which is what aborts in vLLM.
                async with aclosing(self._sample(pool, replica, service, request, max_tokens)) as chunks:
                    async for chunk in chunks:
                        if request.weights:
                            _check_weights(request.weights, chunk, replica, begun=begun)
                        begun = True
                        yield chunk
                return
            except GenerationCut:
                raise
            except (EngineUnavailable, EngineOverloaded, ReplicaFailed, WeightsNotServed) as error:
                # Closing the engine breaks its connections. That is no fault of the server's.
                self._require_open()
                problem = error
                # A full server has not broken, and one with new weights neither: all others are still to be asked.
                failed += not isinstance(error, EngineOverloaded | WeightsNotServed)
            if failed >= MAX_FAILED:
                break
        raise problem

    async def _sample(
        self, pool: ReplicaPool, replica: Replica, service: ReplicaService, request: GenerationRequest, max_tokens: int
    ) -> AsyncGenerator[TokenChunk, None]:
        """Yield what one server samples; raises what its errors mean, as `Replica.explain` does.

        We abort by leaving; a server that says it has aborted something stops (vllm/v1/engine/core.py: at SIGTERM it
        aborts all that runs, unless it was given a `--shutdown-timeout`).
        """
        choice, prompt_tokens, begun, before = pool.choice, len(request.prompt_token_ids), False, replica.versions
        # Before the first await: those who choose meanwhile count it.
        replica.running += 1
        choice.follow(request.kin, replica.client.url)
        try:
            async with aclosing(replica.stream(request, service, max_tokens=max_tokens)) as chunks:
                async for chunk in chunks:
                    self._require_open()
                    _name_weights(chunk, replica, before)
                    if not begun:
                        begun = True
                        # Only now: with its first chunk it has read the prompt, which is in its cache from then on.
                        if not request.session.final:
                            choice.place(request.session.id, replica.client.url)
                    if chunk.finish_reason is FinishReason.ABORT:
                        if chunk.token_ids:
                            yield replace(chunk, finish_reason=None)
                        if replica.ends:
                            raise TurnEnded(ENDED)
                        raise ReplicaFailed(f"{replica} aborted a generation.")
                    if chunk.finish_reason is not None:
                        # Only a whole generation: one that begins and breaks is a failure.
                        replica.circuit.note_success()
                        if chunk.prompt_tokens is not None:
                            self._expansions.learn(request.pictures, chunk.prompt_tokens - prompt_tokens)
                            prompt_tokens = chunk.prompt_tokens
                        choice.measure(request.session.id, replica.client.url, prompt_tokens, chunk.cached_tokens)
                    yield chunk
        except (Refusal, EngineUnavailable, GenerationFailed) as error:
            self._require_open()
            raise replica.explain(error, request, begun=begun) from error
        finally:
            replica.running -= 1

    def end_session(self, session: Session) -> None:
        # One that was never asked for here has nothing here; or another worker's router knows it.
        if self._pool is None or session.shared or not self._pool.choice.forget(session.id):
            return
        # Routers forget by themselves what nobody asks for any more: one that is not told only does so later.
        if self._router.tells_the_end and len(self._endings) < MAX_ENDINGS and not self._closed.is_set():
            task = asyncio.create_task(self._tell_end(session), name="tell the end of a session")
            self._endings.add(task)
            task.add_done_callback(self._endings.discard)

    async def _tell_end(self, session: Session) -> None:
        """Ask for one token in the name of a session, as its last request."""
        request = GenerationRequest(
            request_id=f"session-end-{uuid4().hex}",
            prompt_token_ids=generation_start() if self._harmony else (ANY_TOKEN,),
            sampling=SamplingOptions(max_output_tokens=1, temperature=0.0),
            session=replace(session, final=True),
        )
        try:
            async with aclosing(self.generate(request)) as chunks:
                async for _ in chunks:
                    pass
        except EngineError as error:
            logger.info("a router was not told that a session is over: %s", error)

    async def _compile(self, grammar: TurnGrammar) -> None:
        """Ask for one token. Raises `GrammarRefused` for what is the grammar's fault, and not the server's."""
        try:
            await self._sample_one(grammar, generation_start() if self._harmony else (0,))
        except GenerationFailed as error:
            refusal = error.__cause__
            if isinstance(refusal, Refusal) and refusal.status in (400, 422):
                raise GrammarRefused(f"The engine's server refuses the grammar: {refusal.text}") from error
            raise EngineUnavailable(str(error)) from error  # `CheckingEngine` must not remember it: it may pass

    def render(self, chat: ChatPrompt) -> Sequence[int]:
        """Have a server render a conversation; one that is away is skipped for the next."""
        return self._from_a_thread(lambda replica: replica.rendered(chat))

    def tokenize(self, text: str) -> Sequence[int]:
        return self._from_a_thread(lambda replica: replica.tokenized(text))

    def _from_a_thread(self, ask: Callable[[Replica], Awaitable[Sequence[int]]]) -> Sequence[int]:
        if self._loop is None:
            raise EngineUnavailable("The engine is not started yet.")
        # Blocks this thread until the loop has done it: renderings run on threads (`BaseEngine.render`).
        return asyncio.run_coroutine_threadsafe(self._somewhere(ask), self._loop).result()

    async def _somewhere(self, ask: Callable[[Replica], Awaitable[Sequence[int]]]) -> Sequence[int]:
        problem: EngineError = EngineUnavailable("Every vLLM server went away.")
        for replica in self._candidates(NO_SESSION)[1][:MAX_FAILED]:
            try:
                return await ask(replica)
            except EngineUnavailable as error:
                problem = error
        raise problem

    async def health(self) -> None:
        self._candidates(NO_SESSION)

    def replicas(self) -> Mapping[str, int]:
        return self._pool.states() if self._pool is not None else {}

    async def aclose(self) -> None:
        self._closed.set()
        for task in self._endings:
            task.cancel()
        await asyncio.gather(*self._endings, return_exceptions=True)
        if self._pool is not None:
            await self._pool.aclose(_closed())
        if self._session is not None:
            await self._session.close()

    def _opened_pool(self) -> ReplicaPool:
        """Return the pool, which knows its servers. Raises `EngineUnavailable`."""
        self._require_open()
        if self._pool is None or not self._started:
            raise EngineUnavailable("The engine is not started yet.")
        return self._pool

    def _candidates(self, session: Session, *, kin: str = "", avoid: str = "") -> tuple[ReplicaPool, list[Replica]]:
        """Return the pool, and its servers that are used, the best one first; raises `EngineUnavailable`."""
        pool = self._opened_pool()
        serving = pool.candidates(session, kin=kin, avoid=avoid)
        if not serving:
            raise EngineUnavailable("No vLLM server is in reach.")
        return pool, serving

    def _require_open(self) -> None:
        if self._closed.is_set():
            raise _closed()


def _with_weights(wanted: str, replicas: Sequence[Replica]) -> list[Replica]:
    """Return those whose weights have a version, all for "". Raises `WeightsNotServed` where there is none."""
    found = [each for each in replicas if wanted in ("", each.version)]
    if not found:
        raise WeightsNotServed(wanted, versions_of(replicas))
    return found


def _name_weights(chunk: TokenChunk, replica: Replica, before: int) -> None:
    """Say which weights have sampled a chunk, as far as that is known before the server tells it at the end.

    A server does not go on with new weights before all its clients know of them (`BaseWeights.apply`). So where nothing
    has changed since a generation began, its tokens are of the weights that are known. Behind a change, a chunk may
    still be of the old ones: it was on its way.
    """
    if chunk.weights:
        chunk.weights_version = chunk.weights[-1].version
    elif replica.versions == before:
        chunk.weights_version = replica.version
    else:
        chunk.weights_version, chunk.newest = UNKNOWN, replica.version


def _check_weights(wanted: str, chunk: TokenChunk, replica: Replica, *, begun: bool) -> None:
    """Raise where a server has other weights meanwhile: what it gave before is right, and another one may go on."""
    if chunk.weights_version == wanted or chunk.weights is not None:  # what is told at the end is for who asks to judge
        return
    if begun:
        raise GenerationCut(f"{replica} has other weights now.", at=replica.client.url)
    raise WeightsNotServed(wanted, versions_of([replica]))


def _closed() -> EngineUnavailable:
    return EngineUnavailable("The vllm-server engine is closed.")


def _described(replicas: Sequence[Replica]) -> str:
    """Return for the operator which servers are asked in which way."""
    urls: dict[str, list[str]] = {}
    for replica in replicas:
        if service := replica.service:
            missing = [] if service.takes_priorities else ["takes no priorities"]
            missing += [] if service.takes_grammars else ["no grammars"]
            way = service.wire.path + (f" ({', '.join(missing)})" if missing else "")
            urls.setdefault(way, []).append(replica.client.url)
    serving = sum(map(len, urls.values()))
    ways = "; ".join(f"{way} at {', '.join(at)}" for way, at in urls.items())
    return f"over {ways}" + (f", {serving} of {len(replicas)} servers answer" if len(replicas) > 1 else "")
