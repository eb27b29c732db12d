"""The keys by which clients send a request again without having it carried out twice, and the answers kept for them."""

from typing import ClassVar

from django.db import models

from responses_app.kit.columns import ID_LENGTH, JSONTextField, WithId
from responses_app.kit.kept import Kept


class IdempotencyKey(WithId):
    """A request that was sent with an `Idempotency-Key`. `id` is made of its project and its key."""

    project = models.CharField(max_length=64, default="default")
    fingerprint = models.CharField(max_length=64)  # of the request: the key is for no other
    state = models.CharField(max_length=16)  # see `protocol.idempotency.KeyState`
    object_id = models.CharField(max_length=ID_LENGTH, default="")  # of the response it makes; empty for none
    epoch = models.PositiveIntegerField(default=1)  # how many have claimed it
    token = models.CharField(max_length=ID_LENGTH)  # of the claim that holds it
    worker = models.CharField(max_length=ID_LENGTH, default="")  # the process whose claim that is; empty for nobody
    head = JSONTextField(null=True)  # the status and the headers of its answer
    size = models.PositiveBigIntegerField(default=0)  # bytes of the answer as it is kept
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    kept = Kept(shown=(180, "idempotency keys"), dated="created_at")

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["project", "expires_at", "size"], name="idempotencykey_project"),
            models.Index(fields=["expires_at"], name="idempotencykey_expires"),
        ]


class AnswerPart(models.Model):
    """A part of the answer to such a request, sealed, in the order of `position`."""

    key = models.ForeignKey(
        IdempotencyKey, on_delete=models.DO_NOTHING, related_name="parts", db_constraint=False, db_index=False
    )
    position = models.PositiveIntegerField()  # from 0 on
    data = models.TextField()
    kept = Kept(project="key__project", owner="IdempotencyKey")

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["key", "position"], name="answerpart_position")]

    def __str__(self) -> str:
        return f"{self.key_id} {self.position}"
