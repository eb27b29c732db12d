"""`ThreadedStore`: what the stores of files and of vector stores have in common."""

import math
from collections.abc import Callable
from typing import Generic, TypeVar

from responses_app.stores.clock import StoreClock
from responses_app.stores.database.readers import DatabaseReaders

Own = TypeVar("Own")


class ThreadedStore(Generic[Own]):
    """A store in the database `using` whose readers write, too: its writes are too rare to be gathered.

    `settings` are the store's own, `unlimited` where none are given. `timeout` bounds, in seconds, whatever waits
    for the database. `now` is Unix time.
    """

    unlimited: Own

    def __init__(
        self,
        *,
        using: str = "default",
        settings: Own | None = None,
        now: Callable[[], float] | None = None,
        timeout: float = math.inf,
    ) -> None:
        self._using = using
        self._settings = self.unlimited if settings is None else settings
        self._now = now or StoreClock()
        self._threads = DatabaseReaders(using, timeout=timeout)

    async def aclose(self) -> None:
        """Let go of everything. Safe to call twice."""
        await self._threads.aclose()
