"""The one Harmony encoding of the process, its special tokens, and token id → bytes.

Facts measured with oss-harmony 0.0.11: loading costs 0.6 s once; the vocabulary is inside the package, so nothing is
downloaded; `encode` of plain text costs about 0.3 µs a character.
"""

from collections.abc import Iterable
from functools import lru_cache

from openai_harmony import HarmonyEncoding, HarmonyEncodingName, HarmonyError, load_harmony_encoding

ENDOFTEXT = 199999  # <|endoftext|>: the end of a document, which models sample instead of an end token
CONSTRAIN = 200003  # <|constrain|>
RETURN = 200002  # <|return|>: the model has answered
CHANNEL = 200005  # <|channel|>
START = 200006  # <|start|>
END = 200007  # <|end|>
MESSAGE = 200008  # <|message|>
CALL = 200012  # <|call|>: the model wants a tool's output

STOP_TOKENS = (RETURN, CALL)  # generation ends here
END_TOKENS = frozenset((RETURN, CALL, END, ENDOFTEXT))  # a message ends here
REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()

_bytes_of_token: dict[int, bytes] = {}  # bounded by the vocabulary: at most 201,088 entries


@lru_cache(maxsize=1)
def harmony_encoding() -> HarmonyEncoding:
    """Load the encoding, once per process."""
    return load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)


def encode_text(text: str) -> list[int]:
    """Encode text that somebody wrote: nothing in it becomes a special token."""
    tokens: list[int] = harmony_encoding().encode(text, disallowed_special=())
    return tokens


def encode_harmony(text: str) -> list[int]:
    """Encode a transcript in which `<|start|>` and its like are the special tokens."""
    tokens: list[int] = harmony_encoding().encode(text, allowed_special="all")
    return tokens


def token_bytes(token: int) -> bytes:
    """Return the bytes a token stands for; U+FFFD for an id that is outside the vocabulary."""
    known = _bytes_of_token.get(token)
    if known is not None:
        return known
    try:
        text: str = harmony_encoding().decode([token], errors="surrogateescape")
    except (HarmonyError, OverflowError):
        return REPLACEMENT
    encoded = text.encode("utf-8", errors="surrogateescape")
    _bytes_of_token[token] = encoded
    return encoded


def decode_tokens(tokens: Iterable[int]) -> str:
    """Decode tokens for people and logs; bytes that are no UTF-8 become U+FFFD."""
    return b"".join(map(token_bytes, tokens)).decode("utf-8", errors="replace")
