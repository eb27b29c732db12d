"""`Choices`: several responses to one request, beside each other, and one reader of them all.

    create(0), create(1), … ──> readers ── news() ──> whoever encodes them takes from each

Each is a run of its own: it is admitted, counted and ended like any other. They belong together only here: if one of
them is refused there is none, and whoever leaves, leaves all.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Self

from responses_app.runs.log.journal import Waiter
from responses_app.runs.log.reader import ResponseReader


class Choices:
    """The readers of one request, in the order of its choices. Whoever has it lets go of it with `leave`."""

    def __init__(self, readers: Sequence[ResponseReader]) -> None:
        self.readers = tuple(readers)
        self._one = self.readers[0] if len(self.readers) == 1 else None  # nearly always, and asked at each event
        self._news = Waiter()
        for reader in self.readers:
            reader.listen(self._news)

    @classmethod
    async def create(cls, create: Callable[[int], Awaitable[ResponseReader]], count: int) -> Self:
        """Start `count` responses, one behind the other. Raises what `create` raises, and then none of them runs."""
        readers: list[ResponseReader] = []
        try:
            for index in range(count):
                readers.append(await create(index))
        except BaseException:
            for reader in readers:
                reader.leave("another choice of its request was refused")
            raise
        return cls(readers)

    @property
    def ended(self) -> bool:
        """Whether all that there is of every one has been taken."""
        if self._one is not None:
            return self._one.ended
        return all(reader.ended for reader in self.readers)

    @property
    def behind(self) -> bool:
        """Whether any has events that were not taken."""
        if self._one is not None:
            return self._one.behind
        return any(reader.behind for reader in self.readers)

    @property
    def has_little(self) -> bool:
        """Whether there are events that were not taken, and so few that more may come with them."""
        if self._one is not None:
            return self._one.has_little
        return any(reader.has_little for reader in self.readers)

    async def news(self, timeout: float | None = None) -> bool:
        """Wait until any of them has news, at most `timeout` seconds (None: as long as it takes); return whether."""
        return await self._news.wait(timeout)

    def leave(self, reason: str) -> None:
        """Let go of all; those that still run end. Twice is not an error."""
        for reader in self.readers:
            reader.leave(reason)
