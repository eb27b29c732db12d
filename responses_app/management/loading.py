"""Loading the application in a fork server: all that a worker of these settings needs and that can be shared.

Of the modules that a worker imports later the code is kept, as it is now. What is on the disk then may be another
version, of which a worker must not have a part.
"""

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from django.conf import settings
from django.urls import get_resolver
from django.utils.module_loading import import_string

from engine.backends.base import load_vocabulary_here
from responses_app.observing.allocator import give_memory_back
from responses_app.settings.conf import Settings
from responses_app.wiring.engines import BACKENDS, family_of

# What `respsite.asgi`, daphne and a site import beyond the paths' modules. What is missing here each worker imports.
MODULES = (
    *("autobahn.twisted.websocket", "twisted.internet.asyncioreactor", "twisted.internet.endpoints"),
    *("twisted.logger", "twisted.web.http", "channels.routing", "django.contrib.staticfiles.handlers"),
    *("django.core.handlers.asgi", "django.db.migrations.executor", "engine.embeddings.hashing"),
    *("responses_app.routing", "responses_app.wiring.site"),
    *(f"responses_app.stores.database.{name}" for name in ("approvals", "batches.store", "engines", "files.files")),
    *(f"responses_app.stores.database.{name}" for name in ("files.skills", "files.uploads", "idempotency")),
    *(f"responses_app.stores.database.{name}" for name in ("organization", "responses.store", "responses.chats")),
    *(f"responses_app.stores.database.{name}" for name in ("responses.kept_chats", "rollouts.store", "setups")),
    *(f"responses_app.stores.database.{name}" for name in ("transfer.retention", "vector_stores.vector_stores")),
    *("responses_app.tools.mcp.tool", "responses_app.web.servers.heads", "responses_app.web.servers.backpressure"),
    *("responses_app.web.servers.daphne", "responses_app.web.servers.layers", "responses_app.web.servers.uvicorn"),
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
    kept = KeptModules({name: _Kept(name, file) for name, file in _missing()})
    sys.meta_path.insert(sys.meta_path.index(PathFinder), kept)
    gc.collect()
    gc.freeze()  # the collector writes into each object that it looks at, and so would copy what is shared


def count_threads() -> int:
    """Return how many threads this process has, those of libraries too."""
    return len(os.listdir("/proc/self/task"))


class _Kept(SourceFileLoader):
    """A module whose file was read when this was made."""

    def __init__(self, name: str, file: Path) -> None:
        super().__init__(name, str(file))
        self._code = super().get_code(name)

    def get_code(self, fullname: str) -> CodeType | None:
        """Return what was read."""
        return self._code


class KeptModules(MetaPathFinder):
    """Finds modules whose files were read before, by their names."""

    def __init__(self, kept: dict[str, _Kept]) -> None:
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
