"""A rendered prompt goes on with the very tokens that were sampled, wherever it says the same.

What a model has sampled, and its text encoded again, are often different tokens of the same bytes; from the first
difference on an engine's prefix cache finds nothing. So in a new rendering each turn's sampled tokens take the place of
what has exactly their bytes. Where the rendering says anything else (a template that drops old reasoning, or writes a
call's JSON in its own way), it stays as it is.

White space with which a turn begins may be one token there with the line end before it, which the template wrote and
the prompt of that turn ended with. Then the line end is a token again.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from engine.formats.base import Tokens, as_tokens


def spliced(rendered: Sequence[int], turns: Sequence[Sequence[int]], pieces: Sequence[bytes]) -> "Tokens[int]":
    """Return a rendering with the sampled tokens of its turns in it, in their order.

    `pieces` are the bytes of every token (`Vocabulary.unmistakable`). The bytes of the prompt stay the same.
    """
    if not turns or max(rendered, default=0) >= len(pieces):
        return as_tokens(rendered)
    parts = [pieces[token] for token in rendered]
    text = b"".join(parts)
    ends = list(accumulate(map(len, parts), initial=0))
    places = {end: place for place, end in enumerate(ends)}  # of a token that begins there, by its first byte
    prompt, done = as_tokens(), 0
    for turn in turns:
        said = b"".join([pieces[token] for token in turn]) if max(turn) < len(pieces) else b""
        begin = _found(text, said, ends[done], places) if said else None
        before = b""  # of the token that is split
        if begin is None and said[:1].isspace():
            begin = _found(text, said, ends[done], places, splits=True)
            before = b"" if begin is None else text[ends[bisect_right(ends, begin) - 1] : begin]
        if begin is None or (before and before not in pieces):
            continue
        prompt.extend(rendered[done : places[begin - len(before)]])
        prompt.extend([pieces.index(before)] if before else ())
        prompt.extend(turn)
        done = places[begin + len(said)]
    prompt.extend(rendered[done:])
    return prompt


def _found(text: bytes, said: bytes, start: int, places: dict[int, int], *, splits: bool = False) -> int | None:
    """Return where something is said, from the beginning of a token to the end of one; `splits`: or from within one."""
    begin = text.find(said, start)
    while begin >= 0:
        if (splits or begin in places) and begin + len(said) in places:
            return begin
        begin = text.find(said, begin + 1)
    return None
