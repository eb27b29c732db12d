"""The contract of engines over a vLLM that serves a model with a chat template: it knows nothing of Harmony."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from engine.backends.base import BaseEngine
from engine.backends.scripted import ScriptedEngine
from engine.backends.vllm.server import VllmServerEngine
from engine.formats.base import ItemEnded, ItemKind, ItemStarted
from engine.formats.chat_template.prompt import records
from engine.types import FinishReason, GenerationRequest, TokenChunk
from tests.contracts.engine import EngineContract, ask, joined
from tests.kit.waiting import eventually
from tests.unit.engine.rendering_vllm import RenderingVllm
from tests.unit.engine.vllm_engines import over
from tests.unit.formats.families import LLAMA, QWEN, Family
from tests.unit.formats.rendering import FAMILIES, format_of

SHORT, LONG = "short", "long"
SAID = {
    QWEN.name: {SHORT: "<think>\nHm.\n</think>\n\n Hello", LONG: f"<think>Hm.</think>{' word' * 45}"},
    LLAMA.name: {SHORT: " Hello", LONG: " word" * 45},
}


class FamilyScript(ScriptedEngine):
    """Plays the entry whose word a prompt ends with, the first one for any other prompt."""

    def _choose(self, request: GenerationRequest):  # type: ignore[no-untyped-def]
        text = b"".join(bytes((token,)) for token in request.prompt_token_ids[-8:] if token < 256).decode()
        fits = (part for part in self._parts if part.entry.when and text.endswith(part.entry.when))
        return next(fits, self._parts[0]), 0


class TestContract(EngineContract):
    @pytest.fixture(params=FAMILIES, ids=lambda family: family.name)
    async def fake(self, request: pytest.FixtureRequest) -> AsyncIterator[RenderingVllm]:
        self.family: Family = request.param
        self.format, renderer = format_of(self.family)
        self.end = self.family.ids[self.family.end]
        script = [
            {"when": word, "tokens": [*renderer.encode(said), self.end]}
            for word, said in SAID[self.family.name].items()
        ]
        made = RenderingVllm(family=self.family)
        made.engine = FamilyScript(model="of a family", options={"script": script, "max_model_len": 10**9})
        async with made:
            yield made

    @pytest.fixture
    def new_engine(self, fake: RenderingVllm) -> VllmServerEngine:
        self.fake = fake
        return over(fake, harmony=False)

    def short_prompt(self) -> list[int]:
        return list(SHORT.encode())

    def long_prompt(self) -> list[int]:
        return list(LONG.encode())

    def ask(self, prompt: list[int], *, max_output_tokens: int | None = None) -> GenerationRequest:
        asked = ask(prompt, max_output_tokens=max_output_tokens)
        return replace(asked, sampling=asked.sampling.but(stop_token_ids=self.format.stop_tokens))

    def assert_whole(self, chunks: list[TokenChunk]) -> None:
        """Assert that the items are those that were said, and that they have all the tokens."""
        tokens = joined(chunks)
        assert chunks[-1].finish_reason is FinishReason.STOP
        assert tokens.index(self.end) == len(tokens) - 1
        events = self.format.parser().feed(tokens)
        kinds = [event.kind for event in events if isinstance(event, ItemStarted)]
        assert kinds == [ItemKind.REASONING, ItemKind.ANSWER][0 if self.family is QWEN else 1 :]
        ended = [event for event in events if isinstance(event, ItemEnded)]
        assert not any(event.truncated for event in ended)
        assert [token for event in ended for each in records(event.message.tokens) for token in each.sampled] == tokens

    async def wait_until_idle(self, engine: BaseEngine) -> None:
        await eventually(lambda: self.fake.engine.running == 0)
