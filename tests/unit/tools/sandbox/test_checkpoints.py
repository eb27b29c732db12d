"""The files of containers that rest on disk: what comes back, what does not, and how much there may be."""

import asyncio
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from responses_app.extensions.containers.sandbox.checkpoints import Checkpoints
from responses_app.extensions.containers.sandbox.containers import Containers
from responses_app.extensions.containers.sandbox.living import LIFE_SECONDS, LivingContainer
from responses_app.extensions.containers.sandbox.records import ContainerFilePart, ContainerNotFound, SandboxError
from responses_app.extensions.containers.sandbox.session import SandboxSession
from responses_app.extensions.containers.sandbox.settings import SKILLS_FOLDER
from responses_app.extensions.containers.sandbox.skills import SkillFolder
from responses_app.kit.clock import IdFactory
from responses_app.protocol.setting import MIB
from tests.kit.clock import Clock
from tests.kit.sandboxes import SMALL, content_of, has_bubblewrap, host_at, needs_bubblewrap, pieces_of, shared, started
from tests.kit.skills import MANIFEST, zipped
from tests.kit.waiting import eventually

pytestmark = [needs_bubblewrap, pytest.mark.asyncio(loop_scope="module")]


def saving(folder: Path, clock: Clock, most: int = 64 * MIB, **more: float) -> Containers:
    settings = replace(SMALL, **more)  # type: ignore[arg-type]
    checkpoints = Checkpoints(folder, most)
    return Containers(has_bubblewrap, settings, new_id=IdFactory(clock), clock=clock, checkpoints=checkpoints)


class Saved:
    """Containers that are saved in a folder behind a minute without a call, and their clock."""

    def __init__(self, folder: Path, most: int = 64 * MIB, **more: float) -> None:
        self.clock = Clock(1_000_000.0)
        self.containers = saving(folder, self.clock, most, **{"sandbox_save_seconds": 60.0, **more})
        self._folder = folder / "0"

    async def written(self, code: str = "open('a.txt', 'w').write('1');") -> LivingContainer:
        one = await self.containers.create("p")
        await self.containers.run("p", one.id, code)
        return one

    async def rest(self) -> None:
        """Let a minute go by."""
        self.clock.now += 61
        await self.containers.sweep()

    @property
    def on_disk(self) -> list[Path]:
        return list(self._folder.glob("*cntr_*"))


@pytest_asyncio.fixture(loop_scope="module")
async def saved(tmp_path: Path) -> AsyncIterator[Saved]:
    made = Saved(tmp_path)
    yield made
    await made.containers.aclose()


async def test_files_outlive_their_host_and_variables_do_not(tmp_path: Path) -> None:
    clock = Clock(1_000_000.0)
    before = saving(tmp_path, clock)
    one, big = await before.create("p", name="mine"), bytes(range(256)) * 3000
    await shared(before).put_file("p", one.id, "in/big.bin", pieces_of(big))
    await shared(before).put_file("p", one.id, "empty", pieces_of())
    await before.run("p", one.id, "x = 1; open('a.txt', 'w').write('hello');")
    await before.join_chain(one.id, ["resp_1"])
    files = await before.files_of("p", one.id)
    await before.aclose()
    assert before.tag == one.id[-8:]
    behind = saving(tmp_path, clock)
    assert behind.tag == before.tag
    found = await behind.of_chain("p", ["resp_1"])
    assert found is not None
    assert found.container == one.record()
    assert await behind.files_of("p", one.id) == files
    assert started(behind) == set(), "it takes no memory"
    with pytest.raises(ContainerNotFound):
        await behind.find("q", one.id)
    for file, content in zip(files, (big, b"", b"hello"), strict=True):
        assert await content_of(shared(behind), "p", one.id, file.id) == content
    run = await behind.run("p", one.id, "print('x' in globals(), open('a.txt').read())")
    assert (run.was_saved, run.begun_anew, run.execution.output) == (True, None, "False hello\n")
    assert not (await behind.run("p", one.id, "1")).was_saved
    await behind.delete("p", one.id)
    await behind.aclose()
    assert list((tmp_path / "0").glob("cntr_*")) == []


async def test_skills_outlive_their_host_and_what_is_asked_of_those_at_rest(tmp_path: Path) -> None:
    clock = Clock(1_000_000.0)
    before = saving(tmp_path, clock)
    one = await before.create("p", name="mine")
    for name in ("first", "second"):
        await before.add_skill("p", one.id, name, name.title(), "Adds.", zipped())
    await before.aclose()
    behind = saving(tmp_path, clock)
    await behind.add_skill("p", one.id, "third", "Third", "Adds.", zipped())
    await behind.add_skill("p", one.id, "first", "First", "Adds.", zipped())
    assert [each.folder for each in await behind.skills_of("p", one.id)] == ["first", "second", "third"]
    look = f"import os; print(sorted(os.listdir({SKILLS_FOLDER!r})), open('{SKILLS_FOLDER}/second/SKILL.md').read())"
    assert (await behind.run("p", one.id, look)).execution.output == f"['first', 'second', 'third'] {MANIFEST}\n"
    await behind.aclose()


async def test_idle_ones_and_those_in_the_way_are_saved(tmp_path: Path) -> None:
    clock = Clock(1_000_000.0)
    containers = saving(tmp_path, clock, sandbox_max_containers=1, sandbox_save_seconds=60.0)
    one, other = await containers.create("p"), await containers.create("p")
    await containers.run("p", one.id, "open('a.txt', 'w').write('1');")
    await containers.run("p", other.id, "open('a.txt', 'w').write('2');")
    assert (started(containers), containers.room().saved) == ({other.id}, 1)
    clock.now += 61
    await containers.sweep()
    assert (started(containers), containers.room().saved, containers.room().started) == (set(), 2, 0)
    for each, text in ((one, "1"), (other, "2")):
        assert (await containers.run("p", each.id, "print(open('a.txt').read())")).execution.output == f"{text}\n"
    clock.now += SMALL.sandbox_idle_seconds + 1
    await containers.sweep()
    assert containers.room().known == 0
    assert list((tmp_path / "0").glob("cntr_*")) == []
    await containers.aclose()


class Gate:
    """Holds the first call of a method, until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, of: type, method: str) -> None:
        self.reached, self._open = asyncio.Event(), asyncio.Event()
        held = getattr(of, method)

        async def call(*arguments: Any) -> Any:
            self.reached.set()
            await self._open.wait()
            return await held(*arguments)

        monkeypatch.setattr(of, method, call)

    def open(self) -> None:
        self._open.set()


async def at_rest(saved: Saved) -> str:
    one = await saved.written()
    await saved.rest()
    assert saved.containers.room().saved == 1
    return one.id


async def test_a_call_cancelled_while_files_come_back_loses_none(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    containers, id = saved.containers, await at_rest(saved)
    gate = Gate(monkeypatch, SandboxSession, "put_part")
    work = asyncio.create_task(containers.run("p", id, "1"))
    await gate.reached.wait()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    gate.open()
    assert [each.path for each in await containers.files_of("p", id)] == ["a.txt"]
    run = await containers.run("p", id, "print(open('a.txt').read())")
    assert (run.execution.output, run.was_saved, run.begun_anew) == ("1\n", True, None)
    assert saved.on_disk == []


async def test_one_deleted_while_its_files_come_back_is_gone(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    containers, id = saved.containers, await at_rest(saved)
    gate = Gate(monkeypatch, SandboxSession, "put_part")
    work = asyncio.create_task(containers.run_commands("p", id, ["cat a.txt"], 10.0, 1000, bool))
    await gate.reached.wait()
    await containers.delete("p", id)
    gate.open()
    with pytest.raises(SandboxError, match="has ended"):
        await work
    assert (containers.room().known, containers.room().started) == (0, 0), "nothing of it runs on"
    await containers.aclose()
    assert saved.on_disk == []


async def test_one_deleted_while_it_is_saved_stays_gone(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    containers, one = saved.containers, await saved.written()
    gate = Gate(monkeypatch, SkillFolder, "copy_to")
    saves = asyncio.create_task(saved.rest())
    await gate.reached.wait()
    await containers.delete("p", one.id)
    gate.open()
    await saves
    assert containers.room().known == containers.room().saved == 0
    assert saved.on_disk == [], "nor is it on disk"


async def test_nobody_waits_for_files_that_are_saved(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    await saved.written()
    gate = Gate(monkeypatch, SandboxSession, "get_part")
    saves = asyncio.create_task(saved.rest())
    await gate.reached.wait()
    other = await saved.containers.create("q")
    assert [each.id for each in await saved.containers.all_of("q")] == [other.id]
    assert (await saved.containers.run("q", other.id, "1")).execution.output == "1\n"
    assert not saves.done()
    gate.open()
    await saves


@pytest.mark.parametrize(("said", "why"), [(5, "changes while"), (0, "changes while"), (-1, "no answer in time")])
async def test_what_a_warden_says_that_lies_fills_no_disk_and_takes_no_time(
    saved: Saved, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, said: int, why: str
) -> None:
    monkeypatch.setattr("responses_app.extensions.containers.sandbox.checkpoints.SAVE_SECONDS", 0.2)
    await saved.written("open('a.txt', 'w').write('123');")

    async def lie(self: SandboxSession, path: str, begin: int, most: int) -> ContainerFilePart:
        if said < 0:
            await asyncio.Event().wait()
        return ContainerFilePart(b"x" * min(said, 1), said or 3, 1)

    monkeypatch.setattr(SandboxSession, "get_part", lie)
    await saved.rest()
    assert saved.containers.room().known == 0, "it ends"
    assert why in caplog.text
    assert saved.on_disk == []


async def test_files_that_would_not_fit_in_again_are_not_written_down(
    saved: Saved, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await saved.written("for n in range(9): open(f'{n}', 'wb').truncate(4 * 2 ** 20)")
    Gate(monkeypatch, SandboxSession, "get_part")
    await saved.rest()
    assert saved.containers.room().known == 0
    assert "larger than SANDBOX_DISK_BYTES" in caplog.text


async def test_many_starts_at_once_take_no_more_room_than_there_is(tmp_path: Path) -> None:
    containers = Saved(tmp_path, sandbox_max_containers=3, sandbox_project_containers=3).containers
    made = [await containers.create("p") for _ in range(6)]
    most = 0
    for some in (made[:3], made[3:]):
        work = asyncio.gather(*(containers.run("p", each.id, "1") for each in some))
        while not work.done():
            most = max(most, containers.room().started)
            await asyncio.sleep(0)
        await work
    assert most == 3
    await containers.aclose()


@pytest.mark.parametrize(
    ("most", "codes", "kept"),
    [
        (12_000, [f"open('a.bin', 'wb').write(bytes({size}));" for size in (4000, 4000, 9000)], 1),
        (MIB, ["for n in range(200): open(f'{n}', 'w').close()"] * 3, 2),  # each takes 800 KB
    ],
    ids=["large files", "empty files"],
)
async def test_only_the_newest_that_has_room_is_saved(tmp_path: Path, most: int, codes: list[str], kept: int) -> None:
    saved, made = Saved(tmp_path, most), []
    for code in codes:
        saved.clock.now += 1
        made.append(await saved.written(code))
    await saved.rest()
    assert [each.id for each in await saved.containers.all_of("p")] == [made[kept].id]
    await saved.containers.aclose()


async def test_those_saved_together_are_bounded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    containers = saving(tmp_path, Clock(1_000_000.0), most=10_000)
    for _ in range(3):
        one = await containers.create("p", name="mine")
        await containers.run("p", one.id, "open('a.bin', 'wb').write(bytes(4000));")
    save, bound_saved, written, is_bounded = Checkpoints.save, Containers._bound_saved, 0, asyncio.Event()

    async def save_together(self: Checkpoints, *arguments: Any, **more: Any) -> None:
        nonlocal written
        await save(self, *arguments, **more)
        written += 1
        if written < 3:  # on disk, and not known to be while the last one looks at what there is
            await is_bounded.wait()

    async def look(self: Containers, newest: LivingContainer) -> None:
        try:
            await bound_saved(self, newest)
        finally:
            is_bounded.set()

    monkeypatch.setattr(Checkpoints, "save", save_together)
    monkeypatch.setattr(Containers, "_bound_saved", look)
    await containers.aclose()
    assert len(list((tmp_path / "0").glob("cntr_*"))) == 1
    assert started(containers) == set()


BROKEN: dict[str, dict[str, Any]] = {
    "a time that is none": {"created_at": "yesterday"},
    "no time": {"idle": None},
    "another one's": {"id": "../../cntr_1"},
    "memory that there is not": {"memory": "2g"},
    "a path that leads out": {"files": [{"id": "f", "path": "../a", "size": 1, "created_at": 1, "source": "user"}]},
    "a skill that lies elsewhere": {"skills": [{"folder": "../../etc", "name": "x", "description": "y"}]},
    "a chain of lists": {"chain": [["resp_1"]]},
}


@pytest.mark.parametrize("name", BROKEN)
async def test_what_was_changed_on_disk_is_removed(name: str, tmp_path: Path) -> None:
    clock = Clock(1_000_000.0)
    before = saving(tmp_path, clock)
    one = await before.create("p", name="mine")
    await before.aclose()
    about = tmp_path / "0" / one.id / "about.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | BROKEN[name]))
    behind = saving(tmp_path, clock)
    await behind.sweep()
    assert await behind.all_of("p") == []
    assert list((tmp_path / "0").glob("*cntr_*")) == []
    await behind.aclose()


async def test_json_that_is_too_deep_keeps_no_host_from_its_start(tmp_path: Path) -> None:
    (tmp_path / "0" / "cntr_1").mkdir(parents=True)
    (tmp_path / "0" / "cntr_1" / "about.json").write_text("[" * 100_000)
    containers = saving(tmp_path, Clock(1_000_000.0))
    assert await containers.all_of("p") == []
    await containers.aclose()


LOOK = f"import os; print(sorted(os.listdir({SKILLS_FOLDER!r})))"


async def test_skills_of_what_rests_lie_on_disk_alone(saved: Saved) -> None:
    one = await saved.written()
    await saved.containers.add_skill("p", one.id, "first", "First", "Adds.", zipped())
    path = one.skills.path
    assert path is not None
    assert (path / "first").exists()
    await saved.rest()
    assert not path.exists()
    assert (await saved.containers.run("p", one.id, LOOK)).execution.output == "['first']\n"


async def test_a_skill_that_comes_during_a_save_is_kept(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    containers, one = saved.containers, await saved.written()
    await containers.add_skill("p", one.id, "first", "First", "Adds.", zipped())
    gate = Gate(monkeypatch, SandboxSession, "close")
    saves = asyncio.create_task(saved.rest())
    await gate.reached.wait()
    await containers.add_skill("p", one.id, "second", "Second", "Adds.", zipped())
    gate.open()
    await saves
    run = await containers.run("p", one.id, LOOK)
    assert (run.execution.output, run.begun_anew) == ("['first', 'second']\n", None)


async def test_skills_of_containers_that_never_start_are_bounded(tmp_path: Path) -> None:
    clock = Clock(1_000_000.0)
    containers = saving(tmp_path, clock, sandbox_max_containers=2, sandbox_disk_bytes=MIB)
    bundle, made = zipped({"big/SKILL.md": MANIFEST, "big/extra": bytes(900_000)}), []
    for _ in range(8):
        clock.now += 1
        made.append(await containers.create("p"))
        await containers.add_skill("p", made[-1].id, "big", "Big", "Is big.", bundle)
    # Each takes 0.9 MB: there are three before the fourth finds more than 2 MiB.
    assert [each.skills.path is not None for each in made] == [False] * 5 + [True] * 3
    look = f"import os; print(os.path.getsize('{SKILLS_FOLDER}/big/extra'))"
    assert (await containers.run("p", made[0].id, look)).execution.output == "900000\n"
    await containers.aclose()


async def test_what_a_host_finds_on_disk_expires_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("responses_app.extensions.containers.sandbox.containers.SWEEP_SECONDS", 0.01)
    clock = Clock(1_000_000.0)
    before = saving(tmp_path, clock)
    one = await before.create("p")
    await before.run("p", one.id, "open('a.txt', 'w').write('1');")
    await before.aclose()
    assert len(list((tmp_path / "0").glob("cntr_*"))) == 1
    with tempfile.TemporaryDirectory() as short:
        async with host_at(Path(short) / "host", saving(tmp_path, clock)):
            clock.now += SMALL.sandbox_idle_seconds + 1
            await eventually(lambda: not list((tmp_path / "0").glob("cntr_*")))


async def test_nobody_else_reads_what_is_saved(tmp_path: Path) -> None:
    Checkpoints(tmp_path / "containers", MIB).close()
    assert os.stat(tmp_path / "containers").st_mode & 0o077 == 0


async def test_what_lies_there_broken_is_removed_and_a_second_process_has_a_folder_of_its_own(tmp_path: Path) -> None:
    clock = Clock(1_000_000.0)
    for name in ("cntr_1", ".cntr_2"):
        (tmp_path / "0" / name).mkdir(parents=True)
    (tmp_path / "0" / "cntr_1" / "about.json").write_text('{"id": "cntr_1"}')
    first, second = saving(tmp_path, clock), saving(tmp_path, clock)
    assert await first.all_of("p") == await second.all_of("p") == []
    assert first.tag != second.tag
    await eventually(lambda: not list((tmp_path / "0").glob("*cntr_*")))
    await first.aclose()
    await second.aclose()


async def test_what_a_process_has_left_that_is_not_started_again_is_removed_in_its_time(tmp_path: Path) -> None:
    clock = Clock(time.time())
    first, second = saving(tmp_path, clock), saving(tmp_path, clock)
    await second.create("p", name="mine")
    await first.sweep()
    await second.aclose()
    (left,) = (tmp_path / "1").glob("cntr_*")
    clock.now += LIFE_SECONDS - 60
    await first.sweep()
    assert left.exists(), "it may be started again"
    clock.now += 120
    third = saving(tmp_path, clock)
    await first.sweep()
    assert left.exists(), "another process has it"
    await third.aclose()
    await first.sweep()
    assert not left.exists()
    await first.aclose()
