"""The kinds of tools that clients execute and that OpenAI defines: a shell, a patch, a search for tools.

The model calls each as a function of its name. `ClientKind` says what it is told of that function, and how the
arguments of a call become the fields of the call's own item.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import orjson
from pydantic import Field, TypeAdapter, ValidationError

from responses_app.protocol import ids
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.fields import ClientModel


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


CallType = Literal["local_shell_call", "shell_call", "apply_patch_call", "tool_search_call"]


@dataclass(frozen=True, slots=True)
class ClientKind:
    """One kind. `type` is that of the tool and the function's name, `item` that of its calls, whose ids have `prefix`.

    `schema` describes the arguments of a call, `shown` does so to the model; both are JSON text. `fields` makes the
    item's own fields of them, None where they do not fit.
    """

    type: str
    item: CallType
    prefix: str
    description: str
    schema: str
    shown: str
    fields: Callable[[object], JsonObject | None]

    def read(self, arguments: str) -> JsonObject | None:
        """Return the item's own fields for these arguments, None where they do not fit."""
        try:
            return self.fields(orjson.loads(arguments))
        except (orjson.JSONDecodeError, ValidationError):
            return None


def _local_shell(arguments: object) -> JsonObject:
    return {"action": LocalShellAction.model_validate(arguments).model_dump()}


def _shell(arguments: object) -> JsonObject:
    return {"action": ShellAction.model_validate(arguments).model_dump(), "environment": None}


_OPERATION: TypeAdapter[WriteFile | DeleteFile] = TypeAdapter(PatchOperation)


def _apply_patch(arguments: object) -> JsonObject:
    return {"operation": _OPERATION.validate_python(arguments).model_dump()}


def _tool_search(arguments: object) -> JsonObject | None:
    return {"execution": "client", "arguments": arguments} if isinstance(arguments, dict) else None


def _object(properties: JsonObject, *required: str) -> JsonObject:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _text(description: str = "") -> JsonObject:
    return {"type": "string", "description": description} if description else {"type": "string"}


def _json(value: object) -> str:
    return orjson.dumps(value).decode()


_TEXTS: JsonObject = {"type": "array", "items": {"type": "string"}}
_TIMEOUT: JsonObject = {"type": "integer", "description": "milliseconds"}
_LOCAL_SHELL = _json(
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
_SHELL = _json(
    _object(
        {
            "commands": {**_TEXTS, "description": "command lines, each run by itself"},
            "timeout_ms": _TIMEOUT,
            "max_output_length": {"type": "integer", "description": "characters"},
        },
        "commands",
    )
)
_DIFF = (
    "lines that are added begin with +, lines that are removed with -, lines around them with a space; "
    "a line @@ with the name of a class or function says where; all lines of a new file begin with +"
)
_PATCH = _json(
    {
        "anyOf": [
            _object({"type": {"const": kind}, "path": _text(), "diff": _text()}, "type", "path", "diff")
            for kind in ("create_file", "update_file")
        ]
        + [_object({"type": {"const": "delete_file"}, "path": _text()}, "type", "path")]
    }
)
_SHOWN_PATCH = _json(
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
_SEARCH = _json(_object({"query": _text("what the tool is to do")}, "query"))

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
            _local_shell,
        ),
        ClientKind(
            "shell",
            "shell_call",
            ids.SHELL_CALL,
            "Runs command lines in the user's shell.",
            _SHELL,
            _SHELL,
            _shell,
        ),
        ClientKind(
            "apply_patch",
            "apply_patch_call",
            ids.APPLY_PATCH_CALL,
            "Creates, changes or deletes a file of the user.",
            _PATCH,
            _SHOWN_PATCH,
            _apply_patch,
        ),
        ClientKind(
            "tool_search",
            "tool_search_call",
            ids.TOOL_SEARCH_CALL,
            "Looks for more tools; those that it finds can be called afterwards.",
            _SEARCH,
            _SEARCH,
            _tool_search,
        ),
    )
}
