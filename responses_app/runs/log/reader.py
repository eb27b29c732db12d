"""`ResponseReader`: what a transport has of a response: its events, one behind the other, and how it ended.

Where the events come from is not told: a run of this process, the log of one that has ended, or that of one which
another worker runs.
"""

from collections.abc import Callable
from typing import Protocol

from responses_app.protocol.errors import ApiError
from responses_app.protocol.items.items import Exact
from responses_app.protocol.prompt.chain import ChainLink
from responses_app.protocol.requests.resources import ResponseObject, Status
from responses_app.protocol.response.steps import StopReason
from responses_app.runs.log.journal import EventJournal, JournalReader


class EventSource(Protocol):
    """What has a response's events. `link` (for continuing it) and `problem` (why it failed) hold once it has ended."""

    @property
    def response_id(self) -> str:
        """The id of the response."""

    @property
    def journal(self) -> EventJournal:
        """Its events."""

    @property
    def status(self) -> Status:
        """The status as far as readers know it."""

    @property
    def link(self) -> ChainLink | None:
        """What continues it in a connection; None for what cannot be continued, or not here."""

    @property
    def problem(self) -> ApiError | None:
        """Why it failed, as an error."""

    @property
    def has_spoken(self) -> bool:
        """Whether the model has said anything."""

    @property
    def known_as(self) -> str:
        """The id by which clients know the response."""

    def response(self) -> ResponseObject:
        """Return the response object as it stands."""


class ResponseReader:
    """One reader. Whoever has it lets go of it with `leave`; then nothing is to be asked of it but how it ended.

    `take`, `listen` and `cancel` return at once.
    """

    def __init__(
        self,
        source: EventSource,
        cursor: JournalReader,
        *,
        cancel: Callable[[str], None],
        stop: Callable[[StopReason], bool],
        leave: Callable[[str], None],
        said: Callable[[], Exact | None] = lambda: None,
    ) -> None:
        self._source = source
        self._cursor = cursor
        self._leave = leave
        self.take = cursor.take
        self.cancel = cancel  # with a reason for the log; a stream that was only looked up goes on
        self.said = said  # what the model has sampled so far, as it reads it later; None where another worker runs it
        self.stop = stop  # so that it can be continued; returns whether its end was not decided yet

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake`, which must return at once, on news from now on."""
        self._cursor.wake = wake

    def leave(self, reason: str = "its reader left") -> None:
        """Let go; the last one to do so ends a response that is not in the background. Twice is not an error."""
        self._leave(reason)

    # The events.

    @property
    def ended(self) -> bool:
        """Whether the terminal event has been taken, or all there is of a stream that is not whole."""
        return self._cursor.ended

    @property
    def is_whole(self) -> bool:
        """Whether the terminal event is among its events, once it has ended: else it goes on elsewhere, or broke."""
        return self._cursor.is_whole

    @property
    def behind(self) -> bool:
        """Whether there are events it has not taken."""
        return self._cursor.behind

    @property
    def has_little(self) -> bool:
        """Whether there are events it has not taken, and so few that more may come with them."""
        return self._cursor.has_little

    @property
    def lag_bytes(self) -> int:
        """How far it is behind."""
        return self._cursor.lag_bytes

    @property
    def last_number(self) -> int:
        """The number of the last event taken, -1 before the first."""
        return self._cursor.last_number

    # The response.

    @property
    def response_id(self) -> str:
        """The id of the response."""
        return self._source.response_id

    @property
    def known_as(self) -> str:
        """The id by which clients know the response."""
        return self._source.known_as

    @property
    def status(self) -> Status:
        """The status as far as readers know it."""
        return self._source.status

    @property
    def link(self) -> ChainLink | None:
        """What continues the response in a connection, once it has ended; None for what cannot be continued."""
        return self._source.link

    @property
    def problem(self) -> ApiError | None:
        """Why it failed, once it has."""
        return self._source.problem

    @property
    def has_spoken(self) -> bool:
        """Whether the model has said anything."""
        return self._source.has_spoken

    def response(self) -> ResponseObject:
        """Return the response object as it stands."""
        return self._source.response()
