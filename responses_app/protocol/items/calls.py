"""Calls among items: the kinds of tools that clients execute, which items are calls, and what came of them.

A call that the model has made must be answered before it goes on: it would wait, or make something up. Not so an
asynchronous call, whose output may come at any time, and more than once; nor one that was cut, which nobody ran.

`ClientKind`: a tool that clients execute and that OpenAI defines: a shell, a patch, a search for tools. The model calls
each as a function of its name; the kind says what it is told of that function, and how the arguments of a call become
the fields of the call's own item.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from engine import orjson
from engine.formats.base import IMAGE_OMITTED, Body, PicturePart, Unanswered
from responses_app.protocol import ids
from responses_app.protocol.errors import ApiError, JsonObject, invalid_request
from responses_app.protocol.fields import ClientModel
from responses_app.protocol.items.resources import CallType

NAME = r"^[A-Za-z0-9_.\-]+$"  # of a function or a namespace
MAX_NAME = 256  # characters of one


class LocalShellAction(ClientModel):
    """A command, as its words."""

    type: Literal["exec"] = "exec"
    command: list[str]
    env: dict[str, str] = Field(default_factory=dict)
    timeout_ms: int | None = None
    user: str | None = None
    working_directory: str | None = None


class ShellAction(ClientModel):
    """Commands, as lines."""

    commands: list[str]
    timeout_ms: int | None = None
    max_output_length: int | None = None


class WriteFile(ClientModel):
    """What becomes of a file, as a patch."""

    type: Literal["create_file", "update_file"]
    path: str
    diff: str


class DeleteFile(ClientModel):
    """A file goes."""

    type: Literal["delete_file"]
    path: str


PatchOperation = Annotated[WriteFile | DeleteFile, Field(discriminator="type")]


@dataclass(frozen=True, slots=True)
class ClientKind:
    """One kind of tool that clients execute."""

    type: str  # of the tool; also the name of the function that the model calls
    item: CallType  # the type of its calls
    prefix: str  # of the ids of these
    description: str  # what the model is told of the function
    schema: str  # of a call's arguments, as JSON text: what the grammar enforces
    shown: str  # the same as the model reads it, which may be simpler
    # Makes the item's own fields of arguments; None where they do not fit.
    fields: Callable[[object], JsonObject | None]

    def read(self, arguments: str) -> JsonObject | None:
        """Return the item's own fields for these arguments, None where they do not fit."""
        try:
            return self.fields(orjson.loads(arguments))
        except (orjson.JSONDecodeError, ValidationError):
            return None


@cache
def _operations() -> TypeAdapter[WriteFile | DeleteFile]:
    return TypeAdapter(PatchOperation)


def _object(properties: JsonObject, *required: str) -> JsonObject:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _text(description: str = "") -> JsonObject:
    return {"type": "string", "description": description} if description else {"type": "string"}


def json_text(value: object) -> str:
    """Return a value as the model reads it: compact JSON."""
    return orjson.dumps(value).decode()


_TEXTS: JsonObject = {"type": "array", "items": {"type": "string"}}
_TIMEOUT: JsonObject = {"type": "integer", "description": "milliseconds"}
_LOCAL_SHELL = json_text(
    _object(
        {
            "command": {**_TEXTS, "description": 'the words of the command, for example ["bash", "-lc", "ls"]'},
            "env": {"type": "object", "additionalProperties": {"type": "string"}},
            "timeout_ms": _TIMEOUT,
            "user": _text("whom to run it as"),
            "working_directory": _text(),
        },
        "command",
    )
)
_SHELL = json_text(
    _object(
        {
            "commands": {**_TEXTS, "description": "command lines, each run by itself"},
            "timeout_ms": _TIMEOUT,
            "max_output_length": {"type": "integer", "description": "characters"},
        },
        "commands",
    )
)
# Read by the model, with the field that it describes.
_DIFF = (
    "lines that are added begin with +, lines that are removed with -, lines around them with a space; "
    "a line @@ with the name of a class or function says where; all lines of a new file begin with +"
)
# Exact: a file that is deleted has no diff. Models read the flat `_SHOWN_PATCH` better than alternatives.
_PATCH = json_text(
    {
        "anyOf": [
            _object({"type": {"const": kind}, "path": _text(), "diff": _text()}, "type", "path", "diff")
            for kind in ("create_file", "update_file")
        ]
        + [_object({"type": {"const": "delete_file"}, "path": _text()}, "type", "path")]
    }
)
_SHOWN_PATCH = json_text(
    _object(
        {
            "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
            "path": _text(),
            "diff": _text(f"not of a file that is deleted: {_DIFF}"),
        },
        "type",
        "path",
    )
)
_SEARCH = json_text(_object({"query": _text("what the tool is to do")}, "query"))

CLIENT_KINDS: Mapping[str, ClientKind] = {
    kind.type: kind
    for kind in (
        ClientKind(
            "local_shell",
            "local_shell_call",
            ids.LOCAL_SHELL_CALL,
            "Runs a command on the user's machine.",
            _LOCAL_SHELL,
            _LOCAL_SHELL,
            lambda made: {"action": LocalShellAction.model_validate(made).model_dump(exclude_none=True)},
        ),
        ClientKind(
            "shell",
            "shell_call",
            ids.SHELL_CALL,
            "Runs command lines in the user's shell.",
            _SHELL,
            _SHELL,
            lambda made: {"action": ShellAction.model_validate(made).model_dump(), "environment": None},
        ),
        ClientKind(
            "apply_patch",
            "apply_patch_call",
            ids.APPLY_PATCH_CALL,
            "Creates, changes or deletes a file of the user.",
            _PATCH,
            _SHOWN_PATCH,
            lambda made: {"operation": _operations().validate_python(made).model_dump()},
        ),
        ClientKind(
            "tool_search",
            "tool_search_call",
            ids.TOOL_SEARCH_CALL,
            "Looks for more tools; those that it finds can be called afterwards.",
            _SEARCH,
            _SEARCH,
            lambda made: {"execution": "client", "arguments": made} if isinstance(made, dict) else None,
        ),
    )
}


_FUNCTION, _CUSTOM = "function_call", "custom_tool_call"
# Types of calls whose tools have no name of their own, and what the model calls.
_OF_KINDS: Mapping[str, str] = {kind.item: kind.type for kind in CLIENT_KINDS.values()}
_SPOKEN: Mapping[str, str] = {  # as OpenAI's errors name them
    _FUNCTION: "function call",
    _CUSTOM: "custom tool call",
    **{kind: kind.replace("_", " ") for kind in _OF_KINDS},
}
# The calls that an output answers. Codex gives back the outputs of all but custom tools as those of functions.
_ANSWERS: Mapping[str, Collection[str]] = {
    "function_call_output": (_FUNCTION, *_OF_KINDS),
    "custom_tool_call_output": (_CUSTOM,),
    "local_shell_call_output": ("local_shell_call",),
    "shell_call_output": ("shell_call",),
    "apply_patch_call_output": ("apply_patch_call",),
    "tool_search_output": ("tool_search_call",),
}
# Their tools are known by the type of the item alone: old ones, from other servers, may name no call.
_KNOW_THEIR_TOOL = frozenset(_ANSWERS) - {"function_call_output", "custom_tool_call_output"}


def is_output(kind: str) -> bool:
    """Whether items of a type say what came of a call; also of one that only other servers have."""
    return kind.endswith("_output")


def called_name(name: str, namespace: str | None) -> str:
    """Return what the model calls: a tool in a namespace by both names.

    A namespace of the tool's own name is none: so OpenAI marks a function that a search for tools has found.
    """
    return f"{namespace}.{name}" if namespace and namespace != name else name


class Call(NamedTuple):
    """A call that the model has made."""

    id: str  # the `call_id`, by which outputs name it
    type: str  # of its item
    called: str  # what the model called, with its namespace
    is_open: bool  # it must be answered


def call_of(item: JsonObject) -> Call | None:
    """Return the call that an item is; items that other servers have written may lack anything."""
    kind, call_id = str(item.get("type")), item.get("call_id")
    if not isinstance(call_id, str):
        return None
    if kind in _OF_KINDS:
        called = _OF_KINDS[kind]
    elif kind in (_FUNCTION, _CUSTOM) and isinstance(item.get("name"), str):
        namespace = item.get("namespace")
        called = called_name(str(item["name"]), namespace if isinstance(namespace, str) else None)
    else:
        return None
    open_to_client = may_be_answered(item) and not (item.get("async") is True or ran_in_container(item))
    return Call(call_id, kind, called, is_open=open_to_client)


def may_be_answered(item: JsonObject) -> bool:
    """Whether an output may follow a call: it was not cut, and has none in itself, where some clients put it."""
    return item.get("status") not in ("incomplete", "in_progress", "failed") and item.get("output") is None


def is_result(item: JsonObject) -> bool:
    """Whether an item says what came of a call: older clients do so in the call itself."""
    return is_output(str(item.get("type"))) or (call_of(item) is not None and item.get("output") is not None)


def comes_back(item: JsonObject) -> bool:
    """Whether an item is a call that has ended: in some dialects it is the call's result, with an output or without."""
    return item.get("type") in (_FUNCTION, _CUSTOM) and item.get("status") == "completed"


def written_calls(items: Iterable[JsonObject]) -> dict[str, JsonObject]:
    """Return what the calls among items called, and with what, by their ids: what `NamelessCall` leaves out."""
    return {
        call.id: {
            name: item[name] for name in ("name", "namespace", "arguments", "input") if item.get(name) is not None
        }
        for item in items
        if (call := call_of(item)) is not None
    }


def begins_turn(item: JsonObject) -> bool:
    """Whether an item is a message of the user: what the model calls behind it is of another turn."""
    return item.get("type") == "message" and item.get("role") == "user"


def types_answered(item: JsonObject) -> Collection[str]:
    """Return the types of the calls that an output may answer; none where the item is no output."""
    return _ANSWERS.get(str(item.get("type")), ())


HOSTED_ENVIRONMENTS = ("container_auto", "container_reference")  # those of a shell whose commands a server runs


def is_hosted_shell(tool: JsonObject) -> bool:
    """Whether a tool is a shell whose commands this server runs; all other shells are the client's."""
    environment = tool.get("environment")
    hosted = isinstance(environment, dict) and environment.get("type") in HOSTED_ENVIRONMENTS
    return hosted and tool.get("type") == "shell"


def ran_in_container(item: JsonObject) -> bool:
    """Whether an item is a call of a shell that a server has run: no client answers it."""
    environment = item.get("environment") if item.get("type") == "shell_call" else None
    return isinstance(environment, dict) and environment.get("type") in HOSTED_ENVIRONMENTS


def calls_of(items: Iterable[JsonObject]) -> Iterator[Call]:
    """Yield the calls among items."""
    return (call for item in items if (call := call_of(item)) is not None)


def _names_no_call(items: Sequence[JsonObject]) -> bool:
    """Whether items neither are calls nor answer one: nearly always, and known at once."""
    return not any("call_id" in item for item in items)


def no_call(call_id: str) -> bool:
    """Say that a call is not there: what a request that continues nothing knows of calls."""
    return False


def open_calls(
    items: Iterable[JsonObject],
    *,
    known: Mapping[str, str] | None = None,
    made: Callable[[str], bool] = no_call,
    in_background: Collection[str] = (),
) -> dict[str, str]:
    """Return the calls that must be answered and are not, by their ids, with the types of their items.

    They are among `items`, or among the `known` ones of the chain before them, which wait for an output; `made` says
    whether the chain has a call at all. Calls of the names `in_background` need no output. Several types of one id
    are a line each.
    """
    items, known = list(items), known or {}
    if not known and _names_no_call(items):
        return {}
    opened = [
        call
        for call in calls_of(items)
        # A call that the chain has and does not wait for was answered there: sent again, it stays answered.
        if call.is_open and call.called not in in_background and (call.id in known or not made(call.id))
    ]
    types = {call.id: call.type for call in opened}
    if len(types) < len(opened):
        for each in opened:
            types[each.id] = "\n".join(dict.fromkeys((*types[each.id].split("\n"), each.type)))
    left = without_answered({**known, **types}, items)
    inside = {call.id for item in items if item.get("output") is not None and (call := call_of(item)) is not None}
    left = {call_id: kind for call_id, kind in left.items() if call_id not in inside}
    return left if len(types) == len(opened) else {**left, **_short_of_outputs(items, types)}


def _short_of_outputs(items: Iterable[JsonObject], opened: Collection[str]) -> dict[str, str]:
    """Return the calls of `opened` ids that have none of the outputs of their id, with the types of their items."""
    sent: set[str] = set()  # what is sent twice is one call

    def waits(call: Call, item: JsonObject, turn: int) -> bool:
        if not call.is_open or call.id not in opened:
            return False
        seen = repr((turn, {name: value for name, value in item.items() if name not in ("id", "status")}))
        is_new = seen not in sent
        sent.add(seen)
        return is_new

    waiting, answered = _in_order(items, waits)
    return {call.id: call.type for call in waiting if call.id in answered}


def _in_order(
    items: Iterable[JsonObject], waits: Callable[[Call, JsonObject, int], bool]
) -> tuple[list[Call], set[str]]:
    """Return the calls that `waits` says wait for an output and that none among items answers, and all answered ids.

    `waits` is given a call, its item, and the number of its turn.
    """
    waiting, answered, turn = Unanswered[Call](), set[str](), 0
    for item in items:
        call, named = call_of(item), _answered_id(item)
        if begins_turn(item):
            waiting.next_turn()
            turn += 1
        elif call is not None:
            waiting.add(call.id, call, kind=call.type, waits=waits(call, item, turn))
        elif named is not None and waiting.answer(named, kinds=types_answered(item)):
            answered.add(named)
    return waiting.left(), answered


def names_called(items: Sequence[JsonObject]) -> dict[str, str]:
    """Return what the calls among items called, by their ids: the latest of an id.

    Where several of one id wait for outputs, it is the names of these in their order, each a line; behind a tab it has
    the type of the call's item, if they are of several types. `lines_called` reads it.
    """
    calls = list(calls_of(items))
    names = {call.id: [call.called] for call in calls}
    if len(names) < len(calls):
        several: dict[str, list[Call]] = {}
        for call in _in_order(items, lambda call, item, turn: may_be_answered(item))[0]:
            several.setdefault(call.id, []).append(call)
        for call_id, waiting in several.items():
            mixed = len({call.type for call in waiting}) > 1
            names[call_id] = [f"{call.called}\t{call.type}" if mixed else call.called for call in waiting]
    return {call_id: "\n".join(called) for call_id, called in names.items()}


def lines_called(called: str) -> Sequence[tuple[str, str]]:
    """Return the names in a value of `names_called`, each with the type of its call's item; "": any."""
    return [(name, kind) for name, _, kind in (line.partition("\t") for line in called.split("\n"))]


def without_answered(calls: Mapping[str, str], items: Iterable[JsonObject]) -> dict[str, str]:
    """Return those of the calls that no output among items answers; one that names no call answers all of its kind."""
    left = dict(calls)
    for item in items:
        kinds = _ANSWERS.get(str(item.get("type")))
        if kinds is None:
            continue
        named = _answered_id(item)
        if named in left:
            del left[named]
        # Older items of shells name no call, or only have an id of their own: then they answer what is open of their
        # kind.
        elif named is None or item.get("call_id") is None:
            left = {call_id: kind for call_id, kind in left.items() if kind not in kinds}
    return left


def check_outputs(
    items: Sequence[JsonObject],
    *,
    before: Sequence[JsonObject],
    known: Mapping[str, str],
    in_background: Collection[str],
    made: Callable[[str], bool] = no_call,
) -> None:
    """Raise `ApiError` for outputs among a request's items that answer nothing, and for calls without an output.

    `before` are the items of its conversation; the others are as in `open_calls`.
    """
    every = [*before, *items]
    if not known and _names_no_call(every):
        return
    types = {call_id: set(kind.split("\n")) for call_id, kind in known.items()}
    for call in calls_of(every):
        types.setdefault(call.id, set()).add(call.type)
    for index, item in enumerate(items):
        kinds, named = _ANSWERS.get(str(item.get("type"))), _answered_id(item)
        # An id that no call has is found when the item is rendered: the chain may have the call.
        if kinds is not None and named in types and types[named].isdisjoint(kinds):
            raise unknown_call(item, index)
    for call_id, kinds in open_calls(every, known=known, made=made, in_background=in_background).items():
        kind = kinds.partition("\n")[0]
        raise invalid_request(
            f"No tool output found for {_SPOKEN[kind]} {call_id}. Send it as an item of 'input'.", param="input"
        )


def answered_calls(items: Iterable[JsonObject], *, completed: bool = False) -> set[str]:
    """Return the ids of the calls of which items say what came, be it in an item of its own or in the call.

    `completed`: a call that comes back with this status says that nothing came of it.
    """
    return {
        call_id
        for item in items
        if isinstance(call_id := item.get("call_id"), str)
        and (is_output(str(item.get("type"))) or item.get("output") is not None or (completed and comes_back(item)))
    }


def unknown_call(item: JsonObject, index: int) -> ApiError:
    """The output of a call that was never made, or of another kind (400)."""
    spoken = str(item["type"]).removesuffix("_output").replace("_", " ")
    return invalid_request(
        f"No tool call found for {spoken} output with call_id {_answered_id(item)}. It is 'input[{index}]': send the "
        "call before it, or continue the response that made the call with 'previous_response_id'.",
        param="input",
    )


def needs_its_call(item: JsonObject) -> bool:
    """Whether an output says nothing without the call that it names."""
    kind = str(item.get("type"))
    return kind in _ANSWERS and kind not in _KNOW_THEIR_TOOL and _answered_id(item) is not None


def _answered_id(item: JsonObject) -> str | None:
    """Return the id of the call that an output names; a local shell's output has it as its own id, too."""
    names = ("call_id", "id") if item.get("type") == "local_shell_call_output" else ("call_id",)
    return next((str(item[name]) for name in names if isinstance(item.get(name), str)), None)


OMITTED_PARTS = {
    "input_image": IMAGE_OMITTED,
    "computer_screenshot": IMAGE_OMITTED,
    "image": IMAGE_OMITTED,
    "input_file": "[file omitted: this model cannot read files]",
    "input_audio": "[sound omitted: this model cannot hear]",
}
_PART_NOTES = frozenset(OMITTED_PARTS.values())


def body_and_omissions(value: object) -> tuple[Body, int]:
    """Return a tool's output as the model reads it, and how many notes stand in it for what the model cannot read."""
    if value is None:
        return "", 0
    if isinstance(value, str):
        return value, 0
    parts = value if isinstance(value, list) else [value]
    texts = [text for part in parts if (text := _text_of_part(part)) is not None]
    if len(texts) < len(parts):  # not a list of content parts
        rest = [each for each in parts if not isinstance(each, PicturePart)]
        return json_text(value if len(rest) == len(parts) else rest), 0
    return joined(texts), sum(text in _PART_NOTES for text in texts)


def joined(parts: Iterable[str | PicturePart]) -> Body:
    """Return texts line by line, and pictures among them as models are used to them: with nothing around."""
    body: list[str | PicturePart] = []
    for kind, run in groupby(parts, key=type):
        if kind is str:
            body.append("\n".join(map(str, run)))
        else:
            body += run
    # One text, or none: nearly always.
    return body if any(isinstance(part, PicturePart) for part in body) else "".join(map(str, body))


def _text_of_part(part: object) -> str | PicturePart | None:
    """Return the text of a content part, None for what is not such a part."""
    if isinstance(part, PicturePart):
        return part
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        return None
    note = OMITTED_PARTS.get(part["type"])
    if note is not None:
        return note
    return next((part[name] for name in ("text", "refusal", "logs") if isinstance(part.get(name), str)), None)
