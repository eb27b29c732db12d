"""The input of a `response.steer`: messages of the user, and nothing else."""

from collections.abc import Mapping

from responses_app.protocol.errors import JsonObject

_STEER_FIELDS = frozenset(("type", "previous_response_id", "input"))
_MESSAGE_FIELDS = frozenset(("type", "role", "content"))
_PARTS: Mapping[str, str | None] = {"input_text": "text", "input_image": None, "input_file": None}  # and what they need


class Refused(Exception):
    """A word to a response that changes nothing: its code and a sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def user_messages(frame: JsonObject) -> list[JsonObject]:
    """Return the messages of a `response.steer`, as items. Raises `Refused`."""
    extra = sorted(frame.keys() - _STEER_FIELDS)
    if extra:
        message = f"A steer takes 'type', 'previous_response_id' and 'input' only, not '{extra[0][:80]}'."
        raise Refused("invalid_input", message)
    if not isinstance(frame.get("previous_response_id"), str):
        raise Refused("invalid_input", "'previous_response_id' must be the id of the response to steer.")
    given = frame.get("input")
    if not isinstance(given, str | list) or not given:
        raise Refused("invalid_input", "'input' must be a string that says something, or an array of messages.")
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    for index, message in enumerate(given):
        if not _is_of_user(message):
            raise Refused(
                "invalid_input",
                f"'input[{index}]' must be a message of the user: 'role' and 'content' (a string, or parts of type "
                "'input_text', 'input_image' or 'input_file').",
            )
    return [{**message, "type": "message"} for message in given]


def _is_of_user(message: object) -> bool:
    if not isinstance(message, dict) or message.keys() - _MESSAGE_FIELDS:
        return False
    if message.get("role") != "user" or message.get("type", "message") != "message":
        return False
    content = message.get("content")
    if isinstance(content, str):
        return bool(content)
    return isinstance(content, list) and bool(content) and all(map(_is_part, content))


def _is_part(part: object) -> bool:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str) or part["type"] not in _PARTS:
        return False
    text = _PARTS[part["type"]]
    return text is None or isinstance(part.get(text), str)
