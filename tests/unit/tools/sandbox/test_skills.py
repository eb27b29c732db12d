"""Skills in containers: what is seen of them there, that nothing inside can change them, and what is left behind."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from responses_app.extensions.containers.code_interpreter import CodeInterpreterTool
from responses_app.extensions.containers.contents import GivenSkill, skills_text
from responses_app.extensions.containers.sandbox.choosing import SandboxChoice
from responses_app.extensions.containers.sandbox.disk import ENTRY_BYTES, Folders
from responses_app.extensions.containers.sandbox.launch import BaseSandbox, find_interpreter
from responses_app.extensions.containers.sandbox.records import CellEnd, ContainerNotFound, SandboxError
from responses_app.extensions.containers.sandbox.sandboxes import Bubblewrap, Sandlock
from responses_app.extensions.containers.sandbox.settings import SKILLS_FOLDER
from responses_app.extensions.containers.sandbox.skills import MountedSkill, SkillFolder
from responses_app.protocol.errors import JsonObject
from responses_app.resources.skills.bundles import read_zip
from responses_app.resources.skills.fields import SkillSettings
from responses_app.resources.skills.model import Skill
from responses_app.resources.skills.store import Skills
from tests.kit.capabilities import require
from tests.kit.fakes import FakeEngine, Site
from tests.kit.laws import counting_ids
from tests.kit.sandboxes import SMALL, interpreter, own
from tests.kit.skills import MANIFEST, SCRIPT, inline, manifest, zipped
from tests.kit.waiting import eventually
from tests.unit.runs.test_server_tools import prompt_of
from tests.unit.tools.sandbox.nobody import SYSTEM_PYTHON
from tests.unit.tools.sandbox.test_code_interpreter import ANSWER, calling, calls_of

pytestmark = pytest.mark.asyncio(loop_scope="function")

PROJECT = "default"
NEW_ID = counting_ids()
KINDS: tuple[type[BaseSandbox], ...] = (Bubblewrap, Sandlock)
# Everything that code may try with a file that it may only read, in its folder, and with the folder itself.
WRITES = """
import os, pathlib, shutil
top = pathlib.Path({top!r})
skill = top / {folder!r}
possible = []
def tried(name, act):
    try:
        act()
        possible.append(name)
    except OSError:
        pass
tried("write", lambda: open(skill / "SKILL.md", "r+").close())
tried("truncate", lambda: os.truncate(skill / "SKILL.md", 0))
tried("add", lambda: open(skill / "new", "w").close())
tried("add a folder", lambda: (top / "new").mkdir())
tried("remove", lambda: (skill / "SKILL.md").unlink())
tried("rename", lambda: (skill / "SKILL.md").rename(skill / "other"))
tried("move", lambda: skill.rename(top / "other"))
tried("link", lambda: os.link(skill / "SKILL.md", skill / "linked"))
tried("symlink", lambda: os.symlink("/etc/passwd", skill / "symlinked"))
tried("remove all", lambda: shutil.rmtree(top))
tried("replace", lambda: os.replace("/mnt/data/mine", skill / "SKILL.md"))
pathlib.Path("mine").write_text("mine")
print(possible)
print((skill / "SKILL.md").read_text())
"""


@pytest.fixture
async def skills(sqlite_alias: str) -> AsyncIterator[Skills]:
    skills = Skills(SkillSettings(), using=sqlite_alias)
    yield skills
    await skills.aclose()


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
async def tool(request: pytest.FixtureRequest, skills: Skills) -> AsyncIterator[CodeInterpreterTool]:
    """Return a code interpreter with each kind of sandbox that this machine has."""
    sandbox: BaseSandbox = request.param()
    require({"bubblewrap": "sandbox", "sandlock": "sandlock"}[sandbox.name])
    if not os.path.exists(SYSTEM_PYTHON):  # noqa: ASYNC240
        pytest.skip("the system has no Python")

    async def choice() -> SandboxChoice:
        # The other one may be where the container's user may not go.
        return SandboxChoice(sandbox, find_interpreter(SYSTEM_PYTHON))

    made = interpreter(choose=choice, skills=skills)
    yield made
    await made.aclose()


async def given(tool: CodeInterpreterTool, *declared: JsonObject) -> list[GivenSkill]:
    return await tool.given_skills.find(PROJECT, declared, at="skills")


async def kept(tool: CodeInterpreterTool, name: str = "basic-math") -> Skill:
    bundle = read_zip(zipped({"s/SKILL.md": manifest(name), "s/add.sh": SCRIPT}), SkillSettings())
    return await tool.given_skills._skills.create(PROJECT, NEW_ID("skill_"), NEW_ID("skillver_"), bundle, 1)


async def run(tool: CodeInterpreterTool, container_id: str, code: str) -> str:
    done = (await tool.containers.run(PROJECT, container_id, code)).execution
    assert (done.ended, done.error) == (CellEnd.DONE, None), done.output
    return done.output


async def test_code_reads_and_runs_what_it_cannot_change(tool: CodeInterpreterTool) -> None:
    container = await tool.containers.create(PROJECT)
    (skill,) = await given(tool, inline())
    await tool.given_skills.provide(PROJECT, container.id, [skill])
    code = WRITES.format(top=SKILLS_FOLDER, folder=skill.mounted.folder)
    assert await run(tool, container.id, code) == f"[]\n{MANIFEST}\n"
    # Again, now that a file of its own lies there to be put in place of one.
    assert (await run(tool, container.id, code)).startswith("[]\n")
    run_it = f"import subprocess; done = subprocess.run(['{SKILLS_FOLDER}/{skill.mounted.folder}/add.sh', '1', '2'])"
    assert await run(tool, container.id, run_it) == "3\n"
    assert [file.path for file in await tool.containers.files_of(PROJECT, container.id)] == ["mine"]


async def test_a_container_that_lives_sees_further_ones_at_once(tool: CodeInterpreterTool) -> None:
    container = await tool.containers.create(PROJECT)
    look = f"import os; kept = 1; print(sorted(os.listdir({SKILLS_FOLDER!r})))"
    assert await run(tool, container.id, look) == "[]\n"
    first, second = await given(tool, inline(), inline(zipped({"SKILL.md": manifest("other")}), "other"))
    for _ in range(2):
        await asyncio.gather(*(tool.given_skills.provide(PROJECT, container.id, [first, second]) for _ in range(3)))
    folders = sorted((first.mounted.folder, second.mounted.folder))
    assert await run(tool, container.id, look) == f"{folders}\n"
    assert await tool.containers.skills_of(PROJECT, container.id) in (
        [first.mounted, second.mounted],
        [second.mounted, first.mounted],
    )
    another = await tool.containers.create(PROJECT)
    assert await run(tool, another.id, look) == "[]\n", "they are those of one container"


async def test_they_are_bounded_and_gone_with_the_container(tool: CodeInterpreterTool) -> None:
    container = await tool.containers.create(PROJECT)
    half = SMALL.sandbox_disk_bytes // 2 + 1
    noise = bytes(range(251)) * (half // 251 + 1)
    large = [inline(zipped({"SKILL.md": manifest(), "noise": noise, "which": str(n)})) for n in range(2)]
    first, second = await given(tool, *large)
    await tool.given_skills.provide(PROJECT, container.id, [first])
    with pytest.raises(SandboxError, match="larger than its files may be"):
        await tool.given_skills.provide(PROJECT, container.id, [second])
    assert await tool.containers.skills_of(PROJECT, container.id) == [first.mounted]
    (here,) = own(tool.containers.hosts)
    path = (await here.find(PROJECT, container.id)).skills.path
    assert path is not None
    assert [each.name for each in path.parent.iterdir()] == ["skills"], "nothing is left of the one that did not fit"
    await tool.containers.delete(PROJECT, container.id)
    assert not os.path.exists(path.parent)  # noqa: ASYNC240
    with pytest.raises(ContainerNotFound):
        await tool.given_skills.provide(PROJECT, container.id, [second])


async def test_a_container_has_so_many(tool: CodeInterpreterTool) -> None:
    container = await tool.containers.create(PROJECT)
    every = [inline(zipped({"SKILL.md": manifest(), "n": str(n)})) for n in range(21)]
    with pytest.raises(SandboxError, match="at most 20 skills"):
        await tool.given_skills.provide(PROJECT, container.id, await given(tool, *every))


def declared(*skills: JsonObject) -> list[JsonObject]:
    return [{"type": "code_interpreter", "container": {"type": "auto", "skills": list(skills)}}]


@pytest.mark.parametrize("tool", [Bubblewrap], indirect=True)
async def test_the_model_is_told_and_told_the_same_along_the_chain(tool: CodeInterpreterTool) -> None:
    record = await kept(tool)
    look = f"import os; print(*os.listdir({SKILLS_FOLDER!r}))"
    turns = [calling(look), ANSWER, calling(look), ANSWER]
    site = Site(FakeEngine(turns), tools=[tool], skills=tool.given_skills._skills, new_id=NEW_ID)
    named = {"type": "skill_reference", "skill_id": record.id}
    first = await site.ask(tools=declared(named, inline(name="brought")), input="Look.")
    (kept_skill, brought) = await given(tool, named, inline(name="brought"))
    said = skills_text([kept_skill.mounted, brought.mounted])
    assert f"- basic-math ({SKILLS_FOLDER}/{kept_skill.mounted.folder}/SKILL.md): Adds and multiplies" in said
    assert f"- brought ({SKILLS_FOLDER}/{brought.mounted.folder}/SKILL.md): Adds numbers." in said
    assert said in prompt_of(site, 0)
    assert kept_skill.mounted.folder in prompt_of(site, 1)
    assert brought.mounted.folder in prompt_of(site, 1)
    tools = first["tools"]
    assert isinstance(tools, list)
    assert tools[0]["container"]["skills"][0] == {**named, "version": "1"}, "which version it was is told"
    await tool.given_skills._skills.delete(PROJECT, record.id)
    by_id = [{"type": "code_interpreter", "container": calls_of(first)[0]["container_id"]}]
    await site.ask(tools=by_id, input="Look again.", previous_response_id=first["id"])
    assert said in prompt_of(site, 2), "a container that is named has those that it had"
    refusal = await site.refusal(tools=declared(named), input="Look.")
    assert "not found" in str(refusal)
    assert refusal.param == "tools[0].container.skills[0].skill_id"


@pytest.mark.parametrize("tool", [Bubblewrap], indirect=True)
@pytest.mark.parametrize("content", [b"no zip file", zipped({"a": "b"})])
async def test_a_bad_bundle_is_refused_before_anything_begins(tool: CodeInterpreterTool, content: bytes) -> None:
    site = Site(FakeEngine([ANSWER]), tools=[tool], new_id=NEW_ID)
    refusal = await site.refusal(tools=declared(inline(content)), input="Look.")
    assert (refusal.code, refusal.param) == ("invalid_skill", "tools[0].container.skills[0].source.data")


async def test_a_caller_who_leaves_while_a_skill_is_unpacked_leaves_a_skill_that_is_known() -> None:
    folder, folders = SkillFolder(), Folders()
    skill = MountedSkill("one", "one", "Says one.")
    begun, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def pieces() -> Iterator[bytes]:
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(60)
        yield b"one"

    adding = asyncio.create_task(folder.add(skill, [("SKILL.md", False, pieces())], folders, most=10_000))
    await begun.wait()
    adding.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await adding
    path = folder.path
    assert path is not None
    await eventually((path / "one").exists)
    await folder.add(skill, [("SKILL.md", False, iter([b"one"]))], folders, most=10_000)
    assert (path / "one" / "SKILL.md").read_bytes() == b"one"
    assert (list(folder.mounted), folder.used) == (["one"], ENTRY_BYTES)
    await folder.remove()
