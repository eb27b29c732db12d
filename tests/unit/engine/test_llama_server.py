"""What the engine makes of a server whose answers are not llama.cpp's."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from engine.backends.llama.server import LlamaServerEngine
from engine.errors import EngineUnavailable
from engine.formats.harmony.encoding import SPECIAL_TOKENS, token_bytes

IDS = {token_bytes(token).decode(): token for token in SPECIAL_TOKENS}
CARD = {"data": [{"id": "gpt-oss", "meta": {"n_vocab": 201_088}}]}
PROPS = {"default_generation_settings": {"n_ctx": 4096}, "total_slots": 1}
UNLIKE = ["[]", "null", '"x"', "{", '{"tokens": null}', '{"tokens": ["x"]}', '{"tokens": {}}']


class Broken:
    """A server that tells the right tokens until it is told to say something else."""

    said: str | None = None
    status = 200

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/props", self._props)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/tokenize", self._tokens)
        return app

    async def _props(self, _: web.Request) -> web.Response:
        return await self._json(PROPS)

    async def _models(self, _: web.Request) -> web.Response:
        return await self._json(CARD)

    async def _json(self, value: object) -> web.Response:
        return web.Response(body=orjson.dumps(value), content_type="application/json")

    async def _tokens(self, request: web.Request) -> web.Response:
        if self.said is not None:
            return web.Response(text=self.said, status=self.status)
        name = (await request.json())["content"]
        return await self._json({"tokens": [IDS.get(name, 1)]})


@pytest.fixture
async def broken() -> AsyncIterator[tuple[Broken, LlamaServerEngine]]:
    said = Broken()
    async with TestServer(said.app()) as server:
        engine = LlamaServerEngine(model="", options={"urls": [f"http://127.0.0.1:{server.port}"]})
        yield said, engine
        await engine.aclose()


@pytest.mark.parametrize(("status", "said"), [(500, "no"), (200, "[]"), (200, "null"), (200, "{")])
async def test_a_start_that_cannot_compare_tokens(broken: Any, status: int, said: str) -> None:
    server, engine = broken
    server.said, server.status = said, status
    with pytest.raises(EngineUnavailable):
        await engine.start()
    server.said = None
    assert (await engine.start()).model == "gpt-oss"


@pytest.mark.parametrize("said", UNLIKE)
async def test_a_text_that_is_not_tokenized(broken: Any, said: str) -> None:
    server, engine = broken
    await engine.start()
    assert await asyncio.to_thread(engine.tokenize, "hello") == [1]
    server.said = said
    with pytest.raises(EngineUnavailable, match="not like llama"):
        await asyncio.to_thread(engine.tokenize, "hello")
