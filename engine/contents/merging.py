"""Two JSON schemas as one that holds for both: what `allOf` says, without `allOf`."""

from collections.abc import Callable
from itertools import product
from typing import Any

from engine.contents.budget import frozen
from engine.errors import GrammarRefused

Schema = dict[str, Any]
MAX_BRANCHES = 256  # of the product of two `anyOf`
LARGER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")  # the larger one holds for both
SMALLER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")


class Unsatisfiable(Exception):
    """No value fits; its text says why."""


def both(one: Schema, other: Schema) -> Schema:
    """Return what holds for both; neither has `$ref`, `allOf`, `oneOf` or `const` at its top.

    Raises `Unsatisfiable` where no value fits both, `GrammarRefused` where that cannot be written down.
    """
    merged = dict(one)
    for name, value in other.items():
        merged[name] = _merged(name, one[name], value) if name in one else value
    if "properties" in merged or "additionalProperties" in merged:
        merged["properties"] = _properties(one, other)
        if not merged["properties"]:
            del merged["properties"]
    return merged


def _merged(name: str, one: Any, other: Any) -> Any:
    if one == other:
        return one
    if name in LARGER:
        return max(one, other)
    if name in SMALLER:
        return min(one, other)
    if name in MERGED:
        return MERGED[name](one, other)
    raise GrammarRefused(f"Two different values of {name!r} for one value cannot be enforced.")


def _required(one: list[str], other: list[str]) -> list[str]:
    return list(dict.fromkeys((*one, *other)))


def _any_of(one: list[object], other: list[object]) -> list[object]:
    if len(one) * len(other) > MAX_BRANCHES:
        raise GrammarRefused(f"The schema combines more than {MAX_BRANCHES} alternatives.")
    return [{"allOf": [mine, its]} for mine, its in product(one, other)]


def _types(one: object, other: object) -> list[str]:
    mine, its = ([each] if isinstance(each, str) else list(each) for each in (one, other))  # type: ignore[call-overload]
    found = [kind for kind in mine if kind in its or (kind == "integer" and "number" in its)]
    found += [kind for kind in its if kind == "integer" and "number" in mine and kind not in found]
    if not found:
        raise Unsatisfiable(f"nothing is of the types {', '.join(mine)} and {', '.join(its)}")
    return found


def _enum(one: list[object], other: list[object]) -> list[object]:
    its = set(map(frozen, other))
    found = [value for value in one if frozen(value) in its]
    if not found:
        raise Unsatisfiable("two enums have no value in common")
    return found


def _all_of(one: object, other: object) -> object:
    if one is True or other is True:
        return other if one is True else one
    if one is False or other is False:
        return False
    return {"allOf": [one, other]}


def _properties(one: Schema, other: Schema) -> Schema:
    """Return the properties of both; one that a schema does not name is what its `additionalProperties` says."""
    mine, its = one.get("properties", {}), other.get("properties", {})
    return {
        name: _all_of(
            mine.get(name, one.get("additionalProperties", True)),
            its.get(name, other.get("additionalProperties", True)),
        )
        for name in (*mine, *(each for each in its if each not in mine))
    }


MERGED: dict[str, Callable[[Any, Any], Any]] = {
    "type": _types,
    "required": _required,
    "enum": _enum,
    "items": _all_of,
    "additionalProperties": _all_of,
    "propertyNames": _all_of,
    "anyOf": _any_of,
    "properties": lambda one, _: one,  # put together with `additionalProperties`, later
    "uniqueItems": lambda one, other: one or other,
}
