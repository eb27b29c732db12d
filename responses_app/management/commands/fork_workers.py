"""`respsite manage fork_workers`: the process that the workers of `respsite serve --workers` are forked from.

It has loaded the application: all that a worker of these settings needs and that can be shared.

Of the modules that a worker imports later the code is kept, as it is now. What is on the disk then may be another
version, of which a worker must not have a part.
"""

import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import fields
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from django.conf import settings
from django.core.management import BaseCommand, CommandParser
from django.urls import get_resolver
from django.utils.module_loading import import_string

from engine.backends.base import load_vocabulary_here
from responses_app.kit.resources import modules_of_resources
from responses_app.management.commands.serve_worker import Pipes, WorkerServer
from responses_app.management.forking import ForkServer
from responses_app.management.processes import READY, REFUSED
from responses_app.observing.memory import give_memory_back
from responses_app.settings.conf import Settings
from responses_app.wiring.engines import BACKENDS, family_of

# What `respsite.asgi`, daphne and a site import beyond the paths' modules. What is missing here each worker imports.
MODULES = (
    "autobahn.twisted.websocket",
    "twisted.internet.asyncioreactor",
    "twisted.internet.endpoints",
    "twisted.logger",
    "twisted.web.http",
    "channels.routing",
    "django.contrib.staticfiles.handlers",
    "django.core.handlers.asgi",
    "django.db.migrations.executor",
    "engine.embeddings.hashing",
    "responses_app.routing",
    "responses_app.stores.approvals",
    "responses_app.stores.engines",
    "responses_app.stores.idempotency",
    "responses_app.stores.database.responses.chats",
    "responses_app.stores.database.responses.store",
    "responses_app.stores.database.transfer.retention",
    "responses_app.tools.mcp.tool",
    "responses_app.web.servers.backpressure",
    "responses_app.web.servers.daphne",
    "responses_app.web.servers.heads",
    "responses_app.web.servers.layers",
    "responses_app.web.servers.uvicorn",
    "responses_app.wiring.site",
)
PACKAGES = ("engine", "responses_app", "respsite")
# Folders of what runs in processes of its own, or is looked for on the disk.
ELSEWHERE = {"command_line", "inside", "management", "migrations"}


def load_application(own: Settings) -> None:
    """Import what a worker of these settings needs, and load the vocabulary if a model speaks Harmony."""
    give_memory_back(os.environ)  # before the vocabulary is made, which leaves memory behind
    assert get_resolver().url_patterns  # imports the modules of all paths
    for name in MODULES:
        import_module(name)
    list(modules_of_resources())
    for name in settings.MIDDLEWARE:
        import_string(name)
    import_string(settings.CHANNEL_LAYERS["default"]["BACKEND"])
    import_module(f"{settings.DATABASES['default']['ENGINE']}.base")
    if own.redis_url:
        import_module("responses_app.limits.redis")
    for model in own.served:
        import_module(BACKENDS[model.engine].rpartition(".")[0])
    if any(family_of(model).is_harmony for model in own.served):
        load_vocabulary_here()
    kept = KeptModules({name: _KeptLoader(name, file) for name, file in _missing()})
    sys.meta_path.insert(sys.meta_path.index(PathFinder), kept)
    gc.collect()
    gc.freeze()  # the collector writes into each object that it looks at, and so would copy what is shared


def count_threads() -> int:
    """Return how many threads this process has, those of libraries too."""
    return len(os.listdir("/proc/self/task"))


class _KeptLoader(SourceFileLoader):
    """A module whose file was read when this was made."""

    def __init__(self, name: str, file: Path) -> None:
        super().__init__(name, str(file))
        self._code = super().get_code(name)

    def get_code(self, fullname: str) -> CodeType | None:
        """Return what was read."""
        return self._code


class KeptModules(MetaPathFinder):
    """Finds modules whose files were read before, by their names."""

    def __init__(self, kept: dict[str, _KeptLoader]) -> None:
        self._kept = kept

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how a module is loaded, None for one that is not kept."""
        loader = self._kept.get(fullname)
        return spec_from_file_location(fullname, loader.path, loader=loader) if loader else None


def _missing() -> Iterator[tuple[str, Path]]:
    """Yield the names and files of this program's modules that are not loaded yet."""
    for package in PACKAGES:
        top = import_module(package)
        assert top.__file__ is not None
        root = Path(top.__file__).parent
        for file in root.rglob("*.py"):
            parts = (package, *file.relative_to(root).with_suffix("").parts)
            name = ".".join(parts).removesuffix(".__init__")
            if name not in sys.modules and ELSEWHERE.isdisjoint(parts):
                yield name, file


class Command(BaseCommand):
    """Loads the application, forks workers, and is each of them in its turn."""

    help = "Internal: load the application once, and fork the workers of `serve --workers`, which starts it."
    requires_system_checks = ()  # `serve` has run them

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--control", type=int, required=True, metavar="DESCRIPTOR", help="a socket from which orders come"
        )
        parser.add_argument(
            "--says", type=int, required=True, metavar="DESCRIPTOR", help="a pipe to say in that it has loaded"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Fork whenever it is ordered; serve in a new process."""
        for descriptor in (options["control"], options["says"]):
            os.set_inheritable(descriptor, False)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the supervisor's: a terminal's end is not ours
        load_application(settings.RESPSITE)
        if count_threads() > 1:
            names = ", ".join(each.name for each in threading.enumerate() if each is not threading.main_thread())
            self.stderr.write(f"workers are not forked: threads run here already ({names or 'of a library'})")
            sys.exit(REFUSED)
        os.write(options["says"], READY)
        os.close(options["says"])
        ordered = ForkServer(socket.socket(fileno=options["control"])).serve()
        if ordered is not None:
            order, inherited = ordered
            pipes = Pipes(**{each.name: getattr(inherited, each.name) for each in fields(Pipes)})
            WorkerServer(order.number, pipes, at_once=order.at_once).serve()
