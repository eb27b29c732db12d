"""Roll-outs, and their generations: what a model read and sampled, as tokens."""

from typing import ClassVar

from django.db import models

from responses_app.kit.columns import ID_LENGTH, JSONTextField, WithId
from responses_app.kit.kept import Kept, Line


class Rollout(WithId):
    """A roll-out. Its generations are rows of their own, numbered by `generations`."""

    project = models.CharField(max_length=64, default="default")
    name = models.CharField(max_length=128)  # as its client calls it
    group = models.CharField(max_length=128, default="")  # empty for none
    metadata = JSONTextField(default=dict)
    sampling = JSONTextField(default=dict)  # for requests that say nothing of it
    weights_wanted = models.CharField(max_length=256, default="")  # empty for any
    max_staleness = models.PositiveIntegerField(null=True)  # versions of weights; null for any
    versions = JSONTextField(null=True)  # of the weights that have sampled its tokens; null for none
    rewards = JSONTextField(default=list)
    model = models.CharField(max_length=256, default="")  # that was asked last
    created_at = models.DateTimeField()
    last_at = models.DateTimeField()  # when something last came to it
    ended_at = models.DateTimeField(null=True)
    # Of all its generations.
    generations = models.PositiveIntegerField(default=0)
    prompt_tokens = models.PositiveBigIntegerField(default=0)  # each once
    sampled_tokens = models.PositiveBigIntegerField(default=0)
    bytes = models.PositiveBigIntegerField(default=0)
    kept = Kept(shown=(220, "roll-outs"), dated="created_at", line=Line(100, "rollout"))

    class Meta:
        verbose_name = "roll-out"
        indexes: ClassVar = [
            models.Index(fields=["project", "group", "id"], name="rollout_group"),
            models.Index(fields=["project", "id"], name="rollout_project"),
            models.Index(fields=["last_at"], name="rollout_last"),
        ]
        constraints: ClassVar = [models.UniqueConstraint(fields=["project", "name"], name="rollout_name")]


class RolloutGeneration(models.Model):
    """A call of the engine. See `protocol.rollouts.generations` for what the columns mean."""

    rollout = models.ForeignKey(
        Rollout, on_delete=models.DO_NOTHING, related_name="rows", db_constraint=False, db_index=False
    )
    number = models.PositiveIntegerField()  # in the order in which they were kept, from 0 on
    response_id = models.CharField(max_length=ID_LENGTH)
    parent = models.PositiveIntegerField(null=True)  # the number of the one with whose tokens it begins
    shared = models.PositiveIntegerField(default=0)  # how many of them
    near = models.PositiveIntegerField(null=True)  # the one that it could have continued
    cut = models.CharField(max_length=24, default="")  # why it does not
    tail = models.BinaryField()  # tokens of its prompt behind those that it shares, see `pack_tokens`
    sampled = models.BinaryField()  # its tokens
    logprobs = models.BinaryField(default=b"")
    detail = models.BinaryField()  # all else, as JSON
    kept = Kept(project="rollout__project", owner="Rollout")

    class Meta:
        verbose_name = "generation of a roll-out"
        verbose_name_plural = "generations of roll-outs"
        indexes: ClassVar = [models.Index(fields=["response_id"], name="rolloutgeneration_of_response")]
        constraints: ClassVar = [models.UniqueConstraint(fields=["rollout", "number"], name="rolloutgeneration_number")]

    def __str__(self) -> str:
        return f"{self.rollout_id} {self.number}"
