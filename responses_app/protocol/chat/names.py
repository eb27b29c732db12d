"""Errors of a request, in the names of Chat Completions: a chat is read as a request of the Responses API.

Where that is refused, its fields have other names than those that the client has sent: `input[3]` is a message,
`text.format` is `response_format`. Example: items 0 and 1 of message 4 are its thought and its call; then
`input[1].name` becomes `messages[4].name`.
"""

import re
from collections.abc import Sequence

from responses_app.protocol.errors import ApiError

_QUOTED = re.compile(r"'([a-z_.\[\]\d]+)'")  # a name of a field in a message
_ITEM = re.compile(r"\binput\[(\d+)\]")
_FIELDS = (  # the longer ones first: each is replaced where it begins a name
    ("text.format.type", "response_format.type"),
    ("text.format", "response_format.json_schema"),
    ("text.verbosity", "verbosity"),
    ("reasoning.effort", "reasoning_effort"),
    ("max_output_tokens", "max_completion_tokens"),
    ("instructions", "messages"),
    ("input", "messages"),
)
_OTHERWISE = (  # advice that only a client of the Responses API can follow
    (", or continue the response that made the call with 'previous_response_id'", ""),
    (", or continue a response with 'previous_response_id' and only the new ones", ""),
    ("Send it as an item of 'input'.", "Send it as a message of the role 'tool' behind that of the call."),
    ("Shorten the input, start a new chain, or set 'truncation' to 'auto'.", "Send fewer or shorter messages."),
)


def in_chat_names(error: ApiError, places: Sequence[int]) -> ApiError:
    """Return an error as a client of Chat Completions is to read it; `places` has each item's message."""
    error.param = None if error.param is None else _renamed(error.param, places)
    for old, new in _OTHERWISE:
        error.message = error.message.replace(old, new)
    error.message = _QUOTED.sub(lambda found: f"'{_renamed(found.group(1), places)}'", error.message)
    return error


def _renamed(name: str, places: Sequence[int]) -> str:
    item = _ITEM.match(name)
    if item is not None:
        index = int(item.group(1))
        place = places[index] if index < len(places) else index
        return f"messages[{place}]{name[item.end() :]}"
    for old, new in _FIELDS:
        if name == old or name.startswith(f"{old}."):
            return new + name[len(old) :]
    return name
