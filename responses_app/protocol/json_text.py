"""JSON that is one line to every reader.

Python's `str.splitlines`, and with it httpx's `iter_lines`, ends a line at three characters that JSON may have as they
are: U+0085, U+2028 and U+2029. So the lines that this server writes, events and JSON Lines, have them as escapes, which
are the same text to every reader of JSON. Those below U+0020 are always escaped in JSON.
"""

from engine import orjson

# As UTF-8 has them: no other character has these bytes in it, and outside of its strings JSON is ASCII.
_ENDS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))


def dumps(value: object) -> bytes:
    """Return a value as JSON on one line. Raises `orjson.JSONEncodeError` for what cannot be written."""
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
