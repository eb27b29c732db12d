"""What came of a call, as the model reads it: text, pictures, and notes for what it cannot read."""

from collections.abc import Iterable
from itertools import groupby

from engine.formats.base import IMAGE_OMITTED, Body, PicturePart
from responses_app.protocol.items.calls import json_text

OMITTED_PARTS = {
    "input_image": IMAGE_OMITTED,
    "computer_screenshot": IMAGE_OMITTED,
    "image": IMAGE_OMITTED,
    "input_file": "[file omitted: this model cannot read files]",
    "input_audio": "[sound omitted: this model cannot hear]",
}
_PART_NOTES = frozenset(OMITTED_PARTS.values())


def body_and_omissions(value: object) -> tuple[Body, int]:
    """Return a tool's output as the model reads it, and how many notes stand in it for what the model cannot read."""
    if value is None:
        return "", 0
    if isinstance(value, str):
        return value, 0
    parts = value if isinstance(value, list) else [value]
    texts = [text for part in parts if (text := _text_of_part(part)) is not None]
    if len(texts) < len(parts):  # not a list of content parts
        rest = [each for each in parts if not isinstance(each, PicturePart)]
        return json_text(value if len(rest) == len(parts) else rest), 0
    return joined(texts), sum(text in _PART_NOTES for text in texts)


def joined(parts: Iterable[str | PicturePart]) -> Body:
    """Return texts line by line, and pictures among them as models are used to them: with nothing around."""
    body: list[str | PicturePart] = []
    for is_text, run in groupby(parts, key=lambda part: isinstance(part, str)):
        if is_text:
            body.append("\n".join(map(str, run)))
        else:
            body += run
    # One text, or none: nearly always.
    return body if any(isinstance(part, PicturePart) for part in body) else "".join(map(str, body))


def _text_of_part(part: object) -> str | PicturePart | None:
    """Return the text of a content part, None for what is not such a part."""
    if isinstance(part, PicturePart):
        return part
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        return None
    note = OMITTED_PARTS.get(part["type"])
    if note is not None:
        return note
    return next((part[name] for name in ("text", "refusal", "logs") if isinstance(part.get(name), str)), None)
