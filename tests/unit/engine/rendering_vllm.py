"""A vLLM on the wire whose model is of a family with a chat template: it renders conversations, and tokenizes texts."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from engine.types import ChatPrompt
from tests.kit.fake_vllm import FakeVllm
from tests.unit.formats.families import QWEN, Family
from tests.unit.formats.rendering import Renderer


class RenderingVllm(FakeVllm):
    """One of a family; `answer` is what it answers in place of a rendering, status and JSON."""

    def __init__(self, *script: Mapping[str, object], family: Family = QWEN) -> None:
        super().__init__(*script)
        self.family = family
        self.answer: tuple[int, Any] | None = None
        self.bodies: list[dict[str, Any]] = []

    @web.middleware
    async def _door(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.path not in ("/v1/chat/completions/render", "/tokenize"):
            return await super()._door(request, handler)
        body = await request.json()
        self.bodies.append(body)
        renderer = Renderer(self.family)
        if "prompt" in body:
            said = {"tokens": renderer.encode(body["prompt"])}
        else:
            chat = ChatPrompt(body["messages"], body.get("tools", []), body.get("chat_template_kwargs", {}))
            said = {"token_ids": list(renderer(chat))}
        status, answer = self.answer or (200, said)
        return web.json_response(answer, status=status)
