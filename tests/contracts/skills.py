"""What every store of skills does."""

import asyncio
import hashlib

import pytest

from responses_app.stores.files import PIECE_BYTES
from responses_app.stores.skills import BaseSkills, DefaultInUse, NewBundle, SkillGone, SkillSettings, SkillsFull
from tests.contracts.store import IDS_NOBODY_MADE, UNTAMED, new_id

LIMITS = SkillSettings(skills_max_versions=4)


def bundle(content: bytes = b"PK", name: str = "basic-math") -> NewBundle:
    """Return a bundle; nobody looks into it here."""
    digest = hashlib.sha256(content).hexdigest()
    description = UNTAMED.replace("\0", "").replace("\ud800", "")  # bundles are read without them
    return NewBundle(name=name, description=description, digest=digest, unpacked=len(content), content=content)


class SkillsContract:
    """Give a subclass the fixture `skills`, a store with `LIMITS`."""

    async def test_versions_are_numbered_and_one_is_the_default(self, skills: BaseSkills) -> None:
        project, skill_id = new_id("proj"), new_id("skill")
        made = await skills.create(project, skill_id, new_id("skillver"), bundle(), 5)
        assert (made.id, made.created_at, made.latest, made.default.version) == (skill_id, 5, 1, 1)
        second = await skills.add(project, skill_id, new_id("skillver"), bundle(name="two"), 6, default=False)
        third = await skills.add(project, skill_id, new_id("skillver"), bundle(name="three"), 7, default=True)
        assert (second.version, third.version) == (2, 3)
        assert (await skills.get(project, skill_id)).default == third
        assert await skills.version(project, skill_id, None) == third
        assert await skills.version(project, skill_id, 2) == second
        assert (await skills.set_default(project, skill_id, 2)).default == second
        await skills.delete_version(project, skill_id, 3)
        assert await skills.version(project, skill_id, 0) == second
        fourth = await skills.add(project, skill_id, new_id("skillver"), bundle(), 8, default=False)
        assert fourth.version == 4, "no number is given twice"
        assert (await skills.get(project, skill_id)).latest == 4

    async def test_the_bundle_comes_back_as_it_was(self, skills: BaseSkills) -> None:
        project, skill_id = new_id("proj"), new_id("skill")
        content = bytes(range(256)) * (2 * PIECE_BYTES // 256) + b"end"
        made = await skills.create(project, skill_id, new_id("skillver"), bundle(content), 5)
        assert await skills.content(made.default) == content
        assert (made.default.bytes, made.default.unpacked) == (len(content), len(content))
        await skills.delete(project, skill_id)
        with pytest.raises(SkillGone):
            await skills.content(made.default)

    async def test_the_default_goes_last_and_the_skill_with_it(self, skills: BaseSkills) -> None:
        project, skill_id = new_id("proj"), new_id("skill")
        await skills.create(project, skill_id, new_id("skillver"), bundle(), 5)
        await skills.add(project, skill_id, new_id("skillver"), bundle(), 5, default=False)
        with pytest.raises(DefaultInUse):
            await skills.delete_version(project, skill_id, 1)
        await skills.delete_version(project, skill_id, 2)
        with pytest.raises(SkillGone) as gone:
            await skills.version(project, skill_id, 2)
        assert gone.value.version == 2
        await skills.delete_version(project, skill_id, 1)
        with pytest.raises(SkillGone) as gone:
            await skills.get(project, skill_id)
        assert gone.value.version is None
        assert await skills.listed(project, after=None, descending=True, limit=9) == []

    async def test_lists(self, skills: BaseSkills) -> None:
        project = new_id("proj")
        made = [await skills.create(project, new_id("skill"), new_id("skillver"), bundle(), 5) for _ in range(3)]
        made.sort(key=lambda each: each.id)
        assert await skills.listed(project, after=None, descending=False, limit=9) == made
        assert await skills.listed(project, after=made[2].id, descending=True, limit=1) == [made[1]]
        skill = made[0]
        more = await skills.add(project, skill.id, new_id("skillver"), bundle(), 5, default=False)
        listed = await skills.versions(project, skill.id, after=None, descending=True, limit=9)
        assert listed == [more, skill.default]
        assert await skills.versions(project, skill.id, after=more.id, descending=True, limit=9) == [skill.default]

    async def test_a_project_has_as_many_versions_as_it_may_have(self, skills: BaseSkills) -> None:
        project, skill_id = new_id("proj"), new_id("skill")
        await skills.create(project, skill_id, new_id("skillver"), bundle(), 5)

        async def one_more() -> None:
            await skills.add(project, skill_id, new_id("skillver"), bundle(), 5, default=False)

        done = await asyncio.gather(*(one_more() for _ in range(6)), return_exceptions=True)
        assert [type(each) for each in done if each is not None] == [SkillsFull] * 3
        with pytest.raises(SkillsFull):
            await skills.create(project, new_id("skill"), new_id("skillver"), bundle(), 5)
        assert len(await skills.listed(project, after=None, descending=True, limit=9) or ()) == 1
        await skills.create(new_id("proj"), new_id("skill"), new_id("skillver"), bundle(), 5)
        await skills.delete(project, skill_id)
        await skills.create(project, new_id("skill"), new_id("skillver"), bundle(), 5)

    async def test_another_project_has_nothing_of_it(self, skills: BaseSkills) -> None:
        project, skill_id = new_id("proj"), new_id("skill")
        await skills.create(project, skill_id, new_id("skillver"), bundle(), 5)
        for asked in (
            skills.get("another", skill_id),
            skills.version("another", skill_id, 1),
            skills.versions("another", skill_id, after=None, descending=True, limit=9),
            skills.set_default("another", skill_id, 1),
            skills.delete("another", skill_id),
            skills.delete_version("another", skill_id, 1),
            skills.add("another", skill_id, new_id("skillver"), bundle(), 5, default=True),
        ):
            with pytest.raises(SkillGone):
                await asked
        assert (await skills.get(project, skill_id)).latest == 1

    @pytest.mark.parametrize("name", IDS_NOBODY_MADE)
    async def test_ids_nobody_made(self, skills: BaseSkills, name: str) -> None:
        project = new_id("proj")
        with pytest.raises(SkillGone):
            await skills.get(project, name)
