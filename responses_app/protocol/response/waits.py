"""`Waits`: whether a response waits for what comes of its calls, and what it still waits for.

An output may come before the model has ended its turn; then nothing is waited for.
"""

from dataclasses import replace

from responses_app.protocol.errors import ResponseError
from responses_app.protocol.output.stream import LocalProtocolError
from responses_app.protocol.response.client_calls import ClientCalls, no_output
from responses_app.protocol.response.commands import Await, Command
from responses_app.protocol.response.inputs import OutputGiven, TimedOut, WaitBegan


class Waits:
    """Of one response, whose `calls` its client executes. `wanted`: it goes on in the same stream behind their outputs.

    Its methods raise `LocalProtocolError` for an input that cannot come now.
    """

    def __init__(self, calls: ClientCalls) -> None:
        self._calls = calls
        self.wanted = False

    def begin(self, unanswered: tuple[str, ...]) -> Await | None:
        """Return what is to be waited for behind a turn that has left these calls; None where nothing is."""
        return Await(unanswered) if self.wanted and unanswered else None

    def take(self, given: WaitBegan | OutputGiven, due: Command | None) -> Command | None:
        """Return what is due behind an input, in place of `due`; None: every call has its output."""
        if isinstance(given, WaitBegan):
            return replace(_awaited(given, due), until=given.until)
        if self._calls.state(given.call_id) != "open":
            raise LocalProtocolError(f"an output that nobody waits for: {given.call_id}")
        self._calls.take(given)
        if not isinstance(due, Await):
            return due
        left = self._calls.unanswered
        return replace(due, call_ids=left) if left else None

    def problem(self, given: TimedOut, due: Command | None) -> ResponseError:
        """Return the `error` object of a response that has waited in vain."""
        return no_output(_awaited(given, due).call_ids, given.seconds)


def _awaited(given: WaitBegan | TimedOut, due: Command | None) -> Await:
    if not isinstance(due, Await):
        raise LocalProtocolError(f"{given!r} in a response that does not wait")
    return due
