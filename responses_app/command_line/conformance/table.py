"""All checks, group by group."""

from collections.abc import Sequence

from responses_app.command_line.conformance.asking.checks import Check, Group
from responses_app.command_line.conformance.groups import (
    background,
    chats,
    conversations,
    items,
    json_answers,
    messages,
    models,
    refusals,
    state,
    streams,
    structured,
    tools,
    websocket,
)

GROUPS: Sequence[Group] = (
    models.GROUP,
    json_answers.GROUP,
    streams.GROUP,
    background.GROUP,
    state.GROUP,
    conversations.GROUP,
    items.GROUP,
    tools.GROUP,
    structured.GROUP,
    refusals.GROUP,
    websocket.GROUP,
    chats.GROUP,
    messages.GROUP,
)
CHECKS: Sequence[Check] = tuple(check for group in GROUPS for check in group.checks)


def chosen(words: Sequence[str]) -> list[Check]:
    """Return the checks that these names of groups or of checks mean, all of them without any.

    Raises `LookupError` with a name that means none.
    """
    for word in words:
        if not any(_means(word, check) for check in CHECKS):
            raise LookupError(word)
    return [check for check in CHECKS if not words or any(_means(word, check) for word in words)]


def _means(word: str, check: Check) -> bool:
    return word in (check.name, check.name.partition(".")[0])
