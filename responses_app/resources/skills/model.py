"""What is kept of skills: the skills, and their versions. The bundle of a version is in pieces: see `kit.pieces`."""

from typing import ClassVar

from django.db import models

from responses_app.kit.columns import ID_LENGTH, WithId
from responses_app.kit.kept import Kept, Line


class Skill(WithId):
    """A skill of a project."""

    project = models.CharField(max_length=64, default="default")
    created_at = models.DateTimeField()
    default_version = models.PositiveIntegerField(default=1)
    next_version = models.PositiveIntegerField(default=1)  # that the next one gets: no number is given twice
    is_whole = models.BooleanField(default=False)  # clients find it, from its first version on until it is deleted
    kept = Kept(shown=(230, "skills"), dated="created_at")

    # Of one that the store has read.
    default: "SkillVersion"
    latest: int  # the highest version that there is

    class Meta:
        indexes: ClassVar = [models.Index(fields=["project", "id"], name="skill_project")]


class SkillVersion(WithId):
    """A version of a skill, which nobody changes."""

    project = models.CharField(max_length=64, default="default")
    skill = models.ForeignKey(
        Skill, on_delete=models.DO_NOTHING, related_name="versions", db_constraint=False, db_index=False
    )
    version = models.PositiveIntegerField()
    name = models.CharField(max_length=ID_LENGTH)
    description = models.TextField()
    digest = models.CharField(max_length=64)  # SHA-256 of its files and their paths, in hex
    bytes = models.PositiveBigIntegerField()  # of the bundle
    unpacked = models.PositiveBigIntegerField()  # bytes of the files in it
    created_at = models.DateTimeField()
    is_whole = models.BooleanField(default=False)  # from then on clients find it
    kept = Kept(
        shown=(240, "versions of skills"),
        owner="Skill",
        line=Line(90, "skill", by="skill_id version", where=models.Q(is_whole=True, skill__is_whole=True)),
    )

    class Meta:
        verbose_name = "version of a skill"
        verbose_name_plural = "versions of skills"
        constraints: ClassVar = [models.UniqueConstraint(fields=["skill", "version"], name="skillversion_number")]
        indexes: ClassVar = [
            models.Index(fields=["project", "bytes"], name="skillversion_project"),
            models.Index(fields=["created_at"], name="skillversion_unfinished", condition=models.Q(is_whole=False)),
        ]

    def __str__(self) -> str:
        return f"{self.skill_id} {self.version}"
