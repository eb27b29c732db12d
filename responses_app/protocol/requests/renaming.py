"""Errors of a request in the names of another API than the Responses API.

A chat, or a request of Anthropic's Messages API, is read as a request of the Responses API. Where that is refused, its
fields have other names than those that the client has sent: `input[3]` is a message, `text.format` is
`response_format`. Example: items 0 and 1 of message 4 are its thought and its call; then `input[1].name` becomes
`messages[4].name`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from responses_app.protocol.errors import ApiError

# A name of a field in a message, such as 'input[3].content'; a tool may have that name, too.
_QUOTED = re.compile(r"(?<!\btool )'([a-z_.\[\]\d]+)'")
_PLACE = re.compile(r"\b(input|tools)\[(\d+)\]")  # the item, or the tool, that a name begins with


@dataclass(frozen=True, slots=True)
class OwnNames:
    """The names of an API."""

    fields: Sequence[tuple[str, str]]  # the longer ones first: each is replaced where it begins a name
    # What only a client of the Responses API can do, and what is said in its place.
    advice: Sequence[tuple[str, str]] = ()


NameOf = Callable[[int, str], str]  # by the index of an item or a tool, and the rest of a name behind it


def in_own_names(
    error: ApiError, names: OwnNames, item_name: NameOf | None = None, tool_name: NameOf | None = None
) -> ApiError:
    """Return an error as a client of the other API is to read it.

    `item_name` gives the name of an item of `input`, `tool_name` that of one of the tools, where these have
    other names, too.
    """

    def renamed(name: str) -> str:
        place = _PLACE.match(name)
        name_of = tool_name if place is not None and place[1] == "tools" else item_name
        if place is not None and name_of is not None:
            return name_of(int(place[2]), name[place.end() :])
        for old, new in names.fields:
            if name == old or name.startswith((f"{old}.", f"{old}[")):
                return new + name[len(old) :]
        return name

    if error.param is not None:
        error.param = renamed(error.param)
    # Before the names: an advice that is exchanged has old ones in it.
    for old, new in names.advice:
        error.message = error.message.replace(old, new)
    error.message = _QUOTED.sub(lambda match: f"'{renamed(match.group(1))}'", error.message)
    return error
