"""Pictures that models were shown, once for each project, and who needs them."""

from typing import ClassVar

from django.db import models

from responses_app.kit.columns import ID_LENGTH, WithId
from responses_app.kit.kept import Kept


class Picture(WithId):
    """A picture as models are shown it. `id` is made of its project and its digest: see `stores.database.pictures`."""

    project = models.CharField(max_length=64, default="default")
    digest = models.CharField(max_length=64)  # which tokens of chain parts name
    media_type = models.CharField(max_length=32)
    width = models.PositiveIntegerField()
    height = models.PositiveIntegerField()
    data = models.BinaryField()  # the file
    created_at = models.DateTimeField()
    used_at = models.DateTimeField()  # when somebody began to need it last; a write of it locks the row
    kept = Kept(shown=(120, "pictures"), owner="Response")

    class Meta:
        indexes: ClassVar = [models.Index(fields=["project", "id"], name="picture_project")]


class PictureUse(models.Model):
    """Who needs a picture: a response, or the part of a chain that has its id, as long as there is either."""

    picture = models.ForeignKey(
        Picture, on_delete=models.DO_NOTHING, related_name="uses", db_constraint=False, db_index=False
    )
    owner = models.CharField(max_length=ID_LENGTH)  # the id of the response
    created_at = models.DateTimeField()  # before the response is accepted
    kept = Kept(project="picture__project", owner="Picture")

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["owner", "picture"], name="pictureuse_owner")]
        indexes: ClassVar = [
            models.Index(fields=["picture"], name="pictureuse_picture"),
            models.Index(fields=["created_at"], name="pictureuse_created"),
        ]

    def __str__(self) -> str:
        return f"{self.owner} {self.picture_id}"
