"""What these pages need of Sphinx: what is made of the code, and a word under examples that no test runs.

A line `<!-- generated: NAME -->` becomes the Markdown of that name; `GENERATED` has what there is. Nothing of it is
kept in a file, so nothing of it can be old.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from docs.extension import commands, dialects, errors, events, fields, metrics, modules, paths, policy, settings

GENERATED: Mapping[str, Callable[[], str]] = {
    "settings": settings.markdown,
    "events": events.events,
    "frames": events.frames,
    "dialect-rules": dialects.markdown,
    "error-codes": errors.requests,
    "error-types": errors.types,
    "response-codes": errors.in_responses,
    "incomplete-reasons": errors.incomplete,
    "steering-codes": errors.in_steering,
    "image-codes": errors.in_images,
    "file-codes": errors.in_files,
    "close-codes": errors.closes,
    "metrics": metrics.markdown,
    "modules": modules.markdown,
    "fields": fields.bodies,
    "tool-fields": fields.tools,
    "item-fields": fields.items,
    "message-fields": fields.messages,
    "anthropic-message-fields": fields.anthropic_messages,
    "format-fields": fields.formats,
    "includes": fields.includes,
    "paths": paths.markdown,
    "not-served": paths.not_served,
    "program": commands.program,
    "manage-commands": commands.manage,
    "make-targets": commands.targets,
}
NOT_RUN = "not-run: "  # behind the language of a block; what follows says why
_MARK = re.compile(r"^<!-- generated: ([a-z-]+) -->$", re.MULTILINE)
_NOT_RUN = re.compile(rf"^( *)```(\w+) +{NOT_RUN}([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def filled(text: str) -> str:
    """Return a page's Markdown as Sphinx reads it. Raises `KeyError` for a name that is not known."""
    text = _MARK.sub(lambda found: GENERATED[found[1]](), text)
    return _NOT_RUN.sub(r"\1```\2\n\4\1```\n\n\1*The tests do not run this: \3.*", text)


def setup(app: Any) -> dict[str, object]:
    """Tell Sphinx of it."""
    app.connect("source-read", _fill)
    app.connect("build-finished", _outsource)
    return {"parallel_read_safe": True, "version": "1"}


def _fill(app: Any, _page: str, source: list[str]) -> None:
    if _MARK.search(source[0]):
        app.env.note_reread()  # by each build: the code may say something else by then
    source[0] = filled(source[0])


def _outsource(app: Any, failed: Exception | None) -> None:
    if failed is None and app.builder.name == "html":
        policy.outsource(Path(app.outdir))
