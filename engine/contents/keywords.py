"""What keywords of a schema say, in the words that xgrammar enforces: the parts that `schemas` puts together.

- `pattern_of`: a pattern over strings as one over what JSON writes for them. xgrammar matches a pattern against the
  text between the quotes, so a `"` in it would end the string, and a class like `[^a]` would let control characters
  pass. Here each character is what JSON writes: itself, or an escape.
- `both`: two schemas as one that holds for both, which is what `allOf` says.
- `all_exclude_each_other`: whether the alternatives of a `oneOf` are told apart: only then is it the same as `anyOf`.
- `string`, `integer`, `number`: bounds, formats and patterns of a value.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations, product
from math import copysign, isfinite
from typing import Any

from engine.contents.budget import SchemaBudget, frozen, size
from engine.contents.regexes import (
    LAST,
    Alternation,
    Concatenation,
    OneCharacter,
    Ranges,
    Repeat,
    Tree,
    check_regex,
    parse,
)
from engine.contents.regexes import complement as other_than
from engine.errors import GrammarRefused

# What JSON has a short escape for; all other characters below a space are `\u00..`.
_ESCAPES = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x5C: "\\\\"}
# The same as ranges: what must not stand in a JSON string as it is.
_ESCAPED: Ranges = ((0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C))
ANY = OneCharacter(other_than(()))
_CARET = 0x5E


def pattern_of(pattern: str) -> str:
    """Return what JSON writes for strings that a pattern matches as a whole; raises `GrammarRefused`."""
    return f"^{written(parse(pattern))}$"


def pattern_of_length(least: int, most: int | None) -> str:
    """Return what JSON writes for strings of `least` to `most` characters."""
    return f"^{written(Repeat(ANY, least, most))}$"


def text_pattern_of(pattern: str) -> str:
    """Return a pattern over a text itself in signs that xgrammar reads as `re` does; raises `GrammarRefused`.

    xgrammar's `.` matches a line's end, its `{` always begins a repetition, and `{,3}` and `\\012` are others there.
    """
    return f"^{written(parse(pattern), _class)}$"


def written(tree: Tree, character: Callable[[Ranges], str] | None = None) -> str:
    """Return a tree over strings as a regular expression over JSON's text; `character` writes one for another text."""
    character = character or _character
    match tree:
        case OneCharacter(ranges):
            return character(ranges)
        case Concatenation(parts):
            return "".join(written(part, character) for part in parts)
        case Repeat(part, least, most):
            bounds = f"{{{least},{'' if most is None else most}}}"
            return f"(?:{written(part, character)}){bounds}"
        case Alternation(options):
            return f"(?:{'|'.join(written(option, character) for option in options)})"
    raise AssertionError(f"{tree.name} is not a part of a regular expression")


def _character(ranges: Ranges) -> str:
    # The complement of two complements is what both have in common.
    plain = other_than((*other_than(ranges), *_ESCAPED))
    escaped = other_than((*other_than(ranges), *other_than(_ESCAPED)))
    options = [_class(plain)] if plain else []
    # One by one: an escape is several characters, which no class can hold.
    options += [
        rf"\\{_ESCAPES.get(each) or f'u{each:04x}'}" for first, last in escaped for each in range(first, last + 1)
    ]
    return options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"


def _class(ranges: Ranges) -> str:
    """Return a class, `^` last in it: one that begins with it, escaped or not, is that of all others to xgrammar."""
    (first, last), *others = ranges
    if first == _CARET:
        if first == last and not others:
            return r"\^"
        ranges = (*(((first + 1, last),) if first < last else ()), *others, (_CARET, _CARET))
    parts = (_named(first) if first == last else f"{_named(first)}-{_named(last)}" for first, last in ranges)
    return f"[{''.join(parts)}]"


def _named(character: int) -> str:
    assert character <= LAST
    # Above U+FFFF `\\u` has no form: the character itself stands there.
    return rf"\u{character:04x}" if character < 0x10000 else chr(character)


Schema = dict[str, Any]
MAX_BRANCHES = 256  # alternatives of the product of two `anyOf`
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
    # Together: what one schema says of other properties holds for those that only the other one names.
    if "properties" in merged or "additionalProperties" in merged:
        mine, its = one.get("properties", {}), other.get("properties", {})
        merged["properties"] = {
            name: _all_of(
                mine.get(name, one.get("additionalProperties", True)),
                its.get(name, other.get("additionalProperties", True)),
            )
            for name in (*mine, *(each for each in its if each not in mine))
        }
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


def _any_of(one: list[object], other: list[object]) -> list[object]:
    if len(one) * len(other) > MAX_BRANCHES:
        raise GrammarRefused(f"The schema combines more than {MAX_BRANCHES} alternatives.")
    return [{"allOf": [mine, its]} for mine, its in product(one, other)]


def _types(one: object, other: object) -> list[str]:
    mine, its = ([each] if isinstance(each, str) else list(each) for each in (one, other))  # type: ignore[call-overload]
    # Every integer is a number, so of the two what is left is an integer.
    common = [kind for kind in mine if kind in its or (kind == "integer" and "number" in its)]
    common += [kind for kind in its if kind == "integer" and "number" in mine and kind not in common]
    if not common:
        raise Unsatisfiable(f"nothing is of the types {', '.join(mine)} and {', '.join(its)}")
    return common


def _enum(one: list[object], other: list[object]) -> list[object]:
    # `frozen`: 1 and 1.0 are the same value in JSON, 1 and true are not.
    its = set(map(frozen, other))
    common = [value for value in one if frozen(value) in its]
    if not common:
        raise Unsatisfiable("two enums have no value in common")
    return common


def _all_of(one: object, other: object) -> object:
    if one is True or other is True:
        return other if one is True else one
    if one is False or other is False:
        return False
    return {"allOf": [one, other]}


MERGED: dict[str, Callable[[Any, Any], Any]] = {
    "type": _types,
    "required": lambda one, other: list(dict.fromkeys((*one, *other))),
    "enum": _enum,
    "items": _all_of,
    "additionalProperties": _all_of,
    "propertyNames": _all_of,
    "anyOf": _any_of,
    "properties": lambda one, _: one,  # put together with `additionalProperties`, later
    "uniqueItems": lambda one, other: one or other,
}


@dataclass(frozen=True, slots=True)
class Alternative:
    """What tells one alternative of a `oneOf` from the others."""

    kinds: frozenset[str] | None  # its types, `integer` as `number`; None: any
    values: frozenset[object] | None  # those of its enum, `frozen`; None: not listed
    tags: Mapping[str, frozenset[object]]  # the values of required properties that list theirs, as in a tagged union

    def excludes(self, other: "Alternative", budget: SchemaBudget) -> bool:
        """Whether no value can fit both, as far as can be seen at once."""
        if self.kinds is not None and other.kinds is not None and not self.kinds & other.kinds:
            return True
        if self.values is not None and other.values is not None:
            budget.take(min(len(self.values), len(other.values)))
            return self.values.isdisjoint(other.values)
        fewer, more = sorted((self.tags, other.tags), key=len)
        budget.take(1 + len(fewer))
        for name, values in fewer.items():
            if (others := more.get(name)) is not None:
                budget.take(min(len(values), len(others)))
                if values.isdisjoint(others):
                    return True
        return False


def alternative(flat: Schema, kinds: Iterable[str] | None, budget: SchemaBudget) -> Alternative:
    """Return what tells a schema from others, which has no `$ref`, `allOf`, `oneOf` or `const` at its top."""
    properties = flat.get("properties", {})
    # Only required ones: a value may lack any other property, and so fit both.
    listed = {name: _values(properties[name], budget) for name in flat.get("required", ()) if name in properties}
    budget.take(len(flat.get("required", ())))
    return Alternative(
        # Every integer is a number, so these two types do not exclude each other.
        None if kinds is None else frozenset(kind.replace("integer", "number") for kind in kinds),
        _values(flat, budget),
        {name: values for name, values in listed.items() if values is not None},
    )


def all_exclude_each_other(alternatives: Iterable[Alternative], budget: SchemaBudget) -> bool:
    """Whether no value can fit two of them."""
    return all(one.excludes(other, budget) for one, other in combinations(alternatives, 2))


def _values(schema: object, budget: SchemaBudget) -> frozenset[object] | None:
    """Return the values that a schema lists, None where it lists none."""
    if not isinstance(schema, dict):
        return None
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if listed is None:
        return None
    budget.take(size(listed))
    return frozenset(map(frozen, listed))


LARGEST_NUMBER = 10**15  # of a `number`'s bounds
MAX_LENGTH = 100_000  # of a string that has a bound
LARGEST_INTEGER = 2**63 - 1
FORMATS = {  # those that xgrammar holds a string to, each with an example
    "email": "ada@example.com",
    "date": "2026-01-31",
    "time": "12:00:00Z",
    "date-time": "2026-01-31T12:00:00Z",
    "duration": "P1D",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8:0:0:0:0:0:1",
    "hostname": "example.com",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "uri": "https://example.com/",
    "uri-reference": "/a",
    "uri-template": "/a",
    "json-pointer": "/a",
    "relative-json-pointer": "0",
}


def string(own: Schema, place: str) -> Schema:
    """Return what holds for a string; raises `Unsatisfiable` or `GrammarRefused`, as all here do."""
    least, most = own.get("minLength", 0), own.get("maxLength")
    if most is not None and least > most:
        raise Unsatisfiable("minLength is above maxLength")
    if max(least, most or 0) > MAX_LENGTH:
        raise GrammarRefused(
            f"{place or 'The schema'}: a minLength or maxLength above {MAX_LENGTH} cannot be enforced."
        )
    bounded = bool(least) or most is not None
    pattern = own.get("pattern") or None
    # Beside a pattern, `format` is an annotation: Zod writes the pattern of each format that it knows beside it.
    form = own.get("format") if own.get("format") in FORMATS and pattern is None else None
    if bounded and (form or pattern):
        raise GrammarRefused(
            f"{place or 'The schema'}: of minLength or maxLength and a pattern or format only one can be enforced."
        )
    if pattern is not None:
        check_regex(pattern)
        return {"pattern": pattern_of(pattern)}
    if bounded:
        return {"pattern": pattern_of_length(least, most)}
    return {"format": form} if form else {}


def _bounds(own: Schema) -> tuple[float | None, bool, float | None, bool]:
    """Return both bounds of a number, each with whether it is excluded itself."""
    least, most = own.get("minimum"), own.get("maximum")
    above, below = own.get("exclusiveMinimum"), own.get("exclusiveMaximum")
    # Where both bounds are given, the stricter one counts.
    open_least = above is not None and (least is None or above >= least)
    open_most = below is not None and (most is None or below <= most)
    return (above if open_least else least), open_least, (below if open_most else most), open_most


def integer(own: Schema, place: str) -> Schema:
    """Return what holds for a whole number."""
    least, after, most, before = _bounds(own)
    made: Schema = {}
    if least is not None:  # the least whole number that is allowed
        made["minimum"] = max(_floor(least) + 1 if after or least != _floor(least) else _floor(least), -LARGEST_INTEGER)
    if most is not None:
        # `-_floor(-most)` is `most` rounded up: less one, it is the last whole number below an excluded bound.
        made["maximum"] = min(-_floor(-most) - 1 if before else _floor(most), LARGEST_INTEGER)
    if made.get("minimum", -LARGEST_INTEGER) > made.get("maximum", LARGEST_INTEGER):
        raise Unsatisfiable("its minimum is above its maximum")
    step = own.get("multipleOf", 1)
    if step == 1:
        return made
    if made or step != _floor(step) or step > LARGEST_NUMBER:
        raise GrammarRefused(
            f"{place or 'The schema'}: multipleOf can be enforced for whole numbers without bounds only."
        )
    return {"multipleOf": _floor(step)}


def _floor(number: float) -> int:
    # A number that no float holds lies beyond all bounds that can be enforced.
    return int(number // 1) if isfinite(number) else int(copysign(LARGEST_INTEGER + 1, number))


def number(own: Schema, place: str) -> Schema:
    """Return what holds for a number."""
    if "multipleOf" in own:
        if own["multipleOf"] == 1:
            return {"type": "integer", **integer(own, place)}
        raise GrammarRefused(f"{place or 'The schema'}: multipleOf can be enforced for integers only.")
    least, after, most, before = _bounds(own)
    if any(each is not None and abs(each) > LARGEST_NUMBER for each in (least, most)):
        raise GrammarRefused(f"{place or 'The schema'}: bounds of a number beyond 10^15 cannot be enforced.")
    if least is not None and most is not None and (least > most or (least == most and (after or before))):
        raise Unsatisfiable("its minimum is above its maximum")
    made: Schema = {}
    if least is not None:
        made["exclusiveMinimum" if after else "minimum"] = least
    if most is not None:
        made["exclusiveMaximum" if before else "maximum"] = most
    return made
