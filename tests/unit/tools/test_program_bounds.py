"""What bounds the calls of a program that takes no notice of errors."""

from typing import Any

import pytest

from responses_app.extensions.containers.programs import MAX_BYTES, MAX_FAILED, bounded
from responses_app.tools.base import ToolFailed


class Tools:
    """Gives a text for every call."""

    def __init__(self, **said: Any) -> None:
        self.said = said
        self.calls = 0

    async def __call__(self, call: dict[str, Any]) -> dict[str, Any]:
        self.calls += 1
        return self.said


@pytest.mark.parametrize(("arguments", "given"), [({"a": "x" * 1000_000}, ""), ({}, "x" * 1000_000)])
async def test_all_calls_together_are_so_large_and_no_larger(arguments: dict[str, Any], given: str) -> None:
    tools = Tools(output=given)
    call = bounded(tools)
    said = [await call({"name": "a", "arguments": arguments}) for _ in range(40)]
    assert tools.calls in (MAX_BYTES // 1000_000, MAX_BYTES // 1000_000 + 1)
    assert f"at most {MAX_BYTES} bytes" in said[-1]["error"]


async def test_one_that_goes_on_behind_its_errors_is_ended() -> None:
    call = bounded(Tools(error="no"))
    for _ in range(MAX_FAILED):
        assert await call({"name": "a", "arguments": {}}) == {"error": "no"}
    with pytest.raises(ToolFailed, match="have failed"):
        await call({"name": "a", "arguments": {}})


_DEEP: list[Any] = []
for _ in range(600):
    _DEEP = [_DEEP]


@pytest.mark.parametrize("value", ["\ud800", _DEEP])
async def test_what_cannot_be_sent_is_an_error_of_that_call_alone(value: object) -> None:
    tools = Tools(output="1")
    call = bounded(tools)
    assert "arguments may not have" in (await call({"name": "a", "arguments": {"a": value}}))["error"]
    assert await call({"name": "a", "arguments": {"a": 2**70}}) == {"output": "1"}
    assert tools.calls == 1
