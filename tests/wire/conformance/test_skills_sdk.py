"""Skills through the SDK: kept, versioned, downloaded; used in containers and by responses; and bad ones."""

import io
import zipfile
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types import Skill

from tests.kit.fixtures import module_sdk, module_server
from tests.kit.sandboxes import needs_bubblewrap
from tests.kit.sdk import refusal
from tests.kit.server import Server
from tests.kit.skills import FILES, MANIFEST, SCRIPT, inline, manifest, zipped

FOLDER = "/mnt/skills"
BOUND = 300_000  # bytes of a skill's files
LOOK = f"python: import os; print(*sorted(os.listdir('{FOLDER}')), sep=chr(10))"


server = module_server("skills", skill_max_bytes=100_000, skill_max_unpacked_bytes=BOUND)


client = module_sdk()


@pytest.fixture(scope="module")
def skill(client: OpenAI) -> Skill:
    """Return a skill that the tests share and do not change."""
    return client.skills.create(files=("math.zip", zipped()))


def files_in(content: bytes) -> dict[str, str]:
    """Return what is in a zip file."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def folder_of(files: dict[str, Any]) -> list[tuple[str, bytes]]:
    """Return files as the SDK sends those of a folder."""
    return [(path, content.encode()) for path, content in files.items()]


def test_a_skill_comes_as_a_zip_file_or_file_by_file(client: OpenAI, skill: Skill) -> None:
    assert (skill.object, skill.name, skill.description) == ("skill", "basic-math", "Adds and multiplies numbers.")
    assert (skill.default_version, skill.latest_version) == ("1", "1")
    assert client.skills.retrieve(skill.id) == skill
    kept = {f"basic-math/{path.partition('/')[2]}": content for path, content in FILES.items()}
    assert files_in(client.skills.content.retrieve(skill.id).read()) == kept
    other = client.skills.create(files=folder_of(FILES))
    assert files_in(client.skills.content.retrieve(other.id).read()) == kept
    assert other.id in [each.id for each in client.skills.list(limit=1)], "the SDK turns the pages itself"
    assert client.skills.delete(other.id).deleted
    assert refusal(openai.NotFoundError, client.skills.retrieve, other.id).code == "skill_not_found"


def test_many_files_and_large_ones(client: OpenAI, tmp_path: Path) -> None:
    files = {"s/SKILL.md": MANIFEST, **{f"s/{number}": str(number) for number in range(499)}}
    made = client.skills.create(files=folder_of(files))
    assert len(files_in(client.skills.content.retrieve(made.id).read())) == 500
    client.skills.delete(made.id)
    more, says = folder_of({**files, "s/one-more": ""}), r"at most 500 files|more than the 500 files"
    refusal(openai.BadRequestError, client.skills.create, files=more, match=says)
    (tmp_path / "SKILL.md").write_text(MANIFEST)
    one = client.skills.create(files=[tmp_path / "SKILL.md"])
    assert files_in(client.skills.content.retrieve(one.id).read()) == {"basic-math/SKILL.md": MANIFEST}


def test_versions(client: OpenAI) -> None:
    made = client.skills.create(files=("a.zip", zipped({"SKILL.md": manifest("one")})))
    second = client.skills.versions.create(made.id, files=("a.zip", zipped({"SKILL.md": manifest("two")})))
    assert (second.object, second.version, second.skill_id, second.name) == ("skill.version", "2", made.id, "two")
    third = client.skills.versions.create(made.id, files=folder_of({"s/SKILL.md": manifest("three")}), default=True)
    now = client.skills.retrieve(made.id)
    assert (now.default_version, now.latest_version, now.name) == ("3", "3", "three")
    assert client.skills.update(made.id, default_version="1").name == "one"
    assert [each.version for each in client.skills.versions.list(made.id, limit=2)] == ["3", "2", "1"]
    oldest = client.skills.versions.list(made.id, order="asc", after=second.id)
    assert [each.id for each in oldest] == [third.id]
    assert client.skills.versions.retrieve("2", skill_id=made.id) == second
    content = client.skills.versions.content.retrieve("latest", skill_id=made.id).read()
    assert files_in(content) == {"three/SKILL.md": manifest("three")}
    gone = client.skills.versions.delete("3", skill_id=made.id)
    assert (gone.id, gone.object, gone.version, gone.deleted) == (third.id, "skill.version.deleted", "3", True)
    in_use = refusal(openai.BadRequestError, client.skills.versions.delete, "1", skill_id=made.id)
    assert in_use.code == "default_version_in_use"
    for version in ("3", "7", "0", "-1", "x", "1e3", "9" * 50):
        unknown = refusal(openai.NotFoundError, client.skills.versions.retrieve, version, skill_id=made.id)
        assert unknown.code == "skill_version_not_found"
    refusal(openai.NotFoundError, client.skills.update, made.id, default_version="3")
    refusal(openai.BadRequestError, client.skills.update, made.id, default_version="x", match="default_version")
    client.skills.versions.delete("2", skill_id=made.id)
    client.skills.versions.delete("1", skill_id=made.id)
    refusal(openai.NotFoundError, client.skills.retrieve, made.id)


@pytest.mark.parametrize(
    ("files", "why"),
    [
        (("a.zip", b"PK\x03\x04 no zip"), "not a zip file"),
        (("a.zip", zipped({"s/SKILL.md": MANIFEST, "s/../../etc/cron.d/x": "x"})), "leads out of its folder"),
        (("a.zip", zipped({"s/SKILL.md": MANIFEST, "s/zeros": bytes(2**21)})), "packed more than|too large"),
        (folder_of({"s/SKILL.md": MANIFEST, "s/../../x": "x"}), "leads out of its folder"),
        (folder_of({"s/SKILL.md": MANIFEST, "/etc/x": "x"}), "leads out of its folder"),
        (folder_of({"s/SKILL.md": "no front matter"}), "front matter"),
        (folder_of({"s/a.py": "pass"}), "no SKILL.md"),
        (folder_of({"s/SKILL.md": MANIFEST, "s/a": "x" * (BOUND + 1)}), "too large"),
    ],
)
def test_bad_bundles(client: OpenAI, files: Any, why: str) -> None:
    before = client.skills.list().data
    refused = refusal(openai.BadRequestError, client.skills.create, files=files, match=why)
    assert (refused.code, refused.param) == ("invalid_skill", "files")
    assert client.skills.list().data == before


def test_bodies_that_are_no_form_of_a_skill(server: Server, client: OpenAI, skill: Skill) -> None:
    url = f"{server.base_url}/skills"
    assert httpx.post(url, json={}, timeout=30).status_code == 415
    assert httpx.post(url, files={"other": ("a", b"x")}, timeout=30).json()["error"]["param"] == "files"
    large = httpx.post(url, files={"files": ("a.zip", bytes(3_000_000))}, timeout=30)
    assert (large.status_code, large.json()["error"]["param"]) == (413, "files")
    odd = httpx.post(f"{url}/{skill.id}/versions", files={"files": ("a", zipped())}, data={"default": "x"}, timeout=30)
    assert (odd.status_code, odd.json()["error"]["param"]) == (400, "default")
    unknown = httpx.post(f"{url}/skill_none/versions", files={"files": ("a", zipped())}, timeout=30)
    assert unknown.status_code == 404


def reference(skill: Skill, **more: str) -> Any:
    """Return what names a skill."""
    return {"type": "skill_reference", "skill_id": skill.id, **more}


def tools(*skills: Any) -> Any:
    """Return the tools of a request with these skills."""
    return [{"type": "code_interpreter", "container": {"type": "auto", "skills": list(skills)}}]


@needs_bubblewrap
def test_a_response_has_the_skills_that_it_names_and_brings(client: OpenAI, skill: Skill) -> None:
    asked: Any = {"model": "demo", "tools": tools(reference(skill, version="latest"), inline(name="brought"))}
    answer = client.responses.create(input=LOOK, **asked)
    assert "basic-math-" in answer.output_text
    assert "brought-" in answer.output_text
    echoed = answer.tools[0].to_dict()["container"]["skills"]  # type: ignore[index, call-overload]
    assert echoed[0] == reference(skill, version="1")
    run = (
        f"python: import glob, subprocess; (add,) = glob.glob('{FOLDER}/basic-math-*/add.sh'); "
        "print(subprocess.run([add, '20', '22'], capture_output=True, text=True).stdout)"
    )
    again = client.responses.create(input=run, previous_response_id=answer.id, **asked)
    assert "42" in again.output_text
    write = f"python: import glob; open(glob.glob('{FOLDER}/brought-*/SKILL.md')[0], 'w')"
    refused = client.responses.create(input=write, previous_response_id=again.id, **asked)
    assert "Read-only file system" in refused.output_text or "Permission denied" in refused.output_text


@needs_bubblewrap
def test_a_container_begins_with_skills(client: OpenAI, skill: Skill) -> None:
    container = client.containers.create(name="c", skills=[reference(skill), inline(name="brought")])  # type: ignore[list-item]
    asked: Any = {"model": "demo", "tools": [{"type": "code_interpreter", "container": container.id}]}
    answer = client.responses.create(input=LOOK, **asked)
    assert "basic-math-" in answer.output_text
    assert "brought-" in answer.output_text
    for wrong, code in ((reference(skill, version="2"), "skill_version_not_found"), (inline(b"x"), "invalid_skill")):
        refused = refusal(openai.APIStatusError, client.containers.create, name="c", skills=[wrong])
        assert refused.code == code
        assert str(refused.param).startswith("skills[0]")
        hello = {"model": "demo", "input": "Hello", "tools": tools(wrong)}
        assert refusal(openai.APIStatusError, client.responses.create, **hello).code == code
    assert SCRIPT.startswith("#!")


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"type": "skill_reference"}, "tools[0].container.skills[0].skill_id"),
        ({"type": "skill_reference", "skill_id": "s", "version": "0"}, "tools[0].container.skills[0].version"),
        ({"type": "skill_reference", "skill_id": "s", "version": 1}, "tools[0].container.skills[0].version"),
        ({**inline(), "name": "../a"}, "tools[0].container.skills[0].name"),
        ({"type": "local"}, "tools[0].container.skills[0]"),
    ],
)
def test_wrong_fields(client: OpenAI, wrong: Any, param: str) -> None:
    hello = {"model": "demo", "input": "Hello", "tools": tools(wrong)}
    assert refusal(openai.BadRequestError, client.responses.create, **hello).param.startswith(param)


@needs_bubblewrap
def test_a_shell_has_the_skills_that_it_names_and_brings(client: OpenAI, skill: Skill) -> None:
    environment: Any = {"type": "container_auto", "skills": [reference(skill), inline(name="brought")]}
    asked: Any = {"model": "demo", "tools": [{"type": "shell", "environment": environment}]}
    answer = client.responses.create(input=f"shell: ls {FOLDER}; {FOLDER}/basic-math-*/add.sh 20 22", **asked)
    (said,) = [item for item in answer.output if item.type == "shell_call_output"]
    folders = said.output[0].stdout.split()
    assert [each.rpartition("-")[0] for each in folders[:-1]] == ["basic-math", "brought"]
    assert folders[-1] == "42"
    echoed = answer.tools[0].to_dict()["environment"]["skills"]  # type: ignore[index, call-overload]
    assert echoed[0] == reference(skill, version="1")
    write = f"shell: echo x > {FOLDER}/{folders[0]}/SKILL.md || echo refused"
    again = client.responses.create(input=write, previous_response_id=answer.id, **asked)
    (said,) = [item for item in again.output if item.type == "shell_call_output"]
    assert said.output[0].stdout == "refused\n"
    code = [{"type": "code_interpreter", "container": {"type": "auto"}}]
    shared = client.responses.create(input=LOOK, model="demo", tools=code, previous_response_id=again.id)  # type: ignore[arg-type]
    assert folders[0] in shared.output_text, "the code interpreter of the chain has the same container"
    unknown = {**environment, "skills": [reference(skill, version="9")]}
    hello = {"model": "demo", "input": "Hello", "tools": [{"type": "shell", "environment": unknown}]}
    refused = refusal(openai.NotFoundError, client.responses.create, **hello)
    assert refused.param == "tools[0].environment.skills[0].version"
