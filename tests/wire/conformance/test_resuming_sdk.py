"""OpenAI's SDK and the README's loop: the worker of a background stream dies, and another one goes on with it."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.kit.balancer import Balancer
from tests.kit.fixtures import two_of
from tests.kit.laws import assert_laws
from tests.kit.scripts import BEGIN
from tests.kit.sdk import PATIENCE
from tests.kit.server import KINDS
from tests.project.test_readme import blocks

MODEL = "test-model"
NUMBERS = " ".join(str(number) for number in range(150))
THOUGHT = "<|channel|>analysis<|message|>Let me count.<|end|><|start|>assistant"
SCRIPT = [
    {"when": "[long]", "say": f"{THOUGHT}{BEGIN}{NUMBERS}<|return|>", "delay": 0.012},
    {"say": f"{BEGIN}Hello.<|return|>"},
]
SEEN = 60  # events, before the worker goes
to_each = pytest.mark.parametrize(("kind", "how"), [(KINDS[0], "killed"), *((kind, "stopped") for kind in KINDS)])
README_LOOP = next(code for code in blocks("python") if "starting_after" in code)


class Pair:
    """Two workers on one database; `owner` is the one that takes the first connection."""

    def __init__(self, folder: Path, kind: str) -> None:
        limits: dict[str, Any] = {"worker_lease_seconds": 1, "shutdown_grace_seconds": 0}
        self.owner, self.other = two_of(folder, kind=kind, script=SCRIPT, model_name=MODEL, **limits)

    def end(self, how: str) -> None:
        """Kill the owner, or tell it to stop."""
        if how == "killed":
            self.owner.kill()
        else:
            self.owner.stop(signal.SIGTERM)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Pair]]:
    """Two workers of each kind."""
    folder = tmp_path_factory.mktemp("pairs")
    pairs = {kind: Pair(folder / kind, kind) for kind in KINDS}
    yield pairs
    for pair in pairs.values():
        for worker in (pair.other, pair.owner):
            worker.stop()
            assert "Traceback" not in worker.output, worker.output[-3000:]


@pytest.fixture
def pair(pairs: dict[str, Pair], kind: str) -> Pair:
    """Two workers, of which the test before may have ended one."""
    pair = pairs[kind]
    for worker in (pair.other, pair.owner):
        if not worker.is_running:
            worker.start()
    return pair


@pytest.fixture
async def balancer(pair: Pair) -> AsyncIterator[Balancer]:
    """What stands in front of them."""
    async with Balancer([pair.owner, pair.other]) as balancer:
        yield balancer


def hold_to_the_laws(pair: Pair, events: list[Any]) -> None:
    """Check that it was one whole stream, which says the same as the response and as the stream that is read again."""
    assert_laws([event.to_dict() for event in events])
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    with OpenAI(base_url=pair.other.base_url, api_key="none", timeout=PATIENCE) as client:
        response = client.responses.retrieve(events[0].response.id)
        again = list(client.responses.retrieve(response.id, stream=True))
        following = client.responses.create(model=MODEL, input="And?", previous_response_id=response.id)
    assert said == response.output_text == NUMBERS
    assert (events[-1].type, events[-1].response.to_dict()) == ("response.completed", response.to_dict())
    assert [event.to_dict() for event in again] == [event.to_dict() for event in events]
    assert following.output_text == "Hello."


@to_each
async def test_the_readmes_loop_goes_on_at_another_worker(pair: Pair, balancer: Balancer, how: str) -> None:
    def read(client: OpenAI) -> list[Any]:
        readme: dict[str, Any] = {"client": client}
        exec(README_LOOP.partition("\n\n\nfor event")[0], readme)
        every_event: Callable[..., Iterator[Any]] = readme["every_event"]
        events = []
        for event in every_event(model=MODEL, input="[long]"):
            events.append(event)
            if len(events) == SEEN:
                pair.end(how)
        return events

    with OpenAI(base_url=balancer.base_url, api_key="none", timeout=PATIENCE) as client:
        events = await asyncio.to_thread(read, client)
        await asyncio.to_thread(hold_to_the_laws, pair, events)


@to_each
async def test_the_sdks_raise_where_a_stream_is_cut(pair: Pair, balancer: Balancer, how: str) -> None:
    async with AsyncOpenAI(base_url=balancer.base_url, api_key="none", timeout=PATIENCE) as client:
        async with client.responses.stream(model=MODEL, input="[long]", background=True) as stream:
            events: list[Any] = [await anext(stream) for _ in range(SEEN)]
            await asyncio.to_thread(pair.end, how)
            with pytest.raises(openai.APIConnectionError):
                events.extend([event async for event in stream])
        async with client.responses.stream(response_id=events[0].response.id) as again:
            whole = [event async for event in again]
            response = await again.get_final_response()
    assert response.output_text == NUMBERS
    assert [event.sequence_number for event in whole[:SEEN]] == list(range(SEEN))
    assert [event.type for event in whole[:SEEN]] == [event.type for event in events]
