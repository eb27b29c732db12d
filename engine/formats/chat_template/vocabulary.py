"""The vocabulary of a model, as its tokenizer's files tell it: which bytes each token stands for.

Nothing is encoded here, so no tokenizer library is needed: vLLM renders prompts, and the files say the rest.

    tokenizer.json           the tokens, as a byte-level BPE (Qwen, Llama 3, Mistral, …) or SentencePiece spells them
    generation_config.json,  the tokens that end a turn
    tokenizer_config.json
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

UNKNOWN = "\N{REPLACEMENT CHARACTER}".encode()  # the bytes of an id that stands for nothing known
KNOWN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "</s>", "<end_of_turn>")
_FENCE = b"\xff"  # no UTF-8 text has this byte


@dataclass(frozen=True)
class Vocabulary:
    """The vocabulary of one model."""

    pieces: Sequence[bytes]  # the bytes of every token, by id
    added: Mapping[str, int]  # the ids of the tokens that were added to it, by name
    special: frozenset[int]  # those of the added ones that are part of no text
    ends: tuple[int, ...]  # the tokens that end a turn

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token stands for; U+FFFD for an id that is outside the vocabulary."""
        return self.pieces[token] if 0 <= token < len(self.pieces) else UNKNOWN

    @cached_property
    def longest(self) -> int:
        """The bytes of the longest token."""
        return max(map(len, self.pieces))

    @cached_property
    def fingerprint(self) -> str:
        """What tells it from others: the same tokens stand for the same bytes."""
        digest = blake2b(digest_size=6)
        for piece in self.unmistakable():
            digest.update(len(piece).to_bytes(4, "big") + piece)
        return digest.hexdigest()

    def unmistakable(self) -> list[bytes]:
        """Return the bytes of every token, with those of added tokens fenced off: text never equals them."""
        pieces = list(self.pieces)
        for token in self.added.values():
            # Text can never have the byte 0xff, so it never equals an added token.
            pieces[token] = _FENCE + pieces[token] + _FENCE
        return pieces


def vocabulary_of(tokenizer: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> Vocabulary:
    """Return the vocabulary of a tokenizer.json; `others` are the files beside it that may name the ends of a turn.

    Raises `ValueError`, `LookupError`, `TypeError` or `AttributeError` for what is not one.
    """
    spelled = dict(_spelled(tokenizer["model"]["vocab"]))
    entries = tokenizer.get("added_tokens", ())
    added = {str(each["content"]): int(each["id"]) for each in entries}
    as_bytes = _of_bytes if _is_byte_level(tokenizer) else _of_sentencepiece
    # Ids may have gaps, which stand for nothing that is known.
    pieces = [UNKNOWN] * (1 + max((*spelled, *added.values())))
    for token, piece in spelled.items():
        pieces[token] = as_bytes(piece)
    # Added tokens are spelled as they are, not in the vocabulary's way.
    for name, token in added.items():
        pieces[token] = name.encode()
    ends = tuple(sorted(_ends(others, added)))
    if not ends:
        raise ValueError("no file says which tokens end a turn (eos_token)")
    return Vocabulary(pieces, added, frozenset(int(each["id"]) for each in entries if each.get("special")), ends)


def _spelled(vocab: Any) -> Iterator[tuple[int, str]]:
    # SentencePiece's is a list, with a score for each piece.
    if isinstance(vocab, dict):
        return ((int(token), piece) for piece, token in vocab.items())
    return ((token, piece) for token, (piece, _) in enumerate(vocab))


def _is_byte_level(tokenizer: Mapping[str, Any]) -> bool:
    return any('"ByteLevel"' in json.dumps(tokenizer.get(part)) for part in ("pre_tokenizer", "decoder"))


def _of_bytes(piece: str) -> bytes:
    """Return what a piece of a byte-level vocabulary stands for."""
    try:
        return bytes(BYTE_OF[character] for character in piece)
    except KeyError:
        # A token that is not spelled in bytes: it stands for itself.
        return piece.encode()


def _of_sentencepiece(piece: str) -> bytes:
    # `<0x0A>` is a byte that no piece has.
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes((int(piece[3:5], 16),))
    return piece.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode()


def _characters() -> dict[str, int]:
    """Return the byte that each character stands for, as GPT-2 began it: itself, or one from U+0100 on."""
    # Printable characters of Latin-1; the others get the next free ones from U+0100 on, in order.
    itself = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return {chr(byte if byte in itself else next(others)): byte for byte in range(0x100)}


BYTE_OF = _characters()


def _ends(others: Sequence[Mapping[str, Any]], added: Mapping[str, int]) -> set[int]:
    """Return the tokens that end a turn: those that the files name, and those of a turn's end that everybody knows."""
    ends = {added[name] for name in KNOWN_ENDS if name in added}
    for each in others:
        ids, named = each.get("eos_token_id"), each.get("eos_token")
        ends.update(token for token in (ids if isinstance(ids, list) else [ids]) if isinstance(token, int))
        name = named.get("content") if isinstance(named, dict) else named
        if isinstance(name, str) and name in added:
            ends.add(added[name])
    return ends
