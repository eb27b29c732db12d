"""Containers: whose they are, how long they live, how many there may be; and the chains that keep them."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count

import pytest
import pytest_asyncio

from responses_app.extensions.containers.sandbox import living
from responses_app.extensions.containers.sandbox.choosing import SandboxChoice
from responses_app.extensions.containers.sandbox.containers import PIECE_BYTES, Containers
from responses_app.extensions.containers.sandbox.records import (
    ContainerNotFound,
    MemoryRefused,
    SandboxError,
    TooManyContainers,
    TooManyTransfers,
)
from responses_app.extensions.containers.sandbox.sharing import MAX_TRANSFERS
from responses_app.protocol.files.containers import MemoryLimit
from responses_app.protocol.setting import MIB
from tests.kit.clock import Clock
from tests.kit.sandboxes import SMALL, content_of, has_bubblewrap, needs_bubblewrap, pieces_of, shared, started
from tests.kit.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


def make(clock: Clock, **more: float) -> Containers:
    numbers = count(1)
    settings = replace(SMALL, **{"sandbox_max_containers": 4, **more})  # type: ignore[arg-type]
    return Containers(has_bubblewrap, settings, new_id=lambda prefix: f"{prefix}{next(numbers)}", clock=clock)


@pytest.fixture
def clock() -> Clock:
    return Clock(1_000_000.0)


@pytest_asyncio.fixture(loop_scope="module")
async def containers(clock: Clock) -> AsyncIterator[Containers]:
    """Return containers, none of which is started."""
    made = make(clock)
    yield made
    await made.aclose()


async def test_a_container_belongs_to_its_project(containers: Containers) -> None:
    mine = await containers.create("mine", name="a")
    assert (await containers.find("mine", mine.id)).name == "a"
    assert [each.id for each in await containers.all_of("mine")] == [mine.id]
    assert await containers.all_of("theirs") == []
    for ask in (containers.find, containers.delete, containers.files_of):
        with pytest.raises(ContainerNotFound):
            await ask("theirs", mine.id)
    with pytest.raises(ContainerNotFound):
        await containers.run("theirs", mine.id, "1")
    await containers.delete("mine", mine.id)
    with pytest.raises(ContainerNotFound):
        await containers.find("mine", mine.id)


async def test_one_that_nobody_uses_expires(containers: Containers, clock: Clock) -> None:
    short = await containers.create("p", idle=60)
    long = await containers.create("p", idle=10**9)
    clock.now += 61
    with pytest.raises(ContainerNotFound):
        await containers.find("p", short.id)
    assert [each.id for each in await containers.all_of("p")] == [long.id]
    clock.now += 1200
    assert await containers.all_of("p") == []


async def test_a_chain_keeps_its_container(containers: Containers) -> None:
    of_one_worker = shared(containers)
    first = await containers.create("p")
    await of_one_worker.join_chain(first.id, ["resp_1", "conv_1"])
    for key in ("resp_1", "conv_1", first.id):
        found = await of_one_worker.of_chain("p", ["resp_0", key])
        assert found is not None
        assert found.id == first.id
        assert await of_one_worker.of_chain("q", [key]) is None
    assert await of_one_worker.of_chain("p", []) is None
    await containers.delete("p", first.id)
    assert await of_one_worker.of_chain("p", ["resp_1"]) is None


@needs_bubblewrap
async def test_over_the_limit_the_longest_idle_one_of_the_largest_project_goes(clock: Clock) -> None:
    containers = make(clock, sandbox_max_containers=3)
    made = [await containers.create(project) for project in ("small", "large", "large", "new")]
    for each in made:
        clock.now += 1
        await containers.run(each.project, each.id, "1")
    assert started(containers) == {made[0].id, made[2].id, made[3].id}
    assert [each.id for each in await containers.all_of("large")] == [made[2].id]
    await containers.aclose()


@needs_bubblewrap
async def test_files_and_state_of_a_container(containers: Containers) -> None:
    one, other = await containers.create("p"), await containers.create("p")
    assert await containers.files_of("p", one.id) == []
    every = shared(containers)
    up = await every.put_file("p", one.id, "in.txt", pieces_of(b"hello"))
    run = await containers.run("p", one.id, "open('out.txt', 'w').write(open('in.txt').read() * 2);x = 5")
    (out,) = run.files
    assert (up.source, out.source, out.path, out.size) == ("user", "assistant", "out.txt", 10)
    assert await content_of(every, "p", one.id, out.id) == b"hellohello"
    assert {each.id for each in await containers.files_of("p", one.id)} == {up.id, out.id}
    assert (await containers.run("p", other.id, "x")).execution.error == "NameError"
    for project, id, file in (("p", other.id, out.id), ("q", one.id, out.id), ("p", one.id, "cfile_none")):
        with pytest.raises(ContainerNotFound):
            await content_of(every, project, id, file)
    await containers.remove_file("p", one.id, out.id)
    assert [each.id for each in await containers.files_of("p", one.id)] == [up.id]
    assert started(containers) == {one.id, other.id}
    await containers.delete("p", one.id)
    assert started(containers) == {other.id}


@needs_bubblewrap
async def test_one_that_breaks_begins_anew_and_says_so(containers: Containers) -> None:
    one = await containers.create("p")
    with pytest.raises(SandboxError):
        await containers.run("p", one.id, "import os\nos.kill(os.getppid(), 9)")
    run = await containers.run("p", one.id, "1")
    assert (run.begun_anew, run.execution.output) == ("", "1\n")
    assert (await containers.run("p", one.id, "1")).begun_anew is None


@needs_bubblewrap
async def test_one_that_works_does_not_expire_and_is_not_in_the_way(clock: Clock) -> None:
    containers = make(clock, sandbox_max_containers=1, sandbox_wait_seconds=0.01)
    one = await containers.create("p")
    work = asyncio.create_task(containers.run("p", one.id, "import time\ntime.sleep(60)"))
    await eventually(lambda: bool(started(containers)))
    clock.now += 5000
    assert (await containers.find("p", one.id)).id == one.id
    other = await containers.create("p")
    with pytest.raises(TooManyContainers, match="SANDBOX_PROJECT_CONTAINERS"):
        await containers.run("p", other.id, "1")
    of_another = await containers.create("q")
    with pytest.raises(TooManyContainers, match="SANDBOX_MAX_CONTAINERS"):
        await containers.run("q", of_another.id, "1")
    clock.now += 86400
    await containers.sweep()  # its life is over, whatever it does
    with pytest.raises(SandboxError):
        await work
    await containers.aclose()


async def test_without_a_sandbox_its_problem_is_said(clock: Clock) -> None:
    async def nothing() -> SandboxChoice:
        return SandboxChoice(None, None, "No sandbox.")

    containers = Containers(nothing, SMALL, new_id=lambda prefix: prefix, clock=clock)
    one = await containers.create("p")
    with pytest.raises(SandboxError, match="No sandbox"):
        await containers.run("p", one.id, "1")
    await containers.aclose()


async def test_one_project_cannot_push_out_those_of_another(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(living, "MAX_KNOWN", 3)
    containers = make(clock)
    small = await containers.create("small")
    for _ in range(5):
        clock.now += 1
        await containers.create("large")
    assert (await containers.find("small", small.id)).id == small.id
    assert len(await containers.all_of("large")) == 2
    await containers.aclose()


@needs_bubblewrap
async def test_a_file_comes_and_goes_in_parts(containers: Containers) -> None:
    every, one = shared(containers), await containers.create("p")
    content = bytes(range(256)) * (3 * PIECE_BYTES // 256) + b"end"
    up = await every.put_file("p", one.id, "in/big.bin", pieces_of(content[:1000], content[1000:]))
    assert up.size == len(content)
    sizes = [len(part.content) async for part in every.content("p", one.id, up.id)]
    assert (sum(sizes), max(sizes)) == (len(content), PIECE_BYTES)
    assert await content_of(every, "p", one.id, up.id) == content
    empty = await every.put_file("p", one.id, "empty", pieces_of())
    assert (empty.size, await content_of(every, "p", one.id, empty.id)) == (0, b"")


@needs_bubblewrap
async def test_a_file_that_does_not_come_whole_is_not_there(containers: Containers) -> None:
    every, one = shared(containers), await containers.create("p")

    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * PIECE_BYTES
        raise EOFError

    async def hidden() -> str:
        return (await containers.run("p", one.id, "import os; print(sorted(os.listdir()))")).execution.output

    with pytest.raises(EOFError):
        await every.put_file("p", one.id, "half.bin", broken())
    with pytest.raises(SandboxError, match="at most"):
        await every.put_file("p", one.id, "large.bin", pieces_of(bytes(SMALL.sandbox_disk_bytes + 1)))

    async def is_clean() -> bool:
        return await hidden() == "[]\n"

    await eventually(is_clean)
    assert await containers.files_of("p", one.id) == []


@needs_bubblewrap
async def test_a_file_that_changes_while_it_is_read_has_no_end(containers: Containers) -> None:
    every, one = shared(containers), await containers.create("p")
    up = await every.put_file("p", one.id, "a.bin", pieces_of(bytes(2 * PIECE_BYTES)))
    parts = every.content("p", one.id, up.id)
    assert len((await anext(parts)).content) == PIECE_BYTES
    await containers.run("p", one.id, "open('a.bin', 'ab').write(b'more');")
    with pytest.raises(SandboxError, match="changed while it was read"):
        await anext(parts)


@needs_bubblewrap
async def test_whoever_leaves_a_file_ends_no_container(containers: Containers) -> None:
    """What the warden still says is not the answer to the next question."""
    every, one = shared(containers), await containers.create("p")
    await containers.run("p", one.id, "x = 42; open('a.bin', 'wb').write(bytes(3_000_000));")
    (file,) = await containers.files_of("p", one.id)
    for turns in range(8):
        reading = asyncio.create_task(content_of(every, "p", one.id, file.id))
        for _ in range(turns):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait({reading})
        assert (await containers.run("p", one.id, "x")).execution.output == "42\n"


@needs_bubblewrap
async def test_only_so_many_files_of_a_project_are_on_their_way(containers: Containers) -> None:
    every, one = shared(containers), await containers.create("p")
    other = await containers.create("q")
    up = await every.put_file("p", one.id, "a.bin", pieces_of(bytes(2 * PIECE_BYTES)))
    readers = [every.content("p", one.id, up.id) for _ in range(MAX_TRANSFERS)]
    for reader in readers:
        await anext(reader)
    with pytest.raises(TooManyTransfers):
        await content_of(every, "p", one.id, up.id)
    await every.put_file("q", other.id, "a", pieces_of(b"x"))
    await readers.pop().aclose()
    assert len(await content_of(every, "p", one.id, up.id)) == 2 * PIECE_BYTES
    for reader in readers:
        await reader.aclose()


@needs_bubblewrap
async def test_a_container_has_the_memory_that_was_asked_for(clock: Clock) -> None:
    containers = make(clock, sandbox_memory_bytes=4096 * MIB)
    look = "import resource; print(resource.getrlimit(resource.RLIMIT_DATA)[1] // 2**30)"
    wanted: list[tuple[MemoryLimit | None, int]] = [(None, 1), ("1g", 1), ("4g", 4)]
    for asked, has in wanted:
        made = await containers.create("p", memory=asked)
        assert (await containers.run("p", made.id, look)).execution.output == f"{has}\n"
    with pytest.raises(MemoryRefused, match="1g, 4g"):
        await containers.create("p", memory="16g")
    await containers.aclose()
