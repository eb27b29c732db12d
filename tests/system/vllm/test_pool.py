"""A real vLLM server that is reached in two ways, of which one breaks: the turn goes on by the other.

Only this finds tokens that a real vLLM samples twice, or not, behind a cut.
"""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from engine.backends.vllm.pool import ReplicaChoice
from engine.backends.vllm.server import VllmServerEngine
from engine.errors import GenerationCut
from engine.formats.harmony.encoding import STOP_TOKENS
from engine.types import GenerationRequest, SamplingOptions, Session, TokenChunk
from tests.contracts.engine import collect, joined
from tests.kit.balancer import Balancer
from tests.kit.waiting import eventually
from tests.system.vllm.server import API_KEY, SERVED_MODEL, VllmServer
from tests.system.vllm.transcripts import completion, prompt


async def read(generation: AsyncGenerator[TokenChunk, None], said: list[int], *, until: int) -> None:
    while len(said) < until:
        said += (await anext(generation)).token_ids


async def test_what_was_cut_goes_on_behind_what_was_sampled(vllm_server: VllmServer) -> None:
    async with AsyncExitStack() as stack:
        way = await stack.enter_async_context(Balancer([vllm_server]))  # type: ignore[list-item]
        urls = [f"http://127.0.0.1:{way.port}", vllm_server.url]
        engine = VllmServerEngine(model=SERVED_MODEL, options={"urls": urls, "api_key": API_KEY})
        await engine.start()
        stack.push_async_callback(engine.aclose)
        loads = dict.fromkeys(urls, 0)
        chain = next(name for name in map(str, range(99)) if ReplicaChoice().order(name, loads)[0] == urls[0])
        request = GenerationRequest(
            request_id="cut",
            prompt_token_ids=prompt("say long"),
            sampling=SamplingOptions(temperature=0.0, top_logprobs=0, stop_token_ids=STOP_TOKENS),
            session=Session(id=chain),
        )
        generation, said = engine.generate(request), list[int]()
        await read(generation, said, until=40)
        await way.__aexit__(None, None, None)
        with pytest.raises(GenerationCut):
            await read(generation, said, until=10_000)
        rest = await collect(engine, replace(request, request_id="rest", prompt_token_ids=[*prompt("say long"), *said]))
        assert said + joined(rest) == completion("say long")
        assert sum(len(chunk.logprobs or ()) for chunk in rest) == len(joined(rest))
        assert rest[-1].cached_tokens, "by the same server, it found what it had sampled"
        await eventually(lambda: vllm_server.running() == 0)
        await eventually(lambda: engine.replicas()["away"] == 1)
