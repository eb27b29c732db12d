"""Records of a roll-out as a page shows them: tokens, each with its text and its probability; reasons, rewards, times.

A token may be half a character, and text from a model may be anything. So each token is shown by itself: what of its
bytes completes a character is text, what begins one is shown in hexadecimal, and what cannot be seen as an escape.
Each is isolated from its neighbours, so that no control of direction and no mark reaches out of its token.
"""

import codecs
import json
import math
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engine.formats.base import ModelFormat
from engine.types import WeightsSpan
from responses_app.extensions.console.watch.text import NONE, milliseconds, visible
from responses_app.protocol.rollouts.generations import EngineCall
from responses_app.protocol.rollouts.requests import Break

MAX_TEXT = 200  # characters of one token
MAX_TOPS = 20  # of the likeliest tokens at one place
# From which probability on a token has which class, likeliest first; the last one has the rest.
LEVELS = ((0.99, "p6"), (0.9, "p5"), (0.5, "p4"), (0.1, "p3"), (0.01, "p2"), (0.0, "p1"))
LEGEND = (("p6", "≥ 99 %"), ("p5", "≥ 90 %"), ("p4", "≥ 50 %"), ("p3", "≥ 10 %"), ("p2", "≥ 1 %"), ("p1", "< 1 %"))
_SIGNS = {"\n": "↵", "\t": "⇥", "\r": "␍"}  # what is shown in their place; a line ends behind its sign

Kind = Literal["text", "special", "bytes", "id"]


@dataclass(frozen=True, slots=True)
class TokenText:
    """What a token is shown as."""

    text: str
    kind: Kind  # special: a sign of the format's; bytes: a part of a character; id: nobody knows its text
    ends_line: bool = False


@dataclass(frozen=True, slots=True)
class ShownToken:
    """A token on a page."""

    place: int  # in the sequence
    id: int
    shown: TokenText
    logprob: float | None = None
    version: str | None = None  # of the weights that it was sampled from
    role: str = ""  # whose message of the prompt begins with it
    tops: Sequence[tuple[str, int, float]] = ()  # the likeliest tokens at its place: text, id, log probability

    @property
    def level(self) -> str:
        """The class of its probability, "" where that is not known."""
        return level_of(self.logprob)

    @property
    def told(self) -> str:
        """Its log probability and its probability, in words."""
        return told_of(self.logprob)

    @property
    def title(self) -> str:
        """What is told of it where no script shows more."""
        known = f", log probability {self.told}" if self.logprob is not None else ""
        return f"token {self.id}{known}"

    @property
    def tops_json(self) -> str:
        """The likeliest tokens, for the script: text, id, and what is told of each."""
        return json.dumps([(text, token, told_of(value)) for text, token, value in self.tops], ensure_ascii=False)

    @property
    def likeliest(self) -> list[tuple[str, str]]:
        """The likeliest tokens, each with what is told of it."""
        return [(text, told_of(value)) for text, _, value in self.tops]


def level_of(logprob: float | None) -> str:
    """Return the class of a log probability, "" for none."""
    if logprob is None or math.isnan(logprob):
        return ""
    probability = math.exp(min(0.0, logprob))
    return next((name for least, name in LEVELS if probability >= least), LEVELS[-1][1])


def told_of(logprob: float | None) -> str:
    """Return a log probability, and its probability in percent."""
    if logprob is None or math.isnan(logprob):
        return "not known"
    percent = math.exp(min(0.0, logprob)) * 100
    shown = f"{percent:.2f}" if percent >= 0.01 else f"{percent:.1e}"
    return f"{logprob + 0.0:.4f} ({shown} %)".replace("-", "−")


def texts_of(tokens: Iterable[int], written: ModelFormat | None) -> Iterator[TokenText]:
    """Return what tokens in a row are shown as; where no format is known that has their bytes, their ids."""
    if written is None or not written.is_loaded:
        yield from (TokenText(str(token), "id") for token in tokens)
        return
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    for token in tokens:
        piece = written.token_bytes(token)
        if written.is_special(token):
            decoder.reset()  # what was begun before it stays as it was shown
            yield TokenText(_seen(piece.decode(errors="replace")), "special")
            continue
        text = decoder.decode(piece)
        begun = decoder.getstate()[0]  # the beginning of a character, which the next token may complete
        rest = begun[-len(piece) :].hex(" ") if begun and piece else ""
        if rest and not text:
            yield TokenText(rest, "bytes")
        else:
            yield TokenText(_seen(text) + (f"⟨{rest}⟩" if rest else ""), "text", text.endswith("\n"))


def text_of(tokens: Sequence[int], written: ModelFormat | None) -> str:
    """Return the text of tokens in a row, without the signs of the format; "" where nobody knows it."""
    if written is None or not written.is_loaded:
        return ""
    pieces = (b" " if written.is_special(token) else written.token_bytes(token) for token in tokens)
    return "".join(map(_shown, " ".join(b"".join(pieces).decode(errors="replace").split())))


def one_text(token: int, written: ModelFormat | None) -> str:
    """Return the text of one token."""
    return next(texts_of((token,), written)).text


def _seen(text: str) -> str:
    """Return the text of a token with all that cannot be seen as signs or escapes."""
    shown = "".join(_SIGNS.get(character) or _shown(character) for character in text[:MAX_TEXT])
    if shown and unicodedata.category(shown[0]).startswith("M"):
        shown = f"◌{shown}"  # a mark that the token begins with is put onto this, and not onto the token before
    return f"{shown}…" if len(text) > MAX_TEXT else shown or "∅"


def _shown(character: str) -> str:
    if character.isascii():
        return visible(character)
    category = unicodedata.category(character)
    # Controls, formats, surrogates, what is not assigned, and spaces that look like others or like nothing.
    if category[0] in "CZ":
        return f"\\u{ord(character):04x}" if ord(character) < 0x10000 else f"\\U{ord(character):08x}"
    return character


REASONS: Mapping[Break, tuple[str, str]] = {
    "reasoning_settled": (
        "Reasoning left out",
        "The model no longer reads its earlier reasoning. It is not part of this prompt.",
    ),
    "compaction": ("Compaction", "A summary has replaced the history, or is being written here."),
    "instructions_changed": ("Instructions changed", "The system or developer message, or the tools, are different."),
    "history_changed": ("History changed", "The client sent a different history from what was said before."),
    "fork": ("Fork", "The same prompt is answered again."),
    "sub_agent": ("Another agent", "The conversation of another agent or another session begins here."),
    "end_token": (
        "End token",
        "The model's format writes the token that ended the answer differently once something follows.",
    ),
    "template": (
        "Rendered differently",
        "The server rendered what was said as different tokens. The text may be the same.",
    ),
}
FINISHES = {
    "stop": "the model ended its turn",
    "length": "the limit of tokens was reached",
    "abort": "it was cancelled",
}
MAX_NAMED = 8  # values of one reward that are shown
MAX_VERSIONS = 6


def reason_of(cut: Break) -> tuple[str, str]:
    """Return a reason in a word or two, and in a sentence."""
    return REASONS.get(cut) or (visible(cut).replace("_", " "), "")


def reward_text(reward: object) -> str:
    """Return a reward."""
    if isinstance(reward, dict):
        shown = [f"{visible(name)[:40]} {_number(value)}" for name, value in list(reward.items())[:MAX_NAMED]]
        return ", ".join([*shown, *(["…"] if len(reward) > MAX_NAMED else [])])
    return NONE if reward is None else _number(reward)


def reward_number(reward: object) -> float | None:
    """Return what a reward is sorted by: itself, or the sum of its values."""
    if isinstance(reward, dict):
        return float(sum(reward.values()))
    return None if reward is None else float(reward)  # type: ignore[arg-type]


def _number(value: Any) -> str:
    return f"{value:.6g}".replace("-", "−")


def whole_reward(rewards: Sequence[Mapping[str, Any]]) -> Any:
    """Return the last reward of a whole roll-out, None without one."""
    return next((each["reward"] for each in reversed(rewards) if each["turn"] is None), None)


def versions(spans: Sequence[WeightsSpan]) -> str:
    """Return versions of weights in order, each with how many tokens were sampled from it where there are several."""
    if not any(span.version for span in spans):
        return ""
    if len(spans) == 1:
        return visible(spans[0].version)[:80]
    shown = [f"{visible(span.version or 'unknown')[:80]} ({span.tokens:,})" for span in spans[:MAX_VERSIONS]]
    return ", then ".join([*shown, *(["…"] if len(spans) > MAX_VERSIONS else [])])


def steps_of(call: EngineCall, sampled: int, before: EngineCall | None) -> list[tuple[str, str]]:
    """Return how long the steps of a call took, with the time since the call before it ended."""
    times, steps = call.times, []
    if before is not None and before.times.ended is not None and times.queued is not None:
        steps.append(("between", _between(before.times.ended, times.queued)))
    steps += [
        ("queued", _between(times.queued, times.asked)),
        ("prefill", _between(times.asked, times.first_token)),
        ("decode", _between(times.first_token, times.ended)),
    ]
    if times.first_token is not None and times.ended is not None and times.ended > times.first_token and sampled > 1:
        rate = (sampled - 1) * 1000 / (times.ended - times.first_token)
        steps.append(("speed", f"{rate:,.0f} tokens/s"))
    return [(name, value) for name, value in steps if value != NONE]


def _between(begin: int | None, end: int | None) -> str:
    return NONE if begin is None or end is None else milliseconds(max(0, end - begin))
