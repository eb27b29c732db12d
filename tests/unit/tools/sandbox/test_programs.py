"""Programs in a container that call tools outside of it."""

import ast
import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from responses_app.extensions.containers.sandbox.cells import MAX_ANSWER
from responses_app.extensions.containers.sandbox.containers import Containers
from responses_app.extensions.containers.sandbox.hosts import OwnHost, RemoteHost
from responses_app.extensions.containers.sandbox.records import CellEnd, HostGone, SandboxError
from responses_app.extensions.containers.sandbox.sharing import SharedContainers
from responses_app.kit.clock import IdFactory
from tests.kit.sandboxes import SMALL, has_bubblewrap, host_at, needs_bubblewrap
from tests.kit.waiting import eventually

pytestmark = needs_bubblewrap


class Tools:
    """Answers calls with what they were given."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.hangs = False
        self.breaks: Exception | None = None
        self.cancelled = False
        self.called = asyncio.Event()

    async def __call__(self, call: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(call)
        self.called.set()
        if self.hangs:
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled = True
        if self.breaks:
            raise self.breaks
        if "calls" in call:
            return {"answers": [{"output": str(each["arguments"]["n"])} for each in call["calls"]]}
        if call.get("name") == "long":
            return {"output": "x" * (MAX_ANSWER + 1)}
        if call.get("name") == "bad":
            return {"error": "it may not be called"}
        return {"output": f'{{"n": {len(self.calls)}}}' if call.get("name") == "json" else str(call.get("arguments"))}


def of_a_host() -> Containers:
    return Containers(has_bubblewrap, SMALL, new_id=IdFactory(time.time))


@pytest.fixture(params=["this process", "another"])
async def containers(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SharedContainers]:
    host = of_a_host()
    if request.param == "another":
        async with host_at(tmp_path / "socket", host):
            made = SharedContainers([RemoteHost(str(tmp_path / "socket"))])
            yield made
            await none_is_left(made, host)
    else:
        made = SharedContainers([OwnHost(host)])
        yield made
        await none_is_left(made, host)


async def none_is_left(containers: SharedContainers, host: Containers) -> None:
    # Whoever has cancelled a program of another process has not waited for its container to end.
    await eventually(lambda: host.room().known + host.room().started == 0)
    await containers.aclose()


async def output_of(containers: SharedContainers, code: str, tools: Tools, seconds: float | None = None) -> str:
    return (await containers.run_program("default", code, tools, seconds)).execution.output


async def test_a_program_calls_tools_in_a_loop(containers: SharedContainers) -> None:
    tools = Tools()
    code = "print(sum(call_tool('json', {'a': n})['n'] for n in range(100)), call_tool('text', b=1))"
    assert await output_of(containers, code, tools) == "5050 {'b': 1}\n"
    assert [call["arguments"] for call in tools.calls[:2]] == [{"a": 0}, {"a": 1}]


async def test_a_tool_that_fails_is_an_exception(containers: SharedContainers) -> None:
    code = "try:\n    call_tool('bad')\nexcept ToolError as problem:\n    print(problem)\ncall_tool('bad')"
    output = await output_of(containers, code, Tools())
    assert output.startswith("it may not be called\n")
    assert "ToolError: it may not be called" in output


@pytest.mark.parametrize(
    "code",
    [
        "call_tool({1})",
        "call_tool('a', 'x' * 2_000_000)",
        "call_tool('a', {'b': 'x' * 2_000_000})",
        "import os; call_tool.__self__._channel.sendall(b'x' * 99); import time; time.sleep(9)",
        "call_tool.__self__._channel.close(); call_tool('a')",
        "import os; os._exit(1)",
        "import os; os.fork(); call_tool('a')",
    ],
)
async def test_whatever_a_program_does_it_ends(containers: SharedContainers, code: str) -> None:
    tools = Tools()
    with contextlib.suppress(SandboxError):
        await output_of(containers, code, tools, seconds=3.0)
    assert all(len(str(call)) < 2_000_000 for call in tools.calls)


SHAPES = {
    "as bytes are sent": '{"\\0bytes": [0, 9]}',
    "as empty bytes are sent": '{"a": {"\\0bytes": [0, 0]}}',
    "half characters": '{"\\ud800": "\\udfff"}',
}


@pytest.mark.parametrize("name", SHAPES)
async def test_a_call_of_any_shape_comes_whole_and_breaks_no_other(containers: SharedContainers, name: str) -> None:
    tools = Tools()
    tools.hangs = True
    other = asyncio.create_task(output_of(containers, "call_tool('a')", tools))
    await tools.called.wait()
    heard = Tools()
    await output_of(containers, f"call_tool('text', {SHAPES[name]})", heard)
    assert heard.calls == [{"name": "text", "arguments": ast.literal_eval(SHAPES[name])}]
    assert not other.done(), "it goes over the same connection"
    other.cancel()
    await asyncio.gather(other, return_exceptions=True)


async def test_threads_call_one_after_another_and_not_behind_the_end(containers: SharedContainers) -> None:
    code = """
import threading
done = []
threads = [threading.Thread(target=lambda: done.append(call_tool('json')['n'])) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(sorted(done))
threading.Thread(target=lambda: (__import__('time').sleep(0.2), call_tool('late'))).start()
"""
    tools = Tools()
    assert await output_of(containers, code, tools) == "[1, 2, 3, 4, 5, 6, 7, 8]\n"
    assert len(tools.calls) == 8


async def test_calls_that_are_made_together_come_together(containers: SharedContainers) -> None:
    tools = Tools()
    code = """
import asyncio, random
print(call_tools([("a", {"n": 1}), ["b", {"n": 2}]]), call_tools([]), call_tools([("json", {})]))

async def deep(n):
    for _ in range(n):
        await asyncio.sleep(0)
    return await call_tool_async("c", n=n)

print(await asyncio.gather(*[deep(n) for n in range(9)]), await call_tool_async("json"), random.random())
"""
    first, again = await output_of(containers, code, tools), await output_of(containers, code, Tools())
    assert first.startswith("[1, 2] [] [{'n': 2}]\n[0, 1, 2, 3, 4, 5, 6, 7, 8] {'n': 4} 0.")
    assert [len(call.get("calls", [None])) for call in tools.calls] == [2, 1, 9, 1]
    assert again == first, "chance is the same in each run"


async def test_a_coroutine_that_never_rests_does_not_hold_up_calls(containers: SharedContainers) -> None:
    code = """
import asyncio
async def busy():
    while True:
        await asyncio.sleep(0)
task = asyncio.create_task(busy())
print(await call_tool_async("text", b=1))
task.cancel();
"""
    assert await output_of(containers, code, Tools()) == "{'b': 1}\n"


@pytest.mark.parametrize("call", ["call_tools([('a', {})] * 60_000)", "call_tool('a', {'b': 'x' * 40_000_000})"])
async def test_a_call_that_is_too_long_fails_and_the_program_goes_on(containers: SharedContainers, call: str) -> None:
    tools = Tools()
    code = f"try:\n    {call}\nexcept ToolError as e:\n    print(e)\nprint(call_tool('json', a=1))"
    output = await output_of(containers, code, tools)
    assert output.startswith("a call has at most 1048576 bytes of JSON")
    assert len(tools.calls) == 1


async def test_time_in_which_a_tool_works_is_not_the_programs(containers: SharedContainers) -> None:
    tools = Tools()
    code = "while True:\n    call_tool('a')"
    run = await containers.run_program("default", code, tools, 0.5)
    assert run.execution.ended is CellEnd.TIMED_OUT
    assert tools.calls


async def test_what_the_host_raises_ends_the_program(containers: SharedContainers) -> None:
    tools = Tools()
    tools.breaks = LookupError("gone")
    with pytest.raises(LookupError, match="gone"):
        await output_of(containers, "call_tool('a')", tools)


async def test_a_program_that_waits_for_a_tool_can_be_cancelled(containers: SharedContainers) -> None:
    tools = Tools()
    tools.hangs = True
    task = asyncio.create_task(output_of(containers, "call_tool('a')", tools))
    await tools.called.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tools.cancelled, "no call outlives its program"


async def test_what_a_tool_gives_is_bounded(containers: SharedContainers) -> None:
    code = "try:\n    call_tool('long')\nexcept ToolError as problem:\n    print(problem)"
    assert "the tool gave more than" in await output_of(containers, code, Tools())


@pytest.mark.parametrize("who", ["host", "worker"])
async def test_a_program_whose_host_or_worker_goes_fails_with_what_it_called(tmp_path: Path, who: str) -> None:
    tools, host = Tools(), of_a_host()
    tools.hangs = True
    async with host_at(tmp_path / "socket", host):
        containers = SharedContainers([RemoteHost(str(tmp_path / "socket"))])
        task = asyncio.create_task(output_of(containers, "call_tool('a')", tools))
        await tools.called.wait()
        if who == "worker":
            await containers.aclose()
            await eventually(lambda: host.room().known + host.room().started == 0)
    with pytest.raises(HostGone):
        await task
    assert tools.cancelled
    await containers.aclose()
