"""What the tests of `ResponseMachine` share: one to feed, and a driver for turns that are known beforehand."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import orjson

from engine.formats.base import ModelFormat
from engine.formats.harmony.encoding import encode_harmony
from engine.formats.harmony.format import HarmonyFormat
from engine.types import FinishReason
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events.events import Event
from responses_app.protocol.ids import DerivedIds
from responses_app.protocol.items.offers import OfferedTool
from responses_app.protocol.output.hosted_items import HostedBuilder
from responses_app.protocol.output.stream import ResponseStream
from responses_app.protocol.prompt.replaying import SEAL_PURPOSE, ItemSeals
from responses_app.protocol.requests.requests import new_response, parse_create
from responses_app.protocol.response.response import ResponseMachine
from responses_app.protocol.response.steps import (
    Await,
    CallTool,
    Command,
    Ended,
    Finish,
    Generate,
    Input,
    OutputGiven,
    Prefill,
    Sampled,
    Seal,
    Sealed,
    TimedOut,
    ToolReturned,
    TurnBegan,
    WaitBegan,
)
from responses_app.protocol.sealing import Sealer
from tests.kit.laws import chunked

KEY = b"k" * 32
RESPONSE_ID = "resp_019a0000000070008000000000000000"
AT = 1_700_000_001
SEALER = Sealer(["the secret of these tests"], random_bytes=os.urandom)


class PythonBuilder(HostedBuilder):
    """A tool's item for these tests: it has the shape of a function call, so the laws of all items hold."""

    prefix = "ci_"
    delta_type = "response.function_call_arguments.delta"  # type: ignore[assignment]

    def __init__(self, new_id: Callable[[str], str]) -> None:
        super().__init__(new_id, OfferedTool(name="python", item="function_call"))

    def input_done(self):  # type: ignore[no-untyped-def]
        return [("response.function_call_arguments.done", {"arguments": self.text})]

    def item(self, status):  # type: ignore[no-untyped-def]
        arguments = "" if status == "in_progress" else self.text
        return {"type": "function_call", "id": self.id, "status": status, "arguments": arguments, "name": "python"}


def machine(
    model_format: ModelFormat,
    *,
    hosted: bool = False,
    one_call: bool = False,
    summary: str = "auto",
    response_id: str = RESPONSE_ID,
) -> ResponseMachine:
    """Return the machine of a response that has said nothing yet; `summary` is its request's `reasoning.summary`."""
    tools = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("f", "get_weather")]
    request = parse_create({"model": "m", "input": "hi", "tools": tools, "reasoning": {"summary": summary}})
    response = new_response(request, response_id=response_id, created_at=1_700_000_000, model="m", store=True)
    stream = ResponseStream(
        response,
        new_id=DerivedIds(response_id, created_ms=1_700_000_000_000, key=KEY),
        hosted={"python": PythonBuilder} if hosted else {},
        seals=ItemSeals(
            model_format, seal=lambda place, data: SEALER.seal_again(SEAL_PURPOSE, "default", data, place=place)
        ),
    )
    return ResponseMachine(
        stream, model_format, functions=("f", "get_weather"), one_call=one_call, summary_style=summary
    )


@dataclass
class Driver:
    """Runs a machine on turns that are known beforehand, and keeps its inputs and events.

    `outputs` are what the client says of its calls, where the response waits; it times out where there are no more.
    `eager`: each comes as soon as the call was said.
    """

    machine: ResponseMachine
    outputs: list[str] = field(default_factory=list)
    eager: bool = False
    log: list[Input] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def tell(self, given: Input) -> Command | None:
        self.log.append(given)
        events, command = self.machine.receive(given)
        self.events += events
        return command

    def tell_all(self, inputs: Iterable[Input]) -> Command | None:
        """Tell these inputs; return what the last one commands."""
        command = None
        for each in inputs:
            command = self.tell(each)
        return command

    def run(self, first: Input, turns: Iterable[Sequence[Sampled]], tools: Iterable[ToolReturned] = ()) -> None:
        """Go on from `first` to the end; a turn that is missing is aborted, a tool without an answer fails."""
        waiting, answers = iter(turns), iter(tools)
        command = self.tell(first)
        while command is not None:
            match command:
                case Generate():
                    command = self._generate(next(waiting, [Sampled((), FinishReason.ABORT)]))
                case CallTool():
                    command = self.tell(next(answers, ToolReturned("It broke.", failed=True)))
                case Await():
                    command = self._wait(command)
                case Seal(summary=summary):
                    command = self.tell(Sealed(f"sealed {summary}", budget=None))
                case Finish():
                    command = self.tell(Ended(AT))
                case Prefill():
                    raise AssertionError("no warm-up here")

    def run_end(self) -> None:
        """Keep the end that is decided."""
        assert isinstance(self.machine.due, Finish)
        self.tell(Ended(AT))

    def _generate(self, chunks: Sequence[Sampled]) -> Command | None:
        command = self.tell(TurnBegan(9))
        for chunk in chunks:
            command = self.tell(chunk)
            if command is not None:
                return command
            if self.eager and self.outputs and self.machine.takes_outputs and self.machine.calls.unanswered:
                assert self._give(self.machine.calls.unanswered[-1]) is None
        raise AssertionError("the last chunk has a finish reason")

    def _wait(self, wanted: Await) -> Command | None:
        self.tell(WaitBegan(AT + 300.0))
        assert self.machine.due == Await(wanted.call_ids, AT + 300.0)
        for call_id in sorted(wanted.call_ids, key=lambda call_id: call_id[-3:]):  # in any order
            if not self.outputs:
                return self.tell(TimedOut(300.0))
            command = self._give(call_id)
        return command

    def _give(self, call_id: str) -> Command | None:
        text = self.outputs.pop()
        return self.tell(OutputGiven(call_id, text, text))

    @property
    def bytes(self) -> list[bytes]:
        return [event.as_json() for event in self.events]

    @property
    def seen(self) -> list[JsonObject]:
        return [orjson.loads(each) for each in self.bytes]

    @property
    def items(self) -> list[JsonObject]:
        return [event["item"] for event in self.seen if event["type"] == "response.output_item.done"]


def turn_of(tokens: Sequence[int], sizes: Sequence[int], finish: FinishReason = FinishReason.STOP) -> list[Sampled]:
    """Return a turn's tokens in chunks of these sizes, over and over."""
    chunks = chunked(tokens, sizes) or [()]
    return [Sampled(chunk, finish if index == len(chunks) - 1 else None) for index, chunk in enumerate(chunks)]


# --- what the model says, in short ---

THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
HALF = "<|channel|>final<|message|>Half of it"
ANSWER = "<|channel|>final<|message|>Hello.<|return|>"
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a":1}<|call|>'
FIRST_CALL = CALL.replace("<|call|>", "<|end|>")
PYTHON = "<|channel|>analysis to=python code<|message|>1+1<|call|>"
BROKEN = {"code": "server_error", "message": "It broke."}


def sampled(text: str, finish: FinishReason | None = None, *, cached: int | None = None) -> Sampled:
    return Sampled(encode_harmony(text), finish, cached)


def count(text: str) -> int:
    return len(encode_harmony(text))


def told(*inputs: Input, hosted: bool = False, one_call: bool = False) -> tuple[Driver, Command | None]:
    """Tell a new machine these inputs; return its driver and the last command."""
    driver = Driver(machine(HarmonyFormat(), hosted=hosted, one_call=one_call))
    return driver, driver.tell_all(inputs)


def types_of(driver: Driver) -> list[str]:
    return [str(event["type"]).removeprefix("response.") for event in driver.seen]


def is_call(command: Command | None, name: str, arguments: str) -> bool:
    """Say whether a tool of the server is to be called, by the item that is open for it."""
    return isinstance(command, CallTool) and (command.name, command.arguments) == (name, arguments)


def ending_of(command: Command | None) -> tuple[str, str | None]:
    """Return the status and the reason of the end that was decided."""
    assert isinstance(command, Finish), command
    return command.ending.status.value, command.ending.reason


def turn(text: str, finish: FinishReason = FinishReason.STOP, *, prompt: int = 9) -> Sequence[Input]:
    return TurnBegan(prompt), sampled(text, finish)
