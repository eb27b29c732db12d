"""`python -m engine.backends.demo.server --port 8001`: the demo engine in the place of a vLLM server.

It is what a pool of vLLM servers is tried with where there is no GPU: ENGINE=vllm-server, ENGINE_URL where these listen
and MODEL=demo. It speaks `/health`, `/v1/models` and `/inference/v1/generate` as vLLM 0.32 does with `--tokens-only`:
without a tokenizer it holds no answer to a grammar, and says so. The hashing model is there too, at `/v1/embeddings`.
It listens on loopback, and asks nobody for a key.
"""

import argparse
import asyncio
import json
import signal
import sys
from base64 import b64encode
from contextlib import aclosing
from typing import Any

from aiohttp import web

from engine.backends.demo.engine import DemoEngine
from engine.backends.simulated import DEFAULT_MAX_MODEL_LEN
from engine.embeddings.base import EmbeddingRequest
from engine.embeddings.hashing import MAX_MODEL_LEN as MAX_INPUT
from engine.embeddings.hashing import HashingEmbeddings
from engine.errors import EmbeddingRefused, EngineError, PromptTooLong
from engine.types import FinishReason, GenerationRequest, SamplingOptions, TokenChunk

JsonObject = dict[str, Any]

HOST = "127.0.0.1"
MODEL = "demo"
MAX_BODY = 16 * 1024 * 1024  # bytes: the longest prompt is some 131,000 tokens of 7 bytes
LAST_STREAMS_SECONDS = 1.0  # that streams have to end when it is told to stop
NO_GRAMMARS = "Structured outputs requires a tokenizer, which the demo engine's server does not have."


class DemoServer:
    """Serves one demo engine; `application` is what listens."""

    def __init__(self, engine: DemoEngine, *, max_model_len: int = DEFAULT_MAX_MODEL_LEN) -> None:
        """Take the engine, which `application` starts and closes, and the context that it was given."""
        self.engine = engine
        self.embeddings = HashingEmbeddings()
        self.running = 0  # generations
        self._max_model_len = max_model_len

    def application(self) -> web.Application:
        """Return the application, with the engine's life as its own."""
        application = web.Application(client_max_size=MAX_BODY)
        application.router.add_get("/health", self._health)
        application.router.add_get("/v1/models", self._models)
        application.router.add_post("/inference/v1/generate", self._generate)
        application.router.add_post("/v1/embeddings", self._embed)
        application.on_startup.append(self._start)
        application.on_cleanup.append(self._close)
        return application

    async def _start(self, application: web.Application) -> None:
        await self.engine.start()
        await self.embeddings.start()

    async def _close(self, application: web.Application) -> None:
        await self.engine.aclose()
        await self.embeddings.aclose()

    async def _health(self, request: web.Request) -> web.Response:
        try:
            await self.engine.health()
        except EngineError:
            return web.Response(status=503)
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        card = {"id": self.engine.model, "object": "model", "max_model_len": self._max_model_len}
        other = {"id": self.embeddings.model, "object": "model", "max_model_len": MAX_INPUT}
        return web.json_response({"object": "list", "data": [card, other]})

    async def _embed(self, request: web.Request) -> web.Response:
        try:
            body = await request.json()
            value = body["input"]
            # One text or one list of ids is one input; else each element is.
            several = value if isinstance(value, list) and isinstance(value[0], str | list) else [value]
            embedding = EmbeddingRequest(inputs=several, dimensions=body.get("dimensions"))
            embedded = await self.embeddings.embed(embedding)
        except (ValueError, LookupError, TypeError, AttributeError, EmbeddingRefused) as problem:
            return web.json_response(error(str(problem), 400), status=400)
        data = [
            {"object": "embedding", "index": index, "embedding": b64encode(vector.tobytes()).decode()}
            for index, vector in enumerate(embedded.vectors)
        ]
        usage = {"prompt_tokens": embedded.tokens, "total_tokens": embedded.tokens}
        answer = {"object": "list", "model": self.embeddings.model, "data": data, "usage": usage}
        return web.json_response(answer)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        """Stream a generation. A client that is gone ends it: aiohttp cancels this then."""
        try:
            body = await request.json()
            generation = read_request(body)
        except (ValueError, LookupError, TypeError, AttributeError):
            return web.json_response(error("The request cannot be read.", 400), status=400)
        if body.get("model") != self.engine.model:
            return web.json_response(error(f"The model `{body.get('model')}` does not exist.", 404), status=404)
        if body["sampling_params"].get("structured_outputs"):
            return web.json_response(error(NO_GRAMMARS, 400), status=400)
        # As vLLM answers: the status is 200 before anything is known, so errors come in the stream.
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await answer.prepare(request)
        self.running += 1
        try:
            await self._stream(answer, generation)
        finally:
            self.running -= 1
        return answer

    async def _stream(self, answer: web.StreamResponse, generation: GenerationRequest) -> None:
        """Say the chunks, the usage and the end; what is wrong with a request comes in the stream, as vLLM has it."""
        sampled = 0
        try:
            async with aclosing(self.engine.generate(generation)) as chunks:
                async for chunk in chunks:
                    sampled += len(chunk.token_ids)
                    await answer.write(_event(generate_event(chunk)))
        except PromptTooLong as problem:
            longer = f"The decoder prompt (length {problem.prompt_tokens}) is longer than the maximum model length."
            await answer.write(_event(error(longer, 400)))
        except EngineError as problem:
            await answer.write(_event(error(str(problem), 500, kind="InternalServerError")))
        else:
            details = {"cached_tokens": 0}
            usage = {"prompt_tokens": len(generation.prompt_token_ids), "completion_tokens": sampled}
            await answer.write(_event({"choices": [], "usage": {**usage, "prompt_tokens_details": details}}))
        await answer.write(b"data: [DONE]\n\n")


def read_request(body: JsonObject) -> GenerationRequest:
    """Return the generation that the body of a `/inference/v1/generate` asks for.

    Raises `LookupError`, `TypeError`, `AttributeError` or `ValueError` for what is not one.
    """
    sampling = body["sampling_params"]
    prompt = [int(token) for token in body["token_ids"]]
    return GenerationRequest(
        request_id=str(body["request_id"]),
        prompt_token_ids=prompt,
        sampling=SamplingOptions(
            max_output_tokens=int(sampling["max_tokens"]), stop_token_ids=tuple(sampling["stop_token_ids"])
        ),
    )


def generate_event(chunk: TokenChunk) -> JsonObject:
    """Return a chunk as `/inference/v1/generate` says it."""
    stopped = chunk.finish_reason is FinishReason.STOP and chunk.token_ids
    choice: JsonObject = {
        "index": 0,
        "finish_reason": chunk.finish_reason.value if chunk.finish_reason else None,
        # The token that it stopped at, which comes last.
        "stop_reason": chunk.token_ids[-1] if stopped else None,
        "token_ids": list(chunk.token_ids),
        "logprobs": None,
    }
    return {"request_id": "generate-tokens", "usage": None, "output_mode": "tokens", "choices": [choice]}


def error(message: str, code: int, *, kind: str = "BadRequestError") -> JsonObject:
    """Return an error as vLLM says it, in an answer's body or in a stream."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _event(data: JsonObject) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


async def _serve(port: int, tokens_per_second: float | None) -> None:
    options = {} if tokens_per_second is None else {"tokens_per_second": tokens_per_second}
    server = DemoServer(DemoEngine(model=MODEL, options=options))
    stopping = asyncio.Event()
    # A handler, not an exception: `runner.cleanup` lets streams end.
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, stopping.set)
    # `handler_cancellation`: a client that is gone cancels its handler, which aborts its generation.
    runner = web.AppRunner(
        server.application(), handler_cancellation=True, access_log=None, shutdown_timeout=LAST_STREAMS_SECONDS
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, port).start()
        sys.stdout.write(f"the demo engine serves as {MODEL} at http://{HOST}:{port}\n")
        sys.stdout.flush()
        await stopping.wait()
    finally:
        await runner.cleanup()


def main() -> None:
    """Serve until Ctrl-C or SIGTERM."""
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m engine.backends.demo.server", description=about)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--tokens-per-second", type=float, help="pace of each answer; without it as fast as it goes")
    options = parser.parse_args()
    asyncio.run(_serve(options.port, options.tokens_per_second))


if __name__ == "__main__":
    main()
