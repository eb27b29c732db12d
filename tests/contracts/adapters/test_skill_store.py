"""Skills in memory, on SQLite and on PostgreSQL; and what is left where one is broken off."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from django.db.backends.base.base import BaseDatabaseWrapper

from responses_app.models import FilePart
from responses_app.models.skills import Skill, SkillVersion
from responses_app.stores.database.files import skills as database_skills
from responses_app.stores.database.files.files import DatabaseFileStore
from responses_app.stores.database.files.skills import DatabaseSkills
from responses_app.stores.database.transfer.erasure import Subject, count, erase, lines
from responses_app.stores.files import PIECE_BYTES, FilesFull
from responses_app.stores.skills import SkillGone
from tests.contracts.adapters.stores import within
from tests.contracts.files import LIMITS as OF_FILES
from tests.contracts.files import Hands, kept
from tests.contracts.skills import LIMITS, SkillsContract, bundle
from tests.contracts.store import new_id
from tests.kit.memory_skills import MemorySkills

HOUR = 3600.0


class TestInMemory(SkillsContract):
    @pytest.fixture
    def skills(self) -> MemorySkills:
        return MemorySkills(LIMITS)


async def left(alias: str, project: str) -> list[int]:
    """Return how many rows a project has: skills, versions and pieces of them."""

    def counted(db: BaseDatabaseWrapper) -> list[int]:
        versions = SkillVersion.objects.using(alias).filter(project=project)
        pieces = FilePart.objects.using(alias).filter(file_id__in=list(versions.values_list("pk", flat=True)))
        return [Skill.objects.using(alias).filter(project=project).count(), versions.count(), pieces.count()]

    return await asyncio.to_thread(within, alias, counted)


class TestInDatabases(SkillsContract):
    @pytest.fixture
    async def skills(self, alias: str, hands: Hands) -> AsyncIterator[DatabaseSkills]:
        skills = DatabaseSkills(LIMITS, using=alias, settings=OF_FILES, now=hands)
        yield skills
        await skills.aclose()

    @pytest.fixture
    async def files(self, alias: str, hands: Hands) -> AsyncIterator[DatabaseFileStore]:
        store = DatabaseFileStore(using=alias, settings=OF_FILES, now=hands)
        yield store
        await store.aclose()

    async def test_what_is_broken_off_leaves_nothing(
        self, skills: DatabaseSkills, alias: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(db: BaseDatabaseWrapper, version_id: str, position: int, piece: bytes) -> None:
            raise OSError("the disk is gone")

        project, skill_id = new_id("proj"), new_id("skill")
        await skills.create(project, skill_id, new_id("skillver"), bundle(), 5)
        before = await left(alias, project)
        monkeypatch.setattr(database_skills, "_write_piece", broken)
        with pytest.raises(OSError, match="disk"):
            await skills.create(project, new_id("skill"), new_id("skillver"), bundle(), 5)
        with pytest.raises(OSError, match="disk"):
            await skills.add(project, skill_id, new_id("skillver"), bundle(), 5, default=True)
        assert await left(alias, project) == before == [1, 1, 1]
        assert (await skills.get(project, skill_id)).latest == 1

    async def test_what_a_killed_process_left_is_purged(
        self, skills: DatabaseSkills, files: DatabaseFileStore, alias: str, hands: Hands
    ) -> None:
        project, at = new_id("proj"), int(hands.time)
        gone, stays = new_id("skill"), new_id("skill")
        for skill_id in (gone, stays):
            await skills.create(project, skill_id, new_id("skillver"), bundle(), at)
        rows = SkillVersion.objects.using(alias).filter(skill_id=gone)
        await asyncio.to_thread(within, alias, lambda db: rows.update(is_whole=False))
        skill = Skill.objects.using(alias).filter(pk=gone)
        await asyncio.to_thread(within, alias, lambda db: skill.update(is_whole=False))
        assert await files.purge() == 0
        hands.time += HOUR
        assert await files.purge() == 1
        assert await left(alias, project) == [1, 1, 1]

    async def test_their_bytes_are_those_of_the_projects_files(
        self, skills: DatabaseSkills, files: DatabaseFileStore
    ) -> None:
        project, skill_id = new_id("proj"), new_id("skill")
        await kept(files, bytes(2 * PIECE_BYTES), project=project)
        await skills.create(project, skill_id, new_id("skillver"), bundle(bytes(PIECE_BYTES - 10)), 5)
        assert (await files.usage(project)).bytes == 3 * PIECE_BYTES - 10
        assert (await files.usage(project)).files == 1
        with pytest.raises(FilesFull, match="FILES_MAX_BYTES"):
            await skills.add(project, skill_id, new_id("skillver"), bundle(bytes(11)), 5, default=False)
        with pytest.raises(FilesFull, match="FILES_MAX_BYTES"):
            await kept(files, bytes(11), project=project)

    async def test_it_is_counted_written_out_and_erased(self, skills: DatabaseSkills, alias: str) -> None:
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
