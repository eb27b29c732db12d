"""`RunRegistry`: owns the tasks of all runs of this process.

A transport attaches to a run's journal and detaches; a run that no transport reads any more is cancelled. So a
cancelled request or a closed socket never cancels a run by itself, and no task outlives the registry.
"""

import asyncio
import contextvars
import logging
from collections.abc import Callable

from responses_app.protocol.errors import overloaded
from responses_app.runs.journal import JournalReader
from responses_app.runs.run import ResponseRun

logger = logging.getLogger("respsite.runs")


class RunRegistry:
    """The running responses, at most `max_runs` of them."""

    def __init__(self, *, max_runs: int) -> None:
        self._max_runs = max_runs
        self._runs: dict[str, tuple[ResponseRun, asyncio.Task[None]]] = {}
        self._draining = False

    def __len__(self) -> int:
        return len(self._runs)

    def get(self, response_id: str) -> ResponseRun | None:
        """Return a response that still runs."""
        known = self._runs.get(response_id)
        return known[0] if known and not known[0].journal.closed else None

    def check_capacity(self) -> None:
        """Raise `ApiError` (503) if no run can start now."""
        if self._draining:
            raise overloaded("The server is stopping. Send the request again.", retry_after=2)
        if len(self._runs) >= self._max_runs:
            message = f"{self._max_runs} responses are running (RESPONSES_MAX_IN_FLIGHT). Try again shortly."
            raise overloaded(message, retry_after=2)

    def start(self, run: ResponseRun) -> None:
        """Start a run in a task, and a context, of its own."""
        self.check_capacity()
        task = asyncio.create_task(run.execute(), name=run.response_id, context=contextvars.Context())
        self._runs[run.response_id] = run, task
        task.add_done_callback(lambda _: self._runs.pop(run.response_id, None))

    def attach(self, run: ResponseRun, wake: Callable[[], None]) -> JournalReader:
        """Add a reader to a run; `wake` is called on news and must return at once."""

        def dropped() -> None:
            logger.warning(
                "response %s: a reader fell more than STREAM_MAX_LAG_BYTES behind and was dropped", run.response_id
            )
            self._left(run, "its reader was too slow")

        return run.journal.attach(wake, dropped)

    def detach(self, run: ResponseRun, reader: JournalReader, *, reason: str = "") -> None:
        """Remove a reader; the last one to leave cancels what still runs."""
        run.journal.detach(reader)
        self._left(run, reason or "its reader left")

    def _left(self, run: ResponseRun, reason: str) -> None:
        if run.journal.readers == 0:
            self.cancel(run, reason=reason)

    def cancel(self, run: ResponseRun, *, reason: str) -> None:
        """Cancel a run unless it is ending already.

        Soon, not now: a task that is cancelled before its first step never takes it, and its readers would wait for
        ever.
        """
        known = self._runs.get(run.response_id)
        if known and not run.finishing:
            run.abandoned_reason = reason
            asyncio.get_running_loop().call_soon(_cancel, *known)

    async def aclose(self, *, grace: float = 0.0) -> None:
        """Refuse new runs, give the present ones `grace` seconds, then cancel them and wait until they ended."""
        self._draining = True
        tasks = [task for _, task in self._runs.values()]
        if tasks and grace > 0:
            await asyncio.wait(tasks, timeout=grace)
        for run, _ in list(self._runs.values()):
            self.cancel(run, reason="the server stopped")
        if tasks:
            await asyncio.wait(tasks)


def _cancel(run: ResponseRun, task: "asyncio.Task[None]") -> None:
    if not run.finishing:
        task.cancel()
