"""`Draining`: who is told that the server stops, and when all of them have acted on it."""

import asyncio
from collections.abc import Callable


class Draining:
    """One per process."""

    def __init__(self) -> None:
        self._watching: dict[object, Callable[[], None]] = {}
        self._is_empty = asyncio.Event()
        self.begun = False

    def watch(self, leave: Callable[[], None]) -> Callable[[], None]:
        """Call `leave` when the server stops, at once if it does; return what has to be called when that is done."""
        key = object()
        self._watching[key] = leave
        self._is_empty.clear()
        if self.begun:
            asyncio.get_running_loop().call_soon(self._tell, key)

        def unwatch() -> None:
            self._watching.pop(key, None)
            if not self._watching:
                self._is_empty.set()

        return unwatch

    def begin(self) -> None:
        """Tell all who watch that the server stops."""
        self.begun = True
        for key in list(self._watching):
            self._tell(key)

    async def over(self, seconds: float) -> None:
        """Wait until nobody watches any more, `seconds` at most."""
        if self._watching:
            waiting = asyncio.ensure_future(self._is_empty.wait())
            await asyncio.wait([waiting], timeout=seconds)
            waiting.cancel()

    def _tell(self, key: object) -> None:
        leave = self._watching.get(key)
        if leave is not None:
            leave()
