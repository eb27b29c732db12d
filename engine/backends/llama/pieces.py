"""Which tokens a llama-server sampled and did not tell.

It streams text, and holds back what ends within a character: of the tokens that make one character together it tells
the last one alone, with the text of all of them (llama.cpp, `process_token` in tools/server/server-context.cpp). How
many were left out is known by its count, and what they say by the text.

    sampled   " " F0 9F   |   A6   |   99          three tokens, one llama
    told                               99, "🦙"    and that it is the third one
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

MAX_LEFT_OUT = 16  # tokens in a row: a character has four bytes

TokenBytes = Callable[[int], bytes]  # what a token stands for


class Pieces:
    """The ordinary tokens of a vocabulary by what they stand for."""

    def __init__(self, pieces: Mapping[bytes, int], token_bytes: TokenBytes) -> None:
        self._tokens = pieces
        self._token_bytes = token_bytes
        self._longest = max(map(len, pieces), default=0)  # bytes

    @classmethod
    def of(cls, ordinary: Iterable[int], token_bytes: TokenBytes) -> "Pieces":
        """Return those of a vocabulary; of two tokens that stand for the same the first one counts."""
        pieces: dict[bytes, int] = {}
        for token in ordinary:
            pieces.setdefault(token_bytes(token), token)
        return cls(pieces, token_bytes)

    @property
    def plain(self) -> int:
        """The id of a token whose text is whole."""
        return next(token for piece, token in self._tokens.items() if piece.isascii())

    def left_out(self, text: str, last: int, number: int) -> list[list[int]]:
        """Return each way in which `number` tokens before `last` make `text` together with it.

        One way: those were sampled. Several: one of them was. None: the text does not say what was sampled, as where
        its bytes are not UTF-8.
        """
        whole, end = text.encode(), self._token_bytes(last)
        if not whole.endswith(end) or not 0 < number <= MAX_LEFT_OUT:
            return []
        if len(whole) - len(end) > number * self._longest:  # no tokens say so much
            return []
        return list(self._ways(whole[: len(whole) - len(end)], number))

    def _ways(self, content: bytes, number: int) -> Iterator[list[int]]:
        """Yield the ways to make `content` of so many tokens, each of which ends within a character."""
        if number == 1:
            if content in self._tokens and ends_within(content):
                yield [self._tokens[content]]
            return
        for end in range(1, min(len(content), self._longest + 1)):
            if content[:end] in self._tokens and ends_within(content[:end]):
                for rest in self._further(content, end, number - 1):
                    yield [self._tokens[content[:end]], *rest]

    def _further(self, content: bytes, begin: int, number: int) -> Iterator[list[int]]:
        """Yield the ways to make what follows `begin` of so many tokens. What stands before tells where each ends."""
        ends = (len(content),) if number == 1 else range(begin + 1, min(len(content), begin + self._longest + 1))
        for end in ends:
            token = self._tokens.get(content[begin:end])
            if token is None or not ends_within(content[:end]):
                continue
            if number == 1:
                yield [token]
            else:
                yield from ([token, *rest] for rest in self._further(content, end, number - 1))


def ends_within(content: Sequence[int]) -> bool:
    """Whether bytes end within a character of UTF-8, as llama.cpp looks at it (`validate_utf8`)."""
    for back, byte in enumerate(reversed(content[-4:]), start=1):
        if byte & 0xE0 == 0xC0:
            return back < 2
        if byte & 0xF0 == 0xE0:
            return back < 3
        if byte & 0xF8 == 0xF0:
            return back < 4
    return False
