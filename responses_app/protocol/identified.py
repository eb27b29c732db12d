"""Input items as they are kept and listed: each with an id of its own, in the form in which OpenAI gives them back."""

from collections.abc import Callable, Container, Sequence

from responses_app.protocol import ids
from responses_app.protocol.client_kinds import CLIENT_KINDS
from responses_app.protocol.errors import JsonObject

MAX_ID = 64  # characters; longer ones, which some clients make, get another id
PREFIXES = {
    "message": ids.MESSAGE,
    "reasoning": ids.REASONING,
    "function_call": ids.FUNCTION_CALL,
    "function_call_output": ids.FUNCTION_CALL_OUTPUT,
    "custom_tool_call": ids.CUSTOM_TOOL_CALL,
    **{kind.item: kind.prefix for kind in CLIENT_KINDS.values()},
    "compaction": ids.COMPACTION,
}
WITH_STATUS = frozenset(("message", "function_call", "function_call_output"))


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
        whole = {**item, "id": own}
        if item["type"] in WITH_STATUS and not item.get("status"):
            whole["status"] = "completed"
        kept.append(whole)
    return kept


def _usable(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_ID and value.isascii() and value.isprintable()
