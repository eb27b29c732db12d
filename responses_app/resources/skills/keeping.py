"""Rows of skills and versions: how they are hidden, removed and written out. All of this runs on a thread."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet

from responses_app.kit.kept import removes, writes_lines
from responses_app.kit.pieces import lines_of_pieces, locked, remove_pieces
from responses_app.resources.skills.model import Skill, SkillVersion


def remove_some_of_version(db: BaseDatabaseWrapper, version_id: str) -> bool:
    """Remove a few pieces of a version, or, with the last, the version; return whether nothing is left of it."""
    with transaction.atomic(using=db.alias):
        row = locked(db, SkillVersion, version_id)
        if not remove_pieces(db, [version_id]):
            return False
        if row is not None:
            row.delete(using=db.alias)
        return True


@removes(Skill)
def _remove_some_of_skill(rows: "QuerySet[Skill]", ids: Sequence[str]) -> None:
    rows.update(is_whole=False)
    versions = SkillVersion.objects.using(rows.db).filter(skill_id=ids[0])
    versions.update(is_whole=False)
    version_id = versions.values_list("pk", flat=True).first()
    if version_id is None:
        rows.delete()
    else:
        remove_some_of_version(connections[rows.db], version_id)


@removes(SkillVersion)
def _remove_some_of(rows: "QuerySet[SkillVersion]", ids: Sequence[str]) -> None:
    rows.update(is_whole=False)
    remove_some_of_version(connections[rows.db], ids[0])


@writes_lines(SkillVersion)
def _lines(row: SkillVersion, head: Mapping[str, Any], using: str) -> Iterator[str]:
    about = {"id": row.skill_id, "version": row.version, "name": row.name, "description": row.description}
    yield json.dumps({"skill": about})
    yield from lines_of_pieces(using, [row.pk], content_of=row.skill_id, version=row.version)
