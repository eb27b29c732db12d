"""What notes bring to the server."""

from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from acme_notes.settings import NotesSettings
from responses_app.kit.duty import Duty
from responses_app.kit.extension import Command, Extension, Look
from responses_app.kit.findings import Finding, ok

if TYPE_CHECKING:
    from mcp.server import MCPServer

    from responses_app.web.endpoint import Endpoint
    from responses_app.wiring.site import Site


class Notes(Extension):
    """Notes of a project."""

    name = "acme_notes"
    about = "notes of a project"
    settings = (NotesSettings,)

    @classmethod
    def commands(cls) -> Iterable[Command]:
        """Return `respsite notes`."""
        return (Command("notes", "Print how a note is written.", _no_arguments, "acme_notes.cli:run"),)

    def endpoints(self) -> Sequence["Endpoint"]:
        """Return `/v1/notes`."""
        from acme_notes.endpoints import ENDPOINTS

        return ENDPOINTS

    def tool_servers(self, settings: object) -> Mapping[str, "Callable[[str], MCPServer]"]:
        """Return the tools of models."""
        from acme_notes.tools import notes_of

        return {"notes": notes_of}

    def duties(self, site: "Site") -> Iterable[Duty]:
        """Return what keeps the number of notes small."""
        from acme_notes.store import Notes

        assert isinstance(site.settings, NotesSettings)
        notes, most = site.made(Notes.of), site.settings.notes_max
        return (Duty("trimming notes", lambda: notes.trim(most), seconds=1.0),)

    def looks(self) -> Mapping[str, Look]:
        """Return what `respsite doctor` says of notes."""

        async def look(settings: NotesSettings, seconds: float) -> Sequence[Finding]:
            return [ok("notes", f"at most {settings.notes_max} are kept")]

        return {"notes": look}


def _no_arguments(parser: ArgumentParser) -> None:
    """Take none."""
