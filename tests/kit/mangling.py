"""Transcripts as models mangle them: cut, with doubled headers, wrong channels, calls into each other, spelled tokens.

Every text in them is words that occur once, so a test can tell whether any was lost.
"""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from engine.formats.harmony.encoding import decode_tokens, encode_harmony, encode_text

WORD = re.compile(r"w\d+w")
START = "<|start|>assistant"
CHANNELS = ("analysis", "commentary", "final")
RECIPIENTS = ("functions.f", "functions.ns.deep.g", "functions.undeclared", "python", "browser.search", "f", "user")
SPELLED = (
    "<|end|>",
    "<|start|>assistant<|channel|>final<|message|>",
    "<|call|>",
    "<|return|>",
    "<|channel|>",
    "<|eot|>",
)


@dataclass(frozen=True)
class Mangled:
    """One generation, and the words that its reader must find again, in this order."""

    kind: str
    tokens: Sequence[int]
    words: Sequence[str]
    is_whole: bool  # it ends with a stop token


class _Writer:
    """Writes one generation; `text` stands where a message's text stands, `mark` where special tokens count."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.tokens: list[int] = []
        self.words: list[tuple[int, str]] = []  # with the position behind their tokens
        self._number = 0

    def mark(self, text: str) -> None:
        self.tokens += encode_harmony(text)

    def text(self, *, spelled: bool = False, json: bool = False) -> None:
        for _ in range(self.chance.randint(1, 6)):
            word = f"w{self._number}w"
            self._number += 1
            said = f'{{"{word}": 1}} ' if json else f"{word} "
            self.tokens += encode_text(self.chance.choice(SPELLED) + " " + said if spelled else said)
            self.words.append((len(self.tokens), word))

    def header(self, channel: str | None = None, recipient: str | None = None, *, loose: float = 0.0) -> None:
        """A header as models write it, in one of its orders; `loose`: how often it holds words, or lacks its end."""
        channel = channel or self.chance.choice(CHANNELS)
        to = f" to={recipient}" if recipient else ""
        before, after = (to, "") if self.chance.random() < 0.5 else ("", to)
        kind = self.chance.choice(("", " <|constrain|>json", " json", " code")) if recipient else ""
        self.mark(f"{before}<|channel|>{channel}{after}{kind}")
        if self.chance.random() < loose:
            self.mark(" ")
            self.text()
        self.mark(" " if self.chance.random() < loose else "<|message|>")

    def message(self, channel: str | None = None, recipient: str | None = None, *, spelled: bool = False) -> None:
        self.header(channel, recipient)
        self.text(spelled=spelled, json=recipient is not None)

    def recipient(self) -> str | None:
        return self.chance.choice((None, None, *RECIPIENTS))


def _cut(writer: _Writer) -> None:
    for _ in range(writer.chance.randint(1, 3)):
        writer.message(recipient=writer.recipient())
        writer.mark(f"<|end|>{START}")
    writer.message(recipient=writer.recipient())
    keep = writer.chance.randint(0, len(writer.tokens))
    del writer.tokens[keep:]
    writer.words = [(end, word) for end, word in writer.words if end <= keep]


def _doubled_headers(writer: _Writer) -> None:
    for _ in range(writer.chance.randint(1, 3)):
        match writer.chance.randint(0, 3):
            case 0:
                writer.header(recipient=writer.recipient(), loose=0.5)
            case 1:
                writer.mark(f"<|channel|>{writer.chance.choice(CHANNELS)}")
            case 2:
                writer.mark(START)
            case 3:
                writer.mark(f"{START}<|channel|>analysis{START}")
        writer.message(recipient=writer.recipient())
        writer.mark(writer.chance.choice(("<|end|>", "<|end|><|end|>", "")) + START)
    writer.message("final")
    writer.mark("<|return|>")


def _wrong_channels(writer: _Writer) -> None:
    wrong = ("thinking", "Final", "analysis2", "commentary_", "", "final final", "assistant")
    for _ in range(writer.chance.randint(1, 3)):
        writer.header(writer.chance.choice(wrong), writer.recipient())
        writer.text()
        writer.mark(f"<|end|>{START}")
        writer.header(writer.chance.choice(CHANNELS), writer.recipient(), loose=0.5)
        writer.text()
        writer.mark(f"<|end|>{START}")
    writer.message(writer.chance.choice((*CHANNELS, *wrong)), writer.recipient())
    writer.mark(writer.chance.choice(("<|return|>", "<|call|>")))


def _calls_into_each_other(writer: _Writer) -> None:
    for _ in range(writer.chance.randint(2, 4)):
        writer.message(writer.chance.choice(("analysis", "commentary")), writer.chance.choice(RECIPIENTS))
        writer.mark(writer.chance.choice(("", "<|end|>", START, f"<|end|>{START}", "<|constrain|>", "<|message|>")))
    writer.message("commentary", "functions.f")
    writer.mark("<|call|>")


def _spelled_tokens(writer: _Writer) -> None:
    for _ in range(writer.chance.randint(1, 3)):
        writer.message(recipient=writer.recipient(), spelled=True)
        writer.mark(f"<|end|>{START}")
    writer.message("final", spelled=True)
    writer.mark("<|return|>")


KINDS: dict[str, Callable[[_Writer], None]] = {
    "cut": _cut,
    "doubled headers": _doubled_headers,
    "wrong channels": _wrong_channels,
    "calls into each other": _calls_into_each_other,
    "tokens spelled as text": _spelled_tokens,
}


def mangled_transcripts(count: int, *, seed: int) -> Iterator[Mangled]:
    """Yield `count` transcripts, of each kind as many; the same ones for the same seed."""
    chance = random.Random(seed)
    for index in range(count):
        kind = list(KINDS)[index % len(KINDS)]
        writer = _Writer(chance)
        KINDS[kind](writer)
        yield Mangled(kind, writer.tokens, [word for _, word in writer.words], is_whole=kind != "cut")


def told(mangled: Mangled) -> str:
    """Return a transcript for a failure's message."""
    return f"{mangled.kind}: {decode_tokens(mangled.tokens)}"
