"""Notes are read and written."""

from acme_notes.models import Note
from responses_app.kit.table import Store, reads, writes


class Notes(Store[None]):
    """The notes of all projects."""

    unlimited = None

    @reads
    def of(self, project: str) -> list[str]:
        """Return the texts of a project's notes, oldest first."""
        return list(Note.objects.filter(**self._mine(project)).order_by("pk").values_list("text", flat=True))

    @writes
    def add(self, project: str, text: str) -> None:
        """Keep a note."""
        Note.objects.create(project=project, text=text)

    @writes
    def trim(self, most: int) -> None:
        """Remove the oldest notes where there are more than so many."""
        kept = Note.objects.order_by("-pk").values_list("pk", flat=True)[:most]
        Note.objects.exclude(pk__in=list(kept)).delete()
