"""Text ⇄ tokens of the one Harmony encoding of the process.

The vocabulary is oss-harmony's, which carries it inside the package, so nothing is downloaded. The work is tiktoken's:
its tokens are the same (property tests compare them), but the library's time grows with the square of a text without
spaces (2 s for 64,000 dashes, against 0.02 s), and it keeps the interpreter's lock all the while. So the library is
asked for the vocabulary once, and put away before tiktoken makes its own.

Measured: loading costs 0.5 s once and 58 MiB; encoding 0.1–0.25 µs a character, up to 1 µs in long runs of one.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain

from tiktoken import Encoding

from engine.threads import check_given_up

ENDOFTEXT = 199999  # <|endoftext|>: the end of a document, which models sample instead of an end token
CONSTRAIN = 200003  # <|constrain|>
RETURN = 200002  # <|return|>: the model has answered
CHANNEL = 200005  # <|channel|>
START = 200006  # <|start|>
END = 200007  # <|end|>
MESSAGE = 200008  # <|message|>
# <|reserved_200013|>: stands on both sides of a picture's digest, for engines that play a model. No text becomes it.
PICTURE = 200013
CALL = 200012  # <|call|>: the model wants a tool's output

STOP_TOKENS = (RETURN, CALL)  # generation ends here
END_TOKENS = frozenset((RETURN, CALL, END, ENDOFTEXT))  # a message ends here
REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()

# Names in headers.
ANALYSIS = "analysis"
COMMENTARY = "commentary"
FINAL = "final"
CHANNELS = (ANALYSIS, COMMENTARY, FINAL)
ASSISTANT = "assistant"
FUNCTIONS = "functions."  # how the recipients begin that are functions of the client's
NOBODY = ("user", "assistant", "all")  # recipients that are not tools: an answer may name its reader

MAX_SLICE = 64 * 1024  # characters that are encoded at once

_FIRST_SPECIAL = 199_998  # id, of `<|startoftext|>`: those from here on are special tokens
_NAMED = 200_019  # ids: those from here on have no name in a model's own tokenizer, which never samples them
_VOCABULARY = 201_089  # ids
MAX_TOKEN = _VOCABULARY - 1
SPECIAL_TOKENS = range(_FIRST_SPECIAL, _NAMED)
# `<|start|>` and its like, `<|reserved_200001|>` too; in a group, so that `split` gives them as well.
_SPECIAL = re.compile(
    r"(<\|(?:startoftext|endoftext|reserved_\d{6}|return|constrain|channel|start|end|message|call)\|>)"
)
# How o200k divides text into the pieces that are encoded one by one. `\s+(?!\S)` takes a stack as deep as the
# whitespace is long, and tiktoken panics where that is over a million characters: another reason for slices.
_PIECES = "|".join(
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
# Ends of pieces that can be told from two characters, whatever stands around them: before a space, behind a line,
# and between a letter or a digit and what continues neither.
_PIECE_ENDS = re.compile(
    r"\S(?= )|\n(?=[^\s/])|[A-Za-z\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff\uac00-\ud7a3](?=[0-9!-&(-/:-@、。！，：；？])"
    r"|[0-9](?=[A-Za-z!-/:-@])"
)


def load_encoding() -> None:
    """Load all that is needed here; a server does so before its first request, in a thread."""
    _tokenizer()


def encode_text(text: str) -> list[int]:
    """Encode text that somebody wrote: nothing in it becomes a special token."""
    return list(chain.from_iterable(encode_slices(text)))


def encode_slices(text: str) -> Iterator[list[int]]:
    """Encode text that somebody wrote, part by part: in bounded steps, between which other threads have their turn.

    The tokens are those of the whole text, but where a run of more than `MAX_SLICE` characters offers no place to
    divide it (one character repeated, letters without an end): there a token ends at the cut, which the whole text
    would not have. Between two parts it may be given up (`engine.threads`).
    """
    # `encode_ordinary`: special tokens that the text spells are text.
    encode = _tokenizer().encode_ordinary
    for part in _slices(text) if len(text) > MAX_SLICE else (text,):
        check_given_up()
        yield encode(part)


def encode_harmony(text: str) -> list[int]:
    """Encode a transcript in which `<|start|>` and its like are the special tokens."""
    return _tokenizer().encode(text, allowed_special="all")


def encode_harmony_slices(text: str) -> Iterator[Sequence[int]]:
    """Encode a transcript of any length as `encode_harmony` does, part by part as `encode_slices` does."""
    for place, part in enumerate(_SPECIAL.split(text)):
        # `split` with a group gives text and special tokens by turns: those at odd places are special.
        if place % 2:
            yield encode_harmony(part)
        elif part:
            yield from encode_slices(part)


@lru_cache(maxsize=8192)  # the tokens of a text are few; below 1 MiB
def token_bytes(token: int) -> bytes:
    """Return the bytes a token stands for; U+FFFD for an id that is outside the vocabulary."""
    try:
        return _tokenizer().decode_single_token_bytes(token)
    except (KeyError, OverflowError):
        return REPLACEMENT


def decode_tokens(tokens: Iterable[int]) -> str:
    """Decode tokens for people and logs; bytes that are not UTF-8 become U+FFFD."""
    return b"".join(map(token_bytes, tokens)).decode("utf-8", errors="replace")


def _slices(text: str) -> Iterator[str]:
    """Divide a text of more than `MAX_SLICE` characters."""
    begin = 0
    while len(text) - begin > MAX_SLICE:
        end = begin + MAX_SLICE
        # From the middle of the slice on: a slice is never shorter than half of it, so few are needed.
        match = _PIECE_ENDS.search(text, begin + MAX_SLICE // 2, end)
        if match:
            end = match.end()
        yield text[begin:end]
        begin = end
    yield text[begin:]


@lru_cache(maxsize=1)
def longest_token() -> int:
    """Return the bytes of the longest token: 128, all of them spaces."""
    return max(map(len, _tokenizer().token_byte_values()))


@lru_cache(maxsize=1)
def _tokenizer() -> Encoding:
    # The library's own vocabulary is gone by now (50 MiB), so that this one takes its place in memory.
    vocabulary = _read_vocabulary()
    ranks = {each: rank for rank, each in enumerate(vocabulary[:_FIRST_SPECIAL])}
    special = {each.decode(): _FIRST_SPECIAL + place for place, each in enumerate(vocabulary[_FIRST_SPECIAL:])}
    encoding = Encoding("harmony", pat_str=_PIECES, mergeable_ranks=ranks, special_tokens=special)
    # It has tables of its own, and keeps these 22 MiB only to be pickled.
    ranks.clear()
    return encoding


def _read_vocabulary() -> list[bytes]:
    """Return the bytes of every token, by id."""
    # Imported here: the library makes models of pydantic, and nothing else of it is used.
    from openai_harmony import HarmonyEncodingName, load_harmony_encoding

    library = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)

    def decoded(tokens: list[int]) -> bytes:
        text: str = library.decode(tokens, errors="surrogateescape")
        return text.encode("utf-8", errors="surrogateescape")

    # Ordinary ones all at once, with `START` behind each: no ordinary token has its bytes. One by one they take 0.4 s,
    # and every start of a server would wait for that.
    mixed = [START] * (2 * _FIRST_SPECIAL)
    mixed[::2] = range(_FIRST_SPECIAL)
    vocabulary = decoded(mixed).split(decoded([START]))[:-1]
    vocabulary += (decoded([token]) for token in range(_FIRST_SPECIAL, _VOCABULARY))
    return vocabulary
