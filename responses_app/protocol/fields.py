"""What becomes of each field of a body: no field is dropped silently.

Every object of a body has a model (`ClientModel`), and that is the only home of what is known of its fields:

    carried out      the fields of the model, and those that are `beside` it
    refused          400 `unsupported_parameter`, with what to do instead; not where its value asks for nothing
    without effect   by design, for a reason that is told
    unknown          400 `unknown_parameter` for a near miss of a known name ("Did you mean 'temperature'?"); any other
                     one is accepted, and its client is told of it, unless the operator wants OpenAI's strictness

The reference page of fields is made of these models, and a test holds them against the types of OpenAI's SDK.
`validate` looks at all fields of an object before it reads it, and words what pydantic finds as OpenAI does: which
field, what it got, what it takes. Near misses and unknown fields count in what a client has just sent (inside
`noting`): what this server has kept of an earlier version is read as it is. `Metadata`, which many bodies have, stands
at the end.
"""

import re
import reprlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError, WithJsonSchema
from pydantic_core import ErrorDetails, PydanticCustomError, PydanticKnownError

from responses_app.protocol.errors import (
    ApiError,
    JsonObject,
    dotted,
    invalid_request,
    invalid_value,
    unsupported_parameter,
)

IGNORED_HEADER = "respsite-ignored"
MAX_NAMED = 20  # ignored fields that one answer names; more are counted
MAX_NAME = 64  # characters of one, as it is written in the header
_MAX_LOOKED_UP = 20  # unknown names of one body that are compared with the known ones
_LIKENESS = 0.85  # of two names, from which on one is taken for a slip of the other
_SHORTEST = 4  # characters of a name that can be a slip
_STRANGE = re.compile(r"[^A-Za-z0-9\[\]._-]")  # what a header's list of names must not hold, such as `,` and ` `
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")  # where `maxTokens` has its hump: between `x` and `T`
NO_SLIPS = frozenset(  # names of other servers' APIs that look like ones known here, and mean something else
    "images models parse_tool_calls reasoning_format speed".split()
)
# Of a refused field these ask for nothing, and its client is told that they did. An empty object asks: its options are
# those that hold without it, as in `web_search_options: {}`.
_EMPTY: tuple[object, ...] = ("", [])


@dataclass(frozen=True, slots=True)
class Refused:
    """A field that this server does not carry out."""

    hint: str  # what to do instead, for the error
    takes: tuple[object, ...] = (False,)  # values that are fine beside null, as they ask for what happens anyway

    def asks(self, value: object) -> bool:
        """Whether a value asks for something."""
        # By type too: `True == 1` in Python, and they are two values of JSON.
        return not any(value == each and type(value) is type(each) for each in (None, *_EMPTY, *self.takes))


class ClientModel(BaseModel):
    """Base of everything that comes from a client: frozen, and tolerant of fields it does not know.

    An `open` object may have any field: it is kept and given back whole.
    """

    # `defer_build`: most servers read few kinds of bodies. pydantic builds a model once, under a lock of its own.
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, defer_build=True)

    refused: ClassVar[Mapping[str, Refused]] = {}  # further names; a value that asks for something is refused
    # Names without effect, with the reason: further ones, or fields of its own of which only the value is checked.
    idle: ClassVar[Mapping[str, str]] = {}
    told: ClassVar[Collection[str]] = ()  # those of `idle` of which a client hears in a header
    beside: ClassVar[Collection[str]] = ()  # carried out, and read by others than the model
    own: ClassVar[Collection[str]] = ()  # names that are this server's or vLLM's, not OpenAI's
    open: ClassVar[bool] = False  # any field is taken, and none is looked at


class ToolModel(ClientModel):
    """Base of the tools that a request declares, whose `type` was read before."""

    beside: ClassVar[Collection[str]] = ("type",)


class CallableTool(ToolModel):
    """Base of those of which a request can say who may call them."""

    refused: ClassVar[Mapping[str, Refused]] = {
        "allowed_callers": Refused(
            "Programs call functions and MCP tools: the model calls this itself. Leave it out, or name 'direct'.",
            takes=(["direct"], ["direct", "programmatic"], ["programmatic", "direct"]),
        )
    }


KEPT = "It is kept, and given back with the item; the model does not read it."
CACHES_ALL = "The engine caches every prefix by itself, and forgets the one that was longest not used."
BREAKPOINT = {"prompt_cache_breakpoint": CACHES_ALL}
Models = Mapping[str, type[ClientModel]]  # of an object, by its `type`; by "" where there is one


@dataclass(slots=True)
class IgnoredFields:
    """The fields of one body, or the parameters of a query, that nobody reads."""

    refuse: bool = False  # a body that has any is refused
    foreign_seals: bool = False  # what was sealed elsewhere is ignored, too; else it is refused
    names: list[str] = field(default_factory=list)  # at most `MAX_NAMED`, as the header has them
    more: int = 0  # those beyond; counted, also where one comes twice
    looked_up: int = 0  # unknown names that were compared with the known ones

    def add(self, path: str) -> None:
        """Note one; a part of a body that is read twice is told once."""
        # A header may have it percent-encoded, but for what paths are made of. That may make twelve characters of one:
        # it is cut before, and again behind that.
        quoted = _STRANGE.sub(
            lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode(errors="replace")), path[: 4 * MAX_NAME]
        )
        name = quoted[:MAX_NAME]
        if name in self.names:
            return
        if len(self.names) < MAX_NAMED:
            self.names.append(name)
        else:
            self.more += 1

    def __str__(self) -> str:
        """The names as a header has them: in ASCII, none with a comma or a space, and never more than 1.5 KB."""
        return ", ".join([*self.names, *([f"+{self.more}"] if self.more else [])])


# None: what is read was kept by this server. A context variable, as names are looked at deep below `noting`.
_NOTED: ContextVar[IgnoredFields | None] = ContextVar("ignored_fields", default=None)


@contextmanager
def noting(*, refuse: bool = False, foreign_seals: bool = False) -> Iterator[IgnoredFields]:
    """Read the body of a client, and note its ignored fields."""
    noted = IgnoredFields(refuse, foreign_seals)
    token = _NOTED.set(noted)
    try:
        yield noted
    finally:
        _NOTED.reset(token)


def is_of_client() -> bool:
    """Whether a client has just sent the object that is read now; else this server has kept it."""
    return _NOTED.get() is not None


def noted() -> IgnoredFields | None:
    """Return the ignored fields of the body that is read now; None where this server has kept it."""
    return _NOTED.get()


def note_ignored(path: str) -> None:
    """Note that the value at a path of the body has no effect here."""
    noted = _NOTED.get()
    if noted is not None:
        noted.add(path)


def header_choice(name: str, header: str | None, known: Collection[str], default: str) -> str:
    """Return which of the known values a header has, else the default. Raises `ApiError` (400) for another."""
    # An empty header is none.
    value = (header or "").strip().lower() or default
    if value not in known:
        raise invalid_request(
            f"Unknown value in the header '{name}': {value[:80]!r}. Known are: {' and '.join(map(repr, known))}.",
            param=name,
            code="invalid_value",
        )
    return value


def check_fields(model: type[ClientModel], data: Mapping[str, object], *, at: str = "") -> None:
    """Look at the names of an object's fields, and at those of the objects in it. Raises `ApiError`."""
    if model.open:
        return
    # One comparison of sets decides nearly every object; only what it finds is looked at by name.
    quiet, inner = _plan(model)
    if not quiet.issuperset(data):
        for name in data:
            if name not in quiet:
                _look_at(model, name, data[name], at)
    for name, models in inner:
        value = data.get(name)
        if isinstance(value, dict):
            _check_inner(models, value, at, name)
        elif isinstance(value, list):
            for index, each in enumerate(value):
                if isinstance(each, dict):
                    _check_inner(models, each, at, name, index)


@cache
def _plan(model: type[ClientModel]) -> tuple[frozenset[str], Sequence[tuple[str, Models]]]:
    """Return the names of a model that need no look, and the models of the objects in its objects."""
    return carried_out(model).union(model.idle.keys() - set(model.told)), tuple(inner_models(model).items())


@cache
def carried_out(model: type[ClientModel]) -> frozenset[str]:
    """Return the names of the fields that are carried out."""
    names = {each.alias or name for name, each in model.model_fields.items()}
    return frozenset(names.union(model.beside) - model.refused.keys() - model.idle.keys())


@cache
def known_names(model: type[ClientModel]) -> frozenset[str]:
    """Return all names that a model knows, whatever becomes of them."""
    return carried_out(model).union(model.refused, model.idle)


@cache
def inner_models(model: type[ClientModel]) -> Mapping[str, Models]:
    """Return the models of the objects in an object, by the names of its fields."""
    inner: dict[str, Models] = {}
    for name, each in model.model_fields.items():
        models = list(dict.fromkeys(_models_in(each.annotation)))
        # One model needs no `type` to be found; several are told apart by theirs.
        if len(models) == 1:
            inner[each.alias or name] = {"": models[0]}
        elif models:
            inner[each.alias or name] = {
                kind: model
                for model in models
                for annotation in (model.model_fields["type"].annotation,)
                if get_origin(annotation) is Literal
                for kind in get_args(annotation)
            }
    return inner


def _models_in(annotation: Any) -> Iterator[type[ClientModel]]:
    if isinstance(annotation, type) and issubclass(annotation, ClientModel):
        yield annotation
        return
    origin, inside = get_origin(annotation), get_args(annotation)
    # What follows the type in an `Annotated` is pydantic's, not a type.
    if origin is Annotated:
        inside = inside[:1]
    if origin is not dict:  # its names are the client's own
        for each in inside:
            yield from _models_in(each)


def _check_inner(models: Models, value: Mapping[str, object], at: str, name: str, index: int | None = None) -> None:
    model = models.get("") or models.get(str(value.get("type")))
    if model is None or model.open:
        return
    quiet, inner = _plan(model)
    if inner or not quiet.issuperset(value):  # else, nearly always, there is nothing to say
        check_fields(model, value, at=_joined(at, name) + ("" if index is None else f"[{index}]"))


def _look_at(model: type[ClientModel], name: str, value: object, at: str) -> None:
    """Refuse a field that is not carried out, or note it."""
    path = _joined(at, name[:80])
    noted = _NOTED.get()
    if name in model.refused:
        if model.refused[name].asks(value):
            raise unsupported_parameter(path, model.refused[name].hint)
        if noted is not None and value in _EMPTY:
            noted.add(path)
        return
    if noted is None:
        return
    if name in model.idle:
        if value not in (None, False):
            noted.add(path)
        return
    if value is None and not noted.refuse:  # asks for nothing; what `model_dump` of an SDK makes is full of them
        return
    meant = _meant(name, known_names(model), noted)
    # What is to be said of what was meant, too: else the second try fails as well.
    note_unknown(path, noted, meant, model.refused[meant].hint if meant in model.refused else "")


def note_unknown(path: str, noted: IgnoredFields, meant: str = "", hint: str = "") -> None:
    """Note an unknown name. Raises `ApiError` where it is a slip of the name `meant`, and where none is taken."""
    if meant or noted.refuse:
        said = [f"Unknown parameter: '{path}'.", f"Did you mean '{meant}'?" if meant else "", hint]
        raise invalid_request(" ".join(filter(None, said)), param=path, code="unknown_parameter")
    noted.add(path)


def check_query(names: Iterable[str], known: Mapping[str, str], noted: IgnoredFields) -> None:
    """Look at the names of a query, and note those that have no effect. Raises `ApiError` as `note_unknown`.

    `known` has the type of each parameter as JSON has it. An "array" may be written `name[]`, an "object" `name[key]`.
    """
    for name in names:
        plain, _, inside = name.partition("[")
        kind = known.get(plain)
        if name in known or (kind == "array" and inside == "]") or (kind == "object" and inside.endswith("]")):
            continue
        meant = plain if kind is not None else _meant(plain, known, noted)
        note_unknown(name[:MAX_NAME], noted, f"{meant}[]" if inside and known.get(meant) == "array" else meant)


def _meant(name: str, known: Iterable[str], noted: IgnoredFields) -> str:
    """Return the known name that another one is a slip of, which may be written as in JavaScript; "" for none."""
    # Comparing names is slow: a body of thousands of unknown ones must not hold the event loop.
    noted.looked_up += 1
    if noted.looked_up > _MAX_LOOKED_UP or not _SHORTEST <= len(name) <= MAX_NAME or name in NO_SLIPS:
        return ""
    name = _HUMP.sub("_", name).lower()
    return next(iter(get_close_matches(name, sorted(known), n=1, cutoff=_LIKENESS)), "")


def _joined(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _without_nul(value: str) -> str:
    """PostgreSQL's text does not take it."""
    if "\0" in value:
        raise PydanticCustomError("nul", "It must not have NUL characters.")
    return value


Text = Annotated[str, AfterValidator(_without_nul)]


Model = TypeVar("Model", bound=ClientModel)

_MAX_DIGITS = 18  # of a number in a query or a form: what fits into 64 bits, and is quick to read

# By pydantic's types of errors: what a field takes, in JSON's words.
_EXPECTED = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "a boolean",
    "bool_parsing": "a boolean",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "text_or_parts": "a string or an array of content parts",
    "text_or_blocks": "a string or an array of content blocks",
    "text_or_list": "a string or an array of strings",
    "text_or_object": "a string or an object",
}
_UNITS: dict[type, str] = {str: "character", dict: "pair"}
_SUBJECT = re.compile(r"^\w+ should")
# Exact types, so that a boolean is not taken for the integer that it is in Python.
_JSON_NAMES: dict[type, str] = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    list: "an array",
    dict: "an object",
    type(None): "null",
}


def as_text_parts(text: str) -> object:
    """Return a text as the only part, or block, of a content."""
    return [{"type": "text", "text": text}]


def or_text(read: Callable[[str], object], form: Any, kind: str = "text_or_parts") -> BeforeValidator:
    """Let a field of this `form` be a text, of which `read` makes the form; `kind` is its type in `_EXPECTED`."""
    inside = dict if kind == "text_or_object" else list

    def either(value: object) -> object:
        if isinstance(value, str):
            return read(value)
        if not isinstance(value, inside):
            raise PydanticCustomError(kind, "another type")
        return value

    return BeforeValidator(either, json_schema_input_type=str | form)


def json_name(value: object) -> str:
    """Name the JSON type of a value, with its article."""
    return _JSON_NAMES.get(type(value), "another type")


def wrong_type(param: str, expected: str, value: object) -> ApiError:
    """Say that `param` has a value of the wrong type."""
    return invalid_request(
        f"Invalid type for '{param}': expected {expected}, but got {json_name(value)} instead.",
        param=param,
        code="invalid_type",
    )


def missing(param: str) -> ApiError:
    """Say that a field has to be there."""
    return invalid_request(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")


def text_at(param: str, value: object) -> str:
    """Return a text that has to be there. Raises `ApiError`."""
    if value is None:
        raise missing(param)
    if not isinstance(value, str):
        raise wrong_type(param, "a string", value)
    return value


def one_of(param: str, value: object, known: Iterable[str]) -> str:
    """Return a text that has to be one of these. Raises `ApiError`."""
    text = text_at(param, value)
    if text not in known:
        raise invalid_value(param, f"{text[:80]!r}. Supported values are: {', '.join(map(repr, known))}.")
    return text


def whole_number(text: str, minimum: int, maximum: int) -> int | None:
    """Return the number that a text says in ASCII digits; None for any other text, and out of these bounds."""
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        return None
    return int(text) if minimum <= int(text) <= maximum else None


def validate(model: type[Model], data: Mapping[str, object], *, at: str = "") -> Model:
    """Validate `data`, which stands at the path `at` of the request; raise `ApiError` for the first finding.

    The names of its fields come first, for those that a client has sent and this server does not know.
    """
    if not model.open:
        check_fields(model, data, at=at)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        findings = [(_in_data(each, data), each) for each in error.errors(include_url=False)]
        raise _as_api_error(*_telling(findings), at) from None


_Finding = tuple[tuple[int | str, ...], ErrorDetails]  # with its place in what was sent
_UNKNOWN = object()


def _in_data(details: ErrorDetails, data: object) -> tuple[int | str, ...]:
    """Return where something is wrong, without pydantic's names of the members of unions, such as `list[str]`."""
    location, value = details["loc"], data
    absent = location[-1:] if details["type"] == "missing" else ()
    found: list[int | str] = []
    for place, part in enumerate(location[: len(location) - len(absent)]):
        if isinstance(value, Mapping):
            if part not in value or _is_tag(location[place : place + 2], value):
                continue
            value = value[part]
        elif isinstance(part, int) and isinstance(value, list) and part < len(value):
            value = value[part]
        elif isinstance(part, int) or value is _UNKNOWN:  # it was made something else before it was looked at
            value = _UNKNOWN
        else:
            continue
        found.append(part)
    return (*found, *absent)


def _is_tag(parts: tuple[int | str, ...], value: Mapping[int | str, object]) -> bool:
    """Whether the first of these parts of a location is the `type` of an object, and not its field of that name.

    A block of the type `thinking` has a field `thinking`, too: with `signature` behind it, which no text has, it is not
    that field.
    """
    tag, *behind = parts
    return value.get("type") == tag and behind not in ([], [tag]) and not isinstance(value[tag], Mapping | list)


def _telling(findings: Sequence[_Finding]) -> tuple[tuple[int | str, ...], Sequence[ErrorDetails]]:
    """Return the place nearest to the top that is wrong, and the finding of each member of a union there.

    Where another member finds something inside, the value has the form of that one: so that place is returned.
    """
    top = min((place for place, _ in findings), key=len)
    inside = [finding for finding in findings if len(finding[0]) > len(top) and finding[0][: len(top)] == top]
    return _telling(inside) if inside else (top, [details for place, details in findings if place == top])


def _as_api_error(place: tuple[int | str, ...], findings: Sequence[ErrorDetails], at: str) -> ApiError:
    """Make an error of all that is said of one place."""
    param = dotted(place, at)
    details = next((each for each in findings if each["type"] not in _EXPECTED), None)
    value = findings[0]["input"]
    if details is None or (details["type"] == "literal_error" and isinstance(value, dict | list)):
        forms = dict.fromkeys(_EXPECTED[each["type"]] for each in findings if each["type"] in _EXPECTED)
        if forms:
            return wrong_type(param, " or ".join(forms), value)
    details = details or findings[0]
    kind, context = details["type"], details.get("ctx", {})
    if kind in ("missing", "union_tag_not_found"):
        return missing(param if kind == "missing" else f"{param}.type")
    if kind == "union_tag_invalid":
        return invalid_value(
            f"{param}.type", f"{_shown(context['tag'])}. Supported values are: {context['expected_tags']}."
        )
    if kind == "literal_error":
        return invalid_value(param, f"{_shown(value)}. Supported values are: {context['expected']}.")
    # pydantic begins with "Input should be…" or "List should have…"; here it stands in the middle of a sentence.
    message = _SUBJECT.sub("it should", details["msg"], count=1).replace(" after validation", "")
    # pydantic counts items of whatever has a length.
    unit = _UNITS.get(type(details["input"]), "item")
    message = re.sub(r"\bitem(?=s?\b)", unit, message) if kind in ("too_long", "too_short") else message
    return invalid_value(param, f"{message[:1].lower()}{message[1:].rstrip('.')}.")


def _shown(value: object) -> str:
    text = reprlib.repr(value) if isinstance(value, dict | list) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


MAX_KEY, MAX_VALUE = 64, 512  # characters

MAX_PAIRS = 16  # of metadata or attributes, as at OpenAI


def limit_pairs(value: object) -> object:
    """Refuse an object of too many pairs, before each of them is looked at."""
    if isinstance(value, dict) and len(value) > MAX_PAIRS:
        context = {"field_type": "Object", "max_length": MAX_PAIRS, "actual_length": len(value)}
        raise PydanticKnownError("too_long", context)
    return value


_SCHEMA: JsonObject = {
    "type": "object",
    "maxProperties": MAX_PAIRS,
    "propertyNames": {"maxLength": MAX_KEY},
    "additionalProperties": {"type": "string", "maxLength": MAX_VALUE},
}
Metadata = Annotated[dict[str, str], BeforeValidator(limit_pairs), WithJsonSchema(_SCHEMA)]


def check_metadata(metadata: Mapping[str, str] | None) -> None:
    """Refuse keys and values that are too long."""
    for key, value in (metadata or {}).items():
        if len(key) > MAX_KEY:
            why = f"the key {key[:MAX_KEY]!r}… has {len(key)} characters. Keys have at most {MAX_KEY}."
            raise invalid_value("metadata", why)
        if len(value) > MAX_VALUE:
            raise invalid_value(f"metadata.{key}", f"it should have at most {MAX_VALUE} characters, not {len(value)}.")
