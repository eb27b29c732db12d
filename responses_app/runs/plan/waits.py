"""`ToolWaits`: how long calls take until their model goes on, learned by project and tool.

What is told of it is a bound that nine of ten waits stayed under: who keeps a prompt's cache for so long, or gets it
ready again by then, is rarely too early. It is learned where this worker sees both ends of a wait: of this server's
tools, of a response that waits for outputs, and of clients that send outputs with their next request. A session that
never comes back teaches nothing.

A wait for several calls, whose outputs come together, counts for each of them.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from engine.types import Session

MAX_TOOLS = 4096  # that are known at a time, of all projects: less than 3 MB
MAX_TOOLS_OF_PROJECT = 256  # of these: no project has others forget theirs by calling many
MAX_NAME = 128  # characters of a tool's name that count; a model may make up any
MAX_SESSIONS = 20_000  # whose last calls are remembered: some 5 MB, and at most 40
MAX_CALLS = 8  # of one turn that are remembered
SAMPLES = 32  # the last waits of a tool that count
FEW = 3  # of less nothing is told
MAX_SECONDS = 3600.0  # what took longer is not the time of a tool: a person was away
ANY_TOOL = ""  # what is learned of all tools of a project
_NO_TOOLS: Mapping[str, deque[float]] = {}


@dataclass(frozen=True, slots=True)
class _EndedTurn:
    """How the last turn of a session ended."""

    project: str
    tools: Sequence[str]  # what it called
    at: float | None  # None: its waits are measured by who waits


class ToolWaits:
    """What one worker has learned for one model. Times are those of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        # By projects, and then by tools, each least recently learned first.
        self._seconds: OrderedDict[str, OrderedDict[str, deque[float]]] = OrderedDict()
        self._count = 0  # of tools that are known
        self._left: OrderedDict[str, _EndedTurn] = OrderedDict()  # by sessions, the least recent first

    def note(self, project: str, tool: str, seconds: float) -> None:
        """Learn that a call of a tool took so long."""
        if not 0 <= seconds <= MAX_SECONDS:
            return
        tools = self._seconds.setdefault(project, OrderedDict())
        self._seconds.move_to_end(project)
        self._count -= len(tools)
        for name in (tool[:MAX_NAME], ANY_TOOL):
            tools.setdefault(name, deque(maxlen=SAMPLES)).append(seconds)
            tools.move_to_end(name)
        while len(tools) > MAX_TOOLS_OF_PROJECT:
            tools.popitem(last=False)
        self._count += len(tools)
        while self._count > MAX_TOOLS:
            self._count -= len(self._seconds.popitem(last=False)[1])

    def expected(self, project: str, tools: Iterable[str]) -> float | None:
        """Return within how many seconds all of these tools most likely answer; None where nobody knows.

        For one that is not known what is known of the project's other tools is the best guess.
        """
        overall = self._bound(project, ANY_TOOL)
        bounds = [bound for tool in tools if (bound := self._bound(project, tool) or overall) is not None]
        return max(bounds, default=overall)

    def leave(self, session: Session, project: str, tools: Sequence[str], at: float | None) -> None:
        """Note that a turn of a session has ended with calls of these tools; none: with an answer."""
        if session.id:
            self._left[session.id] = _EndedTurn(project, tuple(tool[:MAX_NAME] for tool in tools[:MAX_CALLS]), at)
            self._left.move_to_end(session.id)
            if len(self._left) > MAX_SESSIONS:
                self._left.popitem(last=False)

    def come_back(self, session: Session, project: str, now: float) -> float | None:
        """Note that a session's next turn begins; return within how many seconds the one after that is expected."""
        left = self._left.get(session.id)
        if left is None:
            return self.expected(project, ())
        if left.at is not None:
            for tool in left.tools:
                self.note(project, tool, now - left.at)
            self._left[session.id] = _EndedTurn(project, left.tools, None)
        return self.expected(project, left.tools)

    def _bound(self, project: str, tool: str) -> float | None:
        samples = self._seconds.get(project, _NO_TOOLS).get(tool[:MAX_NAME])
        if samples is None or len(samples) < FEW:
            return None
        return sorted(samples)[(9 * len(samples) - 1) // 10]
