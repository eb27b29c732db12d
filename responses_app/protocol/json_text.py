"""JSON as text: one line to every reader as this server writes it, and within bounds as clients send it.

Python's `str.splitlines`, and with it httpx's `iter_lines`, ends a line at three characters that JSON may have as they
are: U+0085, U+2028 and U+2029. So the lines that this server writes, events and JSON Lines, have them as escapes, which
are the same text to every reader of JSON. Those below U+0020 are always escaped in JSON.

The JSON of clients is bounded by how many values it holds, and by how large it is once it is written again. Values are
counted before a text is parsed: a megabyte of `[],` becomes 60 MB of objects. Nesting needs no bound there, since
orjson stops at 1024 levels. But it writes 254 only, so JSON that can be read cannot always be written again, inside
events and stores: `json_size` refuses that.
"""

from collections.abc import Iterator, Mapping

from engine import orjson
from responses_app.protocol.errors import (
    ApiError,
    JsonObject,
    array_too_long,
    dotted,
    invalid_request,
    invalid_value,
)

PIECE = 1024 * 1024  # bytes looked at in one step, so that other threads get their turn between two
MAX_NESTING = 240  # levels of objects and arrays in a request: what is read, rendered and written again, all of it
MAX_TOOLS = 4096  # of one request, those in a namespace not counted
_SILENT = bytes(set(range(256)) - set(b'",[{'))  # every byte but those that say how many values there are
# As UTF-8 has them: no other character has these bytes in it, and outside of its strings JSON is ASCII.
_ENDS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))


def dumps(value: object) -> bytes:
    """Return a value as JSON on one line. Raises `orjson.JSONEncodeError` where it cannot be written."""
    json = orjson.dumps(value)
    # On the path of every token, most of which are ASCII.
    return json if json.isascii() else one_line(json)


def one_line(json: bytes) -> bytes:
    """Return JSON without white space between its values as one line to every reader."""
    # Most texts have none of these bytes, and looking for one is quicker than for two.
    if not json.isascii() and (0xE2 in json or 0xC2 in json):
        for raw, escape in _ENDS:
            json = json.replace(raw, escape)
    return json


def loads_bounded(content: bytes, *, max_values: int) -> object:
    """Parse a JSON text. Raises `orjson.JSONDecodeError`, and `ApiError` for more values than may be."""
    if has_more_values(content, max_values):
        raise too_many_values(max_values)
    return orjson.loads(content)


def has_more_values(content: bytes, limit: int) -> bool:
    """Say whether a JSON text has more than `limit` values.

    Each begins behind a comma or a bracket, so these are counted (an empty array or object counts twice): in the whole
    text first, and where they are many, outside its strings. For a text that is not JSON the answer means nothing.
    """
    pieces = (content[start : start + PIECE] for start in range(0, len(content), PIECE))
    if sum(piece.count(b",") + piece.count(b"[") + piece.count(b"{") for piece in pieces) <= limit:
        return False
    values, in_string = 0, False
    for piece in _without_escapes(content):
        # Of `{"a,b":[1,2]}` this leaves `{","[,`: split at the quotes, every second run lies inside a string.
        runs = piece.translate(None, _SILENT).split(b'"')
        values += sum(map(len, runs[1::2] if in_string else runs[::2]))
        if values > limit:
            return True
        # An odd number of quotes: the next piece begins on the other side of one.
        in_string ^= len(runs) % 2 == 0
    return False


def check_lengths(data: JsonObject, *, max_items: int) -> None:
    """Refuse a request whose arrays are longer than this server takes."""
    of_input = max_items, " (MAX_INPUT_ITEMS)"
    for name, limit, setting in (
        ("input", *of_input),
        ("messages", *of_input),
        ("previous_input_messages", *of_input),
        ("tools", MAX_TOOLS, ""),
    ):
        value = data.get(name)
        if isinstance(value, list) and len(value) > limit:
            raise array_too_long(name, value, limit, setting)


def too_many_values(limit: int) -> ApiError:
    """A JSON text of more values than one request may have."""
    return invalid_request(
        f"The request has more than {limit} JSON values (MAX_JSON_VALUES). Send fewer items, or continue a response "
        "with 'previous_response_id' and only the new ones.",
        code="request_too_complex",
    )


def _without_escapes(content: bytes) -> Iterator[bytes]:
    """Yield the text in pieces, without its escaped backslashes and quotes; no escape is cut in two."""
    rest = b""
    for start in range(0, len(content), PIECE):
        piece = rest + content[start : start + PIECE]
        # An odd number of backslashes at the end: the last one escapes what the next piece begins with.
        backslashes = len(piece) - len(piece.rstrip(b"\\"))
        rest = b"\\" if backslashes % 2 else b""
        # Double backslashes go first, or the second of a pair would be taken for the escape of a quote.
        piece = piece[: len(piece) - len(rest)]
        yield piece.replace(b"\\\\", b"").replace(b'\\"', b"")
    yield rest


def json_size(fields: Mapping[str, object]) -> int:
    """Return the size of a request's fields as JSON, in bytes. Raises `ApiError` where they cannot be written."""
    try:
        # As deep as it will stand inside events and stores, which put levels of their own around it.
        return len(orjson.dumps([[[[[[[fields]]]]]]]))
    except orjson.JSONEncodeError:
        raise _unwritable(fields) from None


def _can_be_written(value: object) -> bool:
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        return False
    return True


def _unwritable(fields: Mapping[str, object]) -> ApiError:
    """Say which field is nested too deeply: `tools[0].parameters`, a name, and not the whole way down."""
    path = next((path for path, level in _containers(fields) if level > MAX_NESTING), None)
    if path is None:  # of what was not read as JSON
        name = next(name for name, value in fields.items() if not _can_be_written(value))
        return invalid_value(name, "it has a character that is no Unicode text.")
    while isinstance(path[-1], int):
        path = path[:-1]
    shown = dotted(tuple(part if isinstance(part, int) else part[:80] for part in path))
    return invalid_value(shown, f"it is nested too deeply. This server takes {MAX_NESTING} levels.")


def _containers(fields: Mapping[str, object]) -> Iterator[tuple[tuple[int | str, ...], int]]:
    """Yield the objects and arrays in a request with their levels; paths go as far as an error shows them."""
    left: list[tuple[tuple[int | str, ...], int, object]] = [((), 1, fields)]
    while left:
        path, level, value = left.pop()
        if isinstance(value, Mapping | list):
            yield path, level
            inside = value.items() if isinstance(value, Mapping) else enumerate(value)
            # Paths stop at three parts, so the walk stays linear however deep it goes.
            left += [((*path, key) if len(path) < 3 else path, level + 1, each) for key, each in inside]
