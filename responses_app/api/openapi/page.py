"""The document as a page for people: what a template needs of it, as plain data."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from responses_app.protocol.errors import JsonObject

METHODS = ("get", "post", "put", "patch", "delete")
_REFERENCE = "#/components/schemas/"
_BOUNDS = {
    **{"minimum": "≥ {}", "maximum": "≤ {}", "exclusiveMinimum": "> {}", "minLength": "≥ {} characters"},
    **{"maxLength": "≤ {} characters", "minItems": "≥ {} entries", "maxItems": "≤ {} entries", "const": "“{}”"},
}


@dataclass(frozen=True, slots=True)
class Field:
    """A parameter, or a field of an object. `links` are the schemas that its type names."""

    name: str
    kind: str
    about: str
    is_required: bool
    links: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Content:
    """A body: its media type, and the schema it has by name; "" for none. `status` is that of an answer."""

    media_type: str
    schema: str
    status: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One method of a path. `errors` are statuses, each with what it means."""

    method: str
    path: str
    id: str
    summary: str
    fields: tuple[Field, ...]
    bodies: tuple[Content, ...]
    answers: tuple[Content, ...]
    errors: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Schema:
    """An object that goes in or out."""

    name: str
    about: str
    kind: str
    fields: tuple[Field, ...]
    links: tuple[str, ...]


def page(document: JsonObject) -> JsonObject:
    """Return what the template shows: operations by their tags, and schemas by their names."""
    whole: Any = document
    components = whole["components"]
    tags: dict[str, list[Entry]] = {}
    for path, item in whole["paths"].items():
        for method in (each for each in METHODS if each in item):
            of_path = [each for each in item["parameters"] if each["in"] == "path"]
            entry = _entry(method, path, item[method], of_path, components["responses"])
            tags.setdefault(item[method]["tags"][0], []).append(entry)
    schemas = [_schema(name, each) for name, each in components["schemas"].items()]
    return {"info": whole["info"], "tags": list(tags.items()), "schemas": schemas}


def _entry(method: str, path: str, operation: Mapping[str, Any], of_path: list[Any], known: Mapping[str, Any]) -> Entry:
    parameters = [*of_path, *operation["parameters"]]
    bodies = operation.get("requestBody", {}).get("content", {})
    answers, errors = [], []
    for status, answer in operation["responses"].items():
        if "$ref" in answer:
            errors.append((status, known[answer["$ref"].rpartition("/")[2]]["description"]))
        else:
            answers += [Content(kind, _named(each), status) for kind, each in answer["content"].items()]
    return Entry(
        method=method.upper(),
        path=path,
        id=operation["operationId"],
        summary=operation["summary"],
        fields=tuple(_parameter(each) for each in parameters),
        bodies=tuple(Content(kind, _named(each)) for kind, each in bodies.items()),
        answers=tuple(answers),
        errors=tuple(errors),
    )


def _parameter(given: Mapping[str, Any]) -> Field:
    about = given.get("description", "")
    return Field(given["name"], f"{given['in']}: {kind_of(given['schema'])}", about, given["required"])


def _schema(name: str, schema: Mapping[str, Any]) -> Schema:
    required = schema.get("required", ())
    fields = tuple(
        Field(each, kind_of(inner), inner.get("description", ""), each in required, tuple(_names_in(inner)))
        for each, inner in schema.get("properties", {}).items()
    )
    about = schema.get("description", "")
    return Schema(name, about, "" if fields else kind_of(schema), fields, () if fields else tuple(_names_in(schema)))


def kind_of(schema: Any) -> str:
    """Return in a few words what a value may be."""
    if not isinstance(schema, dict) or not schema:
        return "anything"
    if "$ref" in schema:
        return str(schema["$ref"]).removeprefix(_REFERENCE)
    several = schema.get("anyOf") or schema.get("oneOf")
    if several and "type" not in schema:
        return " or ".join(dict.fromkeys(map(kind_of, several)))
    if "enum" in schema:
        return " or ".join(f"“{each}”" for each in schema["enum"])
    kind = schema.get("type", "anything")
    kind = " or ".join(kind) if isinstance(kind, list) else str(kind)
    if kind == "array":
        kind = f"array of {kind_of(schema.get('items'))}"
    bounds = [text.format(schema[name]) for name, text in _BOUNDS.items() if name in schema]
    return f"{kind} ({', '.join(bounds)})" if bounds else kind


def _named(content: Mapping[str, Any]) -> str:
    reference = str(content["schema"].get("$ref", ""))
    return reference.removeprefix(_REFERENCE)


def _names_in(schema: Any) -> Iterator[str]:
    """Yield the schemas that a schema refers to."""
    inner = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    if isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
        yield schema["$ref"].removeprefix(_REFERENCE)
    for each in inner:
        yield from _names_in(each)
