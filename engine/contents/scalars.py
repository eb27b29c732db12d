"""What a schema says of strings and numbers, in the words that xgrammar enforces."""

from engine.contents.json_strings import pattern_of, pattern_of_length
from engine.contents.merging import Schema, Unsatisfiable
from engine.contents.patterns import check_regex
from engine.errors import GrammarRefused

LARGEST_NUMBER = 10**15  # of a `number`'s bounds
MAX_LENGTH = 100_000  # of a string that has a bound
LARGEST_INTEGER = 2**63 - 1
FORMATS = frozenset(
    "email date time date-time duration ipv4 ipv6 hostname uuid uri uri-reference uri-template json-pointer "
    "relative-json-pointer".split()
)


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
    form = own.get("format") if own.get("format") in FORMATS else None
    pattern = own.get("pattern") or None
    if sum(map(bool, (form, pattern, bounded))) > 1:
        raise GrammarRefused(
            f"{place or 'The schema'}: of pattern, format, and minLength or maxLength only one can be enforced."
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
    open_least = above is not None and (least is None or above >= least)
    open_most = below is not None and (most is None or below <= most)
    return (above if open_least else least), open_least, (below if open_most else most), open_most


def integer(own: Schema, place: str) -> Schema:
    """Return what holds for a whole number."""
    least, after, most, before = _bounds(own)
    found: Schema = {}
    if least is not None:
        found["minimum"] = max(
            _floor(least) + 1 if after or least != _floor(least) else _floor(least), -LARGEST_INTEGER
        )
    if most is not None:
        found["maximum"] = min(-_floor(-most) - 1 if before else _floor(most), LARGEST_INTEGER)
    if found.get("minimum", -LARGEST_INTEGER) > found.get("maximum", LARGEST_INTEGER):
        raise Unsatisfiable("its minimum is above its maximum")
    step = own.get("multipleOf", 1)
    if step == 1:
        return found
    if found or step != _floor(step) or step > LARGEST_NUMBER:
        raise GrammarRefused(
            f"{place or 'The schema'}: multipleOf can be enforced for whole numbers without bounds only."
        )
    return {"multipleOf": _floor(step)}


def _floor(number: float) -> int:
    return int(number // 1)


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
    found: Schema = {}
    if least is not None:
        found["exclusiveMinimum" if after else "minimum"] = least
    if most is not None:
        found["exclusiveMaximum" if before else "maximum"] = most
    return found
