"""What the model would have written on, behind the call that ended its turn: with SERVER_TOOL_EARLY=predicted.

A turn ends with its first call of a tool of this server, even where the model goes on to write another one. It nearly
always asks for that one as soon as it has read what the first one gave. So while the first one runs, the engine goes on
with what it was writing, and what comes of that is nothing but a guess: which calls are begun early (`EarlyCalls`).

    turn 0     <tool_call> a </tool_call> <tool_call>│ b </tool_call> <tool_call> c </tool_call>
               what the response has said            │ what is predicted: b and c begin while a runs
    turn 1     <tool_call> b </tool_call>              b is there, or nearly

The tokens of a guess are no part of the response: neither its log nor its usage has them. They cost time of the engine,
so a guess is made only while nobody waits for a turn there, behind all that others ask for, of a model that was
writing on, and it ends with the first thing that is not a call.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from engine.backends.base import BaseEngine
from engine.errors import EngineError
from engine.formats.base import ItemEnded, ItemKind, ItemStarted, Text, TurnEvent, TurnParser, as_tokens
from responses_app.protocol.response.response import ResponseMachine
from responses_app.protocol.response.steps import CallTool, Command, Generate, Sampled
from responses_app.protocol.tiers import BEHIND_ALL
from responses_app.runs.driving.early import EarlyCalls
from responses_app.runs.driving.generating import Tell, request_of
from responses_app.runs.plan.plan import RunPlan
from responses_app.runs.queues.turns import TurnPlace

logger = logging.getLogger("respsite.runs")

MAX_TOKENS = 256  # of one guess
MAX_READ = 4096  # tokens of a turn that is read again for a guess; on the event loop that takes some 25 ms

Begin = Callable[[str, str], bool]  # the name and the arguments of a call → whether one behind it may be begun, too


class Guess:
    """What may follow one turn. `early` begins the calls."""

    def __init__(
        self,
        plan: RunPlan,
        generate: Generate,
        machine: ResponseMachine,
        engine: BaseEngine,
        place: TurnPlace,
        early: EarlyCalls,
    ) -> None:
        self._plan = plan
        self._generate = generate
        self._machine = machine
        self._engine = engine
        self._place = place
        self._early = early
        self._said = as_tokens(generate.sampled)  # by the model in its turn, also behind the end that the machine saw

    def telling(self, tell: Tell) -> Tell:
        """Return what tells what was sampled, and begins a guess where that ends the turn."""

        def told(sampled: Sampled) -> Command | None:
            command = tell(sampled)
            self._said.extend(sampled.token_ids)
            if command is not None and self._is_worth_it(command, sampled):
                self._early.predict(self._predict())
            return command

        return told

    def _is_worth_it(self, command: Command, sampled: Sampled) -> bool:
        plan = self._plan
        return (
            isinstance(command, CallTool)
            and sampled.finish is None  # the model was not done
            and plan.tools.reading(command.name) is not None
            and plan.recorder is None  # a roll-out has all that the engine was asked
            and plan.agents is None  # they work at once as it is
            and plan.request.max_tool_calls is None
            and plan.request.parallel_tool_calls is not False
            and not self._machine.calls.unanswered  # what its client does meanwhile may change what is read
            and len(self._said) <= MAX_READ
        )

    async def _predict(self) -> None:
        """Begin the calls that the model would have written behind the one that has ended its turn."""
        plan, generate, place = self._plan, self._generate, self._place
        reader = _CallReader(plan.format.parser(self._machine.reader.functions), partial(self._early.begin, plan))
        if place.would_wait or place.is_behind_all:
            return
        try:
            if not reader.read(self._said):
                return
            asked = await request_of(plan, replace(generate, sampled=self._said, budget=MAX_TOKENS), cuts=0, avoid="")
            priority = BEHIND_ALL if self._engine.supports_priority else asked.priority
            asked = replace(asked, request_id=f"{asked.request_id}-early", priority=priority)
            async with aclosing(self._engine.generate(asked)) as chunks:
                async for chunk in chunks:
                    if not reader.read(chunk.token_ids) or place.would_wait:
                        return
        except EngineError as error:
            logger.debug("response %s: no guess: %s: %s", plan.response_id, type(error).__name__, error)
        except Exception:
            logger.exception("response %s: its guess broke", plan.response_id)


class _CallReader:
    """Reads a turn up to its first call, and then on, as long as there are only calls."""

    def __init__(self, parser: TurnParser, begin: Begin) -> None:
        self._parser = parser
        self._begin = begin
        self._name: str | None = None  # of the open call of a tool of this server
        self._text: list[str] = []  # of that
        self._is_behind = False  # the first one has ended: it is the one that the response has asked for

    def read(self, token_ids: Sequence[int]) -> bool:
        """Take tokens, and begin the calls that end with them; return whether there may be more."""
        return all(self._take(each) for each in self._parser.feed(token_ids))

    def _take(self, event: TurnEvent) -> bool:
        match event:
            case ItemStarted():
                self._name = event.name if event.kind is ItemKind.HOSTED_CALL else None
                self._text.clear()
                return self._name is not None or not self._is_behind
            case Text():
                self._text.append(event.text)
            case ItemEnded() if self._name is not None and not event.truncated:
                if self._is_behind:
                    return self._begin(self._name, "".join(self._text))
                self._is_behind = True
        return True
