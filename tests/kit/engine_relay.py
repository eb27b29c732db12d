"""`EngineRelay`: stands before a model server, passes everything on, and keeps what generations were asked and gave."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

GENERATE = "/inference/v1/generate"
CHUNK_BYTES = 64 * 1024
# They are about one connection, and not passed on.
OF_CONNECTION = {"connection", "content-length", "host", "transfer-encoding"}


@dataclass
class Generated:
    """One generation, as the model server was asked for it, and as it answered."""

    prompt: Sequence[int]
    grammar: bool  # one held it
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    weights: list[tuple[str, int]] = field(default_factory=list)  # which versions have sampled how many tokens in a row


class EngineRelay:
    """Use it as `async with EngineRelay(server.url) as relay`, and let the engine connect to `relay.url`."""

    def __init__(self, url: str) -> None:
        self.url = ""
        self.generations: list[Generated] = []
        self._server = url

    async def __aenter__(self) -> "EngineRelay":
        self._http = aiohttp.ClientSession(auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None))
        application = web.Application(client_max_size=0)  # any size
        application.router.add_route("*", "/{path:.*}", self._relay)
        self._runner = web.AppRunner(application)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._runner.cleanup()
        await self._http.close()

    async def _relay(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        generated = _generated(json.loads(body)) if request.path == GENERATE else None
        headers = {name: value for name, value in request.headers.items() if name.lower() not in OF_CONNECTION}
        url = f"{self._server}{request.path_qs}"
        async with self._http.request(request.method, url, data=body, headers=headers) as answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in OF_CONNECTION}
            passed_on = web.StreamResponse(status=answer.status, headers=kept)
            await passed_on.prepare(request)
            whole = b""
            async for part in answer.content.iter_any():
                whole += part
                await passed_on.write(part)
            if generated is not None and answer.status == 200:
                _read(whole, generated)
                self.generations.append(generated)
            await passed_on.write_eof()
            return passed_on


def _generated(body: Any) -> Generated:
    return Generated(body["token_ids"], grammar=bool(body["sampling_params"].get("structured_outputs")))


def _read(stream: bytes, generated: Generated) -> None:
    for line in stream.decode().splitlines():
        data = line.removeprefix("data: ")
        if data == line or data == "[DONE]":
            continue
        choices: list[Any] = json.loads(data).get("choices") or []
        for choice in choices:
            generated.sampled.extend(choice.get("token_ids") or ())
            spans = choice.get("weight_versions") or ()
            generated.weights.extend((span["version"], span["end"] - span["start"]) for span in spans)
            logprobs = choice.get("logprobs") or {}
            generated.logprobs.extend(each["logprob"] for each in logprobs.get("content") or ())
