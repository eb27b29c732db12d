"""What is served: models, each with its engine and its format, and what is learned of their calls.

`ToolWaits`: how long calls take until their model goes on, learned by project and tool.

What is told of it is a bound that nine of ten waits stayed under: who keeps a prompt's cache for so long, or gets it
ready again by then, is rarely too early. It is learned where this worker sees both ends of a wait: of this server's
tools, of a response that waits for outputs, and of clients that send outputs with their next request. A session that
never comes back teaches nothing.

A wait for several calls, whose outputs come together, counts for each of them.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from engine.backends.base import BaseEngine
from engine.errors import EngineConfigurationError, EngineUnavailable
from engine.formats.base import ModelFormat, PlainMessage, RenderedMessage
from engine.types import EngineInfo, Session
from responses_app.observing.metrics import ModelMeter
from responses_app.protocol.api_keys import model_not_allowed
from responses_app.protocol.errors import makes_embeddings, model_not_found
from responses_app.runs.plan.turns import FairTurns

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


# What a message of a chain says, whichever model's it is; None where nobody can read it.
Tell = Callable[[RenderedMessage], Sequence[PlainMessage] | None]
MAX_EARLY = 128  # calls of tools that responses of one model have begun early, in one worker
MAX_EARLY_OF_PROJECT = 64  # of these


class EarlyRoom:
    """Room for calls of tools that are begun early; never waited for. No project can have all of it."""

    def __init__(self) -> None:
        self._taken = Counter[str]()  # by projects

    def take(self, project: str) -> bool:
        """Take a place for a project, if there is one."""
        if self._taken.total() >= MAX_EARLY or self._taken[project] >= MAX_EARLY_OF_PROJECT:
            return False
        self._taken[project] += 1
        return True

    def give_back(self, project: str) -> None:
        """Give a place back."""
        self._taken[project] -= 1
        if not self._taken[project]:
            del self._taken[project]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """An engine under the name that clients know, and how its model is written to."""

    name: str  # that clients know, and that responses have
    engine: BaseEngine
    info: Callable[[], EngineInfo | None]  # None until the engine has started
    created: int  # Unix seconds
    format: ModelFormat  # how the model is written to
    meter: ModelMeter  # counts its responses
    turns: FairTurns = field(default_factory=FairTurns)  # those that the engine does at once
    early: EarlyRoom = field(default_factory=EarlyRoom)
    waits: ToolWaits = field(default_factory=ToolWaits)  # how long the calls of its turns take
    aliases: Sequence[str] = ()  # other names for it

    @property
    def names(self) -> Sequence[str]:
        """All names of it; responses have the first, whichever was asked for."""
        return (self.name, *self.aliases)

    @property
    def sees(self) -> bool:
        """Whether images reach the model, as far as it is known: nothing is read for this."""
        return self.format.is_loaded and self.format.sees

    async def ready(self) -> EngineInfo:
        """Return what its engine is. Raises `EngineError` where it takes no request now: it is away, or starting."""
        await self.engine.health()
        if (info := self.info()) is None:  # a pool can have a healthy server before it has asked all of them
            raise EngineUnavailable("The engine is starting.")
        # On a thread, and not where somebody asks for it on the loop: a vocabulary has megabytes.
        if not self.format.is_loaded:
            await asyncio.to_thread(self.format.load)
        return info


class ServedModels:
    """The models of this server, one at least, in order; the first is meant where nobody names one.

    A chain may go on with any of them. What was said in another format is told by `told`, and rendered anew.
    `embedding` are the names of the models that make embeddings, and generate nothing.
    """

    def __init__(
        self, models: Iterable[ServedModel], *, told: Tell = lambda _: None, embedding: Collection[str] = ()
    ) -> None:
        self.told = told
        self._embedding = frozenset(embedding)
        self._models = tuple(models)
        self._by_name = {name: model for model in self._models for name in model.names}

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models)

    @property
    def first(self) -> ServedModel:
        """The default one."""
        return self._models[0]

    def named(self, name: str) -> ServedModel | None:
        """Return the model with this name or alias."""
        return self._by_name.get(name)

    def format_of(self, vocabulary: str) -> ModelFormat | None:
        """Return the format of a model with these tokens; None where none is served. It may take seconds: no loop's."""
        for model in self._models if vocabulary else ():
            with suppress(EngineConfigurationError):  # of a model that cannot be read nothing is ever recorded
                if not model.format.is_loaded:
                    model.format.load()
                if model.format.vocabulary_name == vocabulary:
                    return model.format
        return None

    def chosen(self, name: str | None, usable: Sequence[str]) -> ServedModel:
        """Return the model that is asked for; without a name the first that may be used (`usable`, as in `allowed`).

        Raises `ApiError` (404, 403; 400 for one that makes embeddings).
        """
        allowed = self.allowed(usable) if usable else self._models
        model = next(iter(allowed), self._models[0]) if name is None else self._by_name.get(name)
        if model is None and name in self._embedding:
            raise makes_embeddings(str(name), [each.name for each in allowed])
        if model is None:
            raise model_not_found(str(name), [each.name for each in allowed])
        if model not in allowed:
            raise model_not_allowed(name or model.name, usable)
        return model

    def allowed(self, names: Sequence[str]) -> Sequence[ServedModel]:
        """Return those that somebody may use who may use these names, whichever of a model's; no names mean all."""
        if not names:
            return self._models
        return [model for model in self._models if not set(names).isdisjoint(model.names)]
