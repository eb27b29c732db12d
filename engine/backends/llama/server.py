"""Tokens in and tokens out over HTTP, to a running llama-server (llama.cpp).

It takes no grammars. llama.cpp ends a grammar with a token that ends a text, whichever it is, and lets a rule about
characters match the name of a special token (`llama_grammar_apply_impl` in src/llama-grammar.cpp): what a format's
grammar forbids could be sampled.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp

from engine import orjson
from engine.backends.base import BaseEngine, OptionReader, load_vocabulary, room
from engine.backends.client import Refusal, ServerClient, Silent, Timeouts, open_session, shown, unless
from engine.backends.llama import wire
from engine.backends.model_folder import read_vocabulary
from engine.backends.vllm.server_lists import as_part, named_servers
from engine.errors import (
    EngineConfigurationError,
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    GenerationCut,
    GenerationFailed,
    NotRendered,
)
from engine.formats.harmony.encoding import SPECIAL_TOKENS, token_bytes
from engine.threads import in_thread
from engine.types import ChatPrompt, EngineInfo, FinishReason, GenerationRequest, TokenChunk, TokenLogprob

MAX_TRIED = 8  # special tokens whose ids are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaService:
    """A server, as it was found."""

    model: str  # as the server calls it
    max_model_len: int  # prompt and output together, in each slot
    slots: int  # generations that it runs at once
    tokens: int  # of its vocabulary


async def inspect(client: ServerClient, special: Mapping[str, int], *, is_harmony: bool) -> LlamaService:
    """Ask the server what it serves. `special` are tokens that the model is known by, with their ids.

    Raises `EngineConfigurationError` where an operator has to change something, `EngineUnavailable` where it may pass.
    """
    props = await _asked(client, "/props")
    models = await _asked(client, "/v1/models")
    try:
        (card,) = models["data"]
        service = LlamaService(
            model=str(card["id"]),
            max_model_len=int(props["default_generation_settings"]["n_ctx"]),
            slots=int(props["total_slots"]),
            tokens=int(card["meta"]["n_vocab"]),
        )
    except (LookupError, TypeError, ValueError) as error:
        raise EngineConfigurationError(
            f"{client.name} does not say which model it serves, as llama-server with -m or -hf does."
        ) from error
    await _compare(client, special, service, is_harmony=is_harmony)
    return service


async def _compare(
    client: ServerClient, special: Mapping[str, int], service: LlamaService, *, is_harmony: bool
) -> None:
    """Raise `EngineConfigurationError` where the server's tokens are not ours."""
    for name, token in list(special.items())[:MAX_TRIED]:
        body = orjson.dumps({"content": name, "add_special": False, "parse_special": True})
        try:
            tokens = orjson.loads(await client.post("/tokenize", body))["tokens"]
        except Refusal as refusal:
            raise EngineUnavailable(f"{client.name} answered {refusal}") from refusal
        except (LookupError, TypeError, ValueError) as error:
            raise EngineUnavailable(f"{client.name} answers /tokenize not like llama.cpp.") from error
        if tokens == [token]:
            continue
        if is_harmony:
            raise EngineConfigurationError(
                f"{client.name} serves {service.model}, which is no gpt-oss: set MODEL_FORMAT=chat-template, and "
                "TOKENIZER to the folder of its tokenizer."
            )
        raise EngineConfigurationError(
            f"{client.name} serves {service.model}, and TOKENIZER is of another model: {name} is the token {token} "
            "there alone."
        )


async def _asked(client: ServerClient, path: str) -> dict[str, Any]:
    status, content = await client.get(path)
    if status in (401, 403):
        raise EngineConfigurationError(
            f"{client.name} refuses our key with {status}: ENGINE_API_KEY is to be what it was given as --api-key."
        )
    error: EngineError = EngineUnavailable(f"{client.name} answers {status} to GET {path}: {shown(content)}")
    if status != 200:
        raise error
    try:
        said = orjson.loads(content)
    except ValueError:
        raise error from None
    if not isinstance(said, dict):
        raise error
    return said


CONNECT_SECONDS = 5.0  # for a connection, and for an answer that generates nothing
SILENCE_SECONDS = 120.0  # without a byte; while it reads a prompt, the server sends one every few seconds
LOOK_SECONDS = 2.0  # for the answer to how it is
MAX_CONNECTIONS = 256  # generations that run or wait in the server at once
PINGS = 4  # signs of life in the time that is waited for one
FEW = 8  # tokens that are asked for in one answer, where a stream has left some out
KNOWN = ("urls", "api_key", "tokenizer", "connect_seconds", "silence_seconds", "max_connections")
TOO_LONG = "exceed"  # in llama.cpp's words about a prompt that does not fit


class LlamaServerEngine(BaseEngine):
    """One llama-server.

    Options: `urls` (one), `api_key`, `tokenizer` (the folder of the model's tokenizer; without one it is a gpt-oss),
    `connect_seconds` (for a connection, and for an answer that generates nothing), `silence_seconds` (a generation that
    sends no byte for so long has failed), `max_connections` (generations that run or wait in the server at once).
    """

    supports_logprobs = True
    supports_prefill = True

    def __init__(self, *, model: str, options: Mapping[str, object] | None = None) -> None:
        super().__init__(model=model, options=options)
        self._url = ""
        self._api_key = ""
        self._tokenizer = ""
        self._timeouts = Timeouts(connect=CONNECT_SECONDS, silence=SILENCE_SECONDS, look=LOOK_SECONDS)
        self._max_connections = MAX_CONNECTIONS
        self._running = 0  # generations
        self._pieces: wire.Pieces | None = None
        self._service: LlamaService | None = None  # what the server turned out to be at the start
        self._doubted = False  # it broke a generation, or did not answer: it may be another one by now
        self._session: aiohttp.ClientSession | None = None
        self._client: ServerClient | None = None
        # Where `start()` ran: renderings come from threads, and are sent there.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = asyncio.Event()

    def check(self) -> None:
        options = OptionReader("The llama-server engine", self.options, known=KNOWN)
        urls = named_servers(
            options,
            self.options.get("urls"),
            as_part,
            secret="ENGINE_URL has a user or a password in it: a key belongs into ENGINE_API_KEY.",
            expected="the URL of one llama-server, like http://127.0.0.1:8080",
        )
        if len(urls) != 1 or not urls[0].startswith("http"):
            raise EngineConfigurationError("ENGINE=llama-server asks one server: ENGINE_URL is to be one URL.")
        self._url = urls[0]
        self._api_key = options.text("api_key") or ""
        if not (self._api_key.isascii() and self._api_key.isprintable()):
            raise EngineConfigurationError("ENGINE_API_KEY has characters that no HTTP header can carry.")
        self._tokenizer = options.text("tokenizer") or ""
        self._timeouts = Timeouts(
            connect=options.rate("connect_seconds") or CONNECT_SECONDS,
            silence=options.rate("silence_seconds") or SILENCE_SECONDS,
            look=LOOK_SECONDS,
        )
        self._max_connections = options.whole_number("max_connections", MAX_CONNECTIONS, minimum=1)

    async def start(self) -> EngineInfo:
        """Reach the server and find out what it serves.

        Raises `EngineConfigurationError` where it refuses our key or serves another model than the tokenizer's;
        `EngineUnavailable` where it is away or loads its model, and once the engine is closed.
        """
        self.check()
        self._require_open()
        self._loop = asyncio.get_running_loop()
        service = await unless(self._closed, self._start(), error=_closed)
        self._service = service
        return EngineInfo(
            backend="llama-server",
            model=service.model,
            max_model_len=service.max_model_len,
            detail=f"{service.slots} at once at {self._url}",
            at_once=service.slots,
        )

    async def _start(self) -> LlamaService:
        special: Mapping[str, int] = {}
        if self._tokenizer:
            vocabulary = await in_thread(partial(read_vocabulary, self._tokenizer))
            special = vocabulary.added
            ordinary = [each for each in range(len(vocabulary.pieces)) if each not in vocabulary.special]
            self._pieces = await in_thread(partial(wire.Pieces.of, ordinary, vocabulary.token_bytes))
        else:
            await load_vocabulary()
            special = {token_bytes(token).decode(): token for token in SPECIAL_TOKENS}
            self._pieces = await in_thread(partial(wire.Pieces.of, range(SPECIAL_TOKENS.start), token_bytes))
        self._require_open()
        if self._session is None:
            # It may close a connection behind any answer, without a word of it.
            self._session = open_session(self._api_key, keeps_connections=False)
            self._client = ServerClient(self._url, session=self._session, timeouts=self._timeouts, kind="llama-server")
        return await inspect(self._reached(), special, is_harmony=not self._tokenizer)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenChunk, None]:
        """Yield what the server samples.

        Where a stream has left tokens out, it goes on behind what is known (`pieces`).
        """
        service, pieces = await self._serving()
        turn = wire.LlamaTurn(request, room(request, service.max_model_len))
        # Refuse a bias of a token that is none: llama.cpp would leave it out.
        strange = [token for token in request.sampling.logit_bias or () if int(token) >= service.tokens]
        if strange:
            raise GenerationFailed(
                f"The model has no token {strange[0]}, which logit_bias names; it has {service.tokens}."
            )
        if self._running >= self._max_connections:
            raise EngineOverloaded(f"{self._max_connections} generations run; max_connections allows no more.")
        self._running += 1
        try:
            while not turn.is_over():
                try:
                    # `aclosing`: leaving in the middle has to close the connection now, which is what ends it there.
                    async with aclosing(self._stream(turn, pieces, service.tokens)) as chunks:
                        async for chunk in chunks:
                            taken = turn.take(chunk)
                            if taken is not None:
                                yield taken
                            if turn.is_over():
                                break
                except wire.TokensLeftOut as left_out:
                    taken = await self._behind(turn, left_out.tokens, pieces)
                    if taken is not None:
                        yield taken
                except (Refusal, EngineUnavailable, GenerationFailed) as error:
                    self._require_open()
                    raise self._explained(error, begun=len(turn.tokens) > 0) from error
        finally:
            self._running -= 1

    async def _stream(
        self, turn: wire.LlamaTurn, pieces: wire.Pieces, vocabulary: int
    ) -> AsyncGenerator[TokenChunk, None]:
        """Yield what the server samples behind what the turn has. Raises as `ServerClient.stream`, `TokensLeftOut`."""
        request, top = turn.request, turn.request.sampling.top_logprobs
        most = min(turn.left, FEW) if turn.is_blind else turn.left
        body = wire.completion(
            request,
            turn.tokens,
            max_tokens=most,
            streamed=not turn.is_blind,
            ping_seconds=max(1, int(self._timeouts.silence / PINGS)),
            again=turn.ask(),
        )
        reader = (
            wire.CompletionAnswer(max_tokens=most, vocabulary=vocabulary)
            if turn.is_blind
            else wire.CompletionStream(pieces, max_tokens=most, vocabulary=vocabulary, top_logprobs=top)
        )
        async with aclosing(self._reached().stream(wire.PATH, body, reader, headers=request.trace_headers)) as chunks:
            async for chunk in chunks:
                if turn.is_blind and top is not None:
                    chunk.logprobs = await self._likelihoods(turn, chunk.token_ids, pieces, top)
                yield chunk

    async def _behind(self, turn: wire.LlamaTurn, tokens: Sequence[int], pieces: wire.Pieces) -> TokenChunk | None:
        """Take tokens that a stream has left out.

        Where they are not known, the next few are asked for in one answer, which has all of them.
        """
        turn.is_blind = not tokens
        if not tokens:
            return None
        top = turn.request.sampling.top_logprobs
        try:
            logprobs = None if top is None else await self._likelihoods(turn, tokens, pieces, top)
        except (Refusal, EngineUnavailable, GenerationFailed) as error:
            self._require_open()
            raise self._explained(error, begun=len(turn.tokens) > 0) from error
        # Asked for behind these, nothing would be left to say that this is the end.
        finish = FinishReason.LENGTH if len(tokens) >= turn.left else None
        return turn.take(TokenChunk(token_ids=tokens, logprobs=logprobs, finish_reason=finish))

    async def _likelihoods(
        self, turn: wire.LlamaTurn, tokens: Sequence[int], pieces: wire.Pieces, top: int
    ) -> list[TokenLogprob]:
        """Ask how likely each of these tokens was: it is told of none that ends within a character."""
        prompt = [*turn.request.prompt_token_ids, *turn.tokens]
        found = []
        for token in tokens:
            answer = await self._reached().post(
                wire.PATH, wire.ranking(prompt, pieces.plain), seconds=self._timeouts.silence
            )
            found.append(wire.ranked(answer, token, top))
            prompt.append(token)
        return found

    def _explained(self, error: Refusal | EngineUnavailable | GenerationFailed, *, begun: bool) -> EngineError:
        """Return what an error means for a generation, of which something was yielded or not."""
        meant: EngineError
        if isinstance(error, Refusal):
            problem = f"{self._reached().name} answered {error}"
            # 503: it loads its model. A prompt that does not fit any more: it was started anew with less context.
            meant = EngineUnavailable(problem, retry_after=error.retry_after or 5)
            if error.status in (400, 422) and TOO_LONG not in error.text:
                meant = GenerationFailed(problem)
        elif isinstance(error, Silent):
            meant = EngineUnavailable(str(error))
        else:
            meant = error
        if isinstance(meant, EngineUnavailable):
            self._doubted = True
            return GenerationCut(str(meant)) if begun else meant
        return meant

    def render(self, chat: ChatPrompt) -> Sequence[int]:
        """Have the server render a conversation by the model's chat template, and tokenize it."""
        return self._from_a_thread(self._rendered(chat))

    def tokenize(self, text: str) -> Sequence[int]:
        return self._from_a_thread(self._tokenized(text))

    async def _rendered(self, chat: ChatPrompt) -> Sequence[int]:
        body: dict[str, Any] = {"messages": chat.messages, "chat_template_kwargs": chat.template_kwargs}
        if chat.tools:
            body["tools"] = chat.tools
        prompt = (await self._told("/apply-template", body)).get("prompt")
        if not isinstance(prompt, str):
            raise self._unlike("/apply-template")
        return await self._tokenized(prompt)

    async def _tokenized(self, text: str) -> Sequence[int]:
        said = await self._told("/tokenize", {"content": text, "add_special": True, "parse_special": True})
        tokens = said.get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
            raise self._unlike("/tokenize")
        return tokens

    async def _told(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        try:
            said = orjson.loads(await self._reached().post(path, orjson.dumps(body)))
        except Refusal as refusal:
            problem = f"{self._reached().name} answered {refusal}"
            # The template's own errors are a 500 there.
            raise (
                NotRendered(problem) if refusal.status in (400, 422, 500) else EngineUnavailable(problem)
            ) from refusal
        except ValueError as error:
            raise self._unlike(path) from error
        if not isinstance(said, dict):
            raise self._unlike(path)
        return said

    def _unlike(self, path: str) -> EngineUnavailable:
        return EngineUnavailable(f"{self._reached().name} answers {path} not like llama.cpp.")

    def _from_a_thread(self, work: Any) -> Sequence[int]:
        if self._loop is None or self._service is None:
            work.close()
            raise EngineUnavailable("The engine is not started yet.")
        # Blocks this thread until the loop has done it: renderings run on threads (`BaseEngine.render`).
        tokens: Sequence[int] = asyncio.run_coroutine_threadsafe(work, self._loop).result()
        return tokens

    async def health(self) -> None:
        """Return while the server is there and serves its model, else raise `EngineUnavailable`."""
        self._require_started()
        try:
            status, content = await self._reached().get("/health", seconds=self._timeouts.look)
        except EngineUnavailable:
            self._doubted = True
            raise
        finally:
            self._require_open()
        if status != 200:
            self._doubted = True
            raise EngineUnavailable(f"{self._reached().name} answers {status} to GET /health: {shown(content)}")
        await self._serving()

    async def aclose(self) -> None:
        self._closed.set()
        if self._client is not None:
            self._client.end_streams(_closed())
        if self._session is not None:
            await self._session.close()

    async def _serving(self) -> tuple[LlamaService, wire.Pieces]:
        """Return what the server is; one that was away is looked at again first. Raises `EngineUnavailable`."""
        service, pieces = self._require_started()
        if self._doubted:
            try:
                found = await inspect(self._reached(), {}, is_harmony=not self._tokenizer)
            except EngineConfigurationError as error:
                raise EngineUnavailable(str(error)) from error
            finally:
                self._require_open()
            if (found.model, found.tokens) != (service.model, service.tokens) or (
                found.max_model_len < service.max_model_len
            ):
                raise EngineUnavailable(
                    f"{self._reached().name} serves {found.model} with {found.max_model_len} tokens of context by now, "
                    f"and not {service.model} with {service.max_model_len}: start respsite again."
                )
            self._doubted = False
        return service, pieces

    def _require_started(self) -> tuple[LlamaService, wire.Pieces]:
        self._require_open()
        if self._service is None or self._pieces is None:
            raise EngineUnavailable("The engine is not started yet.")
        return self._service, self._pieces

    def _reached(self) -> ServerClient:
        assert self._client is not None, "asked before the start"
        return self._client

    def _require_open(self) -> None:
        if self._closed.is_set():
            raise _closed()


def _closed() -> EngineUnavailable:
    return EngineUnavailable("The llama-server engine is closed.")
