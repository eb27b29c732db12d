"""JSON schemas that clients send: whether one can be enforced, and the same one in the words that xgrammar enforces.

    a client's schema ── enforceable() ──> a schema without `allOf`, `oneOf`, siblings of `$ref`, …, or GrammarRefused

xgrammar passes over what it does not know, so no schema can be taken as it comes: `{"$ref": …, "minimum": 3}` would
let 1 pass. What comes out of here is at least as strict as what went in, and in the form that xgrammar holds to (the
tests let it write values and check them against the schema as it came). What has no such form is refused.
"""

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Any

from engine import orjson
from engine.contents.budget import CHARACTER, SchemaBudget, size, width
from engine.contents.keywords import (
    Schema,
    Unsatisfiable,
    all_exclude_each_other,
    alternative,
    both,
    integer,
    number,
    string,
)
from engine.contents.validation import smallest_value
from engine.errors import GrammarRefused
from engine.types import AnyObject, JsonSchema

DEFINITION = "#/$defs/"  # where the definitions of a translated schema are
MAX_WHITESPACE = 16  # characters in a row between the parts of a JSON text: a model may repeat spaces without end
MAX_BYTES = 128 * 1024  # of a schema
MAX_DEPTH = 48  # objects and lists in each other: xgrammar under vLLM takes 64
MAX_OUTCOME = 512 * 1024  # characters of what is made of it
MAX_BRANCHES = 256  # of one `anyOf`, once nested ones are multiplied
# Keywords that xgrammar passes over, and how a message says what they do.
REFUSED = {
    "not": "forbids values",
    "if": "depends on a condition",
    "dependentRequired": "depends on another property",
    "dependentSchemas": "depends on another property",
    "dependencies": "depends on another property",
    "contains": "asks for some item",
    "patternProperties": "goes by the names of properties",
    "unevaluatedProperties": "goes by what other parts of the schema have left over",
    "unevaluatedItems": "goes by what other parts of the schema have left over",
    "$dynamicRef": "is resolved while a value is read",
    "$recursiveRef": "is resolved while a value is read",
}
# Which keywords count for which type; a type passes over all others.
OF_TYPE: dict[str, tuple[str, ...]] = {
    "object": ("properties", "required", "additionalProperties", "propertyNames", "minProperties", "maxProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "boolean": (),
    "null": (),
}
# Keywords that mean something here. Any other one is an annotation, and is left out.
KNOWN = {
    "type",
    "enum",
    "const",
    "allOf",
    "anyOf",
    "oneOf",
    "$ref",
    *(name for names in OF_TYPE.values() for name in names),
}


def json_tag(content: JsonSchema | AnyObject) -> dict[str, object]:
    """Return what holds a model to JSON, as a part of xgrammar's structural tag; raises `GrammarRefused`."""
    schema: object = {"type": "object"}
    if isinstance(content, JsonSchema):
        # A fragment is written out as it is, without being parsed again.
        schema = orjson.Fragment(enforceable(content.schema))
    return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": MAX_WHITESPACE}


@lru_cache(maxsize=128)  # the tools of the agents that are busy; at most 80 MiB, with `MAX_BYTES` and `MAX_OUTCOME`
def enforceable(schema: str) -> str:
    """Return a schema, as JSON, in the words that xgrammar enforces, as JSON.

    Raises `GrammarRefused`, whose reason is for the client, where a model cannot be held to it.
    """
    if len(schema) > MAX_BYTES:
        raise GrammarRefused(f"The schema has {len(schema)} characters; at most {MAX_BYTES} are allowed.")
    try:
        root = orjson.loads_kept(schema)
    except RecursionError:
        raise _too_deep() from None
    _require_schema(root)
    translated = _Translation(root).whole()
    outcome = _written_out(translated)
    smallest_value(translated)  # raises where no finite value fits
    return outcome


def _written_out(schema: Schema) -> str:
    """Write the outcome, but not where it is long: a few long texts, many times each, make gigabytes."""
    parts, length = [], 0
    encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        for part in encoder.iterencode(schema):
            parts.append(part)
            length += len(part)
            if length > MAX_OUTCOME:
                raise GrammarRefused(
                    "The schema is too large once its references and combinations are resolved: it has more than "
                    f"{MAX_OUTCOME} characters then."
                )
    except ValueError:
        raise GrammarRefused("The schema has a number that is too large to be enforced.") from None
    return "".join(parts)


def _too_deep() -> GrammarRefused:
    return GrammarRefused(f"The schema is nested too deeply; at most {MAX_DEPTH} levels are allowed.")


def _require_schema(root: object) -> None:
    level = [root]  # level by level: where a schema is too deep, recursion would end before the count does
    for _ in range(MAX_DEPTH + 1):
        inside = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [child for children in inside for child in children if isinstance(child, dict | list)]
        if not level:
            break
    else:
        raise _too_deep()
    if not isinstance(root, dict | bool):
        raise GrammarRefused(f"A schema is an object, not {type(root).__name__}.")
    from jsonschema.exceptions import best_match

    from engine.contents.bounded_validators import SCHEMA_OF_SCHEMAS

    error = best_match(SCHEMA_OF_SCHEMAS.iter_errors(root))
    if error is not None:
        path = "/".join(map(str, error.absolute_path))
        where = f"The schema at {path[:200]!r}" if error.absolute_path else "The schema"
        raise GrammarRefused(f"{where} is not a valid JSON schema: {error.message[:300]}.")


class _Translation:
    """One schema on its way; `#/…` references become definitions of the outcome, so recursion stays."""

    def __init__(self, root: Schema | bool) -> None:
        from engine.contents.bounded_validators import BoundedValidator, budget

        # `false` is what no value fits, as an enum without values is.
        self._root: Schema = root if isinstance(root, dict) else {} if root else {"enum": []}
        self._validator = BoundedValidator(self._root)
        self._names: dict[str, str] = {}  # names of definitions in the outcome, by reference
        self._waiting: list[str] = []  # references whose definitions are still to be translated
        self._budget = SchemaBudget(self._root)
        # jsonschema's functions know nothing of us, so they find the budget here.
        budget.set(self._budget)

    def whole(self) -> Schema:
        """Return the outcome."""
        try:
            outcome = self._node(self._root, "")
        except Unsatisfiable as error:
            raise GrammarRefused(f"No value fits the schema: {error}.") from error
        definitions: Schema = {}
        while self._waiting:
            reference = self._waiting.pop()
            try:
                definitions[self._names[reference]] = self._node(self._budget.target(reference), reference)
            except Unsatisfiable as error:
                raise GrammarRefused(f"No value fits {reference}: {error}.") from error
        try:
            TopologicalSorter({name: _begins_with(each) for name, each in definitions.items()}).prepare()
        except CycleError:
            raise GrammarRefused("The schema has an alternative that refers to itself without end.") from None
        return {**outcome, "$defs": definitions} if definitions else outcome

    def _node(self, schema: object, place: str) -> Schema:
        flat = self._flat(schema, place, ())
        # Only a reference: it stays one, so schemas that refer to themselves stay finite.
        if set(flat) == {"$ref"}:
            reference = flat["$ref"]
            if reference not in self._names:
                self._names[reference] = f"d{len(self._names)}"
                self._waiting.append(reference)
            return {"$ref": DEFINITION + self._names[reference]}
        # An enum says all there is to say, once the values that do not fit are gone.
        if "enum" in flat:
            rest = {name: value for name, value in flat.items() if name != "enum"}
            # The validator of the whole schema: references are resolved there.
            validator = self._validator.evolve(schema=rest)
            self._budget.take(size(flat["enum"]))
            chosen = [value for value in flat["enum"] if validator.is_valid(value)]
            if not chosen:
                raise Unsatisfiable("none of its enum's values fits the rest of it")
            return {"enum": chosen}
        if "anyOf" in flat:
            with self._budget.deeper():
                return self._any_of(flat, place)
        kinds = _kinds(flat)
        if kinds is None:
            return {}
        with self._budget.deeper():
            return _alternatives([self._of_kind(kind, flat, place) for kind in kinds])

    def _flat(self, schema: object, place: str, inside: tuple[str, ...]) -> Schema:
        """Return a node without annotations, `allOf`, `oneOf`, `const`, and without siblings of a `$ref`."""
        self._budget.take_node()  # here, where references are followed: two to the same one, 40 deep, are 2^40 schemas
        if isinstance(schema, bool):
            if not schema:
                raise Unsatisfiable(f"{place or 'it'} is false")
            return {}
        if not isinstance(schema, dict):
            raise GrammarRefused(f"{place!r} in the schema is not a schema.")
        _refuse_unknown(schema, place)
        node = {name: schema[name] for name in schema if name in KNOWN}
        if set(node) == {"$ref"}:
            return node
        parts: list[object] = [*node.pop("allOf", ())]
        if "$ref" in node:
            parts.append({"$ref": node.pop("$ref")})
        if "const" in node:
            parts.append({"enum": [node.pop("const")]})
        if "oneOf" in node:
            branches = node.pop("oneOf")
            self._require_disjoint(branches, place, inside)
            parts.append({"anyOf": branches})
        for part in parts:
            node = self._both(node, self._resolved(part, place, inside))
        return node

    def _both(self, one: Schema, other: Schema) -> Schema:
        self._budget.take(width(one, other))
        if "enum" in one and "enum" in other:
            self._budget.take(size(one["enum"]) + size(other["enum"]))
        return both(one, other)

    def _resolved(self, schema: object, place: str, inside: tuple[str, ...]) -> Schema:
        with self._budget.deeper():
            flat = self._flat(schema, place, inside)
            # A reference to a reference, and so on: `inside` finds circles.
            while set(flat) == {"$ref"}:
                reference = flat["$ref"]
                if reference in inside:
                    raise GrammarRefused(f"{reference[:200]!r} refers to itself without end.")
                inside = (*inside, reference)
                flat = self._flat(self._budget.target(reference), reference, inside)
        return flat

    def _any_of(self, flat: Schema, place: str) -> Schema:
        # What stands beside `anyOf` holds for each alternative.
        siblings = {name: value for name, value in flat.items() if name != "anyOf"}
        if not siblings:
            branches = list(flat["anyOf"])
        else:
            branches = [self._both(siblings, self._resolved(each, place, ())) for each in flat["anyOf"]]
        if len(branches) > MAX_BRANCHES:
            raise GrammarRefused(f"{place or 'The schema'!r} has more than {MAX_BRANCHES} alternatives.")
        alternatives, problem = [], "it has no alternative"
        for each in branches:
            # An alternative that no value fits is left out; one must be left.
            try:
                alternatives.append(self._node(each, f"{place}/anyOf"))
            except Unsatisfiable as error:
                problem = str(error)
        if not alternatives:
            raise Unsatisfiable(problem)
        return _alternatives(alternatives)

    def _require_disjoint(self, branches: list[object], place: str, inside: tuple[str, ...]) -> None:
        if len(branches) > MAX_BRANCHES:
            raise GrammarRefused(f"{place or 'The schema'!r} has more than {MAX_BRANCHES} alternatives.")
        flat = [self._resolved(each, place, inside) for each in branches]
        if not all_exclude_each_other([alternative(each, _kinds(each), self._budget) for each in flat], self._budget):
            raise GrammarRefused(
                f"{place or 'The schema'}: two alternatives of oneOf may both fit a value, which cannot be prevented: "
                "use anyOf, or give each a property with a const of its own."
            )

    # Types.

    def _of_kind(self, kind: str, flat: Schema, place: str) -> Schema:
        build: Mapping[str, Callable[[Schema, str], Schema]] = {
            "object": self._object,
            "array": self._array,
            "string": self._string,
            "integer": integer,
            "number": number,
        }
        own = {name: flat[name] for name in OF_TYPE[kind] if name in flat}
        return {"type": kind, **(build[kind](own, place) if kind in build else {})}

    def _string(self, own: Schema, place: str) -> Schema:
        self._budget.take(CHARACTER * len(own.get("pattern", "")))
        translated = string(own, place)
        # What is written down is longer than what was sent: a quarter of a part for each character.
        self._budget.take(len(translated.get("pattern", "")) // 4)
        return translated

    def _object(self, own: Schema, place: str) -> Schema:
        properties, required = own.get("properties", {}), own.get("required", [])
        extra = own.get("additionalProperties", True)
        declared = "additionalProperties" in own
        built: Schema = {}
        for name, schema in properties.items():
            # A property that no value fits must not be there: where it is required, nothing fits the object.
            try:
                built[name] = self._node(schema, f"{place}/properties/{name}")
            except Unsatisfiable:
                if name in required:
                    raise
                # Else others are not allowed anyway, and so neither is this one.
                if extra is not False and declared:
                    raise GrammarRefused(
                        f"{place}/properties/{name} forbids a property, which cannot be enforced."
                    ) from None
        for name in required:
            # Required, but not named among the properties: it is what `additionalProperties` says.
            if name not in properties:
                if extra is False:
                    raise Unsatisfiable(f"{name!r} is required and not among the properties of {place or 'the schema'}")
                built[name] = self._node(extra, f"{place}/additionalProperties")
        made: Schema = {"properties": built, "required": list(required)} if built else {}
        # An object that names properties and says nothing of others gets no others: that is stricter, never looser.
        open_ = extra is not False and (declared or not built)
        if open_ and extra is not True:
            made["additionalProperties"] = self._node(extra, f"{place}/additionalProperties")
        else:
            made["additionalProperties"] = open_
        return made | self._sizes(own, place, open_=open_, named=bool(built))

    def _sizes(self, own: Schema, place: str, *, open_: bool, named: bool) -> Schema:
        made: Schema = {name: own[name] for name in ("minProperties", "maxProperties") if name in own}
        if open_ and own.get("minProperties", 0) > len(own.get("required", [])):
            raise GrammarRefused(
                f"{place or 'The schema'}: minProperties cannot be enforced where other properties are allowed."
            )
        if "propertyNames" in own and open_:
            if named:
                raise GrammarRefused(f"{place or 'The schema'}: propertyNames cannot be enforced beside properties.")
            made["propertyNames"] = {"type": "string", **self._node(own["propertyNames"], f"{place}/propertyNames")}
        return made

    def _array(self, own: Schema, place: str) -> Schema:
        if own.get("uniqueItems"):
            raise GrammarRefused(f"{place or 'The schema'}: uniqueItems cannot be enforced.")
        first = [self._node(each, f"{place}/prefixItems") for each in own.get("prefixItems", ())]
        made: Schema = {name: own[name] for name in ("minItems", "maxItems") if name in own}
        least, most = made.get("minItems", 0), made.get("maxItems")
        if most is not None and least > most:
            raise Unsatisfiable("minItems is above maxItems")
        items = own.get("items", True)
        if items is False:
            if least > len(first):
                raise Unsatisfiable("minItems asks for more items than there may be")
            return made | {"prefixItems": first, "items": False} if first else {"maxItems": 0}
        if first:
            made["prefixItems"] = first
        try:
            return made | {"items": self._node(items, f"{place}/items")}
        except Unsatisfiable:
            if least > len(first):
                raise
            return made | {"items": False} if first else {"maxItems": 0}


def _refuse_unknown(schema: Schema, place: str) -> None:
    for name, why in REFUSED.items():
        # `if` alone says nothing.
        if name in schema and not (name == "if" and "then" not in schema and "else" not in schema):
            raise GrammarRefused(f"{place or 'The schema'} has {name!r}, which {why}: that cannot be enforced.")


def _kinds(flat: Schema) -> list[str] | None:
    """Return the types that a node may have; None for any value at all. Keywords without a type imply theirs."""
    types = flat.get("type")
    if types is not None:
        kinds = [types] if isinstance(types, str) else list(types)
        # `number` has all integers.
        return [kind for kind in kinds if not (kind == "integer" and "number" in kinds)]
    # `integer` has the same keywords as `number`: one of them is enough.
    implied = [kind for kind, names in OF_TYPE.items() if kind != "integer" and any(name in flat for name in names)]
    return implied or None


def _alternatives(schemas: list[Schema]) -> Schema:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _begins_with(schema: Mapping[str, Any]) -> set[str]:
    """Return the definitions that a value of a schema may be as a whole."""
    if "$ref" in schema:
        return {schema["$ref"].removeprefix(DEFINITION)}
    # References behind properties or items are not looked at: a value goes on there, and may end.
    return {name for each in schema.get("anyOf", ()) for name in _begins_with(each)}
