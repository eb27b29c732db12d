"""The rows about sealed reasoning: in this process, no server."""

import os
import time
from collections.abc import Iterator, Sequence
from statistics import median

from bench.report import Result
from bench.servers import Bench
from engine.formats.base import RenderedMessage
from engine.formats.harmony.encoding import CALL, END, RETURN, encode_harmony, encode_text
from engine.formats.harmony.format import HarmonyFormat
from engine.types import FinishReason
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.ids import DerivedIds
from responses_app.protocol.items.items import parse_input
from responses_app.protocol.output.stream import ResponseStream
from responses_app.protocol.prompt.chain import new_link
from responses_app.protocol.prompt.rendering import Items, render_items
from responses_app.protocol.prompt.replaying import SEAL_PURPOSE, ItemSeals
from responses_app.protocol.requests.requests import new_response, parse_create
from responses_app.protocol.response.response import ResponseMachine
from responses_app.protocol.response.steps import Ended, OutputOptions, RunStarted, Sampled, TurnBegan
from responses_app.protocol.sealing import Sealer
from responses_app.runs.plan.reading import Unsealing

THOUGHT, ANSWER = 700, 300  # tokens of a response
ITEMS = 200
ROUNDS = 200
_TEXT = "I see that the fox crosses the river at 7:45, so the bridge (12 m) is not what limits it; what does? " * 60
_HEADERS = (  # of the same call: rendered, it is the second
    " to=functions.f<|channel|>commentary json<|message|>",
    "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
)
_FORMAT = HarmonyFormat()
_SEALER = Sealer(["the secret of this bench"], random_bytes=os.urandom)
_NEXT = encode_harmony("<|start|>assistant")


def sealing(bench: Bench) -> Iterator[Result]:
    """What it costs a response of 1,000 tokens that its reasoning is sealed."""
    text = encode_text(_TEXT)
    said = [*_thought(text[:THOUGHT]), *_NEXT, *encode_harmony("<|channel|>final<|message|>"), *text[:ANSWER], RETURN]
    costs = []
    for _ in bench.report.rounds(ROUNDS):
        costs.append(_seconds(said, sealed=True) - _seconds(said, sealed=False))
    yield Result(
        what=f"to seal a response of {len(said):,} tokens, {THOUGHT} of them a thought",
        measured=median(costs) * 1e3,
        unit="ms",
        target=0.2,
    )


def sealed_replay(bench: Bench) -> Iterator[Result]:
    """What a client that sends 200 items again, thoughts sealed and unseen, has of the engine's prefix cache."""
    chain: list[RenderedMessage] = []
    sent: list[JsonObject] = []
    while len(sent) < ITEMS:
        number = len(sent)
        asked = [{"type": "message", "role": "user", "content": f"Question {number}?"}] if not sent else _output(sent)
        chain += _read(asked, sent)
        call = [*encode_harmony(_HEADERS[number % 2]), *encode_text('{"river":"Isar","metres":12}'), CALL]
        machine = _machine(number)
        items = _run(machine, [*_thought(encode_text(_TEXT)[:200]), *_NEXT, *call], sealed=True)
        chain += machine.stream.messages
        sent += [*asked, *({name: value for name, value in item.items() if name != "content"} for item in items)]
    wanted = new_link(None, response_id="r", started_on="", messages=chain).prompt_tokens()
    seconds = []
    for _ in bench.report.rounds(ROUNDS // 10):
        began = time.perf_counter()
        messages = _read(sent)
        seconds.append(time.perf_counter() - began)
    replayed = new_link(None, response_id="r", started_on="", messages=messages).prompt_tokens()
    same = next((at for at, pair in enumerate(zip(wanted, replayed, strict=False)) if pair[0] != pair[1]), len(wanted))
    yield Result(
        what=f"tokens of a chain that a replay of its {len(sent)} items, sealed, does not begin with",
        measured=len(wanted) - same,
        target=0,
        details={"ms": median(seconds) * 1e3, "tokens": len(wanted)},
    )


def _thought(tokens: list[int]) -> list[int]:
    return [*encode_harmony("<|channel|>analysis<|message|>"), *tokens, END]


def _output(sent: list[JsonObject]) -> list[JsonObject]:
    call = next(item for item in reversed(sent) if item["type"] == "function_call")
    return [{"type": "function_call_output", "call_id": call["call_id"], "output": "18"}]


def _read(items: list[JsonObject], before: Sequence[JsonObject] = ()) -> list[RenderedMessage]:
    """Return what the model reads of items; those `before` them are known, and not read."""
    opened = Unsealing(_SEALER, "default").opened(Items(*parse_input([*before, *items])), named=True)
    messages = render_items(_FORMAT, opened.parsed, opened.raw, parent=None, sampled={})
    return messages[-len(items) :] if before else messages


def _machine(number: int = 0) -> ResponseMachine:
    response_id = f"resp_{number:032x}"
    request = parse_create({"input": "hi", "tools": [{"type": "function", "name": "f"}]})
    response = new_response(request, response_id=response_id, created_at=1_700_000_000, model="m", store=False)
    seals = ItemSeals(
        _FORMAT, seal=lambda place, data: _SEALER.seal_again(SEAL_PURPOSE, "default", data, place=response_id + place)
    )
    new_id = DerivedIds(response_id, created_ms=1_700_000_000_000, key=b"k" * 32)
    return ResponseMachine(ResponseStream(response, new_id=new_id, seals=seals), _FORMAT, functions=("f",))


def _run(machine: ResponseMachine, said: list[int], *, sealed: bool) -> list[JsonObject]:
    for given in (OutputOptions(sealed=sealed), RunStarted(), TurnBegan(9), Sampled(said, FinishReason.STOP), Ended(0)):
        machine.receive(given)
    return machine.stream.output


def _seconds(said: list[int], *, sealed: bool) -> float:
    machine = _machine()
    began = time.thread_time()
    _run(machine, said, sealed=sealed)
    return time.thread_time() - began
