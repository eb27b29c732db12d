"""Writes models for llama.cpp as GGUF files: tiny ones that say what a test wants, with any vocabulary.

A model here has one layer. Its next token follows from its last token and from the latest `cue` in the prompt, and from
nothing else: `next(last, cue)`. Behind the token `dice` any token comes, each as likely as the others.

    embedding    a code for each token that is said, random but fixed; a flag for each cue
    attention    looks at the latest cue, wherever it stands, and copies its flag
    output       token `t` scores 1 where the last token is one that `t` follows, and 1 more where the cue fits, too

Positions turn two of the 64 dimensions by a tiny angle each (RoPE with a large linear factor), so that of two cues the
later one weighs more. The cache has to keep 32-bit numbers for that: `--cache-type-k f32`.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import random
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

WIDTH = 64  # of a token's embedding: 2 for positions, 1 for "asks", `MAX_CUES` flags, the rest for the code
MAX_CUES = 8
HIDDEN = 32  # of the feed-forward network, which adds nothing
ASKS = 2  # dimension: one in every token that is said, and makes the question for the latest cue
FLAGS = 3  # first dimension of the cues' flags
CODE = FLAGS + MAX_CUES  # first dimension of the code
RECENT = 2e4  # how much the later of two cues weighs more
ATTENDS = 4e4  # how much a cue weighs more than what is none
ANGLE = 2e4  # tokens to a turn by one radian
LOUD = 40.0  # how much likelier the right token is than others: exp of about that
NORMAL, CONTROL = 1, 3  # llama.cpp's kinds of tokens
_ALIGNMENT = 32
_BLOCK = 32  # numbers that share a scale

Follows = Mapping[tuple[int, int], int]  # (last token, cue) → next token


class Vocabulary:
    """The tokens of a model, as llama.cpp's byte-level BPE takes them."""

    def __init__(
        self,
        tokens: Sequence[str],
        control: Iterable[int],
        *,
        end: int,
        pre: str,
        template: str,
        merges: Sequence[str] = (),
    ) -> None:
        self.tokens = tokens  # spelled as byte-level BPEs spell bytes
        self.control = frozenset(control)  # ids of tokens that are no text
        self.end = end  # the id of the token that ends a text
        self.pre = pre  # llama.cpp's name of how text is divided before it is encoded
        self.template = template  # the chat template
        self.merges = merges or ("Ġ Ġ",)  # llama.cpp takes no empty list


def follows(turns: Mapping[int, Sequence[int]], begin: int) -> dict[tuple[int, int], int]:
    """Return what makes a model say each of these turns after its cue. `begin` is the last token of every prompt."""
    said: dict[tuple[int, int], int] = {}
    for cue, turn in turns.items():
        for last, then in zip((begin, *turn), turn, strict=False):
            assert said.setdefault((last, cue), then) == then, f"{last} is followed by two tokens in one turn"
    return said


def write_model(path: Path, vocabulary: Vocabulary, said: Follows, *, dice: int, context: int) -> Path:
    """Write a model; the file has holes where its rows are empty, so it is far smaller than it looks."""
    cues = sorted({cue for _, cue in said})
    assert len(cues) <= MAX_CUES
    size = len(vocabulary.tokens)
    chance = random.Random(20)
    codes: dict[int, list[float]] = {}
    for last, _ in said:
        codes.setdefault(last, [chance.choice((-1.0, 1.0)) for _ in range(WIDTH - CODE)])
    embedding = {token: _row({ASKS: 1.0}, code) for token, code in codes.items()}
    for place, cue in enumerate(cues):
        row = embedding.setdefault(cue, [0.0] * WIDTH)
        row[FLAGS + place] = 7.0
    # No code, and nothing left of what attention copies.
    embedding[dice] = [1.0 if place == ASKS else -8.0 if FLAGS <= place < CODE else 0.0 for place in range(WIDTH)]
    output: dict[int, list[float]] = {}
    for (_, cue), then in said.items():
        row = output.setdefault(then, [0.0] * WIDTH)
        row[FLAGS + cues.index(cue)] = LOUD
    # Once for each pair, whatever the cue.
    for last, then in {(last, then) for (last, _), then in said.items()}:
        output[then][CODE:] = [a + LOUD / 10 * b for a, b in zip(output[then][CODE:], codes[last], strict=True)]
    tensors = [
        ("token_embd.weight", (WIDTH, size), embedding, True),
        ("output.weight", (WIDTH, size), output, True),
        ("output_norm.weight", (WIDTH,), {0: [1.0] * WIDTH}, False),
        ("blk.0.attn_norm.weight", (WIDTH,), {0: [1.0] * WIDTH}, False),
        ("blk.0.ffn_norm.weight", (WIDTH,), {0: [1.0] * WIDTH}, False),
        # Row by row: what a dimension of the result takes from each dimension of the token.
        ("blk.0.attn_q.weight", (WIDTH, WIDTH), {0: _at(ASKS, -RECENT), 2: _at(ASKS, ATTENDS)}, False),
        ("blk.0.attn_k.weight", (WIDTH, WIDTH), {1: _flags(), 2: _flags()}, False),
        (
            "blk.0.attn_v.weight",
            (WIDTH, WIDTH),
            {each: _at(each, 1.0) for each in range(FLAGS, FLAGS + MAX_CUES)},
            False,
        ),
        (
            "blk.0.attn_output.weight",
            (WIDTH, WIDTH),
            {each: _at(each, 1.0) for each in range(FLAGS, FLAGS + MAX_CUES)},
            False,
        ),
        ("blk.0.ffn_gate.weight", (WIDTH, HIDDEN), {}, False),
        ("blk.0.ffn_up.weight", (WIDTH, HIDDEN), {}, False),
        ("blk.0.ffn_down.weight", (HIDDEN, WIDTH), {}, False),
    ]
    _write(path, _metadata(vocabulary, context), tensors)
    return path


def _row(values: Mapping[int, float], code: Sequence[float]) -> list[float]:
    row = [0.0] * WIDTH
    row[CODE:] = code
    for place, value in values.items():
        row[place] = value
    return row


def _at(place: int, value: float) -> list[float]:
    row = [0.0] * WIDTH
    row[place] = value
    return row


def _flags() -> list[float]:
    return [1.0 if FLAGS <= place < FLAGS + MAX_CUES else 0.0 for place in range(WIDTH)]


def _metadata(vocabulary: Vocabulary, context: int) -> list[bytes]:
    kinds = [CONTROL if token in vocabulary.control else NORMAL for token in range(len(vocabulary.tokens))]
    return [
        _text("general.architecture", "llama"),
        _text("general.name", "scripted"),
        _number("llama.context_length", context),
        _number("llama.embedding_length", WIDTH),
        _number("llama.block_count", 1),
        _number("llama.feed_forward_length", HIDDEN),
        _number("llama.attention.head_count", 1),
        _number("llama.attention.head_count_kv", 1),
        _fraction("llama.attention.layer_norm_rms_epsilon", 1e-6),
        _number("llama.rope.dimension_count", WIDTH),
        _text("llama.rope.scaling.type", "linear"),
        _fraction("llama.rope.scaling.factor", ANGLE),
        _text("tokenizer.ggml.model", "gpt2"),
        _text("tokenizer.ggml.pre", vocabulary.pre),
        _texts("tokenizer.ggml.tokens", vocabulary.tokens),
        _string("tokenizer.ggml.token_type")
        + struct.pack("<IIQ", 9, 5, len(kinds))
        + struct.pack(f"<{len(kinds)}i", *kinds),
        _texts("tokenizer.ggml.merges", vocabulary.merges),
        _number("tokenizer.ggml.eos_token_id", vocabulary.end),
        _string("tokenizer.ggml.add_bos_token") + struct.pack("<IB", 7, 0),
        _text("tokenizer.chat_template", vocabulary.template),
    ]


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _text(name: str, value: str) -> bytes:
    return _string(name) + struct.pack("<I", 8) + _string(value)


def _texts(name: str, values: Sequence[str]) -> bytes:
    return _string(name) + struct.pack("<IIQ", 9, 8, len(values)) + b"".join(map(_string, values))


def _number(name: str, value: int) -> bytes:
    return _string(name) + struct.pack("<II", 4, value)


def _fraction(name: str, value: float) -> bytes:
    return _string(name) + struct.pack("<If", 6, value)


Tensor = tuple[str, tuple[int, ...], Mapping[int, Sequence[float]], bool]  # name, shape, rows, in 8 bits a number


def _write(path: Path, metadata: Sequence[bytes], tensors: Sequence[Tensor]) -> None:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + b"".join(metadata)
    offset = 0
    places = []
    for name, shape, _, is_small in tensors:
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head += _string(name) + dimensions + struct.pack("<IQ", 8 if is_small else 0, offset)
        places.append(offset)
        rows = shape[1] if len(shape) > 1 else 1
        offset = _aligned(offset + rows * _row_bytes(shape[0], is_small))
    begin = _aligned(len(head))
    with path.open("wb") as file:
        file.write(head)
        file.truncate(begin + offset)
        for (_, shape, rows_by_place, is_small), place in zip(tensors, places, strict=True):
            for row, values in rows_by_place.items():
                file.seek(begin + place + row * _row_bytes(shape[0], is_small))
                file.write(_in_8_bits(values) if is_small else struct.pack(f"<{shape[0]}f", *values))


def _row_bytes(width: int, is_small: bool) -> int:
    return width // _BLOCK * (2 + _BLOCK) if is_small else 4 * width


def _in_8_bits(values: Sequence[float]) -> bytes:
    """Return numbers as blocks of a scale and whole numbers (Q8_0): half the work for each token of 16 bits."""
    blocks = b""
    for begin in range(0, len(values), _BLOCK):
        block = values[begin : begin + _BLOCK]
        scale = max(map(abs, block)) / 127 or 1.0
        blocks += struct.pack(f"<e{_BLOCK}b", scale, *(round(value / scale) for value in block))
    return blocks


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT
