"""Pictures in an AsyncLLM whose parts lose them: no vLLM is needed."""

from collections.abc import AsyncGenerator, AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from engine.backends.vllm import async_llm
from engine.backends.vllm import local as vllm_local
from engine.backends.vllm.local import VllmEngine
from engine.errors import GenerationFailed, PicturesRefused, PromptTooLong
from engine.types import GenerationRequest
from tests.contracts.engine import collect, joined
from tests.kit.gallery import Gallery

SAID = [1, 2, 3]
NO_VERSIONS = SimpleNamespace(external_req_ids={}, request_states={})  # of weights


class KeepingLlm:
    """Stands for an AsyncLLM: its renderer keeps the names of pictures, and its core may have lost them."""

    errored = False
    output_processor = NO_VERSIONS

    def __init__(self) -> None:
        self.renderer = self
        self.kept: set[str] = set()
        self.core_has: set[str] = set()
        self.problem: Exception | None = None  # what the renderer says
        self.fails = False  # the core does, whatever it is given
        self.data: list[list[bytes | None]] = []  # of each prompt

    async def render_cmpl_async(self, prompts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        [prompt] = prompts
        names, data = prompt["multi_modal_uuids"]["image"], prompt["multi_modal_data"]["image"]
        self.data.append(data)
        if self.problem:
            raise self.problem
        for index, (name, content) in enumerate(zip(names, data, strict=True)):
            if content is None and name not in self.kept:
                raise ValueError(f"Cache miss for image at index {index} but data is not provided.")
        new = [name for name in names if name not in self.kept]
        self.kept.update(names)
        return [{"names": names, "new": new}]

    async def generate(self, prompt: dict[str, Any], **_: object) -> AsyncGenerator[Any, None]:
        self.core_has.update(prompt["new"])
        lost = set(prompt["names"]) - self.core_has
        self.kept -= lost
        for tokens, finish in [([], "error")] if lost or self.fails else [(SAID[:2], None), (SAID[2:], "stop")]:
            completion = SimpleNamespace(token_ids=tokens, finish_reason=finish, stop_reason=None, logprobs=None)
            of_prompt = {"num_cached_tokens": 0, "prompt_logprobs": None, "prompt_token_ids": [0] * 10}
            yield SimpleNamespace(outputs=[completion], kv_transfer_params=None, **of_prompt)


@pytest.fixture
def llm() -> KeepingLlm:
    return KeepingLlm()


@pytest.fixture
async def engine(llm: KeepingLlm, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[VllmEngine]:
    monkeypatch.setattr(vllm_local, "sampling_params", lambda *_, **__: None)
    monkeypatch.setattr(async_llm, "_decoded", lambda data: data)
    engine = VllmEngine(model="m")
    engine._kept.llm, engine._max_model_len = llm, 100
    yield engine
    await engine.aclose()


def asked(gallery: Gallery, *contents: bytes, prompt: int = 2) -> GenerationRequest:
    digests = [gallery.add(content).digest for content in contents]
    return GenerationRequest(
        request_id="r", prompt_token_ids=[7] * prompt, pictures=gallery.sources(digests), cache_salt="salt"
    )


async def test_each_picture_is_given_once(llm: KeepingLlm, engine: VllmEngine) -> None:
    gallery = Gallery()
    for _ in range(3):
        chunks = await collect(engine, asked(gallery, b"a", b"b"))
        assert (joined(chunks), chunks[-1].prompt_tokens) == (SAID, 10)
    await collect(engine, asked(gallery, b"a", b"c"))
    assert llm.data == [[b"a", b"b"], [None, None], [None, None], [None, b"c"]]
    assert len(llm.kept) == len(gallery.loaded) == 3


async def test_what_the_renderer_has_lost_it_gets_again(llm: KeepingLlm, engine: VllmEngine) -> None:
    gallery = Gallery()
    await collect(engine, asked(gallery, b"a"))
    llm.kept.clear()
    assert joined(await collect(engine, asked(gallery, b"a"))) == SAID
    assert llm.data == [[b"a"], [None], [b"a"]]


async def test_what_the_core_has_lost_it_gets_again(llm: KeepingLlm, engine: VllmEngine) -> None:
    gallery = Gallery()
    await collect(engine, asked(gallery, b"a", b"b"))
    llm.core_has.clear()
    assert joined(await collect(engine, asked(gallery, b"a", b"b"))) == SAID
    assert llm.data == [[b"a", b"b"], [None, None], [b"a", b"b"]]
    llm.fails = True
    with pytest.raises(GenerationFailed):
        await collect(engine, asked(gallery, b"a"))
    assert llm.data[3:] == [[None], [b"a"]], "it is tried once more, and no more"


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        ("At most 1 image(s) may be provided in one prompt.", PicturesRefused),
        ("The decoder prompt (length 300) is longer than the maximum model length of 100.", PromptTooLong),
    ],
)
async def test_what_it_does_not_take_is_told(
    says: str, expected: type[Exception], llm: KeepingLlm, engine: VllmEngine
) -> None:
    llm.problem = ValueError(says)
    with pytest.raises(expected):
        await collect(engine, asked(Gallery(), b"a"))


async def test_what_pictures_add_counts_from_the_first_time_on(engine: VllmEngine) -> None:
    gallery = Gallery()
    await collect(engine, asked(gallery, b"a"))  # it adds 8 to 2
    with pytest.raises(PromptTooLong) as refused:
        await collect(engine, asked(gallery, b"a", prompt=92))
    assert refused.value.prompt_tokens == 100
