"""`Places`: how much a tool does at once, of which one project has a part: others find a place all the same.

Example with 16 places, 8 of a project: A calls for 100 images at a service that hangs. 8 of them are under way. B calls
for one: it is under way at once.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class _Own:
    """What one project has: its places, and how many have one or wait for it."""

    places: asyncio.Semaphore
    users: int = 0


class Places:
    """Of one process: `most` at once, and `of_project` of each project. Those that wait come in their order."""

    def __init__(self, most: int, of_project: int) -> None:
        self._all = asyncio.Semaphore(most)
        self._of_project = of_project
        self._own: dict[str, _Own] = {}

    @asynccontextmanager
    async def taken(self, project: str) -> AsyncIterator[None]:
        """Have a place, once there is one."""
        own = self._own.setdefault(project, _Own(asyncio.Semaphore(self._of_project)))
        own.users += 1
        try:
            async with own.places, self._all:
                yield
        finally:
            own.users -= 1
            if not own.users:
                del self._own[project]
