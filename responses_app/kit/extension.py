"""`Extension`: what a Django app brings to the server beside all that Django finds by itself.

Commands of `manage`, pages of the admin, templates, static files, system checks, and models with their migrations come
by Django's own discovery, and `kept` of a model says whose its rows are (`kit.kept`). For the rest the `AppConfig` in
the app's `apps.py` is an `Extension`:

    class Notes(Extension):
        name = "acme_notes"
        about = "notes of a project"
        settings = (NotesSettings,)

        def endpoints(self) -> Sequence[Endpoint]:
            from acme_notes.endpoints import ENDPOINTS

            return ENDPOINTS

The setting EXTENSIONS names those that are loaded: the folders of `responses_app/extensions/`, and what packages name
in the entry point group `respsite.extensions`. `apps.py` is imported with the settings, so it imports no models: what
needs them is imported inside of the methods, which are called once Django is ready (`commands` is not).
"""

from argparse import ArgumentParser
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

from django.apps import AppConfig, apps

from responses_app.kit.duty import Duty
from responses_app.kit.findings import Finding


@dataclass(frozen=True, slots=True)
class Command:
    """A command of `respsite`."""

    name: str
    about: str  # a sentence
    arguments: Callable[[ArgumentParser], object]  # adds them
    # "module:function", imported to be called with the parsed arguments, and returns the exit status. Commands below
    # this one may have their own, as the default `runs` of their parsers.
    run: str = ""


Look = Callable[[Any, float], Awaitable[Sequence[Finding]]]  # of the settings and the seconds that it may take


class Extension(AppConfig):
    """A Django app that brings something to the server; a method that is not overridden brings nothing."""

    default_auto_field = "django.db.models.BigAutoField"
    about: ClassVar[str] = ""  # a few words for people: what it brings
    # Classes of `protocol.setting.RoomSettings`: `site.settings` is an instance of each, and a field a variable.
    settings: ClassVar[Sequence[type]] = ()

    @classmethod
    def commands(cls) -> Iterable[Command]:
        """Return commands of `respsite`. Called without Django's settings; servers load nothing of the command line."""
        return ()

    def endpoints(self) -> Sequence[Any]:
        """Return endpoints of the API (`web.endpoint.Endpoint`); their paths are tried behind the kernel's."""
        return ()

    def pages(self) -> Sequence[Any]:
        """Return paths of Django (`django.urls.path`) for pages; they are tried before the kernel's."""
        return ()

    def tools(self, server: Any) -> Iterable[Any]:
        """Return tools (`tools.base.BaseTool`) of item types that the API has; `server` is a `ToolParts`."""
        return ()

    def tool_servers(self, settings: Any) -> Mapping[str, Callable[[str], Any]]:
        """Return MCP servers that run in this process: by label, what makes one for a project (`mcp.server.MCPServer`).

        Requests name one by `{"type": "mcp", "server_label": label}`, and clients see its calls as `mcp_call` items.
        """
        return {}

    def duties(self, site: Any) -> Iterable[Duty]:
        """Return what each worker does again and again beside its requests; `site` is the `wiring.site.Site`."""
        return ()

    def serving(self, site: Any) -> AbstractAsyncContextManager[object]:
        """Return what is entered before the worker serves, and left once all it served has ended."""
        return nullcontext()

    def beside(self, settings: Any) -> AbstractContextManager[Any]:
        """Return what `respsite serve` enters before its workers start, and leaves once they have ended.

        `settings` are those of the server; as what it enters it gives those that a worker in this process has.
        """
        return nullcontext(settings)

    def figures(self, site: Any) -> Mapping[str, str]:
        """Return what the dashboard of the admin says of this worker, by the words in front of it."""
        return {}

    def looks(self) -> Mapping[str, Look]:
        """Return what `respsite doctor` looks at, by a name of one or two words."""
        return {}


def extensions() -> list[Extension]:
    """Return those that are loaded, in the order of EXTENSIONS. Raises `AppRegistryNotReady` before Django is."""
    return [app for app in apps.get_app_configs() if isinstance(app, Extension)]
