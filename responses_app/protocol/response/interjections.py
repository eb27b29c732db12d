"""`Interjections`: what the server itself tells the model behind a turn, so that it goes on in the same response.

Either that a tool which it has called does not exist, or may not be called any more, or that what it has called runs in
the background.
"""

from collections.abc import Collection

from engine.formats.base import ModelFormat
from responses_app.protocol.output.stream import ResponseStream
from responses_app.protocol.response.server_calls import ServerCalls, hosted_names
from responses_app.protocol.response.turns import Turn

MAX_CORRECTIONS = 1  # how often the model is told, in one response, that a tool does not exist
MAX_TURNS_BEHIND_CALLS = 16  # that run in the background: a model that calls on and on ends its response
RUNS_IN_BACKGROUND = (
    "This runs in the background now, and has no output yet; that will come in a later message. Go on without it: "
    "answer the user, or do something else."
)


class Interjections:
    """Of one response. `one_call`: a turn ends with its first call, and the client's answer is waited for.

    `server` has the tools that this server runs.
    """

    def __init__(
        self, stream: ResponseStream, model_format: ModelFormat, server: ServerCalls, *, one_call: bool
    ) -> None:
        self._stream = stream
        self._server = server
        self._format = model_format
        self._one_call = one_call
        self._corrections = 0
        self._turns_behind_calls = 0

    def follow(self, turn: Turn, functions: Collection[str] | None, *, left: int | None) -> bool:
        """Tell the model something behind a turn, and return True, if there is something and `left` tokens allow it.

        `functions` are the names that it can call.
        """
        if not turn.called or left == 0:
            return False
        return self._correct(functions or ()) or self._go_on_without()

    def _correct(self, functions: Collection[str]) -> bool:
        """Tell a model that has just called a tool which does not exist."""
        unknown = self._stream.called.last_unknown
        if unknown is None or self._corrections >= MAX_CORRECTIONS:
            return False
        self._corrections += 1
        if not self._server.refuse_excess(unknown):
            self._stream.interject(self._format.no_such_tool(unknown, functions, list(hosted_names(self._stream))))
        return True

    def _go_on_without(self) -> bool:
        """Tell the model that what it has called runs in the background.

        Not where it has called something else, too: then the client's answer to that comes first.
        """
        called, stream = self._stream.called, self._stream
        if not called.background or called.waits_for_client or self._one_call:
            return False
        if self._turns_behind_calls >= MAX_TURNS_BEHIND_CALLS:
            return False
        self._turns_behind_calls += 1
        for name in called.background:
            stream.interject(self._format.output(name, RUNS_IN_BACKGROUND))
        called.background.clear()
        return True
