"""Tools that Anthropic defines and the client runs: its models know them by their types, models here as functions.

bash_20250124           {"command": "ls"}
text_editor_20250728    {"command": "view", "path": "a.py"}
memory_20250818         {"command": "view", "path": "/memories"}
"""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.fields import ClientModel
from responses_app.protocol.messages.server_blocks import CACHED

IDLE = {
    **CACHED,
    "defer_loading": "The model is shown all tools.",
    "allowed_callers": "The model calls them itself.",
    "input_examples": "Write them into the description.",
}
TOLD = ("defer_loading", "input_examples")


class KnownTool(ClientModel):
    """One of these tools."""

    type: str
    name: str = Field(min_length=1, max_length=64)
    strict: bool | None = None

    idle: ClassVar = {**IDLE, "max_characters": "The client shows as much as it likes."}
    told: ClassVar = TOLD


def _object(required: str, **properties: JsonObject) -> JsonObject:
    return {"type": "object", "properties": properties, "required": required.split(), "additionalProperties": False}


def _text(about: str) -> JsonObject:
    return {"type": "string", "description": about}


def _command(*names: str) -> JsonObject:
    return {"type": "string", "enum": list(names)}


_PATH = _text("The path of a file or a folder.")
_RANGE: JsonObject = {"type": "array", "items": {"type": "integer"}, "description": "First and last line; -1: the end."}
_LINE: JsonObject = {"type": "integer", "description": "Of `insert`: the line behind which; 0: at the beginning."}
_EDITS: Mapping[str, JsonObject] = {
    "path": _PATH,
    "view_range": _RANGE,
    "file_text": _text("Of `create`: what the file is to hold."),
    "old_str": _text("Of `str_replace`: what stands there, exactly and once."),
    "new_str": _text("Of `str_replace`: what is to stand there."),
    "insert_line": _LINE,
}
_EDITS_BY = ("view", "create", "str_replace", "insert")
_BASH = _object("", command=_text("What to run."), restart={"type": "boolean", "description": "Begin the shell anew."})
_INSERTED = {"insert_text": _text("Of `insert`: the text.")}
_MEMORY = _object(
    "command",
    command=_command(*_EDITS_BY, "delete", "rename"),
    **_EDITS,
    **_INSERTED,
    old_path=_text("Of `rename`: what is renamed."),
    new_path=_text("Of `rename`: its new path."),
)
_ABOUT_BASH = "Run commands in a shell, which keeps its state from call to call."
_ABOUT_EDITOR = "View, create and edit files."
_ABOUT_MEMORY = "Keep what is worth remembering in files under /memories. Look there before you begin."
_Editor = tuple[str, str, JsonObject]
# By the type of a tool: its name, what the model is told of it, and the schema of its calls.
KNOWN_TOOLS: Mapping[str, _Editor] = {
    **dict.fromkeys(("bash_20241022", "bash_20250124"), ("bash", _ABOUT_BASH, _BASH)),
    **{
        kind: (name, _ABOUT_EDITOR, _object("command path", command=_command(*_EDITS_BY, *undo), **_EDITS, **inserted))
        for kind, name, undo, inserted in (
            ("text_editor_20241022", "str_replace_editor", ["undo_edit"], {}),
            ("text_editor_20250124", "str_replace_editor", ["undo_edit"], {}),
            ("text_editor_20250429", "str_replace_based_edit_tool", [], {}),
            ("text_editor_20250728", "str_replace_based_edit_tool", [], _INSERTED),
        )
    },
    "memory_20250818": ("memory", _ABOUT_MEMORY, _MEMORY),
}
