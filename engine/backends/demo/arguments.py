"""The functions that a developer message declares, and what the demo engine makes up for their arguments.

`read_functions` and `read_server_tools` read declarations, `make_argument` makes a value of a type, and `make_content`
what fits a content that has a rule: something small that is always valid. Harmony declares a function as `type NAME =
(_: {PROPERTY: TYPE, PROPERTY?: TYPE, // default: VALUE ... }) => any;`. The declarations are not always well formed (a
second line of a description has no `//`), so what cannot be read is skipped: nothing in a declaration raises.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from engine import orjson
from engine.contents.derivations import derives, smallest_derivation, smallest_match
from engine.contents.schemas import enforceable
from engine.contents.validation import problem_of, smallest_value
from engine.errors import GrammarRefused
from engine.types import AnyObject, AnyText, Content, JsonSchema, Lark, Regex, TurnRules

FunctionArgument = (
    str | int | float | bool | None | list["FunctionArgument"] | dict[str, "FunctionArgument"]  # what JSON can say
)

_DEEPEST = 30  # nested types; deeper ones count as `any`
# `type f = (_: {` or `type f = () =>`, and `type f = (FREEFORM) =>` of a custom tool.
_FUNCTION = re.compile(r"^type ([\w.-]+) = \((_: )?(FREEFORM)?", re.MULTILINE)
_FUNCTIONS = "\nnamespace functions {\n"
# `namespace wiki {`, alone on its line.
_NAMESPACE = re.compile(r"^namespace ([\w-]+) \{$", re.MULTILINE)
# White space and `// …` to the end of the line.
_BLANK = re.compile(r"(?:\s|//[^\n]*)*")
# `name: ` or `name?: `; the name may have anything in it but what begins another part.
_PROPERTY = re.compile(r"([^\n:{}]+?)(\?)?:(?=\s)")
# `"red"`, a value of an enum.
_LITERAL = re.compile(r'"([^"\n]*)"')
# `string`, `number`, `MyType`: up to what a type can be followed by.
_WORD = re.compile(r"[^\s,;|\[\](){}\"]+")
_REST_OF_LINE = re.compile(r"[^\n]+")
# "…", “…” or '…'; a `'` within a word (don't) is an apostrophe.
_QUOTED = re.compile(r"\"([^\"\n]{1,500})\"|“([^”\n]{1,500})”|(?<!\w)'([^'\n]{1,500})'(?!\w)")
# `in New York`, `for Ada Lovelace`: capitalised words behind a preposition.
_CAPITALISED = re.compile(r"\b(?:in|for|of)\s+([A-Z]\w*(?:[ -][A-Z]\w*)*)")
# `12`, `-0.5`; not the digits of `v1.2`, `2-3` or `x9`.
_NUMBER = re.compile(r"(?<![\w.-])-?\d+(?:\.\d+)?(?![\w-])")
_LONGEST_STRING = 200  # characters of a made-up argument
_LONGEST_REMEMBERED = 128 * 1024  # characters of a developer message; a longer one is read anew each time


@dataclass(frozen=True, slots=True)
class SimpleType:
    """`string`, `number`, `boolean`, `null`, `any`, or a name that is not known."""

    name: str


@dataclass(frozen=True, slots=True)
class LiteralType:
    """One value of an enum."""

    value: str


@dataclass(frozen=True, slots=True)
class ArrayType:
    """A list."""

    element: "ParameterType"


@dataclass(frozen=True, slots=True)
class Property:
    """One property of an object."""

    name: str
    type: "ParameterType"
    required: bool


@dataclass(frozen=True, slots=True)
class ObjectType:
    """An object."""

    properties: tuple[Property, ...] = ()


ParameterType = SimpleType | LiteralType | ArrayType | ObjectType

ANY = SimpleType("any")
NULL = SimpleType("null")


@dataclass(frozen=True, slots=True)
class Hints:
    """A string and a number that a user's text offers for arguments."""

    string: str  # for arguments that are text
    number: int | float  # for those that are numbers


def read_functions(developer_text: str) -> tuple[tuple[str, ParameterType], ...]:
    """Return names and parameters of the functions that a developer message declares."""
    if len(developer_text) > _LONGEST_REMEMBERED:
        # Past the cache: `__wrapped__` is the function without it.
        return _read_functions.__wrapped__(developer_text)
    return _read_functions(developer_text)


# Of what has no JSON schema: a custom tool, whose input is a text, and a function without parameters.
_PARAMETERS: dict[str | None, ParameterType] = {"FREEFORM": SimpleType("string"), None: ObjectType()}


@lru_cache(maxsize=32)  # a conversation asks with the same declarations at every turn
def _read_functions(developer_text: str) -> tuple[tuple[str, ParameterType], ...]:
    # The client's functions come last in the message. Without their namespace all of it is one without namespaces, or
    # it is the server's tools alone.
    others, _, declarations = developer_text.rpartition(_FUNCTIONS)
    return () if not others and _NAMESPACE.search(declarations) else _read(declarations)


@lru_cache(maxsize=32)
def read_server_tools(developer_text: str) -> tuple[tuple[str, ParameterType], ...]:
    """Return names and parameters of what the other namespaces of a developer message declare: `wiki.ask`."""
    before, _, declarations = developer_text.rpartition(_FUNCTIONS)
    declared = before or declarations
    namespaces = list(_NAMESPACE.finditer(declared))
    ends = [*(match.start() for match in namespaces), len(declared)][1:]
    return tuple(
        (f"{match[1]}.{name}", parameters)
        for match, end in zip(namespaces, ends, strict=True)
        for name, parameters in _read(declared[match.end() : end])
    )


_LATE = re.compile(r"# More (functions|tools) that can be called")


def read_late_tools(text: str, *, hosted: bool) -> tuple[tuple[str, ParameterType], ...]:
    """Return names and parameters of what a message declares in the middle of a conversation, a JSON object a line.

    `hosted`: of what the server runs, else of the client's functions.
    """
    head = _LATE.match(text)
    if head is None or (head[1] == "tools") is not hosted:
        return ()
    lines = text.partition("\n\n")[2].splitlines()
    declared = [tool for line in lines if isinstance(tool := _json(line), dict) and isinstance(tool.get("name"), str)]
    return tuple(
        (tool["name"], SimpleType("string") if tool.get("input") == "text" else of_schema(tool.get("parameters")))
        for tool in declared
    )


def of_schema(schema: object, depth: int = 0) -> ParameterType:
    """Return a JSON schema as a type; what cannot be read is `any`."""
    known = schema if isinstance(schema, dict) and depth < _DEEPEST else {}
    match known.get("type"), known.get("enum"):
        case "object", _:
            properties, required = known.get("properties"), known.get("required")
            wanted = required if isinstance(required, list) else []
            each = properties.items() if isinstance(properties, dict) else ()
            return ObjectType(tuple(Property(name, of_schema(its, depth + 1), name in wanted) for name, its in each))
        case "array", _:
            return ArrayType(of_schema(known.get("items"), depth + 1))
        case _, [str(value), *_]:
            return LiteralType(value)
        case "integer" | "number", _:
            return SimpleType("number")
        case ("string" | "boolean" | "null") as name, _:
            return SimpleType(name)
    return ObjectType() if schema is None else ANY


def _json(line: str) -> object:
    try:
        return orjson.loads(line)
    except ValueError:
        return None


def _read(declarations: str) -> tuple[tuple[str, ParameterType], ...]:
    functions = list(_FUNCTION.finditer(declarations))
    ends = [*(match.start() for match in functions), len(declarations)][1:]
    return tuple(
        (match[1], _TypeReader(declarations[match.end() : end]).read() if match[2] else _PARAMETERS[match[3]])
        for match, end in zip(functions, ends, strict=True)
    )


def read_hints(*texts: str) -> Hints:
    """Return the first string and number that the texts offer: an earlier text goes before a later one."""
    strings = (string for text in texts for string in _strings(text))
    numbers = (found[0] for text in texts for found in _NUMBER.finditer(text))
    number = next(numbers, "1")[:15]  # few enough digits for every JSON reader
    return Hints(next(strings, "example")[:_LONGEST_STRING], float(number) if "." in number else int(number))


def make_argument(kind: ParameterType, hints: Hints) -> FunctionArgument:
    """Make up a value of a type: the required properties, or where none is, the optional ones with simple types.

    Made-up values of optional ones would spoil a call: a client's shell with a `timeout_ms` of 1 runs nothing.
    """
    match kind:
        case ObjectType(properties):
            required = [each for each in properties if each.required]
            filled = required or [each for each in properties if _is_simple(each.type)]
            return {each.name: make_argument(each.type, hints) for each in filled}
        case ArrayType(element):
            return [make_argument(element, hints)]
        case LiteralType(value):
            return value
        case SimpleType("number"):
            return hints.number
        case SimpleType("boolean"):
            return True
        case SimpleType("null"):
            return None
        case SimpleType():
            return hints.string


def _is_simple(kind: ParameterType) -> bool:
    return isinstance(kind, LiteralType) or (isinstance(kind, SimpleType) and kind not in (ANY, NULL))


def _strings(text: str) -> Iterator[str]:
    for match in _QUOTED.finditer(text):
        yield match[1] or match[2] or match[3]
    for match in _CAPITALISED.finditer(text):
        yield match[1]


class _TypeReader:
    """Reads one type from the text of a declaration, leniently."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._depth = 0  # of types in each other

    def read(self) -> ParameterType:
        """Return the first alternative that is not `null`."""
        self._depth += 1
        # A list of alternatives may begin with `|`, as `oneOf` is written.
        self._take("|")
        alternatives = [self._alternative()]
        while self._take("|"):
            alternatives.append(self._alternative())
        self._depth -= 1
        *others, last = alternatives
        if isinstance(last, ArrayType) and others and all(isinstance(each, LiteralType) for each in others):
            return ArrayType(others[0])  # `"a" | "b"[]` is how Harmony writes an array of an enum
        return next((each for each in alternatives if each != NULL), NULL)

    def _alternative(self) -> ParameterType:
        element = self._without_suffix()
        while self._take("[]"):
            element = ArrayType(element)
        return element

    def _without_suffix(self) -> ParameterType:
        if self._depth > _DEEPEST:
            # Nothing behind it can be read either: the text counts as done.
            self._position = len(self._text)
            return ANY
        if self._take("{"):
            return self._object()
        if self._take("("):
            inner = self.read()
            self._take(")")
            return inner
        literal = self._match(_LITERAL)
        if literal:
            return LiteralType(literal[1])
        word = self._match(_WORD)
        return SimpleType(word[0]) if word else ANY

    def _object(self) -> ObjectType:
        properties: list[Property] = []
        while not self._take("}") and self._position < len(self._text):
            name = self._match(_PROPERTY)
            if name:
                properties.append(Property(name[1], self.read(), required=not name[2]))
                self._take(",")
            else:
                # A line that declares nothing: the second line of a description.
                self._match(_REST_OF_LINE)
        return ObjectType(tuple(properties))

    def _take(self, expected: str) -> bool:
        self._skip_blanks()
        if not self._text.startswith(expected, self._position):
            return False
        self._position += len(expected)
        return True

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        self._skip_blanks()
        match = pattern.match(self._text, self._position)
        if match:
            self._position = match.end()
        return match

    def _skip_blanks(self) -> None:
        blank = _BLANK.match(self._text, self._position)
        if blank:
            self._position = blank.end()


_PATCH = "*** Begin Patch\n"
_HARMLESS = f"{_PATCH}*** Add File: example.txt\n+example\n*** End Patch"  # the smallest patch deletes a file


def make_content(content: Content, hints: Hints, text: str = "") -> str:
    """Return what a content may be; `text` itself, where it is. Raises `GrammarRefused` where nothing is found."""
    if text and problem_of(content, text.encode()) is None:
        return text
    match content:
        case AnyText():
            return text or hints.string
        case AnyObject():
            return _written({"text": text or hints.string})
        case JsonSchema(schema):
            return _written(smallest_value(orjson.loads(enforceable(schema)), text=hints.string, number=hints.number))
        case Regex(pattern):
            return smallest_match(pattern)
        case Lark(grammar):
            smallest = smallest_derivation(grammar)
            return _HARMLESS if smallest.startswith(_PATCH) and derives(grammar, _HARMLESS) else smallest


def require_makeable(rules: TurnRules) -> None:
    """Return if every content of a turn can be made up; else raise `GrammarRefused`."""
    for content in {rules.answer, *(call.content for call in rules.calls)}:
        made = make_content(content, Hints("example", 1))
        # The same check as of a model's own texts: what is made up must not be wrong.
        problem = problem_of(content, made.encode())
        if problem is not None:
            raise GrammarRefused(f"The demo engine finds nothing that fits: {problem}.")


def _written(value: object) -> str:
    return orjson.dumps(value).decode()
