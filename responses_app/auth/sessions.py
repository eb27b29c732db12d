"""`SessionWatch`: the sessions that have something open, looked at again and again, as keys in use are.

A session is out when its user has signed out, is disabled, or may not use the API, or this project, any more. Whoever
came in by it is told within `CHECK_SECONDS` and the time of one query. While the database is away nobody can end a
session, and what is open goes on.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from responses_app.auth.keyring import REFRESH_SECONDS
from responses_app.protocol.api_keys import Caller
from responses_app.protocol.errors import ApiError
from responses_app.stores.base import StoreError
from responses_app.stores.callers import BaseStaff, SessionPass

logger = logging.getLogger("respsite.auth")

CHECK_SECONDS = REFRESH_SECONDS  # between two looks


@dataclass(slots=True)
class _Watched:
    """A session in one project, with all that is open by it."""

    watchers: dict[int, Callable[[], None]] = field(default_factory=dict)  # by a number each
    task: asyncio.Task[None] | None = None  # that looks at it, while there are watchers


class SessionWatch:
    """The watched sessions of one process: one query at a time for each, however much is open by it."""

    def __init__(self, staff: BaseStaff) -> None:
        self._staff = staff
        self._watched: dict[SessionPass, _Watched] = {}
        self._count = 0  # watchers there ever were: the next one's number

    def watch(self, caller: Caller, lost: Callable[[], None]) -> Callable[[], None]:
        """Call `lost` once when a session that has come in is out; return what ends the watch."""
        given = SessionPass(caller.session, caller.project)
        watched = self._watched.setdefault(given, _Watched())
        self._count += 1
        number = self._count
        watched.watchers[number] = lost
        if watched.task is None:
            watched.task = asyncio.get_running_loop().create_task(self._look(given, watched), name="session")

        def unwatch() -> None:
            watched.watchers.pop(number, None)
            if not watched.watchers:
                self._forget(given, watched)

        return unwatch

    async def aclose(self) -> None:
        """Stop."""
        tasks = [watched.task for watched in self._watched.values() if watched.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._watched.clear()

    async def _look(self, given: SessionPass, watched: _Watched) -> None:
        while watched.watchers:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                now = await self._staff.caller(given)
            except StoreError:
                continue
            except ApiError:  # this user may not choose the project any more
                now = None
            except Exception:
                logger.exception("looking after a session broke")
                continue
            if now is None:
                told = list(watched.watchers.values())
                watched.watchers.clear()
                for lost in told:
                    lost()
        self._forget(given, watched)

    def _forget(self, given: SessionPass, watched: _Watched) -> None:
        task, watched.task = watched.task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        if self._watched.get(given) is watched:
            del self._watched[given]
