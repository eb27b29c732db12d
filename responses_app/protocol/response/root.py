"""`RootMachine`: the machine of a response with agents; see `agents`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from responses_app.protocol.errors import JsonObject, ResponseError
from responses_app.protocol.events.events import Event
from responses_app.protocol.items.offers import ROOT
from responses_app.protocol.output.stream import LocalProtocolError, ResponseStream
from responses_app.protocol.requests.resources import Ending, ResponseObject, Status
from responses_app.protocol.response.agents import AgentMachine, AgentTree, Chorus
from responses_app.protocol.response.response import ResponseMachine
from responses_app.protocol.response.steps import (
    AgentsAllowed,
    Await,
    AwaitAgents,
    Command,
    Finish,
    Idle,
    Input,
    OfAgent,
    Sampled,
    Step,
    Stopped,
    StopReason,
)
from responses_app.protocol.response.turns import Budget
from responses_app.protocol.usage import TurnUsage


class RootStream(ResponseStream):
    """The root's stream; its response object shows what all agents have said."""

    chorus: Chorus

    def kept(self) -> ResponseObject:
        return {**super().kept(), "output": self.chorus.output}

    def outcome(self, ending: Ending) -> ResponseObject:
        return ending.of(self._response, self.chorus.output)


class RootMachine(AgentMachine):
    """A response with agents: its root's machine, which has the others."""

    def found(self, tree: AgentTree) -> None:
        """Become the root of a tree, which has no agents yet."""
        self.join(tree, ROOT, parent=None)
        self._orders: dict[int, Command] = {}

    # What a driver asks.

    @property
    def all_turns(self) -> Sequence[TurnUsage]:
        return self.tree.turns

    @property
    def all_output(self) -> Sequence[JsonObject]:
        return self.tree.chorus.output

    @property
    def waits(self) -> bool:
        dues = [agent.due for agent in self.tree.agents]
        return any(isinstance(due, Await) for due in dues) and all(
            isinstance(due, Await | AwaitAgents | Idle) for due in dues
        )

    def take_orders(self) -> dict[int, Command]:
        orders, self._orders = self._orders, {}
        return orders

    def dues(self) -> dict[int, Command]:
        dues = {agent.number: agent.due for agent in self.tree.working}
        return {number: due for number, due in dues.items() if due is not None}

    def machine_of(self, number: int) -> ResponseMachine:
        return self.tree.agents[number]

    def agent_of_call(self, call_id: str) -> ResponseMachine:
        known = (agent for agent in self.tree.agents if agent.calls.state(call_id) != "unknown")
        return next(known, self)

    # What happens.

    def receive(self, input: Input) -> Step:
        match input:
            case AgentsAllowed():
                self.tree.limits, self.tree.calls_client = input.limits, input.calls_client
                return Step([])
            case OfAgent():
                return self._of_agent(input)
            case Stopped(reason=StopReason.DISCARDED):  # what agents say has places, which cannot be taken back
                input = Stopped(StopReason.INTERRUPTED)
            case Sampled():
                input = self._within_budget(input)
        return self._played(self, super().receive(input), is_sampled=isinstance(input, Sampled))

    def _of_agent(self, input: OfAgent) -> Step:
        if not 0 < input.agent < len(self.tree.agents):
            raise LocalProtocolError(f"{input!r} of an agent that is not there")
        # The end is decided: what comes late is dropped.
        if self._due is None or isinstance(self._due, Finish):
            return Step([])
        agent, its = self.tree.agents[input.agent], input.input
        its = self._within_budget(its) if isinstance(its, Sampled) else its
        return self._played(agent, agent.receive(its), is_sampled=isinstance(its, Sampled))

    def _within_budget(self, chunk: Sampled) -> Sampled:
        """Return what of a chunk the response may still say: others have sampled since its turn began."""
        left = None if len(self.tree.agents) == 1 else self._budget.left
        if left is None or len(chunk.token_ids) <= left:
            return chunk
        logprobs = None if chunk.logprobs is None else chunk.logprobs[:left]
        return replace(chunk, token_ids=chunk.token_ids[:left], logprobs=logprobs, finish=None)

    def _played(self, agent: AgentMachine, step: Step, *, is_sampled: bool) -> Step:
        """Return what all agents do behind a step of one of them; the command is the root's."""
        if not (step.command or self.tree.later or is_sampled):  # nearly always
            return Step(list(agent.voice.said(step.events)))
        events: list[Event] = []
        command = self._take(agent, step, events)
        if is_sampled and self._is_spent:
            cut = self.reader.cut()
            self.tree.later.append((self, lambda: self._finish(_INCOMPLETE, reason="max_output_tokens").behind(cut)))
        while self.tree.later or self._waits_for_nobody:
            if self.tree.later:
                other, do = self.tree.later.popleft()
                command = self._take(other, do(), events) or command
            else:
                command = self._take(self, self.end_wait("No agent is working."), events) or command
        return Step(events, command)

    def _take(self, agent: AgentMachine, step: Step, events: list[Event]) -> Command | None:
        """Add the events of a step to those of all; return its command where it is the root's."""
        events += agent.voice.said(step.events)
        if agent is self:
            return step.command
        if step.command is not None:
            self._orders[agent.number] = step.command
        return None

    @property
    def _is_spent(self) -> bool:
        """Whether the agents have sampled together what the response may, and one goes on."""
        if self._budget.limit is None or len(self.tree.agents) == 1 or isinstance(self._due, Finish):
            return False
        return self._budget.left == 0

    @property
    def _waits_for_nobody(self) -> bool:
        return isinstance(self._due, AwaitAgents) and not any(agent.works for agent in self.tree.agents[1:])

    def _finish(self, status: Status, *, error: ResponseError | None = None, reason: str | None = None) -> Step:
        says = status is not Status.FAILED
        events = self._close_wait() if says else []
        for agent in self.tree.working:
            self.tree.later.append((agent, partial(agent.interrupt, "interrupted", says=says)))
        return super()._finish(status, error=error, reason=reason).behind(events)


_INCOMPLETE = Status.INCOMPLETE


def root_machine(make: "Callable[[type[ResponseStream], type[AgentMachine], Budget], AgentMachine]") -> RootMachine:
    """Return the machine of a response with agents; `make` makes a machine of a class, with a stream of a class."""
    turns: list[TurnUsage] = []
    budget, chorus = Budget(turns), Chorus()
    root = make(RootStream, RootMachine, budget)
    assert isinstance(root, RootMachine)
    assert isinstance(root.stream, RootStream)
    root.stream.chorus = chorus
    root.found(AgentTree(partial(make, ResponseStream, AgentMachine, budget), chorus, turns=turns))
    return root
