"""The rows of the playground: titles and pins of chats, and setups under names.

A chat has no row: it is the responses with its `chat_id`. These rows are exported, erased and removed in time on a
server without the playground, too.
"""

from typing import ClassVar

from django.db import models

from responses_app.kit.columns import JSONTextField, WithId
from responses_app.kit.kept import Kept, Line


class ChatLabel(WithId):
    """What people have set of a chat, whose id it has; it goes with the last response of the chat."""

    project = models.CharField(max_length=64, default="default")
    title = models.TextField(default="")  # empty: the first words of the chat
    title_from = models.CharField(max_length=8, default="")  # whose title it is; empty without one
    pinned = models.BooleanField(default=False)
    changed_at = models.DateTimeField()
    kept = Kept(shown=(130, "chat labels"), owner="Response", line=Line(40, "chat", "id title pinned"))

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["project", "changed_at"], name="chatlabel_project"),
            models.Index(fields=["project"], name="chatlabel_pinned", condition=models.Q(pinned=True)),
        ]


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
