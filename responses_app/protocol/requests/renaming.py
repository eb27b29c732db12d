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

_QUOTED = re.compile(r"'([a-z_.\[\]\d]+)'")  # a name of a field in a message, such as 'input[3].content'
_ITEM = re.compile(r"\binput\[(\d+)\]")  # the item that a name begins with


@dataclass(frozen=True, slots=True)
class OwnNames:
    """The names of an API."""

    fields: Sequence[tuple[str, str]]  # the longer ones first: each is replaced where it begins a name
    # What only a client of the Responses API can do, and what is said in its place.
    advice: Sequence[tuple[str, str]] = ()


def in_own_names(error: ApiError, names: OwnNames, item_name: Callable[[int, str], str]) -> ApiError:
    """Return an error as a client of the other API is to read it.

    `item_name(index, rest)` is what stands for an item of `input`, and for the `rest` of the name behind it.
    """
    if error.param is not None:
        error.param = _renamed(error.param, names, item_name)
    # Before the names: an advice that is exchanged has old ones in it.
    for old, new in names.advice:
        error.message = error.message.replace(old, new)
    error.message = _QUOTED.sub(lambda match: f"'{_renamed(match.group(1), names, item_name)}'", error.message)
    return error


def _renamed(name: str, names: OwnNames, item_name: Callable[[int, str], str]) -> str:
    item = _ITEM.match(name)
    if item is not None:
        return item_name(int(item.group(1)), name[item.end() :])
    for old, new in names.fields:
        if name == old or name.startswith((f"{old}.", f"{old}[")):
            return new + name[len(old) :]
    return name
