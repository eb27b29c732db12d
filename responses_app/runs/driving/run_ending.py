"""`RunEnding`: how a run ends: its end is kept, and then told, so that both agree.

    decided ── keep() ──> committed ── tell() ──> the terminal event is in the journal, and the journal is closed
                 └ the store is away, or it broke ──> failed, and kept as that later

Whatever breaks on the way, every reader gets an end: by `tell_anyway`, or by a stream that just ends.
"""

import logging
from collections.abc import Callable

from responses_app.protocol.errors import ApiError
from responses_app.protocol.output.endings import Ending
from responses_app.protocol.prompt.chain import ChainLink
from responses_app.protocol.requests.resources import Status
from responses_app.protocol.response.commands import Command
from responses_app.protocol.response.inputs import Failed, Input
from responses_app.protocol.response.response import ResponseMachine
from responses_app.runs.driving.measuring import RunMeasure
from responses_app.runs.driving.persistence import KeptEnd, RunPersistence
from responses_app.runs.log.journal import EventJournal
from responses_app.runs.plan.failures import failure, unanswered

logger = logging.getLogger("respsite.runs")


class RunEnding:
    """Of one run. `link` (for continuing it) and `problem` (why it failed) hold once its journal is closed.

    `tell` gives the machine an input.
    """

    def __init__(
        self,
        machine: ResponseMachine,
        journal: EventJournal,
        persistence: RunPersistence,
        measure: RunMeasure,
        *,
        request_id: str,
        tell: Callable[[Input], Command | None],
    ) -> None:
        self.link: ChainLink | None = None
        self.problem: ApiError | None = None
        self.kept: KeptEnd | None = None  # None until it is
        self._machine = machine
        self._journal = journal
        self._persistence = persistence
        self._measure = measure
        self._request_id = request_id
        self._tell = tell

    async def keep(self, ending: Ending, *, may_wait: Callable[[], bool]) -> bool:
        """Keep the end that was decided, or that it has failed; return False where it is for another worker to keep.

        `may_wait`: this worker does not stop, nor has it lost the response. Raises `ClaimLost`.
        """
        measured = self._measure.measured()
        self.kept = await self._persistence.keep(self._machine, ending, measured, may_wait=may_wait)
        if ending.status is Status.FAILED and self.problem is None:  # of the machine's own
            self.problem = unanswered(None, self._request_id)
        return self.kept is not None

    def tell(self, *, remark: str) -> None:
        """Say the end that is kept. `remark` says why it ends, where its readers do not hear it."""
        assert self.kept is not None, "an end is kept before it is told"
        self.link = self.kept.link
        if self.kept.ended.error is not None:  # it could not be kept as it was decided
            self.problem = unanswered(None, self._request_id)
        if self._persistence.log is not None:
            self._persistence.log.end()
        self._tell(self.kept.ended)
        self._measure.report(self._journal.appended_bytes, remark)

    def tell_anyway(self, *, remark: str) -> None:
        """Say an end behind something that broke: the one that is kept, or else that the response has failed.

        Where even that cannot be told, the stream ends without an end, and `problem` says so.
        """
        try:
            self._tell(Failed(failure(None, self._request_id)))  # does nothing where an end was decided
            self.kept = self.kept or self._persistence.fail(self._machine, self._measure.measured())
            self.tell(remark=remark)
        except Exception:
            logger.exception("response %s: its end cannot be told", self._persistence.response_id)
        if not self._journal.is_whole:
            self.problem = unanswered(None, self._request_id)
            self._journal.end()
