"""Methods of an engine's workers are called only where the operator has named them."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from responses_app.protocol.errors import ApiError
from responses_app.protocol.requests.engine import parse_weights
from responses_app.runs.engines.doors import EngineDoors
from responses_app.stores.engines import NumberedState, WorkerReport
from tests.kit.fakes import run_settings

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


class Model:
    name = "m"

    class engine:
        class weights:
            is_shared = True


async def asked(of: EngineDoors, **fields: object) -> None:
    await of.weights(cast(Any, Model()), parse_weights({**APPLY, **fields}))


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
