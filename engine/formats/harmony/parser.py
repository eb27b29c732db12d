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
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum, auto

from engine.formats.base import (
    ItemEnded,
    ItemKind,
    ItemStarted,
    MessageKind,
    RenderedMessage,
    Text,
    TurnEvent,
    TurnParser,
    as_tokens,
)
from engine.formats.harmony.encoding import (
    ANALYSIS,
    ASSISTANT,
    CALL,
    CHANNEL,
    CHANNELS,
    COMMENTARY,
    END,
    END_TOKENS,
    ENDOFTEXT,
    FINAL,
    FUNCTIONS,
    MESSAGE,
    NOBODY,
    RETURN,
    START,
    STOP_TOKENS,
    decode_tokens,
    token_bytes,
)
from engine.formats.harmony.prompt import generation_start, kind_of, render_assistant, render_call

MAX_NAME = 256  # characters
# What a header may have as a name: nothing that could be a special token or end the name.
TOOL_NAME = re.compile(rf"[A-Za-z0-9_.\-]{{1,{MAX_NAME}}}")
_TURN_ENDS = frozenset(STOP_TOKENS)  # a grammar lets any of them end a call

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
    channel, after = None, ""
    for named in channels:
        taken, rest = _take_channel(named)
        channel, after = taken or channel, f"{after} {rest}"
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
    parts = (*CHANNELS, ASSISTANT, "json", "code", "text", "to=")
    return len(words) <= 4 and all(
        word.startswith(("to=", "<|constrain|>")) or any(part.startswith(word) for part in parts) for word in words
    )


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


_BEGINNINGS = frozenset((START, CHANNEL))
_NO_TEXT = END_TOKENS | _BEGINNINGS  # inside a message; the text of all other tokens is the message's


class _State(Enum):
    HEADER = auto()
    CONTENT = auto()
    BETWEEN = auto()


# Looked up once: a member's lookup in its class takes 0.2 µs, which is a good part of what a token may take.
_HEADER, _CONTENT, _BETWEEN = _State


class HarmonyParser(TurnParser):
    """Reads one generation. What a channel and a recipient mean is decided in `_started`, and nowhere else.

    `functions` are those that the client has declared; None where calls are forbidden.
    """

    def __init__(self, functions: Collection[str] | None) -> None:
        self._functions = functions
        self._state = _HEADER
        self._tokens: list[int] = []  # of the open message, from its header on
        self._header_tokens = 0  # of them, those up to `<|message|>`; the rest is content
        self._header = Header(None, None)  # of the open message
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._mid_character = False  # the decoder holds the first bytes of a character
        self.repairs = 0

    def feed(self, token_ids: Iterable[int]) -> list[TurnEvent]:
        events: list[TurnEvent] = []
        for token in token_ids:
            if self._state is _CONTENT:
                if token in _NO_TEXT:
                    if token in END_TOKENS:
                        self._tokens.append(token)
                        self._complete(events)
                        self._begin(_BETWEEN)
                    else:  # the model forgot to end its message
                        self._complete(events, repaired=True)
                        self._begin(_HEADER, token)
                    continue
                # Ordinary tokens and special ones without a meaning here: their text is kept.
                self._tokens.append(token)
                data = token_bytes(token)
                try:
                    text = self._decoded(data) if self._mid_character else data.decode()
                except UnicodeDecodeError:  # nearly every token is whole characters
                    text = self._decoded(data)
                if text:
                    events.append(Text(text))
            elif self._state is _HEADER:
                self._in_header(token, events)
            elif token not in END_TOKENS:
                self._begin(_HEADER, token)
        return events

    def close(self) -> list[TurnEvent]:
        events: list[TurnEvent] = []
        if self._state is _CONTENT:
            self._complete(events, truncated=True)
        # What is only the beginning of a header has no text that could be lost.
        elif self._state is _HEADER and not is_cut_off(self._header_text()):
            self._salvage(events, truncated=True)
        self._begin(_BETWEEN)
        return events

    def is_end(self, token: int) -> bool:
        return token in END_TOKENS

    def _decoded(self, data: bytes) -> str:
        text = self._decoder.decode(data)
        # `getstate` gives the bytes that are held: none between two characters.
        self._mid_character = bool(self._decoder.getstate()[0])
        return text

    def _in_header(self, token: int, events: list[TurnEvent]) -> None:
        if token == MESSAGE:
            header = parse_header(self._header_text())
            self._tokens.append(token)
            self._open(header, events)
        elif token in END_TOKENS:
            self._salvage(events)
            self._begin(_BETWEEN)
        elif token == START:
            self._salvage(events)
            self._begin(_HEADER, token)
        else:
            self._tokens.append(token)

    def _header_text(self) -> str:
        # `<|start|>` is not part of the header: the first message of a turn has it in the prompt.
        tokens = self._tokens[1:] if self._tokens and self._tokens[0] == START else self._tokens
        return b"".join(map(token_bytes, tokens)).decode("utf-8", errors="replace")

    def _begin(self, state: _State, *tokens: int) -> None:
        self._state = state
        self._tokens = list(tokens)

    def _open(self, header: Header, events: list[TurnEvent]) -> None:
        self._state = _CONTENT
        self._header, self._header_tokens = header, len(self._tokens)
        events.append(self._started(header))
        if header.loose:
            events.append(Text(header.loose))

    def _complete(self, events: list[TurnEvent], *, truncated: bool = False, repaired: bool = False) -> None:
        # Half a character at the end of a message becomes U+FFFD.
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        self._mid_character = False
        if rest:
            events.append(Text(rest))
        repaired = repaired or not self._header.well_formed
        self.repairs += repaired
        content = len(self._tokens) - self._header_tokens + 1  # vLLM counts <|message|>, not the end token
        if self._tokens and self._tokens[-1] in END_TOKENS:
            content -= 1
        events.append(self._ended(MessageCompleted(tuple(self._tokens), content, truncated, repaired)))

    def _salvage(self, events: list[TurnEvent], *, truncated: bool = False) -> None:
        """Make a message of a header that never came to its `<|message|>`, if it holds any text."""
        header = parse_header(self._header_text(), complete=False)
        if header.loose:
            self._open(header, events)
            self._complete(events, truncated=truncated, repaired=True)

    def _started(self, header: Header) -> ItemStarted:
        """Decide what a message is. A call is a call on any channel: models do call on `analysis`.

        A function is named with its prefix, any one: clients declare functions in ways that a server does not see. A
        declared one is known without the prefix, too. Every other recipient is a tool of the server's.
        """
        channel, recipient = header.channel, header.recipient
        if recipient is not None:
            name = recipient.removeprefix(FUNCTIONS)
            is_prefixed = name != recipient and TOOL_NAME.fullmatch(name) is not None
            if self._functions is not None and (name in self._functions or is_prefixed):
                return ItemStarted(ItemKind.CALL, name)
            return ItemStarted(ItemKind.HOSTED_CALL, recipient)
        if channel == ANALYSIS:
            return ItemStarted(ItemKind.REASONING)
        return ItemStarted(ItemKind.PREAMBLE if channel == COMMENTARY else ItemKind.ANSWER)

    def _ended(self, completed: MessageCompleted) -> ItemEnded:
        channel, recipient = self._header.channel, self._header.recipient
        text = ""
        if completed.repaired:  # it is written anew
            content = (token for token in completed.tokens[self._header_tokens :] if token not in END_TOKENS)
            text = self._header.loose + decode_tokens(content)
        return ItemEnded(
            sampled_message(completed, channel=channel, recipient=recipient, text=text),
            # Preambles count as reasoning, too: they are not part of the answer.
            reasoning_tokens=completed.content_tokens if channel in (ANALYSIS, COMMENTARY) else 0,
            truncated=completed.truncated,
            # A call that the generation was cut in has no end token, and waits for nothing.
            called=recipient is not None and bool(completed.tokens) and completed.tokens[-1] in _TURN_ENDS,
        )


def sampled_message(
    completed: MessageCompleted, *, channel: str | None, recipient: str | None, text: str
) -> RenderedMessage:
    """Return a message that the model sampled, as it is fed back: its own tokens, `<|return|>` turned to `<|end|>`.

    Any token that ended the turn becomes the one that belongs there: `<|call|>` behind a call, else `<|end|>`. The last
    token is in no engine's cache, so that costs nothing. A truncated message is ended. A malformed one is
    rendered anew, so that the model reads what the client read.
    """
    if completed.repaired:
        if recipient:
            return render_call(recipient, text)
        return render_assistant(channel or FINAL, text)
    kind = MessageKind.COMMENTARY if recipient else kind_of(channel)
    tokens = as_tokens(completed.tokens)
    # The first message of a turn has its `<|start|>assistant` in the prompt.
    if tokens[0] != START:
        tokens = as_tokens(generation_start()) + tokens
    if tokens[-1] in (RETURN, CALL, ENDOFTEXT):
        # `tokens` is a copy: the parser's own are a tuple.
        tokens[-1] = CALL if recipient else END
    elif tokens[-1] not in END_TOKENS:
        tokens.append(CALL if recipient else END)
    return RenderedMessage(kind, tokens)
