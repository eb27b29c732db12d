"""The header of a Harmony message, read as leniently as the models write it.

The grammar of a well-formed header is `[role][ to=RECIPIENT]<|channel|>CHANNEL[ to=RECIPIENT][ CONTENT_TYPE]`. Open
models bend it: words are left over, the channel is missing or unknown, `<|constrain|>` stands where a recipient
belongs. The library's parser refuses some of these ("unexpected tokens remaining in message header": about 4 % of the
turns of gpt-oss-20b at temperature 1) and misreads others (`final <|constrain|>json` becomes a recipient), so this
reader is ours; for well-formed headers the tests hold it to the library's answer.
"""

import re
from dataclasses import dataclass

ANALYSIS = "analysis"
COMMENTARY = "commentary"
FINAL = "final"
CHANNELS = (ANALYSIS, COMMENTARY, FINAL)
ASSISTANT = "assistant"
NOBODY = ("user", "assistant", "all")  # recipients that are not tools: an answer may name its reader

# A recipient ends where the JSON of a call without its `<|message|>` begins.
_RECIPIENT = re.compile(r'(?:^|(?<=[\s>])|(?<=assistant))to=([^\s<{\["]+)')
_CONTENT_TYPE = re.compile(r"^(?:<\|constrain\|>\s*\w*|json|code|text)$")
_UNKNOWN_CHANNEL = re.compile(r"<\|channel\|>(?!(?:analysis|commentary|final)\b)([A-Za-z][\w-]*)(?![^\s<])")
_SPECIAL = re.compile(r"<\|(?:channel|constrain|start)\|>")


@dataclass(frozen=True, slots=True)
class Header:
    """Where a message goes. `loose` is text that belongs to no part of a header; `well_formed` says there was none."""

    channel: str | None
    recipient: str | None
    loose: str
    well_formed: bool


def parse_header(text: str, *, complete: bool = True) -> Header:
    """Read a header: the text between `<|start|>` (left out) and `<|message|>` (left out), special tokens as text.

    The name of an unknown channel is not text. Where the header is not `complete`, because no `<|message|>` came, a
    word behind `<|channel|>` may as well be what the model had to say, and is kept.
    """
    header = _parse(text)
    named = _UNKNOWN_CHANNEL.search(text) if complete and header.loose else None
    if named is None:
        return header
    unnamed = _parse(text[: named.start(1)] + text[named.end(1) :])
    return header if unnamed.loose else unnamed


def _parse(text: str) -> Header:
    found = _RECIPIENT.search(text)
    recipient = found[1] if found and found[1] not in NOBODY else None
    if found:
        text = f"{text[: found.start()]} {text[found.end() :]}"
    before, *channels = text.split("<|channel|>")
    channel, after = _take_last_channel(channels)
    role, before = _take_role(before)
    loose = f"{_without_content_type(before)} {_without_content_type(after)}".strip()
    well_formed = len(channels) == 1 and channel is not None and role == ASSISTANT and not loose
    if role != ASSISTANT:  # the model plays the user or a tool: nobody's answer, so it is kept as reasoning
        return Header(ANALYSIS, None, loose, well_formed=False)
    return Header(channel, recipient, loose, well_formed)


def is_cut_off(text: str) -> bool:
    """Say whether an unfinished header holds nothing but the beginning of a header: no text is lost with it."""
    before, _, after = text.partition("<|channel|>")
    words = [*before.split(), *after.split()]
    return len(words) <= 4 and all(_begins_a_part(word) for word in words)


def _begins_a_part(word: str) -> bool:
    if word.startswith(("to=", "<|constrain|>")) or "to=".startswith(word):
        return True
    return any(part.startswith(word) for part in (*CHANNELS, ASSISTANT, "json", "code", "text"))


def _take_last_channel(texts: list[str]) -> tuple[str | None, str]:
    """Return the last channel that is named, and all the text behind the channels."""
    channel, loose = None, ""
    for text in texts:
        named, rest = _take_channel(text)
        channel = named or channel
        loose = f"{loose} {rest}"
    return channel, loose


def _take_channel(text: str) -> tuple[str | None, str]:
    word, _, rest = text.strip().partition(" ")
    for channel in CHANNELS:
        if word == channel:
            return channel, rest
        if word.startswith(f"{channel}<|"):
            return channel, f"{word.removeprefix(channel)} {rest}"
    return None, text


def _take_role(text: str) -> tuple[str, str]:
    word, _, rest = text.strip().partition(" ")
    if word in ("user", "system", "developer", "tool") or word.startswith("functions."):
        return word, rest
    if word == ASSISTANT:
        return ASSISTANT, rest
    return ASSISTANT, text


def _without_content_type(text: str) -> str:
    text = text.strip()
    if _CONTENT_TYPE.match(text):
        return ""
    for start in ("<|constrain|>json", "json", "code"):
        if text.startswith((f"{start} ", f"{start}{{")):
            text = text.removeprefix(start)
    return _SPECIAL.sub("", text).strip()
