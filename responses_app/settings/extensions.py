"""Which extensions a server has: names of EXTENSIONS → the apps behind them.

Ours are the folders of `responses_app/extensions/`; `default` stands for all of them, `none` for no extension at all.
Others come with packages, which name their module `apps` in the entry point group `respsite.extensions`:

    [project.entry-points."respsite.extensions"]
    acme-notes = "acme_notes.apps"
"""

import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import responses_app
from responses_app.kit.extension import Extension

GROUP = "respsite.extensions"
DEFAULT, NONE = "default", "none"
OURS = "responses_app.extensions"


def extension_names(value: str) -> tuple[str, ...]:
    """Names of extensions."""
    chosen = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if not chosen or (NONE in chosen and len(chosen) > 1):
        raise ValueError(f"names of extensions, separated by commas, '{DEFAULT}' for those of the server, or '{NONE}'")
    return chosen


def chosen(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names that the environment says. Raises `ValueError` with a whole sentence."""
    raw = environ.get("EXTENSIONS", "").strip()
    try:
        return extension_names(raw) if raw else (DEFAULT,)
    except ValueError as takes:
        raise ValueError(f"EXTENSIONS={raw!r} is not valid: it takes {takes}.") from None


@cache
def ours() -> tuple[str, ...]:
    """Return the names of the server's own extensions."""
    folder = Path(responses_app.__file__).with_name("extensions")
    return tuple(sorted(each.parent.name for each in folder.glob("*/apps.py")))


@cache
def others() -> dict[str, EntryPoint]:
    """Return the extensions that installed packages bring, by name. It reads what all packages say: some 50 ms."""
    return {each.name: each for each in entry_points(group=GROUP)}


@cache
def load(names: Sequence[str]) -> tuple[type[Extension], ...]:
    """Return the extensions of these names, in their order. Raises `ValueError` with a whole sentence."""
    every = [each for name in names for each in (ours() if name == DEFAULT else (name,))]
    return tuple(_loaded(name) for name in dict.fromkeys(every) if name != NONE)


def _loaded(name: str) -> type[Extension]:
    if name in ours():
        return _extension_of(f"{OURS}.{name}.apps")
    if (entry := others().get(name)) is None:
        known = ", ".join((*ours(), *others())) or "none"
        raise ValueError(
            f"EXTENSIONS names {name!r}, which is not installed. Install the package that brings it, or remove the "
            f"name. Installed: {known}."
        )
    try:
        return _extension_of(entry.value)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        raise ValueError(f"EXTENSIONS: the extension {name!r} cannot be loaded ({problem}).") from error


def _extension_of(module: str) -> type[Extension]:
    known = vars(import_module(module)).values()
    found = [each for each in known if inspect.isclass(each) and issubclass(each, Extension) and each is not Extension]
    if len(found) != 1:
        raise TypeError(f"{module} has {len(found)} classes that are an Extension; it needs one")
    return found[0]
