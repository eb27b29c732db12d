"""A small server that speaks vLLM's wire, in the test's own process and loop, with an engine of ours behind it.

    async with FakeVllm({"say": "<|channel|>final<|message|>Hi<|return|>"}) as vllm:
        engine = VllmServerEngine(model=vllm.model, options={"urls": [vllm.url]})
Its switches may be changed while it runs. What it says is copied from answers of vLLM 0.32.
"""

import asyncio
import json
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from engine.backends.scripted import ScriptedEngine
from engine.errors import EngineError, TurnEnded
from engine.types import FinishReason, GenerationRequest, SamplingOptions, TokenChunk
from tests.kit.fake_vllm_doors import TrainerDoors
from tests.kit.fake_vllm_eyes import Eyes, NotSeen, blind
from tests.kit.server import free_port

JsonObject = dict[str, Any]
MODEL = "openai/gpt-oss-20b"
FULL = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
FINISHED = FinishReason.LENGTH
# Engine options of a server in front of it. It answers `/health` on the loop of the test, which the test may hold for
# longer than two looks usually last: importing a part of an SDK takes seconds on a busy machine.
SELDOM_LOOKED_AT: Mapping[str, object] = {"health_seconds": 60.0}
DISABLED = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."


@dataclass(slots=True)
class Switches:
    """What is wrong with a server, and what it was started with."""

    model: str = MODEL
    api_key: str = ""
    max_model_len: int = 4000
    says_max_model_len: bool = True  # of a router, whose list of models does not have it
    scale_out: bool = True  # --enable-scale-out: `/inference/v1/generate` is there
    knows_token_ids: bool = True  # of completions: `return_token_ids`
    takes_priorities: bool = True
    takes_grammars: bool = True  # it has a tokenizer
    grammar_refusal: str = ""  # what it says of a grammar that is not the one it is tried with
    usage: bool = True
    is_well: bool = True
    answers: bool = True  # else every request waits for ever
    refusal: tuple[int, Mapping[str, str]] | None = None  # status and headers of every generation's answer
    fault: str | None = None  # in `FAULTS` or `SAID`: what happens in every generation
    fault_after: int = 0  # chunks
    padding: int = 0  # bytes that every event is longer
    eyes: Eyes | None = None  # it takes pictures


@dataclass(slots=True)
class Asked:
    """A generation that a server was asked for."""

    path: str
    body: JsonObject
    headers: Mapping[str, str]  # their names in lower case
    sent: int = 0  # chunks
    sampled: list[int] = field(default_factory=list)  # all its tokens, read or not
    weights: list[JsonObject] = field(default_factory=list)  # which weights sampled what, as vLLM tells it at the end


class FakeVllm:
    """A vLLM server on a loopback port. After `kill()` it can be started again, on the same one."""

    def __init__(self, *script: Mapping[str, object], port: int | None = None, **switches: object) -> None:
        self.port = port or free_port()
        self.switches = Switches(**switches)  # type: ignore[arg-type]
        self.engine = ScriptedEngine(model="behind the fake", options={"script": script, "max_model_len": 10**9})
        self.asked: deque[Asked] = deque(maxlen=1000)
        self.asked_paths: deque[str] = deque(maxlen=1000)  # since its last start
        self.doors = TrainerDoors()
        self.waiting = 0  # requests that are not answered, because it does not answer
        self._transports: weakref.WeakSet[asyncio.BaseTransport] = weakref.WeakSet()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """Where it listens, without a path."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def model(self) -> str:
        return self.switches.model

    @property
    def connections(self) -> int:
        """How many connections are open that have asked for something."""
        return sum(not transport.is_closing() for transport in self._transports)

    @property
    def generations(self) -> list[Asked]:
        """What it was asked for, the one-token generations that find out what it can do left out."""
        return [each for each in self.asked if not each.body["request_id"].startswith("respsite-")]

    async def __aenter__(self) -> "FakeVllm":
        await self.engine.start()
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.kill()
        await self.engine.aclose()

    async def start(self) -> None:
        self.asked_paths.clear()
        app = web.Application(middlewares=[self._door], client_max_size=2**30)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/inference/v1/generate", self._generate)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_routes(self.doors.routes())
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()

    async def kill(self) -> None:
        """Be gone from one moment to the next: every connection is reset."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        for site in list(runner.sites):
            await site.stop()
        assert runner.server is not None
        for connection in runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()
        await runner.cleanup()

    @web.middleware
    async def _door(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        assert request.transport is not None
        self._transports.add(request.transport)
        self.asked_paths.append(request.path)
        if not self.switches.answers:
            with self._one_more_waits():
                await asyncio.Event().wait()
        key = self.switches.api_key
        guarded = request.path.startswith(("/v1", "/inference"))  # vllm/entrypoints/serve/middleware/authenticate.py
        if guarded and key and request.headers.get("Authorization") != f"Bearer {key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        return await handler(request)

    @contextmanager
    def _one_more_waits(self) -> Iterator[None]:
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.switches.is_well else 503)

    async def _models(self, request: web.Request) -> web.Response:
        card = {"id": self.switches.model, "object": "model"}
        if self.switches.says_max_model_len:
            card["max_model_len"] = self.switches.max_model_len
        adapter = {"id": "an-adapter", "object": "model", "max_model_len": None, "parent": self.switches.model}
        return web.json_response({"object": "list", "data": [card, adapter]})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        if not self.switches.scale_out:
            return web.json_response(error(DISABLED, 403, kind="PermissionDeniedError"), status=403)
        body = await request.json()
        prompt, eyes = body["token_ids"], self.switches.eyes
        try:
            if parts := body.get("content_parts"):
                prompt = eyes.expanded(prompt, parts) if eyes is not None else blind(self.switches.model)
        except NotSeen as refused:
            self.asked.append(Asked(request.path, body, _headers(request)))
            return web.json_response(error(str(refused), refused.status), status=refused.status)
        return await self._answer(request, body, prompt, body["sampling_params"], generate_event)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        event = completion_event if self.switches.knows_token_ids else text_event
        return await self._answer(request, body, body["prompt"], body, event)

    async def _answer(
        self, request: web.Request, body: JsonObject, prompt: list[int], sampling: JsonObject, event: "Event"
    ) -> web.StreamResponse:
        asked = Asked(request.path, body, _headers(request))
        self.asked.append(asked)
        if body["model"] not in (self.switches.model, "an-adapter"):
            return web.json_response(error(f"The model `{body['model']}` does not exist.", 404), status=404)
        if self.switches.refusal:
            status, headers = self.switches.refusal
            return web.json_response(error(FULL, status), status=status, headers=headers)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        stream = _Stream(self.switches, request, response, asked)
        try:
            await self._generations(stream, prompt, sampling, event)
        except EngineError as failed:
            await stream.say(error(str(failed), 500, kind="InternalServerError"))
        except _Ended:
            return response
        await stream.say("[DONE]")
        return response

    async def _generations(self, stream: "_Stream", prompt: list[int], sampling: JsonObject, event: "Event") -> None:
        """Stream one generation; what vLLM finds wrong with a request comes in the stream too."""
        body = stream.asked.body
        if body.get("priority") and not self.switches.takes_priorities:
            await stream.say(error("Got priority 1 but Priority scheduling is not enabled.", 400))
            return
        if len(prompt) >= self.switches.max_model_len:
            raised = f"The decoder prompt (length {len(prompt)}) is longer than the maximum model length."
            await stream.say(error(raised, 400))
            return
        grammar = sampling.get("structured_outputs")
        if grammar and not await self._takes(stream, grammar, event):
            return
        cached, sampled, spans = None, stream.asked.sampled, stream.asked.weights
        async with (
            self.doors.gate.generation() as name,
            aclosing(self.engine.generate(_request(body, prompt, sampling))) as chunks,
        ):
            async for chunk in chunks:
                await stream.maybe_fail()
                try:
                    await self.doors.gate.passed(name)
                except TurnEnded:
                    await stream.say(event(TokenChunk(token_ids=[], finish_reason=FinishReason.ABORT), None, None))
                    return
                _note_version(spans, self.doors.version, len(sampled), len(sampled) + len(chunk.token_ids))
                cached = chunk.cached_tokens if chunk.cached_tokens is not None else cached
                sampled.extend(chunk.token_ids)
                said = event(chunk, prompt if stream.asked.sent == 0 else None, sampling.get("logprobs"))
                if chunk.finish_reason is not None and "weight_versions" in said["choices"][0]:
                    said["choices"][0]["weight_versions"] = spans
                await stream.say(said)
                stream.asked.sent += 1
        if self.switches.usage:
            details = None if cached is None else {"cached_tokens": cached}
            usage = {"prompt_tokens": len(prompt), "completion_tokens": len(sampled), "prompt_tokens_details": details}
            await stream.say({"choices": [], "usage": usage})

    async def _takes(self, stream: "_Stream", grammar: JsonObject, event: "Event") -> bool:
        """Whether the engine behind is to answer: a grammar of one token leaves it no choice."""
        shape = json.loads(grammar["structural_tag"])["format"]
        only, refusal = shape.get("elements", [shape])[-1], self.switches.grammar_refusal
        if not self.switches.takes_grammars:
            refusal, only = "Structured outputs requires a tokenizer", {"type": ""}
        if only["type"] == "token":
            await stream.say(event(TokenChunk(token_ids=[only["token"]], finish_reason=FINISHED), None, None))
        elif refusal:
            await stream.say(error(refusal, 400))
        return only["type"] != "token" and not refusal


def _note_version(spans: list[JsonObject], version: str, begin: int, end: int) -> None:
    if spans and spans[-1]["version"] == version:
        spans[-1]["end"] = end
    elif end > begin:
        spans.append({"version": version, "start": begin, "end": end})


def _headers(request: web.Request) -> Mapping[str, str]:
    return {name.lower(): value for name, value in request.headers.items()}


class _Ended(Exception):
    """A stream ended in a way that vLLM does not end one."""


@dataclass(slots=True)
class _Stream:
    """One streamed answer, and how it fails."""

    switches: Switches
    request: web.Request
    response: web.StreamResponse
    asked: Asked

    async def say(self, data: JsonObject | str) -> None:
        """Send an event."""
        if isinstance(data, dict) and self.switches.padding:
            data = {**data, "padding": "x" * self.switches.padding}
        await self.response.write(f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode())

    async def maybe_fail(self) -> None:
        """Do what the switches say should go wrong before this chunk."""
        fault = self.switches.fault
        if fault is None or self.asked.sent != self.switches.fault_after:
            return
        if fault in SAID:
            await self.say(SAID[fault])
        else:
            await FAULTS[fault](self)


async def _die(stream: _Stream) -> None:
    assert stream.request.transport is not None
    stream.request.transport.abort()
    raise _Ended


async def _cut(stream: _Stream) -> None:
    await stream.response.write_eof()
    raise _Ended


async def _silence(stream: _Stream) -> None:
    await asyncio.Event().wait()


async def _flood(stream: _Stream) -> None:
    """A line without an end."""
    while True:
        await stream.response.write(b"x" * 65536)


async def _no_http(stream: _Stream) -> None:
    assert stream.request.transport is not None
    stream.request.transport.write(b"what is this\r\n")
    await asyncio.Event().wait()


async def _no_end(stream: _Stream) -> None:
    """A finish reason, and then nothing."""
    await stream.say({"choices": [{"index": 0, "token_ids": [1], "finish_reason": "stop"}]})
    await asyncio.Event().wait()


async def _abort(stream: _Stream) -> None:
    await stream.say({"choices": [{"index": 0, "token_ids": [], "finish_reason": "abort", "logprobs": None}]})
    raise _Ended


FAULTS: Mapping[str, Callable[[_Stream], Awaitable[None]]] = {
    each.__name__.removeprefix("_"): each for each in (_die, _cut, _silence, _flood, _no_http, _no_end, _abort)
}

Event = Callable[[TokenChunk, list[int] | None, int | None], JsonObject]


def generate_event(chunk: TokenChunk, prompt: list[int] | None, logprobs: int | None) -> JsonObject:
    """Return a chunk as `/inference/v1/generate` says it."""
    choice: JsonObject = {
        "index": 0,
        "finish_reason": _reason(chunk),
        "stop_reason": chunk.token_ids[-1] if chunk.finish_reason is FinishReason.STOP and chunk.token_ids else None,
        "token_ids": list(chunk.token_ids),
        "routed_experts": None,
        "sampling_mask": None,
        "weight_versions": None,
        "logprobs": None,
    }
    if chunk.logprobs is not None:
        content = [
            {
                "token_id": each.token_id,
                "logprob": each.logprob,
                "rank": 1,
                "top_logprobs": [
                    {"token_id": token, "logprob": logprob, "rank": place}
                    for place, (token, logprob) in enumerate(each.top, 1)
                ],
            }
            for each in chunk.logprobs
        ]
        choice["logprobs"] = {"content": content}
    return {"request_id": "generate-tokens-x", "usage": None, "output_mode": "tokens", "choices": [choice]}


def completion_event(chunk: TokenChunk, prompt: list[int] | None, logprobs: int | None) -> JsonObject:
    """Return a chunk as `/v1/completions` says it to who asked for token ids."""
    event = text_event(chunk, prompt, logprobs)
    (choice,) = event["choices"]
    choice |= {"prompt_token_ids": prompt, "token_ids": list(chunk.token_ids)}
    if chunk.logprobs is not None:
        choice["logprobs"] = {
            "text_offset": [0] * len(chunk.logprobs),
            "token_logprobs": [each.logprob for each in chunk.logprobs],
            "tokens": [f"token_id:{each.token_id}" for each in chunk.logprobs],
            "top_logprobs": [{f"token_id:{token}": value for token, value in each.top} for each in chunk.logprobs],
        }
    return event


def text_event(chunk: TokenChunk, prompt: list[int] | None, logprobs: int | None) -> JsonObject:
    """Return a chunk as `/v1/completions` says it where `return_token_ids` is unknown."""
    choice = {"index": 0, "text": "x", "logprobs": None, "finish_reason": _reason(chunk), "stop_reason": None}
    return {"id": "cmpl-x", "object": "text_completion", "created": 0, "model": "x", "choices": [choice]}


def error(message: str, code: int, *, kind: str = "BadRequestError") -> JsonObject:
    """Return an error as vLLM says it, in an answer's body or in a stream."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


SAID: dict[str, JsonObject | str] = {  # of faults that are said in place of a chunk
    "garbage": "{nonsense",
    "number": "5",
    "error": error("EngineCore encountered an issue. secret detail", 500, kind="InternalServerError"),
    "full": error(FULL, 503, kind="Service Unavailable"),
    "no_reason": "[DONE]",
    "odd_reason": {"choices": [{"index": 0, "token_ids": [1], "finish_reason": "repetition"}]},
}


def _reason(chunk: TokenChunk) -> str | None:
    return chunk.finish_reason.value if chunk.finish_reason else None


def _request(body: JsonObject, prompt: list[int], sampling: JsonObject) -> GenerationRequest:
    return GenerationRequest(
        request_id=body["request_id"],
        prompt_token_ids=prompt,
        sampling=SamplingOptions(
            max_output_tokens=sampling["max_tokens"],
            temperature=sampling.get("temperature"),
            top_logprobs=sampling.get("logprobs"),
            stop_token_ids=tuple(sampling["stop_token_ids"]),
        ),
        priority=body.get("priority", 0),
        cache_salt=body.get("cache_salt"),
    )
