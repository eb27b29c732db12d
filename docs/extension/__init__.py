"""The parts of the pages that are made from the code, and a line under examples that no test runs.

A part lies in its page between two comments, so that the page can be read without building it:

    <!-- generated: NAME -->
    …
    <!-- end of NAME -->

`python -m docs.extension` writes all parts anew, and `make docs` does so first. A test compares them with the code.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from docs.extension import (
    audit,
    commands,
    dialects,
    errors,
    events,
    fields,
    metrics,
    modules,
    paths,
    policy,
    search,
    settings,
)

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
    "queries": fields.queries,
    "tool-fields": fields.tools,
    "item-fields": fields.items,
    "message-fields": fields.messages,
    "anthropic-message-fields": fields.anthropic_messages,
    "format-fields": fields.formats,
    "includes": fields.includes,
    "sampling-fields": fields.sampling,
    "paths": paths.markdown,
    "not-served": paths.not_served,
    "program": commands.program,
    "manage-commands": commands.manage,
    "audit-actions": audit.actions,
    "roles": audit.roles,
    "make-targets": commands.targets,
}
NOT_RUN = "not-run: "  # behind the language of a block; what follows says why
_PART = re.compile(r"^<!-- generated: ([a-z-]+) -->\n(?:.*?^<!-- end of \1 -->\n)?", re.MULTILINE | re.DOTALL)
_NOT_RUN = re.compile(rf"^( *)```(\w+) +{NOT_RUN}([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def written(text: str) -> str:
    """Return a page with its generated parts as the code has them now. Raises `KeyError` for an unknown name."""
    return _PART.sub(_part, text)


def _part(found: re.Match[str]) -> str:
    name = found[1]
    return f"<!-- generated: {name} -->\n{GENERATED[name]().strip()}\n\n<!-- end of {name} -->\n"


def explained(text: str) -> str:
    """Return a page with a line under each example that no test runs."""
    return _NOT_RUN.sub(r"\1```\2\n\4\1```\n\n\1*The tests do not run this: \3.*", text)


def setup(app: Any) -> dict[str, object]:
    """Tell Sphinx of it."""
    app.connect("source-read", _fill)
    app.connect("build-finished", _outsource)
    return {"parallel_read_safe": True, "version": "1"}


def _fill(_app: Any, page: str, source: list[str]) -> None:
    source[0] = search.head_of(page) + explained(source[0])


def _outsource(app: Any, failed: Exception | None) -> None:
    if failed is None and app.builder.name == "html":
        policy.outsource(Path(app.outdir))
