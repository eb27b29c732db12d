"""References of a JSON schema: `#/…`, from one of its parts to another."""

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from engine.errors import GrammarRefused

DEFINITION = "#/$defs/"  # where the definitions of a translated schema are


def target(root: object, reference: str) -> object:
    """Return what `#/…` refers to in a schema; raises `GrammarRefused`."""
    if not reference.startswith("#"):
        raise GrammarRefused(f"{reference[:200]!r} is outside of the schema; a $ref may only begin with '#'.")
    node: Any = root
    for part in filter(None, reference[1:].split("/")):
        # JSON Pointer: `~1` stands for `/`, `~0` for `~`. In this order: `~01` is `~1`.
        key = part.replace("~1", "/").replace("~0", "~")
        try:
            node = node[int(key)] if isinstance(node, list) else node[key]
        except (LookupError, ValueError, TypeError):
            raise GrammarRefused(f"The schema refers to {reference[:200]!r}, which it does not have.") from None
    return node


def refuse_circles(definitions: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise `GrammarRefused` where a definition is, or may be, itself: nothing is read on the way round."""
    try:
        TopologicalSorter({name: _begins_with(each) for name, each in definitions.items()}).prepare()
    except CycleError:
        raise GrammarRefused("The schema has an alternative that refers to itself without end.") from None


def _begins_with(schema: Mapping[str, Any]) -> set[str]:
    """Return the definitions that a value of a schema may be as a whole."""
    if "$ref" in schema:
        return {schema["$ref"].removeprefix(DEFINITION)}
    # References behind properties or items are not looked at: a value goes on there, and may end.
    return {name for each in schema.get("anyOf", ()) for name in _begins_with(each)}
