"""`Interruption`: what a run is to do in place of what it does now, since something came from outside."""

import asyncio

from responses_app.protocol.response.commands import Command, Finish


class Interruption:
    """Of one run: its task is cancelled, finds here why, and goes on with that."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._instead: Command | None = None

    def attach(self) -> None:
        """The run begins, in the task that calls this."""
        self._task = asyncio.current_task()

    def put(self, command: Command) -> None:
        """Let the run do this now; one that has not begun begins with it by itself."""
        if self._task is not None:
            self._instead = command
            self._task.cancel()

    def take(self) -> Command | None:
        """Return what is to be done in place of what was cancelled; None where the run itself was cancelled, too.

        An end that is decided is kept in any case.
        """
        instead = self.forget()
        if instead is None or self._task is None:
            return None
        cancelled_too = self._task.uncancel() > 0
        return None if cancelled_too and not isinstance(instead, Finish) else instead

    def forget(self) -> Command | None:
        """Return what was to be done, which is not done any more."""
        instead, self._instead = self._instead, None
        return instead
