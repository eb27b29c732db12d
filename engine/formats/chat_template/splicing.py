"""A rendered prompt goes on with the very tokens that were sampled, wherever it says the same.

What a model has sampled, and its text encoded again, are often different tokens of the same bytes; from the first
difference on an engine's prefix cache finds nothing. So in a new rendering each turn's sampled tokens take the place of
what has exactly their bytes. Where the rendering says anything else (a template that drops old reasoning, or writes a
call's JSON in its own way), it stays as it is.
"""

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
        if begin is None:
            continue
        prompt.extend(rendered[done : places[begin]])
        prompt.extend(turn)
        done = places[begin + len(said)]
    prompt.extend(rendered[done:])
    return prompt


def _found(text: bytes, said: bytes, start: int, places: dict[int, int]) -> int | None:
    """Return where something is said, from the beginning of a token to the end of one."""
    begin = text.find(said, start)
    while begin >= 0:
        if begin in places and begin + len(said) in places:
            return begin
        begin = text.find(said, begin + 1)
    return None
