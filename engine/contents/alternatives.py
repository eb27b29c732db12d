"""Whether the alternatives of a `oneOf` are told apart: only then is it the same as `anyOf`, which can be enforced."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

from engine.contents.budget import Budget, frozen, size
from engine.contents.merging import Schema


@dataclass(frozen=True, slots=True)
class Alternative:
    """What tells one from others. `kinds` are its types, None: any; `values` those of its enum, None: not listed.

    `tags` are the values of its required properties that list theirs, as in a tagged union.
    """

    kinds: frozenset[str] | None
    values: frozenset[object] | None
    tags: Mapping[str, frozenset[object]]

    def excludes(self, other: "Alternative", budget: Budget) -> bool:
        """Whether no value can fit both, as far as can be seen at once."""
        if self.kinds is not None and other.kinds is not None and not self.kinds & other.kinds:
            return True
        if self.values is not None and other.values is not None:
            budget.take(min(len(self.values), len(other.values)))
            return self.values.isdisjoint(other.values)
        fewer, more = sorted((self.tags, other.tags), key=len)
        budget.take(1 + len(fewer))
        return any(_apart(values, more.get(name), budget) for name, values in fewer.items())


def alternative(flat: Schema, kinds: Iterable[str] | None, budget: Budget) -> Alternative:
    """Return what tells a schema from others, which has no `$ref`, `allOf`, `oneOf` or `const` at its top."""
    properties = flat.get("properties", {})
    listed = {name: _values(properties[name], budget) for name in flat.get("required", ()) if name in properties}
    budget.take(len(flat.get("required", ())))
    return Alternative(
        None if kinds is None else frozenset(kind.replace("integer", "number") for kind in kinds),
        _values(flat, budget),
        {name: values for name, values in listed.items() if values is not None},
    )


def all_exclude_each_other(alternatives: Iterable[Alternative], budget: Budget) -> bool:
    """Whether no value can fit two of them."""
    return all(one.excludes(other, budget) for one, other in combinations(alternatives, 2))


def _apart(values: frozenset[object], others: frozenset[object] | None, budget: Budget) -> bool:
    if others is None:
        return False
    budget.take(min(len(values), len(others)))
    return values.isdisjoint(others)


def _values(schema: object, budget: Budget) -> frozenset[object] | None:
    """Return the values that a schema lists, None where it lists none."""
    if not isinstance(schema, dict):
        return None
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if listed is None:
        return None
    budget.take(size(listed))
    return frozenset(map(frozen, listed))
