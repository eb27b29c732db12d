"""The text of a developer message: instructions, and functions declared as TypeScript, as gpt-oss was trained on it.

The library is the oracle of the tests, oddities included: only the first line of a property's description is behind
`//`, and what `anyOf` allows or `$ref` names is `any`. It is not used here because it gives tokens only, in time that
grows with the square of a text without spaces, and because it reads no schema of more than some 120 levels.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import orjson

from engine.formats.base import FunctionTool, ToolNamespace

Schema = object  # any JSON: what is not a schema is `any`

_PROPERTY_STEP = "    "  # how much deeper a property's type stands
_VARIANT_STEP = "   "
_SIMPLE = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean"}


def developer_text(
    instructions: str | None, tools: Sequence[FunctionTool], namespaces: Sequence[ToolNamespace] = ()
) -> str:
    """Return what the developer says: instructions, tools, or both. The client's functions come last."""
    sections = [f"# Instructions\n\n{instructions}"] if instructions else []
    if tools:
        namespaces = [*namespaces, ToolNamespace("functions", "", tuple(tools))]
    if namespaces:
        sections += ["# Tools", *map(_namespace, namespaces)]
    return "\n\n".join(sections)


def _namespace(namespace: ToolNamespace) -> str:
    name, comment = namespace.name, _comment(namespace.description)
    declared = "".join(f"{_declaration(tool)}\n\n" for tool in namespace.functions)
    return f"## {name}\n\n{comment}namespace {name} {{\n\n{declared}}} // namespace {name}"


def _declaration(tool: FunctionTool) -> str:
    parameters = "FREEFORM" if tool.freeform else f"_: {_type(orjson.loads(tool.schema), '')}" if tool.schema else ""
    return f"{_comment(tool.description)}type {tool.name} = ({parameters}) => any;"


def _comment(text: str) -> str:
    return "".join(f"// {line}\n" for line in _lines(text))


def _lines(text: str) -> Iterator[str]:
    *ended, last = text.split("\n")
    for line in ended:
        yield line.removesuffix("\r")
    if last:
        yield last


def _type(schema: Schema, indent: str) -> str:
    """Return a schema as a type; lines after its first begin with `indent`."""
    variants = _list(schema, "oneOf")
    if variants is not None:
        return "".join(f"\n{indent} | {_variant(each, indent, described=True, named=False)}" for each in variants)
    match _field(schema, "type"):
        case list(names):
            known = [_SIMPLE.get(name, name) for name in names if isinstance(name, str)]
            return " | ".join(known) if known else "any"
        case "object":
            return _object(schema, indent)
        case "array":
            return f"{_type(_field(schema, 'items'), indent)}[]" if _has(schema, "items") else "Array<any>"
        case "string":
            values = [f'"{value}"' for value in _list(schema, "enum") or () if isinstance(value, str)]
            return " | ".join(values) or "string"
        case str(name):
            return _SIMPLE.get(name, "any")
    return "any"


def _object(schema: Schema, indent: str) -> str:
    description = _text(schema, "description")
    comment = "" if description is None else f"{indent}// {description}\n"
    properties = _field(schema, "properties")
    required = {name for name in _list(schema, "required") or () if isinstance(name, str)}
    inside = ""
    if isinstance(properties, Mapping):
        inside = "".join(
            _property(f"{indent}{name}{'' if name in required else '?'}:", each, indent)
            for name, each in properties.items()
        )
    return f"{comment}{{\n{inside}{indent}}}"


def _property(named: str, schema: Schema, indent: str) -> str:
    """Return a property and the comments before it; `named` is how its line begins."""
    variants = _list(schema, "oneOf")
    if variants is not None:
        return _property_of_variants(named, schema, variants, indent)
    kind = _or_null(schema, _type(schema, indent + _PROPERTY_STEP))
    default = f" // {_default(schema)}" if _has(schema, "default") and not _has(schema, "oneOf") else ""
    return f"{_written(_comments(schema), indent)}{named} {kind},{default}\n"


def _property_of_variants(named: str, schema: Schema, variants: Sequence[Schema], indent: str) -> str:
    """Return a property with `oneOf`: what is said of the property itself is not said of its first variant again."""
    own = _text(schema, "description")
    said = [_text(each, "description") for each in variants]
    comments = list(_comments(schema))
    if own is not None and own not in said[:1]:
        comments.append(f"// {own}")
    if _has(schema, "default"):
        comments.append(f"// {_default(schema)}")
    types = (
        _variant(each, indent, described=own is None or (place > 0 and said[place] != own))
        for place, each in enumerate(variants)
    )
    options = "".join(f"{indent} | {each}\n" for each in types)
    return f"{_written(comments, indent)}{named}\n{options}{indent},\n"


def _written(lines: Iterable[str], indent: str) -> str:
    return "".join(f"{indent}{line}\n" for line in lines)


def _comments(schema: Schema) -> Iterator[str]:
    """Yield the comment lines that any property may have before it."""
    title, description = _text(schema, "title"), _text(schema, "description")
    examples = _list(schema, "examples")
    if title is not None:
        yield f"// {title}"
        yield "//"
    if description is not None and not _has(schema, "oneOf"):
        yield f"// {description}"
    if examples:
        yield "// Examples:"
        for example in examples:
            if isinstance(example, str):
                yield f'// - "{example}"'


def _variant(schema: Schema, indent: str, *, described: bool, named: bool = True) -> str:
    """Return one of several types, with what is said of it behind it; `named`: it is a property's."""
    kind = _or_null(schema, _type(schema, indent + _VARIANT_STEP))
    description = _text(schema, "description") if described else None
    said = [] if description is None else [description]
    if _has(schema, "default"):
        said.append(_default(schema, named=named))
    return f"{kind} // {' '.join(said)}" if said else kind


def _default(schema: Schema, *, named: bool = True) -> str:
    """Return the comment that tells a default: a text in quotes, but one of an enum without (or, unnamed, as JSON)."""
    value = _field(schema, "default")
    enum = bool(_list(schema, "enum"))
    if isinstance(value, str) and (named or not enum):
        return f"default: {value}" if enum else f'default: "{value}"'
    return f"default: {orjson.dumps(value).decode()}"


def _or_null(schema: Schema, kind: str) -> str:
    return f"{kind} | null" if _field(schema, "nullable") is True and "null" not in kind else kind


def _has(schema: Schema, name: str) -> bool:
    return isinstance(schema, Mapping) and name in schema


def _field(schema: Schema, name: str) -> object:
    return schema.get(name) if isinstance(schema, Mapping) else None


def _text(schema: Schema, name: str) -> str | None:
    value = _field(schema, name)
    return value if isinstance(value, str) else None


def _list(schema: Schema, name: str) -> Sequence[object] | None:
    value = _field(schema, name)
    return value if isinstance(value, list) else None
