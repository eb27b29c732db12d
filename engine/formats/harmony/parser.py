"""Sampled tokens of a Harmony model → events: one pass, O(1) a token; no output makes it raise or lose text.

    after the prompt's `<|start|>assistant`
            |
            v       <|message|>         <|end|> <|return|> <|call|> <|endoftext|>
        HEADER ------------------> CONTENT --------------------------------> BETWEEN
            ^                         |  <|start|> <|channel|> (no end: repaired)  |
            +-------------------------+<-------------------------------------------+  any token

The library's `StreamableParser` is the oracle of the tests for well-formed transcripts. It is not used here because it
raises on malformed headers, loses all text after an unknown token id, and costs 3 µs a token and 170 µs to make.

Headers are read as leniently as the models write them. The grammar of a well-formed one is
`[role][ to=RECIPIENT]<|channel|>CHANNEL[ to=RECIPIENT][ CONTENT_TYPE]`. Open
models bend it: words are left over, the channel is missing or unknown, `<|constrain|>` stands where a recipient
belongs. The library's parser refuses some of these ("unexpected tokens remaining in message header": about 4 % of the
turns of gpt-oss-20b at temperature 1) and misreads others (`final <|constrain|>json` becomes a recipient), so this
reader is ours; for well-formed headers the tests hold it to the library's answer.
"""

import codecs
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from engine.formats.base import Text
from engine.formats.harmony.encoding import CHANNEL, END_TOKENS, MESSAGE, START, token_bytes

ANALYSIS = "analysis"
COMMENTARY = "commentary"
FINAL = "final"
CHANNELS = (ANALYSIS, COMMENTARY, FINAL)
ASSISTANT = "assistant"
FUNCTIONS = "functions."  # how the recipients begin that are functions of the client's
NOBODY = ("user", "assistant", "all")  # recipients that are not tools: an answer may name its reader

# A recipient ends where the JSON of a call without its `<|message|>` begins.
# `to=functions.f`, at the beginning, behind white space, `>` or right behind the role.
_RECIPIENT = re.compile(r'(?:^|(?<=[\s>])|(?<=assistant))to=([^\s<{\["]+)')
# `<|constrain|>json`, `json`, `code` or `text`, and nothing else.
_CONTENT_TYPE = re.compile(r"^(?:<\|constrain\|>\s*\w*|json|code|text)$")
# `<|channel|>thinking`: a word that is none of the three; `finally` is one, too.
_UNKNOWN_CHANNEL = re.compile(r"<\|channel\|>(?!(?:analysis|commentary|final)\b)([A-Za-z][\w-]*)(?![^\s<])")
_SPECIAL = re.compile(r"<\|(?:channel|constrain|start)\|>")


@dataclass(frozen=True, slots=True)
class Header:
    """A message begins, and where it goes."""

    channel: str | None  # None where the model named none
    recipient: str | None  # the tool that it calls
    loose: str = ""  # text that belongs to no part of a header: the message begins with it
    well_formed: bool = True


def parse_header(text: str, *, complete: bool = True) -> Header:
    """Read a header: the text between `<|start|>` (left out) and `<|message|>` (left out), special tokens as text.

    The name of an unknown channel is not text. Where the header is not `complete`, because no `<|message|>` came, a
    word behind `<|channel|>` may as well be what the model had to say, and is kept.
    """
    header = _parse(text)
    # Only where text is left over: an unknown channel is then some of it.
    named = _UNKNOWN_CHANNEL.search(text) if complete and header.loose else None
    if named is None:
        return header
    unnamed = _parse(text[: named.start(1)] + text[named.end(1) :])
    return header if unnamed.loose else unnamed


def _parse(text: str) -> Header:
    match = _RECIPIENT.search(text)
    recipient = match[1] if match and match[1] not in NOBODY else None
    if match:
        # A space in its place: the words around it must not become one.
        text = f"{text[: match.start()]} {text[match.end() :]}"
    # A model may name several channels; the last one counts.
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
    # A header has a role, a channel, a recipient and a type: more words than four are text.
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
        # `final<|constrain|>json`: a special token right behind the channel.
        if word.startswith(f"{channel}<|"):
            return channel, f"{word.removeprefix(channel)} {rest}"
    return None, text


def _take_role(text: str) -> tuple[str, str]:
    word, _, rest = text.strip().partition(" ")
    if word in ("user", "system", "developer", "tool") or word.startswith(FUNCTIONS):
        return word, rest
    if word == ASSISTANT:
        return ASSISTANT, rest
    return ASSISTANT, text


def _without_content_type(text: str) -> str:
    text = text.strip()
    if _CONTENT_TYPE.match(text):
        return ""
    # A type with text right behind it: the text is what counts.
    for start in ("<|constrain|>json", "json", "code"):
        if text.startswith((f"{start} ", f"{start}{{")):
            text = text.removeprefix(start)
    return _SPECIAL.sub("", text).strip()


@dataclass(frozen=True, slots=True)
class MessageCompleted:
    """The open message ends."""

    tokens: tuple[int, ...]  # all of them as sampled, from the header to the end token
    content_tokens: int  # those after the header, as vLLM counts reasoning
    truncated: bool = False  # the output ended before the message did
    repaired: bool = False  # it was malformed, so `tokens` are not fit to be fed back


HarmonyEvent = Header | Text | MessageCompleted

_BEGINNINGS = frozenset((START, CHANNEL))
_NO_TEXT = END_TOKENS | _BEGINNINGS  # inside a message; the text of all other tokens is the message's


class _State(Enum):
    HEADER = auto()
    CONTENT = auto()
    BETWEEN = auto()


# Looked up once: a member's lookup in its class takes 0.2 µs, which is a good part of what a token may take.
_HEADER, _CONTENT, _BETWEEN = _State


class HarmonyStream:
    """Reads one generation. Feed it chunks of any size; the events do not depend on how the tokens were cut."""

    def __init__(self) -> None:
        self._state = _HEADER
        self._tokens: list[int] = []  # of the open message, from its header on
        self._header_tokens = 0  # of them, those up to `<|message|>`; the rest is content
        self._header: Header | None = None  # None before `<|message|>`
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._mid_character = False  # the decoder holds the first bytes of a character
        self.repairs = 0  # how many messages were malformed

    def feed(self, token_ids: Iterable[int]) -> list[HarmonyEvent]:
        """Take sampled tokens, return what they complete."""
        events: list[HarmonyEvent] = []
        for token in token_ids:
            if self._state is _CONTENT:
                if token in _NO_TEXT:
                    self._end_content(token, events)
                    continue
                # Ordinary tokens and special ones without a meaning here: their text is kept.
                self._tokens.append(token)
                if text := self._decode(token_bytes(token)):
                    events.append(Text(text))
            elif self._state is _HEADER:
                self._in_header(token, events)
            else:
                self._between(token)
        return events

    def close(self) -> list[HarmonyEvent]:
        """End the generation: an open message is completed as truncated, loose text becomes a message."""
        events: list[HarmonyEvent] = []
        if self._state is _CONTENT:
            self._complete(events, truncated=True)
        # What is only the beginning of a header has no text that could be lost.
        elif self._state is _HEADER and not is_cut_off(self._header_text()):
            self._salvage(events, truncated=True)
        self._begin(_BETWEEN)
        return events

    def _end_content(self, token: int, events: list[HarmonyEvent]) -> None:
        if token in END_TOKENS:
            self._tokens.append(token)
            self._complete(events)
            self._begin(_BETWEEN)
        else:  # the model forgot to end its message
            self._complete(events, repaired=True)
            self._begin(_HEADER, token)

    def _decode(self, data: bytes) -> str:
        if not self._mid_character:
            try:
                return data.decode()  # nearly every token is whole characters
            except UnicodeDecodeError:
                pass
        text = self._decoder.decode(data)
        # `getstate` gives the bytes that are held: none between two characters.
        self._mid_character = bool(self._decoder.getstate()[0])
        return text

    def _in_header(self, token: int, events: list[HarmonyEvent]) -> None:
        if token == MESSAGE:
            self._header = parse_header(self._header_text())
            self._tokens.append(token)
            self._open(self._header, events)
        elif token in END_TOKENS:
            self._salvage(events)
            self._begin(_BETWEEN)
        elif token == START:
            self._salvage(events)
            self._begin(_HEADER, token)
        else:
            self._tokens.append(token)

    def _between(self, token: int) -> None:
        if token not in END_TOKENS:
            self._begin(_HEADER, token)

    def _begin(self, state: _State, *tokens: int) -> None:
        self._state = state
        self._tokens = list(tokens)
        self._header = None

    def _open(self, header: Header, events: list[HarmonyEvent]) -> None:
        self._state = _CONTENT
        self._header_tokens = len(self._tokens)
        events.append(header)
        if header.loose:
            events.append(Text(header.loose))

    def _complete(self, events: list[HarmonyEvent], *, truncated: bool = False, repaired: bool = False) -> None:
        # Half a character at the end of a message becomes U+FFFD.
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        self._mid_character = False
        if rest:
            events.append(Text(rest))
        # A header that was made of loose text is malformed, too.
        repaired = repaired or self._header is None or not self._header.well_formed
        self.repairs += repaired
        content = len(self._tokens) - self._header_tokens + 1  # vLLM counts <|message|>, not the end token
        if self._tokens and self._tokens[-1] in END_TOKENS:
            content -= 1
        events.append(MessageCompleted(tuple(self._tokens), content, truncated, repaired))

    def _salvage(self, events: list[HarmonyEvent], *, truncated: bool = False) -> None:
        """Make a message of a header that never came to its `<|message|>`, if it holds any text."""
        header = parse_header(self._header_text(), complete=False)
        if header.loose:
            self._open(header, events)
            self._complete(events, truncated=truncated, repaired=True)

    def _header_text(self) -> str:
        # `<|start|>` is not part of the header: the first message of a turn has it in the prompt.
        tokens = self._tokens[1:] if self._tokens and self._tokens[0] == START else self._tokens
        return b"".join(map(token_bytes, tokens)).decode("utf-8", errors="replace")
