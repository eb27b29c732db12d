"""Notes in the database."""

from django.db import models

from responses_app.kit.kept import Kept


class Note(models.Model):
    """A note of a project."""

    project = models.CharField(max_length=64)
    text = models.TextField()
    created_at = models.DateTimeField(auto_now_add=True)
    kept = Kept(shown=(300, "notes"), dated="created_at")

    def __str__(self) -> str:
        return self.text
