"""Responses that have said a half: their sites and readers, what holds them up, how they end, and refusals."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from engine.types import TurnRules
from responses_app.kit.errors import StoreError
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.resources.conversations.model import Conversation
from responses_app.runs.driving.run import Run
from responses_app.runs.plan.settings import RunSettings
from tests.kit.fakes import ANSWER, FakeEngine, FakeStore, Reading, Site, run_settings
from tests.kit.laws import assert_laws
from tests.kit.waiting import eventually

HALF = "<|channel|>final<|message|>Half of it"
DELTA = "response.output_text.delta"


def says_half(gate: asyncio.Event | None = None) -> FakeEngine:
    """Return an engine that says a half and then waits, for ever where there is no `gate`."""
    return FakeEngine([[HALF, gate or asyncio.Event(), ANSWER]])


def hanging(
    gate: asyncio.Event | None = None, *, store: FakeStore | None = None, worker: str = "", **limits: Any
) -> Site:
    """Return a site of such an engine, with these settings."""
    return Site(says_half(gate), store or FakeStore(), run_settings(**limits), worker=worker)


async def half_said(site: Site, **fields: object) -> Reading:
    """Begin a streamed response; return its reader once the model has said a half."""
    reading = await site.begin(**{"input": "hi", "transport": "sse", **fields})  # type: ignore[arg-type]
    await asyncio.wait_for(site.engine.waits.wait(), 10)
    return reading


async def hung(gate: asyncio.Event | None = None, **options: Any) -> tuple[Site, Reading]:
    """Return a site that hangs, with the settings among these options, and the reader of a response that said a half.

    The other options are the response's fields.
    """
    limits = {name: value for name, value in options.items() if name in RunSettings.__dataclass_fields__}
    site = hanging(gate, **limits)
    return site, await half_said(site, **{name: value for name, value in options.items() if name not in limits})


async def close(site: Site, **patience: float) -> None:
    """Close the registry; a test that would wait for ever fails."""
    async with asyncio.timeout(10):
        await site.registry.aclose(**patience)


async def idle(site: Site) -> None:
    """Return when nothing runs any more."""
    await eventually(lambda: len(site.registry) == 0)


async def ended(site: Site, run: Run) -> None:
    """Return when a run has ended and is forgotten."""
    async with asyncio.timeout(10):
        await site.registry.wait_for_end(run)
    await eventually(lambda: run not in site.registry.running)


def runs(site: Site, reading: Reading) -> bool:
    return site.registry.get(id_of(reading)) is not None


def id_of(reading: Reading) -> str:
    """Return the id of the response that is read."""
    return reading.reader.source.response_id


async def response_of(reading: Reading) -> dict[str, Any]:
    """Read a response to its end, by the laws of all streams; return it as its last event has it."""
    events = await reading.to_the_end()
    assert_laws(events)
    response = events[-1]["response"]
    assert isinstance(response, dict)
    return response


def rules_of(site: Site, turn: int = -1) -> TurnRules:
    """Return what the engine was asked to hold the model to in a turn."""
    grammar = site.engine.requests[turn].grammar
    return grammar.rules


async def converse(site: Site, *items: JsonObject) -> None:
    """Keep the conversation `conv_1`, of these items, at a site that was lent `conversations`."""
    row = Conversation(pk="conv_1", created_at=datetime.now(UTC))
    await site.conversations.create(row, [{"id": f"item_{at}", **item} for at, item in enumerate(items, start=1)])


async def refused(request: Awaitable[object]) -> ApiError:
    """Return the error that a request is refused with."""
    with pytest.raises(ApiError) as caught:
        await request
    return caught.value


def away() -> StoreError:
    """Return what a store raises that comes back."""
    error = StoreError("away")
    error.passing = True
    return error


class Held:
    """Holds calls of a method of this object until `go_on` is set, before they do their work, or `behind` that.

    `waits` is set once a call is held; those of which `when` is false are not.
    """

    def __init__(
        self, owner: object, method: str, *, behind: bool = False, when: Callable[..., bool] = lambda *_: True
    ) -> None:
        self.waits, self.go_on = asyncio.Event(), asyncio.Event()
        whole = getattr(owner, method)

        async def held(*args: object, **named: object) -> object:
            given = await whole(*args, **named) if behind else None
            if when(*args):
                self.waits.set()
                await self.go_on.wait()
            return given if behind else await whole(*args, **named)

        setattr(owner, method, held)


class Failing:
    """Fails so many calls of a method of this object; `left` tells how many still fail."""

    def __init__(self, owner: object, method: str, left: int, error: Exception | None = None) -> None:
        self.left = left
        whole = getattr(owner, method)

        async def fails(*args: object, **named: object) -> object:
            if self.left > 0:
                self.left -= 1
                raise error or StoreError("away")
            return await whole(*args, **named)

        setattr(owner, method, fails)
