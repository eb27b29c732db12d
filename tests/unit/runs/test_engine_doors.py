"""What is done to an engine ends, also where the store fails for a while; only methods that are named are called."""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from engine.backends.demo.engine import DemoWeights
from responses_app.kit.errors import StoreError
from responses_app.protocol.engine_state import EngineState, NumberedState, WorkerReport, parse_pause, parse_weights
from responses_app.protocol.errors import ApiError
from responses_app.runs.engines import following, operations
from responses_app.runs.engines.doors import EngineDoors
from responses_app.runs.engines.following import EngineFollower
from tests.kit.fakes import run_settings
from tests.kit.waiting import eventually


class FailingStore:
    """Keeps the state of one engine, of one worker; what is in `failures` fails so often: where `lost`, it is kept."""

    def __init__(self, *, lost: bool = False) -> None:
        self.failures: dict[str, int] = {}
        self._lost = lost
        self._kept = NumberedState(0, EngineState())
        self._report = WorkerReport("w", 0, {})

    def _fail(self, what: str) -> None:
        if self.failures.get(what, 0) > 0:
            self.failures[what] -= 1
            raise StoreError("The database is away.")

    @property
    def state(self) -> EngineState:
        return self._kept.state

    async def numbers(self) -> Mapping[str, int]:
        return {"m": self._kept.number}

    async def read(self, model: str) -> NumberedState:
        return self._kept

    async def change(self, model: str, number: int, state: EngineState) -> bool:
        what, after = "begin" if state.busy else "end", NumberedState(number, state)
        if not self._lost:
            self._fail(what)
        if self._kept != after:
            if self._kept.number != number - 1:
                return False
            self._kept = after
        self._fail(what)
        return True

    async def report(self, model: str, report: WorkerReport) -> None:
        self._fail("report")
        self._report = report

    async def reports(self, model: str, *, seen_since: float) -> Sequence[WorkerReport]:
        return [self._report]


@asynccontextmanager
async def opened(store: FailingStore) -> AsyncIterator[tuple[EngineDoors, Any]]:
    model: Any = SimpleNamespace(name="m", engine=SimpleNamespace(weights=DemoWeights()))
    model.info = lambda: model
    kept: Any = store
    follower = EngineFollower([model], kept, worker="w", now=time.time)

    async def tell(name: str) -> None:
        pass

    settings = run_settings(engine_weights=True, engine_weights_seconds=1.0, worker_lease_seconds=0.1)
    of = EngineDoors(kept, follower, worker="w", now=time.time, settings=settings, tell=tell)
    of.start()
    yield of, model
    await of.aclose()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (operations, following):
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)


@pytest.mark.parametrize(("what", "lost"), [("report", False), ("end", False), ("end", True)])
async def test_what_is_done_ends_though_the_store_fails_for_a_while(what: str, lost: bool) -> None:
    store = FailingStore(lost=lost)
    async with opened(store) as (of, model):
        store.failures[what] = 3
        await of.pause(model, parse_pause({}))
        assert store.failures[what] == 0
        state = (await of.view(model)).state
        assert (state.paused, state.busy) == ("keep", "")
        await of.resume(model)


@pytest.mark.parametrize("lost", [False, True])
async def test_what_nobody_knows_to_have_begun_is_taken_back(lost: bool) -> None:
    store = FailingStore(lost=lost)
    async with opened(store) as (of, model):
        store.failures |= {"begin": 1, "end": 2}
        with pytest.raises(StoreError):
            await of.pause(model, parse_pause({}))
        await eventually(lambda: store.failures["end"] == 0)
        await eventually(lambda: not store.state.busy)
        assert store.state.paused == ""
        await of.pause(model, parse_pause({}))
        await of.resume(model)


@pytest.mark.parametrize("lost", [False, True])
async def test_what_fails_ends_though_the_store_fails_for_a_while(lost: bool) -> None:
    store = FailingStore(lost=lost)
    async with opened(store) as (of, model):
        store.failures["end"] = 3
        with pytest.raises(ApiError, match="seed"):
            await of.weights(model, parse_weights({"action": "apply", "version": "v", "info": {}}))
        state = (await of.view(model)).state
        assert (state.paused, state.busy, state.version) == ("", "", "")


async def test_weights_of_workers_that_say_nothing_are_of_no_version_that_is_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operations, "HEAR_SECONDS", 0.1)
    store = FailingStore()
    async with opened(store) as (of, model):
        store.failures["report"] = 1_000_000
        with pytest.raises(ApiError, match="1 of 1 workers have not said"):
            await of.weights(model, parse_weights({"action": "apply", "version": "v", "info": {"seed": 1}}))
        assert (store.state.paused, store.state.busy, store.state.version) == ("", "", "failed:v")
        assert store.state.update is None
        store.failures["report"] = 0
        await of.weights(model, parse_weights({"action": "apply", "version": "w", "info": {"seed": 0}}))
        assert list(store.state.versions) == ["failed:v", "w"]


APPLY: Any = {"action": "apply", "version": "v1"}


class Reached(Exception):
    """What is asked for has come as far as the engine's state."""


class NoStore:
    async def read(self, model: str) -> NumberedState:
        raise Reached

    async def reports(self, model: str, *, seen_since: float) -> Sequence[WorkerReport]:
        raise Reached


def doors(*methods: str) -> EngineDoors:
    async def tell(model: str) -> None:
        raise AssertionError(model)

    settings = run_settings(engine_rpc_methods=methods)
    nothing: Any = NoStore()
    return EngineDoors(nothing, nothing, worker="w", now=lambda: 0.0, settings=settings, tell=tell)


async def asked(of: EngineDoors, **fields: object) -> None:
    model: Any = SimpleNamespace(name="m", engine=SimpleNamespace(weights=SimpleNamespace(is_shared=True)))
    await of.weights(model, parse_weights({**APPLY, **fields}))


@pytest.mark.parametrize("methods", [(), ("load_from",)])
async def test_others_are_refused(methods: tuple[str, ...]) -> None:
    with pytest.raises(ApiError, match="ENGINE_RPC_METHODS") as refused:
        await asked(doors(*methods), rpc={"method": "save_sharded_state", "kwargs": {"path": "/etc"}})
    assert (refused.value.status, refused.value.param) == (400, "rpc.method")


async def test_those_that_are_named_are_called() -> None:
    with pytest.raises(Reached):
        await asked(doors("other", "load_from"), rpc={"method": "load_from"})
    with pytest.raises(Reached):
        await asked(doors(), info={"seed": 1})


@pytest.mark.parametrize("method", ["", "_private", "a.b", "a b", "a\n"])
def test_what_is_no_name_is_refused(method: str) -> None:
    with pytest.raises(ApiError):
        parse_weights({**APPLY, "rpc": {"method": method}})
