"""The two engines under one name for the tests that hold both to the same, and short ways to ask them."""

from abc import ABC, abstractmethod
from itertools import count

from engine.backends.base import BaseEngine
from engine.formats.harmony.encoding import STOP_TOKENS
from engine.types import GenerationRequest, SamplingOptions, Session, TokenChunk
from tests.contracts.engine import StartedEngine, collect
from tests.system.vllm.server import BLOCK_SIZE, VllmServer

_numbers = count(1)


LOADED_SECONDS = 300.0  # twenty prompts of 2,000 words take 40 s on two cores: one step reads one of them


class EngineUnderTest(ABC):
    def __init__(self, started: StartedEngine) -> None:
        self.engine: BaseEngine = started.engine
        self.info = started.info

    @abstractmethod
    def running(self) -> int:
        """Return how many requests vLLM's scheduler runs now."""

    async def ask(self, prompt: list[int], **fields: object) -> list[TokenChunk]:
        return await collect(self.engine, request(prompt, **fields), seconds=LOADED_SECONDS)


class LocalEngine(EngineUnderTest):
    def running(self) -> int:
        from prometheus_client import REGISTRY

        families = [family for family in REGISTRY.collect() if family.name == "vllm:num_requests_running"]
        return int(sum(sample.value for family in families for sample in family.samples))


class ServerEngine(EngineUnderTest):
    def __init__(self, started: StartedEngine, server: VllmServer) -> None:
        super().__init__(started)
        self._server = server

    def running(self) -> int:
        return self._server.running()


def request(
    prompt: list[int], *, priority: int = 0, cache_salt: str | None = None, affinity: str = "", **sampling: object
) -> GenerationRequest:
    options: dict[str, object] = {"temperature": 0.0, "stop_token_ids": STOP_TOKENS, **sampling}
    return GenerationRequest(
        request_id=f"feature-{next(_numbers)}",
        prompt_token_ids=prompt,
        sampling=SamplingOptions().but(**options),  # also what no API takes
        priority=priority,
        cache_salt=cache_salt,
        session=Session(id=affinity),
    )


def cached(chunks: list[TokenChunk]) -> int:
    """Return how much of the prompt came from the prefix cache."""
    known = [chunk.cached_tokens for chunk in chunks if chunk.cached_tokens is not None]
    assert known, "the engine did not say"
    return known[-1]


def full_blocks(tokens: int) -> int:
    """Return how many of a chain's tokens a prefix cache can hold: full blocks, without the last token.

    vLLM never computes the last sampled token, and of a prompt it recomputes at least the last one.
    """
    return (tokens - 1) // BLOCK_SIZE * BLOCK_SIZE
