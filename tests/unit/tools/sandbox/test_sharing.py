"""Containers of several workers of one machine: two in this process that know each other by their folder alone."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from responses_app.protocol.errors import JsonObject
from responses_app.stores.clock import id_factory
from responses_app.tools.code_interpreter.tool import CodeInterpreterTool
from responses_app.tools.sandbox import sharing
from responses_app.tools.sandbox.base import SandboxError
from responses_app.tools.sandbox.records import ContainerNotFound
from responses_app.tools.sandbox.sharing import SharedContainers
from tests.kit.fakes import FakeEngine, Site
from tests.kit.memory_files import MemoryFileStore
from tests.kit.memory_skills import MemorySkills
from tests.kit.sandboxes import SMALL, content_of, has_bubblewrap, needs_bubblewrap, pieces_of
from tests.kit.waiting import eventually
from tests.unit.runs.test_server_tools import prompt_of
from tests.unit.tools.sandbox.test_code_interpreter import ANSWER, AUTO, NEW_ID, OUTPUTS, calling, calls_of

pytestmark = [needs_bubblewrap, pytest.mark.asyncio(loop_scope="module")]


def worker(folder: Path) -> CodeInterpreterTool:
    """Return the tool of one worker."""
    return CodeInterpreterTool(
        choose=has_bubblewrap,
        settings=SMALL,
        new_id=id_factory(lambda: 1.0),
        folder=folder,
        files=MemoryFileStore(),
        skills=MemorySkills(),
    )


@dataclass(frozen=True)
class Pair:
    """Two workers."""

    one: CodeInterpreterTool
    other: CodeInterpreterTool
    folder: Path

    @property
    def ours(self) -> SharedContainers:
        return self.one.containers

    @property
    def theirs(self) -> SharedContainers:
        return self.other.containers


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    """Two workers, whose folder has a longer name than a socket may have."""
    folder = tmp_path_factory.mktemp("shared") / ("long" * 30) / "containers"
    made = Pair(worker(folder), worker(folder), folder)
    yield made
    for tool in (made.one, made.other):
        await tool.aclose()
    assert list(folder.iterdir()) == []


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


async def test_all_that_a_container_can_do_it_does_for_other_workers(pair: Pair) -> None:
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
    await theirs.delete("p", here.id)
    with pytest.raises(ContainerNotFound):
        await ours.find("p", here.id)


async def test_another_projects_is_not_found_on_any_worker(pair: Pair) -> None:
    mine = await pair.ours.create("mine")
    for ask in (pair.theirs.find, pair.theirs.delete, pair.theirs.files_of):
        with pytest.raises(ContainerNotFound):
            await ask("theirs", mine.id)
    assert await pair.theirs.all_of("theirs") == []
    assert (await pair.theirs.find("mine", mine.id)).id == mine.id
    (folder,) = {path.parent for path in pair.folder.iterdir()}
    assert folder.stat().st_mode & 0o077 == 0, "no other user reaches it"


@pytest.mark.parametrize("id", ["cntr_0", f"cntr_{'0' * 32}", f"cntr_{'/' * 32}", f"cntr_{'.' * 30}/a", "", "x" * 5000])
async def test_ids_that_nobody_has_made(pair: Pair, id: str) -> None:
    with pytest.raises(ContainerNotFound):
        await pair.theirs.find("p", id)


async def test_a_cancelled_call_stops_its_code_in_the_other_worker(pair: Pair) -> None:
    here = await pair.ours.create("p")
    work = asyncio.create_task(pair.theirs.run("p", here.id, "open('begun', 'w').close()\nwhile True: pass"))
    own = pair.ours._own._containers[here.id]
    await eventually(lambda: own.working > 0 and own.session is not None)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert (await asyncio.wait_for(pair.theirs.run("p", here.id, "1"), 20)).execution.output == "1\n"
    await eventually(lambda: own.working == 0)


async def test_one_whose_worker_has_ended_is_gone_and_the_model_is_told(pair: Pair) -> None:
    gone = worker(pair.folder)
    site = Site(FakeEngine([calling("x = 40"), ANSWER]), tools=[gone], new_id=NEW_ID)
    first = await site.ask(input="hi", tools=AUTO)
    (call,) = calls_of(first)
    await gone.aclose()
    with pytest.raises(ContainerNotFound):
        await content_of(pair.ours, "default", str(call["container_id"]), "cfile_1")
    site = Site(FakeEngine([calling("x"), ANSWER]), tools=[pair.one], new_id=NEW_ID, store=site.store)
    await site.ask(input="on", tools=AUTO, previous_response_id=first["id"])
    assert "its variables and files are lost" in prompt_of(site, -1)


async def test_workers_that_were_killed_or_stand_still_are_left_out(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them has left its socket, the other one accepts and says nothing."""
    here = await pair.ours.create("p")
    folder = os.open(pair.folder, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as dead, socket.socket(socket.AF_UNIX) as still:
        for each, tag in ((dead, "0" * 7 + "1"), (still, "0" * 7 + "2")):
            each.bind(f"/proc/self/fd/{folder}/{tag}.sock")
        still.listen()
        monkeypatch.setattr(sharing, "LOOK_SECONDS", 0.2)
        for tag in ("0" * 7 + "1", "0" * 7 + "2"):
            with pytest.raises(ContainerNotFound):
                await pair.ours.find("p", f"cntr_{'0' * 24}{tag}")
        assert here.id in [each.id for each in await pair.ours.all_of("p")]
        assert not (pair.folder / "00000001.sock").exists(), "a dead one's is taken away"
    os.close(folder)
    (pair.folder / "00000002.sock").unlink()


async def test_where_no_socket_can_be_each_worker_is_alone(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    alone = worker(tmp_path / "file")
    made = await alone.containers.create("p")
    assert (await alone.containers.find("p", made.id)).id == made.id
    assert (await alone.containers.run("p", made.id, "1")).execution.output == "1\n"
    await alone.aclose()
