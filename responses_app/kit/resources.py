"""What the folders of `responses_app/resources/` bring: their models, endpoints and the rest, by the names of files."""

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType


def modules_of_resources(*names: str) -> Iterator[ModuleType]:
    """Import the files with one of these names, in the order of the resources; of all files where none is named."""
    for resource in iter_modules(import_module("responses_app.resources").__path__, "responses_app.resources."):
        for module in iter_modules(import_module(resource.name).__path__, f"{resource.name}."):
            if not names or module.name.rpartition(".")[2] in names:
                yield import_module(module.name)
