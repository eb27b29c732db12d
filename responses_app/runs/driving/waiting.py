"""`ClientWait`: a response waits for outputs of its client's calls, and uses the time.

It learns how long each call takes (`ToolWaits`). And where some outputs are there and the rest is expected soon, it has
the engine read the prompt again up to the calls: its blocks may have been evicted meanwhile. Then only the outputs are
left to be read once all are there, and a router before the engine has heard that the session is coming back.

Example: a model calls `tests` and `lint` at once. `lint` answers after 20 s, and `tests` mostly takes 25: the prompt is
read now. If `tests` mostly took 10 minutes it would not be: it would be evicted again by then.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from responses_app.protocol.response.calls import ClientCalls
from responses_app.runs.log.run_log import end_tasks
from responses_app.runs.plan.waits import ToolWaits

EVICTED_SECONDS = 2.0  # of a wait: before that, hardly anything is evicted, and reading it again would be for nothing
SOON_SECONDS = 10.0  # until the rest of the outputs is expected: what is read now is still there by then


class ClientWait:
    """One wait. `prefill` has the engine read the prompt, and is called once at most; the wait owns what it does."""

    def __init__(
        self,
        calls: ClientCalls,
        *,
        waits: ToolWaits,
        project: str,
        now: Callable[[], float],  # of a monotonic clock, in seconds
        prefill: Callable[[], Coroutine[Any, Any, None]],
        elapsed: float = 0.0,  # seconds of it that another worker has waited
    ) -> None:
        self._calls = calls
        self._open: dict[str, str] = dict(calls.open_tools)  # ids of calls that have no output yet, with their tools
        self._waits = waits
        self._project = project
        self._now = now
        self._began = now() - elapsed
        self._prefill = prefill
        self._task: asyncio.Task[None] | None = None

    def hear(self) -> None:
        """Take notice of the outputs that have come."""
        came = [call_id for call_id in self._open if self._calls.state(call_id) == "answered"]
        elapsed = self._now() - self._began
        for call_id in came:
            self._waits.note(self._project, self._open.pop(call_id), elapsed)
        if came and self._open and self._task is None and self._is_worth_it(elapsed):
            self._task = asyncio.create_task(self._prefill(), name="prefill ahead")

    async def aclose(self) -> None:
        """End what it does; return when it has ended."""
        await end_tasks((self._task,))

    def _is_worth_it(self, elapsed: float) -> bool:
        if elapsed < EVICTED_SECONDS:
            return False
        expected = self._waits.expected(self._project, self._open.values())
        return expected is None or expected - elapsed <= SOON_SECONDS
