"""Several agents in one response: `AgentMachine`, the machine of each, and `AgentTree`, what they share.

    inputs of the root    ────────────────> RootMachine ───> events, numbered over all agents
    OfAgent(1, an input)  ──> AgentMachine ─────^      ╲───> command: what the root's driver is to do
    OfAgent(2, an input)  ──> AgentMachine ─────^       ╲──> orders: what those of the other agents are

An agent is a machine as a response's: it has a stream, turns, and tools of its own. What agents do to each other (one
starts another, tells it something, waits for it) happens in here, by nothing but the inputs in their order. So the one
log of the response has all that comes to every agent, and whoever feeds it again has the same agents, with the same
messages, at the same places of the same stream.

- An agent begins with all that its parent has read and said, up to the call that started it; behind that it reads
  another output of that call than its parent does: its task. So its prompt begins with its parent's tokens.
- A message lies in its recipient's box until that one's next turn begins; then it is an item of the output.
- An agent that has answered rests, and its answer is a message to its parent. `followup_task` wakes it.
- The response ends with its root: what the others are saying then is cut, and none of their calls stays open.
- Where all wait for each other, nobody does: the root goes on.

What one agent's step means for others is done behind that step (`AgentTree.later`), so each of them says all of one
thing before another begins the next.

`perform` carries out the actions of `multi_agent_call`. Whatever is wrong with one is something for the model to read:
no action ends a response. Nothing here goes outside.

Each agent's stream knows nothing of the others, and numbers its events and items by itself. Of its `Voice` they become
one stream: the numbers run over all agents, an item has its place in the order in which the items of all began, and
every event says whose it is. The same events in the same order give the same stream, so a replay of the log makes it
again.

    /root           added 0, delta, done                      added 1, …
    /root/berlin                           added 0, delta, …             delta, …
    the stream      added 0, delta, done   added 1, delta, …  added 2, … delta, …
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import NamedTuple, cast

from engine import orjson
from engine.formats.base import MessageKind, RenderedMessage
from engine.types import FinishReason
from responses_app.protocol import ids
from responses_app.protocol.errors import JsonObject, ResponseError
from responses_app.protocol.events.events import Delta, DeltaTemplate, Event, EventType
from responses_app.protocol.items.calls import open_calls
from responses_app.protocol.items.offers import (
    ACTIONS,
    AGENT_MESSAGE,
    AGENT_OUTPUT,
    AGENTS,
    FOLLOW_UP,
    INTERRUPT,
    LIST,
    SEND,
    SPAWN,
    TASK_NAME,
    WAIT,
    AgentLimits,
    letter,
    task_of,
)
from responses_app.protocol.requests.resources import Status
from responses_app.protocol.response.response import ResponseMachine
from responses_app.protocol.response.steps import (
    AwaitAgents,
    Finish,
    Idle,
    Input,
    OfServer,
    OutputGiven,
    ProgramEnded,
    Step,
    TimedOut,
    ToolsFound,
    WaitBegan,
)
from responses_app.protocol.response.turns import Turn
from responses_app.protocol.usage import TurnUsage

_INDEX = "output_index"


class Chorus:
    """What all agents of a response have said."""

    def __init__(self) -> None:
        self.numbers, self.places = count(), count()  # of the next events and items; there are no gaps
        self.done: dict[int, JsonObject] = {}  # items that are done, by their places

    @property
    def output(self) -> list[JsonObject]:
        """The items that are done, in their order."""
        return [self.done[place] for place in sorted(self.done)]


class Voice:
    """What one agent says, as the stream of all has it."""

    def __init__(self, chorus: Chorus, name: str) -> None:
        self._chorus = chorus
        self.agent: JsonObject = {"agent_name": name}
        self._places: dict[object, int] = {}  # of its items in the stream of all, by their own
        self._template: tuple[DeltaTemplate, DeltaTemplate] | None = None  # of its open item, and what stands for it

    def said(self, events: Iterable[Event]) -> Sequence[Event]:
        """Return events of its own stream as those of the stream of all."""
        return [self._moved(event) for event in events]

    def _moved(self, event: Event) -> Event:
        number = next(self._chorus.numbers)
        if isinstance(event, Delta):  # nearly always
            return event.moved(self._template_for(event.template), number)
        fields = event.fields
        if _INDEX in fields:
            place = self._place(fields[_INDEX])
            fields = {**fields, _INDEX: place}
            if event.type is EventType.ITEM_DONE:
                self._chorus.done[place] = cast(JsonObject, fields["item"])
        return Event(event.type, number, {**fields, "agent": self.agent})

    def _place(self, own: object) -> int:
        """Return the place of one of its items; `own` is the one that it has in its own stream."""
        if own not in self._places:
            self._places[own] = next(self._chorus.places)
        return self._places[own]

    def _template_for(self, own: DeltaTemplate) -> DeltaTemplate:
        if self._template is None or self._template[0] is not own:
            after = {**own.after, _INDEX: self._place(own.after[_INDEX]), "agent": self.agent}
            self._template = own, DeltaTemplate(own.type, own.before, after)
        return self._template[1]


INTERRUPTED = "Interrupted: this came to no end."
WAIT_AGENT = f"{AGENTS}.{WAIT}"


@dataclass(frozen=True, slots=True)
class Letter:
    """A message to an agent that it has not read."""

    author: str
    text: str


class Done(NamedTuple):
    """What came of an action."""

    text: str  # what its agent reads
    waits: float | None = None  # it waits first, so many seconds, unless a message is there


class AgentMachine(ResponseMachine):
    """One agent of a response. `name` is a path: `/root/berlin/weather`."""

    tree: "AgentTree"

    def join(self, tree: "AgentTree", name: str, *, parent: "AgentMachine | None") -> None:
        """Become an agent of a response, before anything has come to it."""
        self.tree, self.name, self.parent = tree, name, parent
        self.number = len(tree.agents)
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.voice = Voice(tree.chorus, name)
        self.stream.agent = self.voice.agent
        self.task = ""  # the last one that it was given
        self.how = "running"  # how it rests, as other agents are told
        self.wait_call = ""  # the id of the call of `wait_agent` by which it waits
        self.box: deque[Letter] = deque()
        self._since = 0  # where the items of its task begin in its output
        tree.agents.append(self)

    @property
    def rests(self) -> bool:
        """Whether it has ended its task."""
        return isinstance(self._due, Idle)

    @property
    def works(self) -> bool:
        """Whether something will come to it by itself: it generates, or a tool or the client works for it."""
        return self._due is not None and not isinstance(self._due, Idle | AwaitAgents | Finish)

    def receive(self, input: Input) -> Step:
        # Late tokens and outputs of a driver that has not heard of its rest.
        return Step([]) if self.rests else super().receive(input)

    def begin(self, task: str, call: str) -> Step:
        """Begin with what its parent has read; `call` is what that one has called."""
        assert self.parent is not None
        self.task = task
        self.stream.status = Status.IN_PROGRESS
        text = task_of(self.name, task, parent=self.parent.name)
        message = self._format.output(call, text, hosted=True)
        events = self._read(Letter(self.parent.name, task), message)
        return self._prepare().behind(events)

    def wake(self, *, task: str | None = None) -> Step:
        """Look whether something is to be done now that there is news; `task`: it has a new one."""
        if task is not None:
            self.task, self.how = task, "running"
            if self.rests:
                self._since = len(self.stream.output)
                return self._prepare()
        if isinstance(self._due, AwaitAgents) and self.box:
            return self.end_wait("A message has come.")
        return Step([])

    def end_wait(self, text: str) -> Step:
        """End its wait, which began with a call."""
        call_id, self.wait_call = self.wait_call, ""
        return self._continue(self.answer(call_id, WAIT_AGENT, text))

    def interrupt(self, how: str, *, says: bool = True) -> Step:
        """End what it does, at once; `says`: its open items end, too."""
        if self.rests:
            return Step([])
        events = [*self.reader.cut(), *self._close()] if says else []
        self.how, self.reader.turn, self.stream.hosted_call = how, None, None
        return Step(events, self._now(Idle()))

    def answer(self, call_id: str, name: str, text: str) -> list[Event]:
        """Say what came of an action."""
        item: JsonObject = {
            "id": self.stream.new_id(ids.MULTI_AGENT_CALL_OUTPUT),
            "type": AGENT_OUTPUT,
            "call_id": call_id,
            "action": ACTIONS[name],
            "output": [{"type": "output_text", "text": text, "annotations": []}],
        }
        return self.stream.add_output(item, self._format.output(name, text, hosted=True))

    # What of a machine is another one's for an agent.

    def _began(self, input: Input) -> Step:
        step = super()._began(input)  # type: ignore[arg-type]
        self.tree.turns.append(self.turns[-1])
        return step

    def _prepare(self) -> Step:
        events: list[Event] = []
        while self.box:
            news = self.box.popleft()
            events += self._read(news, self._format.note(letter(news.author, news.text)))
        return super()._prepare().behind(events)

    def _after_turn(self, turn: Turn, finish: FinishReason, unanswered: tuple[str, ...]) -> Step:
        call = self.stream.hosted_call
        if call is None or call.name not in ACTIONS:
            return super()._after_turn(turn, finish, unanswered)
        events = self.stream.end_call({}, failed=False)
        call_id = str(self.stream.output[-1]["call_id"])
        done = perform(self, call.name, call.arguments)
        self.tree.count_call()
        if done.waits is not None and not self.box:
            self.wait_call = call_id
            return Step(events, self._now(AwaitAgents(done.waits)))
        return self._continue([*events, *self.answer(call_id, call.name, done.text)])

    def _of_server(self, input: OfServer) -> Step:
        if isinstance(input, ToolsFound):
            # All can call what one has found: they share the rules of their turns.
            for other in self.tree.agents:
                if other is not self:
                    other.stream.called.learn(input.tools, input.offered)
        return super()._of_server(input)

    def _continue(self, events: list[Event]) -> Step:
        if self._budget.left == 0:
            return self._finish(Status.INCOMPLETE, reason="max_output_tokens").behind(events)
        step = self._prepare() if self.reader.stop is None else self._stop_here(self.reader.stop)
        return step.behind(events)

    def _of_wait(self, input: WaitBegan | OutputGiven | TimedOut) -> Step:
        if not isinstance(self._due, AwaitAgents) or isinstance(input, OutputGiven):
            return super()._of_wait(input)
        if isinstance(input, TimedOut):
            return self.end_wait(f"No message came within {input.seconds:g} s.")
        self._now(replace(self._due, until=input.until))
        return Step([])

    def _finish(self, status: Status, *, error: ResponseError | None = None, reason: str | None = None) -> Step:
        if self.parent is None:
            return super()._finish(status, error=error, reason=reason)
        events = self._close()
        self.reader.turn = None
        self.how = status.value
        answer = self._answer() if status is Status.COMPLETED else ""
        why = error["message"] if error is not None else f"it ended as {status.value} ({reason or 'without an answer'})"
        self.parent.box.append(Letter(self.name, answer or f"[no answer: {why}]"))
        self.tree.later.append((self.parent, self.parent.wake))
        return Step(events, self._now(Idle()))

    def _answer(self) -> str:
        """Return what it has answered to its task; "" for nothing."""
        messages = [item for item in self.stream.output[self._since :] if item["type"] == "message"]
        parts = [part for item in messages[-1:] for part in cast(list[JsonObject], item["content"])]
        return "".join(str(part.get("text", "")) for part in parts)

    def _close(self) -> list[Event]:
        """Close what is open, and answer what is unanswered: items of a chain that goes on stay whole."""
        events = self.stream.close()
        call, self.stream.hosted_call = self.stream.hosted_call, None
        if self.server.program is not None:  # then the call is the program's, and the model has not said it
            events += self.server.program_ended(ProgramEnded(INTERRUPTED, failed=True))
        elif call is not None:
            self.stream.add_note(self._format.output(call.name, INTERRUPTED, hosted=True))
        for call_id in open_calls(self.stream.output):
            if self.calls.state(call_id) == "open":
                self.calls.take(OutputGiven(call_id, INTERRUPTED, INTERRUPTED), None)
        return [*events, *self.calls.add_outputs(), *self._close_wait()]

    def _close_wait(self) -> list[Event]:
        """Say that its wait came to no end, where it waits."""
        call_id, self.wait_call = self.wait_call, ""
        return self.answer(call_id, WAIT_AGENT, INTERRUPTED) if call_id else []

    def _read(self, news: Letter, message: RenderedMessage) -> list[Event]:
        """Read a message of another agent, which is an item of that one."""
        item: JsonObject = {
            "id": self.stream.new_id(ids.AGENT_MESSAGE),
            "type": AGENT_MESSAGE,
            "author": news.author,
            "recipient": self.name,
            "content": [{"type": "input_text", "text": news.text}],
            "agent": {"agent_name": news.author},
        }
        return self.stream.add_output(item, replace(message, kind=MessageKind.OTHER))


Make = Callable[[], AgentMachine]  # a new agent, which shares ids and budget with the others
Later = tuple[AgentMachine, Callable[[], Step]]


@dataclass(slots=True)
class AgentTree:
    """What the agents of one response share."""

    make: Make
    chorus: Chorus
    agents: list[AgentMachine] = field(default_factory=list)  # by their numbers; the first one is the root
    turns: list[TurnUsage] = field(default_factory=list)  # of all, in the order in which they began
    limits: AgentLimits = field(default_factory=AgentLimits)
    calls_client: bool = False  # agents below the root may call the client's tools
    later: deque[Later] = field(default_factory=deque)  # what is to be done behind the step that is being taken
    calls: int = 0  # actions so far

    def named(self, name: str) -> AgentMachine | None:
        """Return the agent of this name."""
        return next((agent for agent in self.agents if agent.name == name), None)

    @property
    def working(self) -> list[AgentMachine]:
        """Agents below the root that have not ended their task."""
        return [agent for agent in self.agents[1:] if not agent.rests]

    def spawn(self, parent: AgentMachine, name: str, task: str, call: str) -> None:
        """Start an agent; `call` is what its parent has called for that."""
        agent, root = self.make(), self.agents[0]
        agent.join(self, name, parent=parent)
        agent.stream.called.share(root.stream.called)
        agent.stream.messages.extend(parent.stream.messages)  # now: what its parent reads next is not for it
        agent.calls.awaited = self.calls_client
        agent.reader.functions = root.reader.functions if self.calls_client else None
        # One state for all: what a tool leaves is the whole response's.
        agent.server.states, agent.server.news = root.server.states, root.server.news
        self.later.append((agent, partial(agent.begin, task, call)))

    def count_call(self) -> None:
        """Count an action; behind the last one, no agent calls anything of this server any more."""
        self.calls += 1
        if self.calls >= self.limits.calls:
            for agent in self.agents:
                agent.stream.called.max_hosted = agent.stream.called.made


class _Wrong(Exception):
    """The action cannot be carried out; the text says why, for the model."""


def perform(agent: AgentMachine, name: str, arguments: str) -> Done:
    """Carry out an action of an agent; `name` is what it has called."""
    try:
        return _PERFORMED[ACTIONS[name]](agent, name, _object(arguments))
    except _Wrong as problem:
        return Done(f"Error: {problem}")


def _spawn(agent: AgentMachine, called: str, arguments: JsonObject) -> Done:
    tree, limits = agent.tree, agent.tree.limits
    task_name, task = _text(arguments, "task_name"), _text(arguments, "message")
    name = f"{agent.name}/{task_name}"
    if not TASK_NAME.fullmatch(task_name):
        raise _Wrong("'task_name' takes lowercase letters, digits and '_', 64 at most.")
    if tree.named(name) is not None:
        raise _Wrong(f"there is an agent {name} already. Choose another 'task_name', or use followup_task.")
    if agent.depth >= limits.depth:
        raise _Wrong(f"agents may be {limits.depth} levels deep (MULTI_AGENT_MAX_DEPTH). Do the task yourself.")
    if len(tree.agents) > limits.total:
        raise _Wrong(
            f"a response may have {limits.total} agents (MULTI_AGENT_MAX_AGENTS). Give the task to one that has ended "
            "its own, by followup_task."
        )
    _check_room(agent)
    tree.spawn(agent, name, task, called)
    return Done(_json({"task_name": name}))


def _check_room(agent: AgentMachine) -> None:
    most = agent.tree.limits.concurrent
    if len(agent.tree.working) >= most:
        raise _Wrong(f"{most} agents are working already (max_concurrent_subagents). Wait for one of them.")


def _send(agent: AgentMachine, called: str, arguments: JsonObject) -> Done:
    target, text = _target(agent, arguments), _text(arguments, "message")
    target.box.append(Letter(agent.name, text))
    agent.tree.later.append((target, target.wake))
    return Done(f"The message was sent to {target.name}.")


def _follow_up(agent: AgentMachine, called: str, arguments: JsonObject) -> Done:
    target, text = _target(agent, arguments), _text(arguments, "message")
    if target.rests:
        _check_room(agent)
    target.box.append(Letter(agent.name, text))
    agent.tree.later.append((target, partial(target.wake, task=text)))
    return Done(f"{target.name} has the task.")


def _wait(agent: AgentMachine, called: str, arguments: JsonObject) -> Done:
    most, wanted = agent.tree.limits.wait_seconds, arguments.get("timeout_ms")
    seconds = wanted / 1000 if isinstance(wanted, int | float) and not isinstance(wanted, bool) else most
    return Done("A message has come.", waits=min(max(seconds, 0.0), most))


def _interrupt(agent: AgentMachine, called: str, arguments: JsonObject) -> Done:
    target = _target(agent, arguments)
    if not target.name.startswith(f"{agent.name}/"):
        raise _Wrong("only the agent that has started another one, or its parents, can interrupt it.")
    before = _status(target)
    # Those below it work for it.
    for each in agent.tree.working:
        if each is target or each.name.startswith(f"{target.name}/"):
            agent.tree.later.append((each, partial(each.interrupt, "interrupted")))
    return Done(_json({"previous_status": before}))


def _list(agent: AgentMachine, called: str, arguments: JsonObject) -> Done:
    return Done(
        _json(
            {
                "agents": [
                    {"agent_name": each.name, "agent_status": _status(each), "last_task_message": each.task}
                    for each in agent.tree.agents
                ]
            }
        )
    )


def _status(agent: AgentMachine) -> str:
    return agent.how if agent.rests else "running"


def _target(agent: AgentMachine, arguments: JsonObject) -> AgentMachine:
    name = _text(arguments, "target")
    target = agent.tree.named(name) or agent.tree.named(f"{agent.name}/{name}")
    if target is None or target is agent:
        others = ", ".join(each.name for each in agent.tree.agents if each is not agent) or "none"
        raise _Wrong(f"there is no other agent {name[:80]!r}. There are: {others[:1000]}.")
    return target


def _object(arguments: str) -> JsonObject:
    try:
        value = orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError:
        raise _Wrong("the arguments are not JSON.") from None
    if not isinstance(value, dict):
        raise _Wrong("the arguments are not a JSON object.")
    return value


def _text(arguments: JsonObject, name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str) or not value:
        raise _Wrong(f"'{name}' must be a text that says something.")
    return value


def _json(value: JsonObject) -> str:
    return orjson.dumps(value).decode()


_PERFORMED: Mapping[str, Callable[[AgentMachine, str, JsonObject], Done]] = {
    SPAWN: _spawn,
    SEND: _send,
    FOLLOW_UP: _follow_up,
    WAIT: _wait,
    INTERRUPT: _interrupt,
    LIST: _list,
}
