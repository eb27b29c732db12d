"""Skills on SQLite and on PostgreSQL; and what is left where one is broken off."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator

import pytest
from django.db.backends.base.base import BaseDatabaseWrapper

from responses_app.kit import pieces
from responses_app.kit.clock import unix
from responses_app.kit.pieces import FilePart
from responses_app.resources.files.fields import PIECE_BYTES, FilesFull
from responses_app.resources.files.store import Files
from responses_app.resources.skills.bundles import Bundle
from responses_app.resources.skills.fields import DefaultInUse, SkillGone, SkillSettings, SkillsFull
from responses_app.resources.skills.model import Skill, SkillVersion
from responses_app.resources.skills.store import Skills
from responses_app.stores.database.transfer.erasure import Subject, count, erase, lines
from tests.contracts.adapters.stores import within
from tests.contracts.files import LIMITS as OF_FILES
from tests.contracts.files import Hands, kept
from tests.contracts.store import IDS_NOBODY_MADE, UNTAMED, new_id

HOUR = 3600.0


LIMITS = SkillSettings(skills_max_versions=4)


def bundle(content: bytes = b"PK", name: str = "basic-math") -> Bundle:
    """Return a bundle; nobody looks into it here."""
    digest = hashlib.sha256(content).hexdigest()
    description = UNTAMED.replace("\0", "").replace("\ud800", "")  # bundles are read without them
    return Bundle(name, description, digest, len(content), content)


async def left(alias: str, project: str) -> list[int]:
    """Return how many rows a project has: skills, versions and pieces of them."""

    def counted(db: BaseDatabaseWrapper) -> list[int]:
        versions = SkillVersion.objects.using(alias).filter(project=project)
        parts = FilePart.objects.using(alias).filter(file_id__in=list(versions.values_list("pk", flat=True)))
        return [Skill.objects.using(alias).filter(project=project).count(), versions.count(), parts.count()]

    return await asyncio.to_thread(within, alias, counted)


class TestInDatabases:
    @pytest.fixture
    async def skills(self, alias: str, hands: Hands) -> AsyncIterator[Skills]:
        skills = Skills(LIMITS, using=alias, settings=OF_FILES, now=hands)
        yield skills
        await skills.aclose()

    @pytest.fixture
    async def files(self, alias: str, hands: Hands) -> AsyncIterator[Files]:
        store = Files(using=alias, settings=OF_FILES, now=hands)
        yield store
        await store.aclose()

    async def test_versions_are_numbered_and_one_is_the_default(self, skills: Skills) -> None:
        project, skill_id = new_id("proj"), new_id("skill")
        made = await skills.create(project, skill_id, new_id("skillver"), bundle(), 5)
        assert (made.id, unix(made.created_at), made.latest, made.default.version) == (skill_id, 5, 1, 1)
        second = await skills.add(project, skill_id, new_id("skillver"), bundle(name="two"), 6, default=False)
        third = await skills.add(project, skill_id, new_id("skillver"), bundle(name="three"), 7, default=True)
        assert (second.version, third.version) == (2, 3)
        assert (await skills.get(project, skill_id)).default == third
        assert await skills.version(project, skill_id, None) == third
        assert await skills.version(project, skill_id, "2") == second
        assert (await skills.set_default(project, skill_id, "2")).default == second
        await skills.delete_version(project, skill_id, "3")
        assert await skills.version(project, skill_id, "latest") == second
        fourth = await skills.add(project, skill_id, new_id("skillver"), bundle(), 8, default=False)
        assert fourth.version == 4, "no number is given twice"
        assert (await skills.get(project, skill_id)).latest == 4

    async def test_the_bundle_comes_back_as_it_was(self, skills: Skills) -> None:
        project, skill_id = new_id("proj"), new_id("skill")
        content = bytes(range(256)) * (2 * PIECE_BYTES // 256) + b"end"
        made = await skills.create(project, skill_id, new_id("skillver"), bundle(content), 5)
        assert await skills.content(made.default) == content
        assert (made.default.bytes, made.default.unpacked) == (len(content), len(content))
        await skills.delete(project, skill_id)
        with pytest.raises(SkillGone):
            await skills.content(made.default)

    async def test_the_default_goes_last_and_the_skill_with_it(self, skills: Skills) -> None:
        project, skill_id = new_id("proj"), new_id("skill")
        await skills.create(project, skill_id, new_id("skillver"), bundle(), 5)
        await skills.add(project, skill_id, new_id("skillver"), bundle(), 5, default=False)
        with pytest.raises(DefaultInUse):
            await skills.delete_version(project, skill_id, "1")
        await skills.delete_version(project, skill_id, "2")
        with pytest.raises(SkillGone) as gone:
            await skills.version(project, skill_id, "2")
        assert gone.value.version == "2"
        await skills.delete_version(project, skill_id, "1")
        with pytest.raises(SkillGone) as gone:
            await skills.get(project, skill_id)
        assert gone.value.version is None
        assert await skills.page(project, after=None, descending=True, limit=9) == []

    async def test_lists(self, skills: Skills) -> None:
        project = new_id("proj")
        made = [await skills.create(project, new_id("skill"), new_id("skillver"), bundle(), 5) for _ in range(3)]
        made.sort(key=lambda each: each.id)
        assert await skills.page(project, after=None, descending=False, limit=9) == made
        assert await skills.page(project, after=made[2].id, descending=True, limit=1) == [made[1]]
        skill = made[0]
        more = await skills.add(project, skill.id, new_id("skillver"), bundle(), 5, default=False)
        listed = await skills.versions(project, skill.id, after=None, descending=True, limit=9)
        assert listed == [more, skill.default]
        assert await skills.versions(project, skill.id, after=more.id, descending=True, limit=9) == [skill.default]

    async def test_a_project_has_as_many_versions_as_it_may_have(self, skills: Skills) -> None:
        project, skill_id = new_id("proj"), new_id("skill")
        await skills.create(project, skill_id, new_id("skillver"), bundle(), 5)

        async def one_more() -> None:
            await skills.add(project, skill_id, new_id("skillver"), bundle(), 5, default=False)

        done = await asyncio.gather(*(one_more() for _ in range(6)), return_exceptions=True)
        assert [type(each) for each in done if each is not None] == [SkillsFull] * 3
        with pytest.raises(SkillsFull):
            await skills.create(project, new_id("skill"), new_id("skillver"), bundle(), 5)
        assert len(await skills.page(project, after=None, descending=True, limit=9) or ()) == 1
        await skills.create(new_id("proj"), new_id("skill"), new_id("skillver"), bundle(), 5)
        await skills.delete(project, skill_id)
        await skills.create(project, new_id("skill"), new_id("skillver"), bundle(), 5)

    async def test_another_project_has_nothing_of_it(self, skills: Skills) -> None:
        project, skill_id = new_id("proj"), new_id("skill")
        await skills.create(project, skill_id, new_id("skillver"), bundle(), 5)
        for asked in (
            skills.get("another", skill_id),
            skills.version("another", skill_id, "1"),
            skills.versions("another", skill_id, after=None, descending=True, limit=9),
            skills.set_default("another", skill_id, "1"),
            skills.delete("another", skill_id),
            skills.delete_version("another", skill_id, "1"),
            skills.add("another", skill_id, new_id("skillver"), bundle(), 5, default=True),
        ):
            with pytest.raises(SkillGone):
                await asked
        assert (await skills.get(project, skill_id)).latest == 1

    @pytest.mark.parametrize("name", IDS_NOBODY_MADE)
    async def test_ids_nobody_made(self, skills: Skills, name: str) -> None:
        project = new_id("proj")
        with pytest.raises(SkillGone):
            await skills.get(project, name)

    async def test_what_is_broken_off_leaves_nothing(
        self, skills: Skills, alias: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*write: object) -> None:
            raise OSError("the disk is gone")

        project, skill_id = new_id("proj"), new_id("skill")
        await skills.create(project, skill_id, new_id("skillver"), bundle(), 5)
        before = await left(alias, project)
        monkeypatch.setattr(pieces, "_write", broken)
        with pytest.raises(OSError, match="disk"):
            await skills.create(project, new_id("skill"), new_id("skillver"), bundle(), 5)
        with pytest.raises(OSError, match="disk"):
            await skills.add(project, skill_id, new_id("skillver"), bundle(), 5, default=True)
        assert await left(alias, project) == before == [1, 1, 1]
        assert (await skills.get(project, skill_id)).latest == 1

    async def test_what_a_killed_process_left_is_purged(self, skills: Skills, alias: str, hands: Hands) -> None:
        project, at = new_id("proj"), int(hands.time)
        gone, stays = new_id("skill"), new_id("skill")
        for skill_id in (gone, stays):
            await skills.create(project, skill_id, new_id("skillver"), bundle(), at)
        rows = SkillVersion.objects.using(alias).filter(skill_id=gone)
        await asyncio.to_thread(within, alias, lambda db: rows.update(is_whole=False))
        skill = Skill.objects.using(alias).filter(pk=gone)
        await asyncio.to_thread(within, alias, lambda db: skill.update(is_whole=False))
        assert await skills.purge() == 0
        hands.time += HOUR
        assert await skills.purge() == 1
        assert await left(alias, project) == [1, 1, 1]

    async def test_their_bytes_are_those_of_the_projects_files(self, skills: Skills, files: Files) -> None:
        project, skill_id = new_id("proj"), new_id("skill")
        await kept(files, bytes(2 * PIECE_BYTES), project=project)
        await skills.create(project, skill_id, new_id("skillver"), bundle(bytes(PIECE_BYTES - 10)), 5)
        assert (await files.usage(project)).bytes == 3 * PIECE_BYTES - 10
        assert (await files.usage(project)).files == 1
        with pytest.raises(FilesFull, match="FILES_MAX_BYTES"):
            await skills.add(project, skill_id, new_id("skillver"), bundle(bytes(11)), 5, default=False)
        with pytest.raises(FilesFull, match="FILES_MAX_BYTES"):
            await kept(files, bytes(11), project=project)

    async def test_it_is_counted_written_out_and_erased(self, skills: Skills, alias: str) -> None:
        project, skill_id = new_id("proj"), new_id("skill")
        await skills.create(project, skill_id, new_id("skillver"), bundle(b"PKPK"), 5)
        subject = Subject(project=project)

        def all_of_it(db: BaseDatabaseWrapper) -> tuple[int, list[dict[str, object]], int]:
            before, written = count(subject, using=alias), [json.loads(each) for each in lines(subject, using=alias)]
            assert list(erase(subject, using=alias)) == []
            return before["versions of skills"], written, sum(count(subject, using=alias).values())

        versions, written, after = await asyncio.to_thread(within, alias, all_of_it)
        assert (versions, after) == (1, 0)
        assert [each.get("skill") or each["base64"] for each in written] == [
            {"id": skill_id, "version": 1, "name": "basic-math", "description": bundle().description},
            "UEtQSw==",
        ]
        assert await left(alias, project) == [0, 0, 0]
        with pytest.raises(SkillGone):
            await skills.get(project, skill_id)
