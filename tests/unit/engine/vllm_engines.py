"""What the tests of the vllm-server engine share: the fake's script, prompts for it, and engines over it."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from engine.backends.base import BaseEngine
from engine.backends.vllm.server import VllmServerEngine
from engine.errors import EngineUnavailable
from engine.formats.harmony.prompt import generation_start, render_text
from engine.weights import WeightsCall, WeightsStep
from tests.kit.fake_vllm import MODEL, SELDOM_LOOKED_AT, FakeVllm

HELLO = "<|channel|>final<|message|>Hello you<|return|>"
LONG = f"<|channel|>final<|message|>{' '.join(map(str, range(150)))}<|return|>"
SCRIPT = (
    {"when": "short", "say": HELLO, "cached_tokens": 2},
    {"when": "[hang]", "say": HELLO, "hang_after": 3},
    {"say": LONG},
)

OpenFake = Callable[..., Awaitable[FakeVllm]]
OpenEngine = Callable[..., Awaitable[VllmServerEngine]]
OpenPool = Callable[..., Awaitable[tuple[list[FakeVllm], VllmServerEngine]]]


def prompt(text: str) -> list[int]:
    return [*render_text("user", text).tokens, *generation_start()]


def update(version: str, info: Mapping[str, Any] | None = None) -> list[WeightsCall]:
    told = {WeightsStep.BEGIN: None, WeightsStep.UPDATE: info or {"names": ["w"]}, WeightsStep.FINISH: None}
    return [WeightsCall(step=step, version=version, info=each) for step, each in told.items()]


def over(*fakes: FakeVllm, **options: object) -> VllmServerEngine:
    """Return an engine that is to use these servers; not started.

    They answer on the loop of the test: where it is held for seconds, nothing is to be taken for gone.
    """
    urls = tuple(fake.url for fake in fakes)
    patient = {"connect_seconds": 60.0, **SELDOM_LOOKED_AT}
    return VllmServerEngine(model=MODEL, options={"urls": urls, "api_key": "", **patient, **options})


async def is_healthy(engine: BaseEngine) -> bool:
    try:
        await engine.health()
    except EngineUnavailable:
        return False
    return True


async def is_away(engine: BaseEngine) -> bool:
    return not await is_healthy(engine)
