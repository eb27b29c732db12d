"""`Effects`: what must not be done twice outside waits here until it is this worker's to do, and known to all others.

    a call that must not be repeated ── permit() ──> its asking is kept, by the present claim ──> it goes out
                                           ├ ClaimLost: another worker has the response; it never goes out here
                                           └ NotPermitted: it never goes out, and the model is told why

Example: A calls a tool and dies at once. B takes the response over and finds in its log that the call was asked for,
and not what came of it: it may have been made, so B does not make it. Were the call to go out before the log has it, B
would have the model sample it again, and make it twice.

A worker that stands still behind the answer of the store (its machine was paused) may be taken for dead meanwhile. So
it asks once more where much time has passed, and so do tools right before they send: `confirm()`.
"""

from collections.abc import Callable

from responses_app.runs.driving.persistence import RunPersistence
from responses_app.stores.base import ClaimLost
from responses_app.stores.clock import own_clock
from responses_app.tools.base import ToolFailed

FRESH_SECONDS = 1.0  # for so long an answer of the store holds: no worker is taken for dead sooner


class NotPermitted(ToolFailed):
    """Something is not done outside; the text says why, for the model."""


def nothing_held() -> None:
    """Have no approvals, which could be lost."""


class Effects:
    """The permits of one run, which `persistence` keeps.

    `may_wait`: this worker does not stop, nor has it lost the response.
    """

    def __init__(self, persistence: RunPersistence, *, may_wait: Callable[[], bool]) -> None:
        self.persistence = persistence
        self._may_wait = may_wait
        self.check_approvals: Callable[[], None] = nothing_held  # raises `NotPermitted`
        self._permitted_at = -FRESH_SECONDS  # by our own clock

    async def permit(self) -> None:
        """Return once what the response asks for may be done. Raises `NotPermitted`, and `ClaimLost`."""
        for _ in range(2):
            asked = own_clock()
            if not await self.persistence.keep_inputs(may_wait=self._may_wait):
                if not self._may_wait():
                    raise ClaimLost(f"{self.persistence.response_id} is left to another worker")
                raise NotPermitted("it must not run twice, and this server cannot write down now that it runs.")
            self.check_approvals()
            self._permitted_at = asked
            if self._is_fresh:
                return

    async def confirm(self) -> None:
        """Return once what was permitted may be done: at once, unless time has passed since. Raises as `permit`."""
        if not self._is_fresh:
            await self.permit()

    @property
    def _is_fresh(self) -> bool:
        return own_clock() - self._permitted_at < FRESH_SECONDS
