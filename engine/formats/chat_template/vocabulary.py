"""The tokens of a model, as its files describe them: their bytes, and the signs of messages and pictures.

Nothing is encoded here, so no tokenizer library is needed: vLLM renders prompts, and the files say the rest.

    tokenizer.json           the tokens, as a byte-level BPE (Qwen, Llama 3, Mistral, …) or SentencePiece spells them
    generation_config.json,  the tokens that end a turn
    tokenizer_config.json
    config.json              the token that stands for a picture (`sight_of`)

In a prompt a picture is one token. The engine puts as many in its place as its model sees the picture as, which nobody
else knows. Templates have this token from a part of a message that is an image, and write others around it; here it
stands in the message's text instead, written in the same way, so that the template is given text alone, whoever
renders it, and no picture has to be there for that.

What else spells this token (a user's text, a tool's description) would be taken for a picture: it gets a character of
no width behind its first one.

Families of templates begin messages with signs of their own (`template_messages`). One that has none of these in its
vocabulary, or writes them as plain text, does not tell whose a message is: nothing is found.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

from engine.formats.base import Begins, Body, PicturePart, Role, Tokens, messages_in, parts_of

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
        """A digest that is the same where the same tokens stand for the same bytes."""
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
    vocab = tokenizer["model"]["vocab"]
    # SentencePiece's is a list, with a score for each piece.
    spelled = (
        {int(token): piece for piece, token in vocab.items()}
        if isinstance(vocab, dict)
        else dict(enumerate(piece for piece, _ in vocab))
    )
    entries = tokenizer.get("added_tokens", ())
    added = {str(each["content"]): int(each["id"]) for each in entries}
    is_byte_level = any('"ByteLevel"' in json.dumps(tokenizer.get(part)) for part in ("pre_tokenizer", "decoder"))
    as_bytes = _of_bytes if is_byte_level else _of_sentencepiece
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


# The byte that each character stands for, as GPT-2 began it. Printable characters of Latin-1 stand for themselves; the
# other bytes have the next free ones from U+0100 on, in order.
_ITSELF = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_OTHERS = iter(range(0x100, 0x200))
BYTE_OF = {chr(byte if byte in _ITSELF else next(_OTHERS)): byte for byte in range(0x100)}


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


AUTO, NONE = "auto", "none"  # beside the text itself, what an operator may say
_NO_WIDTH = "\N{ZERO WIDTH SPACE}"
# Fields of a model's config that name the token.
_FIELDS = ("image_token_id", "image_token_index", "media_placeholder_token_id")
# Families whose config names what their picture is expanded to, and not what stands in the prompt.
_OF_TYPE = {"gemma3": "<start_of_image>", "llama4": "<|image|>"}
# What templates write around the token: of Qwen from 2 on, of GLM, of Kimi.
_AROUND = (
    "<|vision_start|><|image_pad|><|vision_end|>",
    "<|begin_of_image|><|image|><|end_of_image|>",
    "<|media_start|>image<|media_content|><|media_pad|><|media_end|>",
)


@dataclass(frozen=True, slots=True)
class Sight:
    """How a template has a picture."""

    text: str  # all that it writes for one
    name: str  # of the token in it that the engine expands
    token: int  # its id

    def written(self, body: Body) -> str:
        """Return a body as text for the template."""
        return "".join(self.text if isinstance(part, PicturePart) else self.plain(part) for part in parts_of(body))

    def plain(self, text: str) -> str:
        """Return a text in which nothing is taken for a picture."""
        return text.replace(self.name, self.name[0] + _NO_WIDTH + self.name[1:]) if self.name in text else text


def sight_of(config: Mapping[str, Any], vocabulary: Vocabulary, named: str = AUTO) -> Sight | None:
    """Return how a model's template has a picture, None where the model does not see.

    `config` is the model's config.json, `named` what an operator says. Raises `ValueError` where that cannot be.
    """
    if named == NONE:
        return None
    ids = [config[field] for field in _FIELDS if isinstance(config.get(field), int)]
    known = [name for name, token in vocabulary.added.items() if token in ids[:1]]
    if named == AUTO:
        of_type = _OF_TYPE.get(str(config.get("model_type")))
        name = of_type or next(iter(known), "")
        if not isinstance(config.get("vision_config"), Mapping) or name not in vocabulary.added:
            return None
        # Its template writes what is around the token where all of that is in the vocabulary.
        text = next((each for each in _AROUND if name in each and _is_whole(each, vocabulary)), name)
        return Sight(text, name, vocabulary.added[name])
    within = [name for name in vocabulary.added if name in named]
    within = [name for name in within if name in known] or within
    if len(within) != 1:
        raise ValueError(
            f"{named!r} has {len(within)} tokens of the model's vocabulary in it, and not the one that stands for a "
            "picture"
        )
    return Sight(named, within[0], vocabulary.added[within[0]])


def _is_whole(text: str, vocabulary: Vocabulary) -> bool:
    # `<a><b>` → `a`, `b`: each sign of its own.
    return all(f"<{sign.partition('>')[0]}>" in vocabulary.added for sign in text.split("<")[1:])


# Behind these stands a name: of ChatML (Qwen and others), Kimi, Llama from 3 on and from 4 on, Gemma, Granite.
_NAMED = (
    *("<|im_start|>", "<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|start_header_id|>", "<|header_start|>"),
    *("<start_of_turn>", "<|start_of_role|>"),
)
_SIGNS: Mapping[str, Role] = {
    # Of GLM and of Phi.
    "<|system|>": "system",
    "<|user|>": "user",
    "<|assistant|>": "assistant",
    "<|observation|>": "tool",
    "<|tool|>": "tool",
    # Of DeepSeek.
    "<｜User｜>": "user",
    "<｜Assistant｜>": "assistant",
    "<｜tool▁outputs▁begin｜>": "tool",
    # Of Mistral.
    "[SYSTEM_PROMPT]": "system",
    "[AVAILABLE_TOOLS]": "system",
    "[INST]": "user",
    "[TOOL_RESULTS]": "tool",
}
# Signs with which a message ends behind which the assistant speaks.
_ENDS = ("[/INST]", "[/TOOL_RESULTS]", "<｜tool▁outputs▁end｜>")
_UNSIGNED = "<｜User｜>"  # where this is a sign, instructions have none: they stand before all messages
_NAMES: Mapping[str, Role] = {
    **dict.fromkeys(("system", "available_tools", "tool_declare"), "system"),
    "developer": "developer",
    "user": "user",
    **dict.fromkeys(("tool", "ipython", "tool_response", "observation", "function"), "tool"),
    **dict.fromkeys(("assistant", "model"), "assistant"),
}
# A name, and whether the output of a tool follows in what is the user's message otherwise, as Qwen has it.
_NAME = re.compile(r"\s*([a-z_]+)(?:\s*(<tool_response>))?")


def template_messages(tokens: "Tokens[int]", vocabulary: Vocabulary, *, whole: bool) -> list[Begins]:
    """Return where messages begin; see `ModelFormat.messages_in`."""
    added, special = vocabulary.added, vocabulary.special
    signs: dict[int, Role | None] = {added[name]: None for name in _NAMED if name in added}
    signs |= {added[name]: role for name, role in _SIGNS.items() if name in added}
    ends = {added[name] for name in _ENDS if name in added}
    signs |= dict.fromkeys(ends, "assistant")

    def named(header: "Tokens[int]") -> Role:
        text = b"".join(map(vocabulary.token_bytes, header)).decode(errors="replace")
        match = _NAME.match(text.lower())
        role = "prompt" if match is None else _NAMES.get(match[1], "prompt")
        return "tool" if role == "user" and match is not None and match[2] else role

    found = messages_in(tokens, signs, named)
    found = [(place + 1, role) if tokens[place] in ends else (place, role) for place, role in found]
    found = [each for each in found if each[0] < len(tokens)]
    if whole and found and found[0][0]:
        first, role = found[0]
        if all(token in special for token in tokens[:first]):  # the sign of the prompt's beginning
            found[0] = (0, role)
        elif _UNSIGNED in added:
            found.insert(0, (0, "system"))
    return found
