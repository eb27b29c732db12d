"""A driver for the agents of one response: the demo engine speaks for each, and a dice says whose tokens come next."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.backends.demo.engine import _rest_of_reply
from engine.formats.harmony.encoding import encode_harmony
from engine.formats.harmony.format import HarmonyFormat
from engine.types import FinishReason
from responses_app.protocol.events.events import Event
from responses_app.protocol.items.offers import AgentLimits, agents_offer
from responses_app.protocol.requests.requests import new_response, parse_create
from responses_app.protocol.response.root import RootMachine
from responses_app.protocol.response.steps import (
    AgentsAllowed,
    AwaitAgents,
    Command,
    Ended,
    Finish,
    Generate,
    Idle,
    Input,
    OfAgent,
    Offered,
    RunStarted,
    Sampled,
    TimedOut,
    TurnBegan,
    WaitBegan,
)
from responses_app.runs.log.run_log import machine_of

KEY = b"k" * 32
RESPONSE_ID = "resp_019a0000000070008000000000000000"
HEAD = "<|start|>developer<|message|>namespace agents {<|end|><|start|>user<|message|>{}<|end|>"
FORMAT = HarmonyFormat()


def agents_machine() -> RootMachine:
    """Return the machine of a response with agents that has said nothing yet."""
    request = parse_create({"model": "m", "input": "hi", "multi_agent": {"enabled": True}})
    response = new_response(request, response_id=RESPONSE_ID, created_at=1_700_000_000, model="m", store=True)
    machine = machine_of(response, FORMAT, key=KEY, seal=lambda place, data: place)
    assert isinstance(machine, RootMachine)
    return machine


@dataclass
class Play:
    """One response with agents, from its beginning to its end."""

    text: str  # of the user
    limits: AgentLimits = field(default_factory=AgentLimits)
    seed: int = 0
    budget: int | None = None
    chunks: tuple[int, ...] = (1, 2, 7, 40)  # how many tokens come at once
    reply: Callable[[int, list[int]], Sequence[int]] = lambda _, prompt: _rest_of_reply(prompt, None)
    machine: RootMachine = field(default_factory=agents_machine)
    inputs: list[Input] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    dues: dict[int, Command] = field(default_factory=dict)

    def tell(self, number: int, input_: Input) -> None:
        """Give the machine what comes to an agent; 0 is the root."""
        whole = OfAgent(number, input_) if number else input_
        step = self.machine.receive(whole)
        self.inputs.append(whole)
        self.events += step.events
        if step.command is not None:
            self.dues[0] = step.command
        self.dues |= self.machine.take_orders()

    def begin(self) -> "Play":
        """Start."""
        offer = agents_offer()
        for input_ in (Offered(list(offer.tools)), AgentsAllowed(self.limits), RunStarted(budget=self.budget)):
            self.tell(0, input_)
        return self

    def run(self, steps: int = 100_000) -> "Play":
        """Do what is due, in any order, until the end, or for so many steps."""
        dice = random.Random(self.seed)
        for _ in range(steps):
            root = self.dues.get(0)
            if isinstance(root, Finish):
                self.tell(0, Ended(1_700_000_001))
                return self
            busy = [number for number, due in self.dues.items() if isinstance(due, Generate)]
            # Who waits has no time: a wait is over where nothing else can happen.
            waits = [number for number, due in self.dues.items() if isinstance(due, AwaitAgents)]
            if busy:
                self.speak(dice.choice(busy), dice.choice(self.chunks))
            else:
                self.tell(dice.choice(waits), TimedOut(1.0))
        return self

    def speak(self, number: int, most: int) -> None:
        """Let an agent say some tokens more."""
        due = self.machine.machine_of(number).due
        assert isinstance(due, Generate)
        if not due.has_begun:
            self.tell(number, TurnBegan(10))
            due = self.machine.machine_of(number).due
            assert isinstance(due, Generate)
        prompt = list(encode_harmony(HEAD.replace("{}", self.text)))
        for message in due.said:
            prompt += message.tokens
        prompt += [*encode_harmony("<|start|>assistant"), *due.sampled]
        reply = list(self.reply(number, prompt))
        limit = len(reply) if due.budget is None else due.budget
        said = reply[: min(most, limit)]
        finish = None
        if len(said) == len(reply):
            finish = FinishReason.STOP
        elif len(said) == limit:
            finish = FinishReason.LENGTH
        before = self.dues[number]
        self.tell(number, Sampled(said, finish))
        if finish is not None and self.dues[number] is before:
            raise AssertionError(f"nothing follows the turn of agent {number}")


__all__ = ["FORMAT", "Idle", "Play", "WaitBegan", "agents_machine"]
