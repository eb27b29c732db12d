"""Input items as they are kept: each with an id of its own; `item_resources` says how they are given back."""

from collections.abc import Callable, Container, Sequence

from responses_app.protocol import ids
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.client_kinds import CLIENT_KINDS

MAX_ID = 64  # characters; longer ones, which some clients make, get another id
PREFIXES: dict[str, str] = {
    "message": ids.MESSAGE,
    "reasoning": ids.REASONING,
    "function_call": ids.FUNCTION_CALL,
    "function_call_output": ids.FUNCTION_CALL_OUTPUT,
    "custom_tool_call": ids.CUSTOM_TOOL_CALL,
    **{kind.item: kind.prefix for kind in CLIENT_KINDS.values()},
    "compaction": ids.COMPACTION,
}


def identified(
    items: Sequence[JsonObject], new_id: Callable[[str], str], *, taken: Container[str] = ()
) -> list[JsonObject]:
    """Return items that each have an id; one that is not usable, or `taken`, or there twice, is replaced."""
    seen: set[str] = set()
    kept = []
    for item in items:
        own = item.get("id")
        if not _usable(own) or own in seen or own in taken:
            own = new_id(PREFIXES.get(str(item["type"]), ids.ITEM))
        seen.add(str(own))
        kept.append({**item, "id": own})
    return kept


def _usable(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_ID and value.isascii() and value.isprintable()
