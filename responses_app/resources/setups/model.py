"""Named setups, as they are kept."""

from typing import ClassVar

from django.db import models

from responses_app.kit.columns import JSONTextField, WithId
from responses_app.kit.kept import Kept, Line


class NamedSetup(WithId):
    """A setup of the playground that a project keeps under a name."""

    project = models.CharField(max_length=64, default="default")
    name = models.TextField()
    setup = JSONTextField(default=dict)
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()
    kept = Kept(shown=(170, "named setups"), dated="updated_at", line=Line(50, "prompt", "id name setup"))

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["project", "name"], name="namedsetup_name")]
