"""Harmony messages → prompt tokens. A prompt is the sum of its messages and `<|start|>assistant`.

Every message keeps the tokens it was rendered to or sampled as, and a continuation is made of exactly those: another
rendering of the same text (recipient order, `<|constrain|>`, BPE splits) would lose the engine's prefix cache.

A developer message has instructions, and functions declared as TypeScript, as gpt-oss was trained on it; a system
message the date, the effort, and tools of the server's own. The library is the oracle of the tests, oddities included:
only the first line of a property's description is behind `//`, and what `anyOf` allows or `$ref` names is `any`. It is
not used here because it gives tokens only, in time that grows with the square of a text without spaces, because it
reads no schema of more than some 120 levels, and because its vocabulary would stay in memory beside tiktoken's.

A picture stands in a message as its digest, between two tokens of its own (`PICTURE`); `pictures_in` finds them there.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise

from engine import orjson
from engine.formats.base import (
    Body,
    FunctionTool,
    MessageKind,
    PicturePart,
    RenderedMessage,
    Tokens,
    ToolNamespace,
    as_tokens,
    parts_of,
    without_pictures,
)
from engine.formats.harmony.encoding import (
    ANALYSIS,
    CALL,
    COMMENTARY,
    END,
    FINAL,
    PICTURE,
    decode_tokens,
    encode_harmony,
    encode_slices,
    encode_text,
)

Schema = object  # any JSON: what is not a schema is `any`

# The system message that the models were trained on.
_IDENTITY = """You are ChatGPT, a large language model trained by OpenAI.
Knowledge cutoff: 2024-06
Current date: """
_CHANNELS = "# Valid channels: analysis, commentary, final. Channel must be included for every message."
_FUNCTIONS_CHANNEL = "\nCalls to these tools must go to the commentary channel: 'functions'."

_PROPERTY_STEP = "    "  # how much deeper a property's type stands, as the library indents it
_VARIANT_STEP = "   "  # how much deeper a variant's type stands
# JSON's names of types as TypeScript has them.
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


def system_text(
    effort: str, date: str, *, has_functions: bool = False, namespaces: Sequence[ToolNamespace] = ()
) -> str:
    """Return the text of the system message; its arguments are those of `render_system`."""
    # gpt-oss knows no `none`.
    sections = [_IDENTITY + date, f"Reasoning: {'low' if effort == 'none' else effort}"]
    if namespaces:
        # By name, and each once, as the library keeps them.
        named = {namespace.name: namespace for namespace in namespaces}
        sections.append("# Tools")
        for _, namespace in sorted(named.items()):
            # One without functions is called with text, and only described.
            described = "\n".join((f"## {namespace.name}\n", *_lines(namespace.description)))
            sections.append(_namespace(namespace) if namespace.functions else described)
    sections.append(_CHANNELS + (_FUNCTIONS_CHANNEL if has_functions else ""))
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
    # The last line has no end; an empty one is the end of the text and is left out.
    *ended, last = text.split("\n")
    for line in ended:
        yield line.removesuffix("\r")
    if last:
        yield last


def _type(schema: Schema, indent: str) -> str:
    """Return a schema as a type; lines after its first begin with `indent`."""
    # `oneOf` before `type`, as the library has it.
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
            # The library reads no other values of an enum.
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
    # Behind the property, as the library writes it; of variants it stands behind each.
    default = f" // {_default(schema)}" if _has(schema, "default") and not _has(schema, "oneOf") else ""
    return f"{_written(_comments(schema), indent)}{named} {kind},{default}\n"


def _property_of_variants(named: str, schema: Schema, variants: Sequence[Schema], indent: str) -> str:
    """Return a property with `oneOf`: what is said of the property itself is not said of its first variant again."""
    own = _text(schema, "description")
    descriptions = [_text(each, "description") for each in variants]
    comments = list(_comments(schema))
    if own is not None and own not in descriptions[:1]:
        comments.append(f"// {own}")
    if _has(schema, "default"):
        comments.append(f"// {_default(schema)}")
    types = (
        _variant(each, indent, described=own is None or (place > 0 and descriptions[place] != own))
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
    remarks = [] if description is None else [description]
    if _has(schema, "default"):
        remarks.append(_default(schema, named=named))
    return f"{kind} // {' '.join(remarks)}" if remarks else kind


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


MAX_REMEMBERED_CHARACTERS = 128 * 1024  # of one developer message
# The head that the models were trained on.
INSTRUCTIONS = "# Instructions\n\n"  # before those that stand in the middle of a conversation
IN_SYSTEM_MESSAGE = ("browser", "python")  # namespaces that the models were trained to find there


@lru_cache(maxsize=64)  # an effort, a day, with or without functions and tools: a handful in use
def render_system(
    *, effort: str, date: str, has_functions: bool, namespaces: tuple[ToolNamespace, ...] = ()
) -> tuple[int, ...]:
    """Render the system message, which gains a line that names their channel where there are functions.

    `effort` is none, low, medium or high; gpt-oss always thinks, at least as much as `low` is. `date` is ISO 8601.
    `namespaces` are those of `IN_SYSTEM_MESSAGE`.
    """
    return tuple(_render("system", system_text(effort, date, has_functions=has_functions, namespaces=namespaces)))


def render_developer(
    *, instructions: str | None, tools: tuple[FunctionTool, ...], namespaces: tuple[ToolNamespace, ...] = ()
) -> Sequence[int]:
    """Render the developer message that carries instructions and tools; empty where there are neither.

    Agents send the same ones in every request, so the latest are remembered.
    """
    if not (instructions or tools or namespaces):
        return ()
    every = (*tools, *(tool for namespace in namespaces for tool in namespace.functions))
    # The length of what would be the key of the cache.
    size = len(instructions or "") + sum(len(tool.schema) + len(tool.description) for tool in every)
    if size > MAX_REMEMBERED_CHARACTERS:
        return _render_developer.__wrapped__(instructions, tools, namespaces)
    return _render_developer(instructions, tools, namespaces)


@lru_cache(maxsize=64)  # with MAX_REMEMBERED_CHARACTERS: at most 8 MiB of text and their tokens
def _render_developer(
    instructions: str | None, tools: tuple[FunctionTool, ...], namespaces: tuple[ToolNamespace, ...]
) -> "Tokens[int]":
    return _render("developer", developer_text(instructions, tools, namespaces))


def render_text(role: str, body: Body) -> RenderedMessage:
    """Render what a user wrote, and showed, or a developer's message in the middle of a conversation."""
    if role == "user":
        return RenderedMessage(MessageKind.USER, _render("user", body))
    return RenderedMessage(MessageKind.OTHER, _render("developer", INSTRUCTIONS + without_pictures(body)))


def render_note(text: str) -> RenderedMessage:
    """Render what stands for an earlier part of the conversation: the developer's, without the head of instructions."""
    return RenderedMessage(MessageKind.OTHER, _render("developer", text))


def render_assistant(channel: str, text: str) -> RenderedMessage:
    """Render a message of the assistant that was not sampled here."""
    return RenderedMessage(kind_of(channel), _render(f"assistant<|channel|>{channel}", text))


def render_call(recipient: str, arguments: str, *, freeform: bool = False) -> RenderedMessage:
    """Render a call that was not sampled here, in the order the models are trained on.

    `freeform`: it is text as it is, and said to be what the `python` tool is called with.
    """
    header = f"assistant<|channel|>{COMMENTARY} to={recipient} {'code' if freeform else '<|constrain|>json'}"
    return RenderedMessage(MessageKind.COMMENTARY, _render(header, arguments, end=CALL))


def render_tool_output(name: str, body: Body) -> RenderedMessage:
    """Render what the tool `name` (`functions.x`) gave back."""
    return RenderedMessage(MessageKind.OTHER, _render(f"{name} to=assistant<|channel|>{COMMENTARY}", body))


def kind_of(channel: str | None) -> MessageKind:
    """Return the kind of an assistant's message."""
    kinds = {ANALYSIS: MessageKind.ANALYSIS, COMMENTARY: MessageKind.COMMENTARY}
    return kinds.get(channel or FINAL, MessageKind.FINAL)


@lru_cache(maxsize=1)
def generation_start() -> tuple[int, ...]:
    """Return the tokens that ask the model to go on: `<|start|>assistant`."""
    return tuple(encode_harmony("<|start|>assistant"))


def _render(header: str, body: Body, *, end: int = END) -> "Tokens[int]":
    tokens = as_tokens(_header_tokens(header))
    for part in (body,) if isinstance(body, str) else parts_of(body):
        if isinstance(part, PicturePart):
            tokens.extend((PICTURE, *encode_text(part.digest), PICTURE))
            continue
        # In parts: between two of them other threads have their turn, and the work may be given up.
        for few in encode_slices(part):
            tokens.extend(few)
    tokens.append(end)
    return tokens


@lru_cache(maxsize=1024)  # role and channel combinations, and the names of tools in use; names are at most 256 long
def _header_tokens(header: str) -> tuple[int, ...]:
    return tuple(encode_harmony(f"<|start|>{header}<|message|>"))


MAX_DIGEST = 64  # tokens: one a character at most
_DIGEST = re.compile(r"[0-9a-f]{64}")


def content_parts(content: Sequence[int]) -> list[str | PicturePart]:
    """Return the texts and the pictures that the tokens of a message's content are, one at least."""
    parts: list[str | PicturePart] = []
    done = 0
    for begin, end, digest in pictures_in(content):
        if begin > done:
            parts.append(decode_tokens(content[done:begin]))
        parts.append(PicturePart(digest))
        done = end
    if done < len(content) or not parts:
        parts.append(decode_tokens(content[done:]))
    return parts


def pictures_in(tokens: Sequence[int]) -> Iterator[tuple[int, int, str]]:
    """Yield where pictures stand among tokens, from and to, and their digests.

    A model may have sampled the sign of a picture in any place: what is not a picture is text.
    """
    done = 0
    for begin, end in pairwise(places_of(PICTURE, tokens)):
        # The end of one picture is not the beginning of the next.
        if begin >= done and end - begin <= MAX_DIGEST + 1:
            digest = decode_tokens(tokens[begin + 1 : end])
            if _DIGEST.fullmatch(digest):
                yield begin, end + 1, digest
                done = end + 1


def places_of(token: int, tokens: Sequence[int]) -> Iterator[int]:
    """Yield where a token stands among others."""
    # `index` searches in C; a loop over a prompt of 100,000 tokens would take far longer.
    place = -1
    with suppress(ValueError):
        while True:
            place = tokens.index(token, place + 1)
            yield place
