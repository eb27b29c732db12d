"""`EventSource`: what has a response's events: a run of this process, a log that was read, or one that is followed.

`ResponseReader`: what a transport has of one: its events, one behind the other. Whose they are it is not told.
"""

import logging
from collections.abc import Callable

from responses_app.protocol.errors import ApiError
from responses_app.protocol.events.dialects import Wording
from responses_app.protocol.items.items import Exact
from responses_app.protocol.prompt.chain import ChainLink
from responses_app.protocol.requests.resources import ResponseObject, Status
from responses_app.protocol.response.response import ResponseMachine
from responses_app.protocol.response.steps import StopReason
from responses_app.runs.log.journal import EventJournal, JournalReader

logger = logging.getLogger("respsite.runs")


class EventSource:
    """A response's events, and the machine that they come of; as it is, that of one which has ended, or runs elsewhere.

    `link` and `problem` hold once it has ended.
    """

    link: ChainLink | None = None  # what continues it in a connection; None for what cannot be continued, or not here
    problem: ApiError | None = None  # why it failed
    deleted = False  # somebody has deleted the response while it ran here
    has_spoken = True  # the model has said anything

    def __init__(self, response_id: str, journal: EventJournal, machine: ResponseMachine) -> None:
        self.response_id = response_id
        self.journal = journal
        self._machine = machine

    @property
    def status(self) -> Status:
        """The status as far as readers know it."""
        return self._machine.status

    @property
    def known_as(self) -> str:
        """The id by which clients know the response."""
        return self._machine.stream.known_as

    @property
    def said(self) -> Exact | None:
        """What the model has sampled so far, as it reads it in a later turn; None for what does not run here."""
        return None

    def response(self) -> ResponseObject:
        """Return the response object as it stands."""
        return self._machine.stream.snapshot()

    def stop(self, reason: StopReason) -> bool:
        """End it before the model does; return whether its end was not decided yet. What runs elsewhere goes on."""
        return False


class ResponseReader(JournalReader):
    """One reader. Whoever has it lets go of it with `leave`; then nothing is to be asked of it but how it ended.

    `take`, `listen` and `cancel` return at once. `cancel` ends what runs here, with a reason for the log.
    """

    def __init__(
        self,
        source: EventSource,
        *,
        cancel: Callable[[str], None],
        left: Callable[["ResponseReader", str], None],
        starting_after: int | None = None,
        wording: Wording | None = None,
    ) -> None:
        super().__init__(source.journal, _unheard, self._dropped, starting_after=starting_after, wording=wording)
        self.source = source
        self.cancel = cancel
        self._left = left

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake`, which must return at once, on news from now on."""
        self.wake = wake

    def leave(self, reason: str = "its reader left") -> None:
        """Let go; the last one to do so ends a response that is not in the background. Twice is not an error."""
        self._left(self, reason)
        self.wake = self.dropped = _unheard  # its own method and its transport know it, as it knows them

    def _dropped(self) -> None:
        logger.warning(
            "response %s: a reader fell more than STREAM_MAX_LAG_BYTES behind and was dropped", self.source.response_id
        )
        self._left(self, "its reader was too slow")


def _unheard() -> None:
    """Nobody listens to a reader yet, or any more."""
