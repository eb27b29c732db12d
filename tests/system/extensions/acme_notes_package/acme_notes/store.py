"""Notes are read and written."""

from typing import Self

from acme_notes.models import Note
from responses_app.kit.table import Store, reads, writes
from responses_app.wiring.site import Site, get_site


class Notes(Store[None]):
    """The notes of all projects."""

    unlimited = None

    @classmethod
    def of(cls, site: Site) -> Self:
        """Return those of a server."""
        timeout = site.settings.database_timeout_seconds
        return cls(now=site.clock, timeout=timeout, retentions=site.retentions)

    @reads
    def texts(self, project: str) -> list[str]:
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


def notes() -> Notes:
    """Return the one store of this process."""
    return get_site().made(Notes.of)
