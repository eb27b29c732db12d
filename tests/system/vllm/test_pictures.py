"""A tiny model that sees on a real vLLM, behind a server and in this process: the same pictures, the same answers.

Only this finds pictures that a real vLLM expands or keeps in another way than we count.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from engine.backends.base import BaseEngine
from engine.backends.model_folder import ModelFamily
from engine.backends.vllm.local import VllmEngine
from engine.backends.vllm.pictures import KeptPictures
from engine.backends.vllm.server import VllmServerEngine
from engine.errors import PicturesRefused, PromptTooLong
from engine.formats.base import Body
from engine.models import make_format
from engine.types import TokenChunk
from tests.contracts.engine import collect, joined
from tests.kit.gallery import Gallery
from tests.kit.pictures import data_url, picture
from tests.kit.sdk import MODEL
from tests.kit.server import Server
from tests.system.vllm.chat_models import MAX_MODEL_LEN
from tests.system.vllm.chat_servers import KV_BLOCKS, SMALL
from tests.system.vllm.engines import cached, full_blocks
from tests.system.vllm.seeing_model import PICTURE_TOKENS, write_seeing_model
from tests.system.vllm.server import API_KEY, BLOCK_SIZE, EXECUTOR, START_SECONDS, VllmProcess
from tests.unit.engine.seeing_vllm import Chat

SAMPLED = 40  # tokens
RED, BLUE = picture(), picture("#0000ff", (100, 30), "JPEG")


class SeeingServer(VllmProcess):
    """`vllm serve` with the model that sees."""

    def __init__(self, folder: Path) -> None:
        self.model = folder / "seeing"
        write_seeing_model(self.model)
        super().__init__(folder, flags={**SMALL, "model": self.model, "served-model-name": "seeing"})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeeingServer]:
    server = SeeingServer(tmp_path_factory.mktemp("seeing"))
    try:
        yield server
    finally:
        server.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engines(server: SeeingServer) -> AsyncIterator[dict[str, BaseEngine]]:
    """An engine over the server, and one in this process. Both start at once: that is two times 20 s of imports."""
    options = {
        "tokenizer": str(server.model),
        "load_format": "dummy",
        "dtype": "float32",
        "enforce_eager": True,
        "distributed_executor_backend": EXECUTOR,
        "block_size": BLOCK_SIZE,
        "max_model_len": MAX_MODEL_LEN,
        "num_gpu_blocks_override": KV_BLOCKS,
    }
    local = VllmEngine(model=str(server.model), options=options)
    over = VllmServerEngine(model="seeing", options={"urls": [server.url], "api_key": API_KEY, "harmony": False})
    try:
        async with asyncio.timeout(START_SECONDS):
            await asyncio.gather(asyncio.to_thread(server.start), local.start())
            await over.start()
        yield {"over a server": over, "in process": local}
    finally:
        await asyncio.gather(over.aclose(), local.aclose())


@pytest.fixture(params=["over a server", "in process"])
def engine(request: pytest.FixtureRequest, engines: dict[str, BaseEngine]) -> BaseEngine:
    return engines[request.param]


class Talk:
    def __init__(self, engine: BaseEngine, server: SeeingServer, gallery: Gallery) -> None:
        family = ModelFamily(format="chat-template", model="seeing", tokenizer=str(server.model))
        self._engine = engine
        self.chat = Chat(make_format(family, engine), gallery)

    async def ask(self, behind: list[int] | None = None, *, tokens: int = SAMPLED) -> list[TokenChunk]:
        """Return what the model says, with its prompt checked: every picture is as long as it is known to be."""
        # Rendering waits for the engine, so it is done on a thread.
        request = await asyncio.to_thread(
            self.chat.asked, behind or (), max_output_tokens=tokens, temperature=0.0, ignore_eos=True
        )
        chunks = await collect(self._engine, request)
        expanded = len(request.prompt_token_ids) + (PICTURE_TOKENS - 1) * len(request.pictures)
        assert chunks[-1].prompt_tokens == (expanded if request.pictures else None)
        return chunks


def kept_of(engine: BaseEngine) -> KeptPictures:
    """Return what an engine thinks that vLLM has; a fault is put in there."""
    if isinstance(engine, VllmServerEngine):
        assert engine._pool is not None
        [replica] = engine._pool.replicas
        return replica._pictures
    assert isinstance(engine, VllmEngine)
    return engine._pictures


async def test_pictures_are_seen_and_then_known_by_their_names(engine: BaseEngine, server: SeeingServer) -> None:
    gallery = Gallery()
    talk = Talk(engine, server, gallery)
    assert engine.supports_pictures
    assert talk.chat.format.sees
    shown: Body = ["What is <image>? ", gallery.add(RED), " and ", gallery.add(BLUE), " of " + "x" * 3 * BLOCK_SIZE]
    talk.chat.user(shown)
    whole = joined(await talk.ask())
    assert len(whole) == SAMPLED
    assert len(gallery.loaded) == 2
    # The same wherever it was cut, and by the names alone: what was computed before is in the cache.
    for cut in (1, 7, SAMPLED - 1):
        chunks = await talk.ask(whole[:cut], tokens=SAMPLED - cut)
        assert whole[:cut] + joined(chunks) == whole
        before = (chunks[-1].prompt_tokens or 0) - cut
        assert cached(chunks) >= full_blocks(before)
    # The next turn, with the same pictures and one more.
    talk.chat.take([TokenChunk(token_ids=whole)])
    talk.chat.user(["And? ", gallery.add(picture("#123456"))])
    await talk.ask()
    assert len(gallery.loaded) == 3


async def test_what_was_forgotten_is_sent_at_once(engine: BaseEngine, server: SeeingServer) -> None:
    gallery = Gallery()
    talk = Talk(engine, server, gallery)
    forgotten = gallery.add(picture("#654321", (9, 9)))
    kept_of(engine).keep([forgotten.digest])
    talk.chat.user(["", forgotten])
    assert len(joined(await talk.ask())) == SAMPLED
    assert gallery.loaded == [forgotten.digest]


async def test_what_vllm_does_not_take_is_the_request_s_fault(engine: BaseEngine, server: SeeingServer) -> None:
    gallery = Gallery()
    broken = Talk(engine, server, gallery)
    broken.chat.user(["", gallery.add(b"no picture")])
    with pytest.raises(PicturesRefused, match="Failed to load image"):
        await broken.ask()
    # It fits as long as each picture is one token.
    long = Talk(engine, server, gallery)
    # Of its own: vLLM takes the pictures of a prompt that it refuses for its length for known, and has not read them.
    long.chat.user(["", *[gallery.add(picture("#00ff00"))] * (MAX_MODEL_LEN // PICTURE_TOKENS)])
    with pytest.raises(PromptTooLong) as refused:
        await long.ask()
    assert refused.value.prompt_tokens > MAX_MODEL_LEN
    fine = Talk(engine, server, gallery)
    fine.chat.user(["", gallery.add(RED)])
    await fine.ask()


@pytest.fixture(scope="module")
def front(
    server: SeeingServer, engines: dict[str, BaseEngine], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    with Server(
        tmp_path_factory.mktemp("front-of-seeing"),
        engine="vllm-server",
        engine_url=server.url,
        engine_api_key=API_KEY,
        model="seeing",
        model_name=MODEL,
        model_format="chat-template",
        tokenizer=server.model,
    ) as front:
        yield front


async def test_a_conversation_with_images_computes_nothing_twice(front: Server, server: SeeingServer) -> None:
    """From the request's JSON to vLLM's own counters; a generation that is cut by its length goes on as any other."""

    def metric(name: str) -> int:
        return int(server.metric(f"vllm:mm_cache_{name}_total"))

    async with httpx.AsyncClient(base_url=front.base_url, timeout=60) as client:

        async def ask(*contents: bytes, **fields: object) -> dict[str, Any]:
            parts = [{"type": "input_image", "image_url": data_url(content)} for content in contents]
            said = {"role": "user", "content": [{"type": "input_text", "text": "Look. " * BLOCK_SIZE}, *parts]}
            body = {"model": MODEL, "input": [said], "max_output_tokens": SAMPLED, "temperature": 0.0, **fields}
            answer = (await client.post("/responses", json=body)).raise_for_status()
            assert "respsite-ignored" not in answer.headers
            return dict(answer.json())

        queries, hits = metric("queries"), metric("hits")
        first = await ask(picture("#0a0b0c"), picture("#0d0e0f", (20, 10)))
        assert (metric("queries") - queries, metric("hits") - hits) == (2, 0)
        turns = [first]
        for _ in range(3):
            turns.append(await ask(previous_response_id=turns[-1]["id"]))
        assert (metric("queries") - queries, metric("hits") - hits) == (8, 6), "each was seen once"
        for before, after in pairwise(turn["usage"] for turn in turns):
            known = full_blocks(before["input_tokens"])
            assert after["input_tokens_details"]["cached_tokens"] >= known
        again = await ask(picture("#0a0b0c"), picture("#0d0e0f", (20, 10)))
        assert [item["content"] for item in again["output"]] == [item["content"] for item in first["output"]]
        assert metric("hits") - hits == 8, "an image is the same whoever sends it again"
