"""What the Codex CLI wants to know of a model: its catalogue at `GET /v1/models?client_version=…`.

Codex reads a catalogue whole or not at all: one entry without a field that it requires, and every model of the
provider is unknown to it. It says then that it has no metadata, and offers the model no apply_patch.
"""

from collections.abc import Iterable
from typing import NamedTuple

from typing_extensions import TypedDict

from responses_app.protocol.errors import JsonObject

SHOWN_TOKENS = 10_000  # of a command's output, at most; Codex cuts the middle out of a longer one
SHOWN_SHARE = 8  # and no more than an eighth of the model's length
EFFORTS = {
    "low": "Answers fast, with little thought",
    "medium": "Thinks as long as everyday work needs",
    "high": "Thinks longest, for hard problems",
}
INSTRUCTIONS = """\
You are a coding agent in the Codex CLI. You and the user share a computer: you work in a folder of theirs, by calling \
tools, until what they asked for is done.

# Work
- Find out before you change anything: read the files that matter, search with `rg` where it is installed. Never guess \
what a file says.
- Fix the cause of a problem, and not more than was asked for. Keep to the style of the code around you.
- Leave alone what you did not make: changes that you find in the folder are the user's. Do not commit or branch \
unless you are asked to.
- Run the tests or the program afterwards, where there are any, and read what comes out. If you could not check \
something, say so.
- A file named AGENTS.md holds the user's rules for its folder and everything below; the one deepest down decides, and \
what the user says to you counts more.
- Go on by yourself. Ask only where the answer changes what you would do and you cannot find it out.
- A command that is refused is the user's decision: do not try to reach the same by another way. Say what you could \
not do.

# Tools
- `exec_command` runs a command in a shell. Several short commands are better than one that does everything.
{patching}
# Answers
Say in a line or two what you are about to do before a longer piece of work. In the end say what you changed, where \
(`path/file.py:12`), and what you found when you checked it. Be brief and plain. Do not repeat files that you wrote: \
the user can open them.
"""


PATCHES = """\
- `apply_patch` is how you write, change, move and delete files. Its input is the patch itself, not JSON:

*** Begin Patch
*** Add File: path/of/a/new_file.txt
+every line of it begins with a plus
*** Update File: path/of/a/file.py
*** Move to: path/of/a/renamed_file.py
@@ def of_a_function():
 three lines before what changes, each behind one space
-a line that goes
+a line that comes
 three lines after it
*** Delete File: path/of/an/old_file.txt
*** End Patch

Paths are relative. `@@` names the function or class where the lines alone could be found more than once; without it \
there is none. `*** Move to:` stands only where a file gets another name.
"""
NO_PATCHES = "- There is no tool for files: write, change, move and delete them by commands, too.\n"


class ModelCatalogue(TypedDict):
    """The same as the Codex CLI reads it, which asks with `client_version`."""

    models: list[JsonObject]


class CatalogueModel(NamedTuple):
    """A model as the catalogue describes it."""

    name: str
    length: int | None  # in tokens; None: not known yet
    sees: bool
    is_held: bool = True  # its engine takes the grammar of apply_patch


def catalogue(models: Iterable[CatalogueModel]) -> ModelCatalogue:
    """Return Codex's catalogue of models."""
    return {"models": [_entry(model, rank) for rank, model in enumerate(models)]}


def _entry(model: CatalogueModel, rank: int) -> JsonObject:
    shown = SHOWN_TOKENS if model.length is None else min(SHOWN_TOKENS, model.length // SHOWN_SHARE)
    return {
        "slug": model.name,
        "display_name": model.name,
        "description": "Served by respsite",
        "visibility": "list",
        "supported_in_api": True,
        "priority": rank,
        "upgrade": None,
        # Required as a text, though an empty one would do: without it Codex has no catalogue at all.
        "base_instructions": INSTRUCTIONS.replace("{patching}\n", PATCHES if model.is_held else NO_PATCHES),
        "context_window": model.length,
        "truncation_policy": {"mode": "tokens", "limit": shown},
        "input_modalities": ["text", "image"] if model.sees else ["text"],
        "default_reasoning_level": "medium",
        "supported_reasoning_levels": [{"effort": effort, "description": EFFORTS[effort]} for effort in EFFORTS],
        "supports_reasoning_summaries": True,
        "support_verbosity": False,
        "default_verbosity": None,
        "shell_type": "unified_exec",
        # A custom tool with a Lark grammar; there is no other any more.
        "apply_patch_tool_type": "freeform" if model.is_held else None,
        "supports_parallel_tool_calls": True,
        "experimental_supported_tools": [],
    }
