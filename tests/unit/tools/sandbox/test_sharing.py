"""Containers of a host, as several workers have them: two in this process, each with a connection of its own."""

import asyncio
import tempfile
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from responses_app.extensions.containers.code_interpreter import CodeInterpreterTool
from responses_app.extensions.containers.sandbox.checkpoints import Checkpoints
from responses_app.extensions.containers.sandbox.containers import Containers
from responses_app.extensions.containers.sandbox.hosts import RemoteHost
from responses_app.extensions.containers.sandbox.records import (
    CellEnd,
    ContainerNotFound,
    HostGone,
    MemoryRefused,
    SandboxError,
)
from responses_app.extensions.containers.sandbox.settings import SKILLS_FOLDER, SandboxSettings
from responses_app.extensions.containers.sandbox.sharing import SharedContainers
from responses_app.extensions.containers.sandbox.skills import MountedSkill
from responses_app.kit.clock import IdFactory
from responses_app.protocol.errors import JsonObject
from tests.kit.fakes import FakeEngine, Site
from tests.kit.sandboxes import SMALL, content_of, has_bubblewrap, host_at, needs_bubblewrap, pieces_of
from tests.kit.skills import MANIFEST, zipped
from tests.kit.waiting import eventually
from tests.unit.runs.test_server_tools import prompt_of
from tests.unit.tools.sandbox.test_code_interpreter import ANSWER, AUTO, NEW_ID, OUTPUTS, calling, calls_of

pytestmark = [needs_bubblewrap, pytest.mark.asyncio(loop_scope="module")]


def containers_of(checkpoints: Checkpoints | None = None, settings: SandboxSettings = SMALL) -> Containers:
    return Containers(has_bubblewrap, settings, new_id=IdFactory(lambda: 1.0), checkpoints=checkpoints)


def worker(*paths: Path) -> CodeInterpreterTool:
    shared = SharedContainers([RemoteHost(str(path)) for path in paths])
    return CodeInterpreterTool(containers=shared, settings=SMALL, files=None, skills=None)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Pair:
    """Two workers, and the host of their containers."""

    one: CodeInterpreterTool
    other: CodeInterpreterTool
    host: Containers
    path: Path

    @property
    def ours(self) -> SharedContainers:
        return self.one.containers

    @property
    def theirs(self) -> SharedContainers:
        return self.other.containers


@asynccontextmanager
async def a_pair() -> AsyncIterator[Pair]:
    with tempfile.TemporaryDirectory() as folder:
        path, host = Path(folder) / "socket", containers_of()
        async with host_at(path, host):
            made = Pair(worker(path), worker(path), host, path)
            yield made
            for tool in (made.one, made.other):
                await tool.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair() -> AsyncIterator[Pair]:
    """Return a host and workers that the tests of this module share."""
    async with a_pair() as made:
        yield made


async def test_a_chain_keeps_its_variables_whichever_worker_it_comes_to(pair: Pair) -> None:
    site = Site(FakeEngine([calling("x = 40"), ANSWER]), tools=[pair.one], new_id=NEW_ID)
    asked: dict[str, Any] = {"input": "on", "tools": AUTO, "include": OUTPUTS}
    first = last = await site.ask(**asked)
    for tool, code in ((pair.other, "x += 1"), (pair.one, "x += 1"), (pair.other, "x")):
        site = Site(FakeEngine([calling(code), ANSWER]), tools=[tool], new_id=NEW_ID, store=site.store)
        last = await site.ask(previous_response_id=last["id"], **asked)
        assert "is gone" not in prompt_of(site, -1)
    (began,), (ended,) = calls_of(first), calls_of(last)
    assert ended["outputs"] == [{"type": "logs", "logs": "42\n"}]
    assert ended["container_id"] == began["container_id"]
    replayed: list[JsonObject] = [*last["output"], {"role": "user", "content": "on"}]  # type: ignore[misc]
    elsewhere = Site(FakeEngine([calling("x + 1"), ANSWER]), tools=[pair.one], new_id=NEW_ID)
    (carried,) = calls_of(await elsewhere.ask(**{**asked, "input": replayed}, store=False))
    assert carried["outputs"] == [{"type": "logs", "logs": "43\n"}]


async def test_all_that_a_container_can_do_it_does_for_every_worker(pair: Pair) -> None:
    ours, theirs = pair.ours, pair.theirs
    here, there = await ours.create("p", name="a"), await theirs.create("p")
    assert await theirs.find("p", here.id) == here
    assert [each.id for each in await theirs.all_of("p")] == [each.id for each in await ours.all_of("p")]
    assert {here.id, there.id} <= {each.id for each in await ours.all_of("p")}
    content = bytes(range(256)) * 4096
    up = await theirs.put_file("p", here.id, "in.bin", pieces_of(content))
    code = "open('out.bin', 'wb').write(open('in.bin', 'rb').read()[::-1])\nprint('ü')\n1 / 0"
    run = await theirs.run("p", here.id, code)
    assert (run.execution.error, run.execution.output.splitlines()[0]) == ("ZeroDivisionError", "ü")
    (out,) = run.files
    assert await content_of(theirs, "p", here.id, out.id) == content[::-1]
    assert await theirs.files_of("p", here.id) == await ours.files_of("p", here.id) == [up, out]
    assert await theirs.file("p", here.id, out.id) == out
    shown = await theirs.run("p", here.id, "class Picture:\n    def _repr_png_(self): return b'png!'\nPicture()")
    assert [image.content for image in shown.execution.images] == [b"png!"]
    kept = await theirs.put_image("p", here.id, "image/png", b"png!")
    assert await content_of(ours, "p", here.id, kept.id) == b"png!"
    await theirs.remove_file("p", here.id, up.id)
    with pytest.raises(ContainerNotFound, match=up.id):
        await content_of(theirs, "p", here.id, up.id)
    with pytest.raises(SandboxError, match="not the path of a file"):
        await theirs.put_file("p", here.id, "../x", pieces_of())
    with pytest.raises(MemoryRefused, match="memory_limit 64g is more than a container has here: 1g"):
        await ours.create("p", memory="64g")
    for ask in (theirs.find, theirs.delete, theirs.files_of):
        with pytest.raises(ContainerNotFound):
            await ask("another's", here.id)
    assert await theirs.of_chain("another's", [here.id]) is None
    await theirs.delete("p", here.id)
    with pytest.raises(ContainerNotFound):
        await ours.find("p", here.id)


async def test_commands_are_told_of_while_they_run_and_end_with_their_worker(pair: Pair) -> None:
    here, dies = await pair.ours.create("p"), worker(pair.path)
    told: list[dict[str, Any]] = []
    asked: dict[str, Any] = {"seconds": 30.0, "most": 100, "report": told.append}
    work = asyncio.create_task(dies.containers.run_commands("p", here.id, ["echo one; sleep 60"], **asked))
    await eventually(lambda: bool(told))
    assert told == [{"command_index": 0, "stdout": "one\n"}]
    await dies.aclose()
    with pytest.raises(HostGone):
        await work
    # None of them is a `sleep` any more.
    look = "cat /proc/[0-9]*/comm 2> /dev/null | grep -c sleep"  # one may end meanwhile
    run = await pair.ours.run_commands("p", here.id, [look, "echo a > file; echo b >&2; exit 3"], **asked)
    assert [(each.exit_code, each.killed) for each in run.execution.commands] == [(1, False), (3, False)]
    assert (run.execution.ended, [file.path for file in run.files]) == (CellEnd.DONE, ["file"])
    # All was told before the end, in whatever order the two have printed it.
    assert sorted(told[1:], key=str) == [{"command_index": 0, "stdout": "0\n"}, {"command_index": 1, "stderr": "b\n"}]


async def test_skills_come_into_containers_of_a_host(pair: Pair) -> None:
    here, skill = await pair.ours.create("p"), MountedSkill("basic-math-1", "basic-math", "Adds.")
    noise = bytes(range(251)) * 20_000  # 5 MB: more than one message of most kinds has
    bundle = zipped({"s/SKILL.md": MANIFEST, "s/noise": noise}, method=zipfile.ZIP_STORED)
    await pair.theirs.add_skill("p", here.id, skill, bundle)
    assert await pair.ours.skills_of("p", here.id) == [skill]
    look = f"import os; print(os.listdir({SKILLS_FOLDER!r}), os.path.getsize('{SKILLS_FOLDER}/basic-math-1/noise'))"
    assert (await pair.ours.run("p", here.id, look)).execution.output == f"['basic-math-1'] {len(noise)}\n"
    with pytest.raises(ContainerNotFound):
        await pair.theirs.add_skill("q", here.id, skill, bundle)


@pytest.mark.parametrize("id", ["cntr_0", f"cntr_{'0' * 32}", f"cntr_{'/' * 32}", f"cntr_{'.' * 30}/a", "", "x" * 5000])
async def test_ids_that_nobody_has_made(pair: Pair, id: str) -> None:
    with pytest.raises(ContainerNotFound):
        await pair.theirs.find("p", id)


async def test_a_cancelled_call_stops_its_code(pair: Pair) -> None:
    here = await pair.ours.create("p")
    for call in ("", "resp_1 ci_1"):
        work = asyncio.create_task(pair.theirs.run("p", here.id, "while True: pass", call=call))
        own = pair.host._known._containers[here.id]
        await eventually(lambda own=own: own.working > 0 and own.session is not None)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert (await asyncio.wait_for(pair.theirs.run("p", here.id, "1"), 20)).execution.output == "1\n"
        await eventually(lambda own=own: own.working == 0)
    with pytest.raises(SandboxError, match="the code was stopped"):
        await pair.ours.run("p", here.id, "2", call="resp_1 ci_1")


async def test_a_call_whose_worker_dies_goes_on_and_is_not_made_twice(pair: Pair) -> None:
    doomed, here = worker(pair.path), await pair.ours.create("p")
    await pair.ours.run("p", here.id, "n = 0")
    code = "import time\nn += 1\nopen('begun', 'w').close()\ntime.sleep(0.5)\nprint(n)"
    work = asyncio.create_task(doomed.containers.run("p", here.id, code, call="resp_1 ci_2"))
    own = pair.host._known._containers[here.id]
    await eventually(lambda: own.working > 0)
    await doomed.aclose()
    with pytest.raises(SandboxError, match="went away"):
        await work
    for workers in (pair.ours, pair.theirs):
        again = await workers.run("p", here.id, code, call="resp_1 ci_2")
        assert again.execution.output == "1\n"
    assert (await pair.ours.run("p", here.id, "n", call="resp_1 ci_3")).execution.output == "1\n"


async def test_a_host_that_ended_is_told_of_and_the_next_one_is_used(tmp_path: Path) -> None:
    """The chain goes on in a new container; a call that was under way fails with the reason."""
    asked: dict[str, Any] = {"input": "on", "tools": AUTO}
    path = Path(tempfile.mkdtemp()) / "socket"
    tool = worker(path)
    async with host_at(path, containers_of()) as server:
        site = Site(FakeEngine([calling("x = 40"), ANSWER]), tools=[tool], new_id=NEW_ID)
        first = await site.ask(**asked)
        endless = Site(FakeEngine([calling("while True: pass"), ANSWER]), tools=[tool], new_id=NEW_ID)
        work = asyncio.create_task(endless.ask(**asked))
        await eventually(lambda: server._busy > 0)
    assert (await work)["status"] == "completed"
    assert "the host of the container went away while it worked" in prompt_of(endless, -1)
    path.unlink()
    async with host_at(path, containers_of()):
        site = Site(FakeEngine([calling("x"), ANSWER]), tools=[tool], new_id=NEW_ID, store=site.store)
        await site.ask(previous_response_id=first["id"], **asked)
        assert "its variables and files are lost" in prompt_of(site, -1)
        await tool.aclose()
