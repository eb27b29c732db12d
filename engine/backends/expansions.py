"""How long prompts are once an engine has put a picture's own tokens in the place of the one that stands for it."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from engine.types import PictureSource

MAX_KNOWN = 16_384  # pictures, of some 200 bytes each; the least recently used goes first


class Expansions:
    """What an engine has told so far: only the length of a whole prompt, from which that of each picture follows.

    Pictures that come together share what they add. So the sum is right for every later prompt that has all of them,
    as every later turn of a conversation has.
    """

    def __init__(self) -> None:
        self._added: OrderedDict[str, float] = OrderedDict()  # tokens, by digests

    def of(self, pictures: Iterable[PictureSource]) -> int:
        """Return how many tokens these add to a prompt that has one for each; those that are not known add none."""
        return round(sum(self._added.get(each.digest, 0.0) for each in pictures))

    def learn(self, pictures: Sequence[PictureSource], added: int) -> None:
        """Note how many tokens these have added to a prompt."""
        unknown = [each.digest for each in pictures if each.digest not in self._added]
        rest = added - sum(self._added.get(each.digest, 0.0) for each in pictures)
        # Where all are known and it is not their sum, they were learned with others: each bears its part of that.
        for digest in unknown or [each.digest for each in pictures]:
            self._added[digest] = max(0.0, self._added.get(digest, 0.0) + rest / len(unknown or pictures))
        for each in pictures:
            self._added.move_to_end(each.digest)
        while len(self._added) > MAX_KNOWN:
            self._added.popitem(last=False)
