"""Tokens in and tokens out over HTTP, to one or several running vLLM servers that serve the same model."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from hashlib import blake2b
from typing import Any
from uuid import uuid4

import aiohttp
from yarl import URL

from engine.backends.base import BaseEngine
from engine.backends.grammar_checks import GrammarChecks
from engine.backends.options import OptionReader
from engine.backends.vllm_client import Timeouts, VllmClient, open_session
from engine.backends.vllm_replica import Replica, Service
from engine.backends.vllm_wire import Refusal
from engine.errors import (
    EngineConfigurationError,
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    GenerationFailed,
    PromptTooLong,
)
from engine.formats.harmony.encoding import load_encoding
from engine.formats.harmony.prompt import generation_start
from engine.grammar import TurnGrammar
from engine.types import EngineInfo, GenerationRequest, SamplingOptions, TokenChunk

CONNECT_SECONDS = 5.0
SILENCE_SECONDS = 120.0
MAX_CONNECTIONS = 4096  # generations that run at once, over all servers; each has a connection of its own


class VllmServerEngine(BaseEngine):
    """Several vLLM servers, the same model on each; a request's `affinity` says which of them it goes to.

    Options: `urls` (without `/v1`), `api_key`, `connect_seconds` (for a connection, and for an answer that generates
    nothing), `silence_seconds` (a generation that sends no byte for so long has failed: queueing and prefill count),
    `max_connections`.
    """

    supports_priority = True
    supports_cache_salt = True
    supports_logprobs = True
    supports_prefill = True

    def __init__(self, *, model: str, options: Mapping[str, object] | None = None) -> None:
        """Keep the options; `check()` and `start()` read them."""
        super().__init__(model=model, options=options)
        self._urls: tuple[str, ...] = ()
        self._api_key = ""
        self._timeouts = Timeouts(connect=CONNECT_SECONDS, silence=SILENCE_SECONDS)
        self._max_connections = MAX_CONNECTIONS
        self._session: aiohttp.ClientSession | None = None
        self._replicas: tuple[Replica, ...] = ()
        self._watchers: list[asyncio.Task[None]] = []
        self._grammars = GrammarChecks(self._try_grammar)
        self._started = False
        self._closed = asyncio.Event()

    def check(self) -> None:
        """Raise `EngineConfigurationError` for an unknown option or a wrong value."""
        known = ("urls", "api_key", "connect_seconds", "silence_seconds", "max_connections")
        options = OptionReader("The vllm-server engine", self.options, known=known)
        self._urls = _urls(options, self.options.get("urls"))
        self._api_key = options.text("api_key") or ""
        if not (self._api_key.isascii() and self._api_key.isprintable()):
            raise EngineConfigurationError("ENGINE_API_KEY has characters that no HTTP header can carry.")
        self._timeouts = Timeouts(
            connect=options.rate("connect_seconds") or CONNECT_SECONDS,
            silence=options.rate("silence_seconds") or SILENCE_SECONDS,
        )
        self._max_connections = options.whole_number("max_connections", MAX_CONNECTIONS, minimum=1)

    async def start(self) -> EngineInfo:
        """Reach the servers and find out what they can do; one that answers is enough, the others are watched.

        Raises `EngineConfigurationError` where one of them serves another model, refuses our key or gives no tokens;
        `EngineUnavailable` where none is reached, and once the engine is closed.
        """
        self.check()
        self._require_open()
        await asyncio.to_thread(load_encoding)  # 1.4 s the first time in a process
        self._require_open()
        if self._session is None:
            self._session = open_session(self._api_key)
            clients = [VllmClient(url, session=self._session, timeouts=self._timeouts) for url in self._urls]
            self._replicas = tuple(Replica(client, model=self.model) for client in clients)
        await self._unless_closed(self._inspect())
        self._require_open()
        self._watchers = [
            asyncio.create_task(replica.watch(), name=f"watch {replica.client.url}") for replica in self._replicas
        ]
        self._started = True
        services = [replica.service for replica in self._replicas if replica.service]
        self.supports_grammar = all(service.takes_grammars for service in services)
        self.supports_priority = any(service.takes_priorities for service in services)
        return EngineInfo(
            backend="vllm-server",
            model=self.model,
            max_model_len=min(service.max_model_len for service in services),
            detail=_described(self._replicas),
        )

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenChunk, None]:
        """Yield what a server samples. One that cannot take the request is skipped for the next."""
        replicas = self._candidates(request.affinity)
        max_tokens = _max_tokens(request, replicas)
        if sum(replica.running for replica in self._replicas) >= self._max_connections:
            raise EngineOverloaded(f"{self._max_connections} generations run; max_connections allows no more.")
        problem: EngineError = EngineUnavailable("Every vLLM server went away.")
        for replica in replicas:
            service, begun = replica.service, False
            if service is None or (request.grammar and not service.takes_grammars):  # it may be lost by now
                continue
            replica.running += 1
            try:
                async with aclosing(replica.stream(request, service, max_tokens=max_tokens)) as chunks:
                    async for chunk in chunks:
                        self._require_open()
                        begun = True
                        yield chunk
                return
            except (Refusal, EngineUnavailable, GenerationFailed) as error:
                self._require_open()
                problem = replica.explain(error, request, begun=begun)
            finally:
                replica.running -= 1
            if begun or not isinstance(problem, EngineUnavailable | EngineOverloaded):
                break
        raise problem

    async def check_grammar(self, grammar: TurnGrammar) -> None:
        """Have a server compile a grammar, once: it keeps what it has compiled."""
        await self._grammars.check(grammar)

    async def _try_grammar(self, grammar: TurnGrammar) -> None:
        """Ask for one token."""
        request = GenerationRequest(
            request_id=f"grammar-{uuid4().hex}",
            prompt_token_ids=generation_start(),
            sampling=SamplingOptions(max_output_tokens=1),
            affinity=grammar.structural_tag,
            grammar=grammar,
        )
        async with aclosing(self.generate(request)) as chunks:
            async for _ in chunks:
                pass

    async def health(self) -> None:
        """Return while a server is there, else raise `EngineUnavailable`."""
        self._candidates("")

    async def aclose(self) -> None:
        """End what runs with `EngineUnavailable`, and close every connection."""
        self._closed.set()
        for watcher in self._watchers:
            watcher.cancel()
        if self._watchers:
            await asyncio.wait(self._watchers)
        for replica in self._replicas:
            replica.client.end_streams(_closed())
        if self._session is not None:
            await self._session.close()

    def _candidates(self, affinity: str) -> list[Replica]:
        """Return the servers that are there, the best one first.

        By rendezvous hashing of `affinity`: each server scores every affinity, and the highest score wins, so that a
        server that goes or comes moves only what it had or gets. Without an affinity the least busy one is best.
        """
        self._require_open()
        serving = [replica for replica in self._replicas if replica.service]
        if not serving:
            raise EngineUnavailable(
                "No vLLM server is in reach." if self._started else "The engine is not started yet."
            )
        if affinity:
            return sorted(serving, key=lambda replica: _score(replica.client.url, affinity), reverse=True)
        return sorted(serving, key=lambda replica: replica.running)

    async def _inspect(self) -> None:
        """Find out what every server can do. Raises what keeps all of them from serving, or what stops the start."""
        found = await asyncio.gather(*(each.inspect() for each in self._replicas), return_exceptions=True)
        problems = [problem for problem in found if isinstance(problem, BaseException)]
        for problem in problems:
            if not isinstance(problem, EngineUnavailable):
                raise problem
        if len(problems) == len(found):
            raise problems[0]
        for replica, outcome in zip(self._replicas, found, strict=True):
            if isinstance(outcome, BaseException):
                replica.lose(str(outcome))
            else:
                replica.service = outcome

    async def _unless_closed(self, work: Coroutine[Any, Any, None]) -> None:
        """Do some work that ends with `EngineUnavailable` as soon as the engine is closed."""
        working = asyncio.create_task(work)
        closing = asyncio.create_task(self._closed.wait())
        try:
            await asyncio.wait([working, closing], return_when=asyncio.FIRST_COMPLETED)
            self._require_open()
            await working
        finally:
            working.cancel()
            closing.cancel()
            await asyncio.wait([working, closing])
            working.cancelled() or working.exception()  # else asyncio would log an error that nobody asked for

    def _require_open(self) -> None:
        if self._closed.is_set():
            raise _closed()


def _closed() -> EngineUnavailable:
    return EngineUnavailable("The vllm-server engine is closed.")


def _urls(options: OptionReader, given: object) -> tuple[str, ...]:
    """Read where the servers are; a URL given twice is one server."""
    if not isinstance(given, list | tuple) or not given or not all(_is_url(url) for url in given):
        raise options.wrong("urls", "a list of URLs like http://127.0.0.1:8001")
    if any(URL(url).user is not None or URL(url).password is not None for url in given):
        raise EngineConfigurationError("ENGINE_URL has a user or a password in it: a key belongs into ENGINE_API_KEY.")
    return tuple(dict.fromkeys(url.rstrip("/") for url in given))


def _is_url(given: object) -> bool:
    if not isinstance(given, str):
        return False
    try:
        url = URL(given)
        return url.scheme in ("http", "https") and bool(url.host) and url.port is not None and not url.query_string
    except ValueError:
        return False


def _score(url: str, affinity: str) -> bytes:
    return blake2b(f"{url} {affinity}".encode(errors="surrogatepass"), digest_size=8).digest()


def _max_tokens(request: GenerationRequest, replicas: list[Replica]) -> int:
    """Return how many tokens a generation may have on any of these servers; raises `PromptTooLong`."""
    max_model_len = min(replica.service.max_model_len for replica in replicas if replica.service)
    room = max_model_len - len(request.prompt_token_ids)
    if room < 1:
        raise PromptTooLong(prompt_tokens=len(request.prompt_token_ids), max_model_len=max_model_len)
    wanted = request.sampling.max_output_tokens
    return room if wanted is None else min(room, wanted)


def _described(replicas: tuple[Replica, ...]) -> str:
    """Return for the operator which servers are asked in which way."""
    urls: dict[str, list[str]] = {}
    for replica in replicas:
        if replica.service:
            urls.setdefault(_way(replica.service), []).append(replica.client.url)
    serving = sum(map(len, urls.values()))
    ways = "; ".join(f"{way} at {', '.join(at)}" for way, at in urls.items())
    return f"over {ways}" + (f", {serving} of {len(replicas)} servers answer" if len(replicas) > 1 else "")


def _way(service: Service) -> str:
    missing = [
        what
        for what, there in (("takes no priorities", service.takes_priorities), ("no grammars", service.takes_grammars))
        if not there
    ]
    return service.wire.path + (f" ({', '.join(missing)})" if missing else "")
