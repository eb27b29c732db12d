"""What cannot fit a model's context however it is cut into tokens: refused before anybody tokenises it.

Tokenising takes up to 2 µs a character, which is a minute for the largest body. No token has more bytes than the
longest one of the vocabulary, so a text has at least as many tokens as it has characters, divided by that.
"""

from collections.abc import Sequence

from engine.formats.base import ModelFormat
from responses_app.protocol.errors import JsonObject, context_length_exceeded
from responses_app.protocol.items.items import (
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    Message,
    Part,
    PassedThrough,
    TextPart,
)
from responses_app.protocol.items.tool_items import LateFunctions, ToolCall, ToolItem, read_tool_item
from responses_app.protocol.prompt.prompt import Items, places_replaced
from responses_app.protocol.requests.requests import CreateRequest


def check_can_fit(characters: int, model_format: ModelFormat, max_model_len: int, *, truncated: bool = False) -> None:
    """Refuse a prompt of so many characters that cannot fit. Raises `ApiError` (`context_length_exceeded`)."""
    longest = model_format.longest_token if characters >= max_model_len else None  # what is short is not looked up
    if longest is not None and characters // longest >= max_model_len:
        raise context_length_exceeded(characters // longest, max_model_len, truncated=truncated, at_least=True)


def check_request_can_fit(
    request: CreateRequest, before: Items, own: Items, model_format: ModelFormat, max_model_len: int
) -> None:
    """Refuse a request whose instructions and items cannot fit. Raises `ApiError` (`context_length_exceeded`).

    Where older messages may be left out (`truncation`), the instructions and the last item count.
    """
    truncated = request.truncation == "auto"
    size = len(request.instructions or "") + sum(len(each.description) for each in request.offered_functions)
    size += characters_of(Items(own.parsed[-1:], own.raw[-1:]) if truncated else _all(before, own))
    check_can_fit(size, model_format, max_model_len, truncated=truncated)


def text_size(items: Items) -> int:
    """Return how many characters the messages among items have; quick, as it is asked on the event loop."""
    parts = (part for item in items.parsed if isinstance(item, Message | FunctionCallOutput) for part in _parts(item))
    return sum(len(part.text) for part in parts if isinstance(part, TextPart))


def _parts(item: Message | FunctionCallOutput) -> Sequence[Part]:
    return item.content if isinstance(item, Message) else item.output


def characters_of(items: Items) -> int:
    """Return how many characters of a prompt these items are at least: without reasoning, which may be left out."""
    replaced = places_replaced(items.parsed)
    each = enumerate(zip(items.parsed, items.raw, strict=True))
    return sum(_characters(item, raw) for place, (item, raw) in each if place not in replaced)


def _all(before: Items, own: Items) -> Items:
    return Items([*before.parsed, *own.parsed], [*before.raw, *own.raw])


def _characters(item: InputItem, raw: JsonObject) -> int:
    match item:
        case Message() | FunctionCallOutput():
            return text_size(Items([item]))
        case FunctionCall():
            return len(item.arguments)
        case PassedThrough():
            return sum(map(_characters_read, read_tool_item(raw, lambda _: None)))
    return 0


def _characters_read(read: ToolItem) -> int:
    match read:
        case ToolCall():
            return len(read.arguments)
        case LateFunctions():
            return 0
    return len(read.text)
