"""Roll-outs to look at: agents with tools and breaks, log probabilities and weights that change, hostile text.

They are kept as responses keep them, so they stand in the tree as real ones do. `seed` puts them into the database of
the server whose settings the process has.
"""

import math
import random
import time
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace

from django.db import connection, transaction

from engine.formats.base import Tokens, as_tokens
from engine.formats.harmony.encoding import encode_harmony
from engine.types import WeightsSpan
from responses_app.kit.clock import utc
from responses_app.protocol.rollouts.generations import EngineCall, Recorded, RecordedResponse, Times
from responses_app.protocol.rollouts.requests import RewardObject, RolloutRef
from responses_app.resources.rollouts.fields import RolloutRecord
from responses_app.resources.rollouts.keeping import GenerationKeeper
from responses_app.resources.rollouts.model import Rollout
from responses_app.resources.rollouts.rows import row_of

MODEL = "gpt-oss-20b"
AT = int(time.time()) - 3_600  # Unix seconds: what is older than 30 days would be purged
GROUP = "bug-4711"
SYSTEM = "<|start|>system<|message|>You fix bugs in the repository of a web shop. Run the tests first.<|end|>"
TASK = "<|start|>user<|message|>The total of an order is wrong when a voucher is used twice. Find out why.<|end|>"
THOUGHT = "<|channel|>analysis<|message|>{}<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.shell <|constrain|>json<|message|>{{"command": "{}"}}<|call|>'
OUTPUT = "<|start|>functions.shell to=assistant<|channel|>commentary<|message|>{}<|end|>"
FINAL = "<|channel|>final<|message|>{}<|return|>"
START = "<|start|>assistant"
HOSTILE = (
    "<script>alert(1)</script> <img src=x onerror=alert(1)> \u202eevil\u202c \u2066x\u2069 \u200b\u00ad\ufeff "
    "\U000e0041 Z̸̡͎̦̗̀̿a̵l̶g̴o̷ 👩🏽‍🚀 שלום عربي \x00\x07 \u0301 'quoted' \"double\" &amp; " + "W" * 300
)  # fmt: skip
STEPS = (
    (
        "The voucher is applied in two places, it seems. I look for it first.",
        "grep -rn voucher shop/",
        "shop/cart.py:41: total -= voucher.value\nshop/order.py:17: total -= voucher.value",
    ),
    (
        "It is subtracted in the cart and in the order. Which one is right?",
        "sed -n 30,60p shop/cart.py",
        "def total(self):\n    total = sum(line.price for line in self.lines)\n    return total - self.voucher.value",
    ),
    (
        "The cart subtracts it already, so the order must not do it again.",
        "sed -i '17d' shop/order.py && pytest -q",
        "41 passed in 2.13s",
    ),
)
REWARDS = (1.0, 0.0, 0.5, 1.0, {"tests": 0.0, "style": 0.5}, -0.25)  # of the attempts of the group


def recorded(
    prompt: "Tokens[int]", text: str, *, chance: random.Random, at: int, version: str = "step-120", **fields: object
) -> Recorded:
    """Return a call of the engine that samples a text."""
    sampled = as_tokens(encode_harmony(text))
    logprobs = [-0.0 if token > 199_997 else -(chance.expovariate(1.1) ** 2.4) for token in sampled]
    tops = [_tops(token, value, chance) for token, value in zip(sampled, logprobs, strict=True)]
    call = EngineCall(
        **{
            "response_id": "",
            "sampled": sampled,
            "logprobs": _packed(logprobs),
            "tops": tops,
            "finish": "stop",
            "times": Times(at, at + 12, at + 12 + len(prompt) // 40, at + 12 + len(prompt) // 40 + 9 * len(sampled)),
            "weights": [WeightsSpan(version, len(sampled))],
            "sampling": {"temperature": 1.0, "top_p": 1.0, "seed": 3},
            "vocabulary": "harmony",
            **fields,
        }  # type: ignore[arg-type]
    )
    return Recorded(call, as_tokens(prompt))


def _packed(values: Iterable[float]) -> "array[float]":
    """Return log probabilities as an engine sends them: 32-bit floats."""
    return array("d", array("f", values))


def _tops(token: int, value: float, chance: random.Random) -> Sequence[tuple[int, float]]:
    others = [(chance.randrange(200, 20_000), value - 0.2 - index * chance.random()) for index in range(2)]
    left = math.log(max(1e-9, 1 - math.exp(value)))
    return sorted([(token, value), *((each, min(left, below)) for each, below in others)], key=lambda pair: -pair[1])


def agent(seed: int, *, turns: int = 3, settles: bool = True, long: int = 0) -> list[Recorded]:
    """Return the calls of an agent: it thinks, calls a shell, and answers; then it is asked once more."""
    chance, at = random.Random(seed), AT * 1000 + seed * 60_000
    prompt = as_tokens(encode_harmony(SYSTEM + TASK + START))
    calls = list[Recorded]()
    for number in range(turns):
        thought, command, output = STEPS[number % len(STEPS)]
        if seed % 3 == 1 and number == 1:
            thought = "Perhaps the order is the right place, and the cart is wrong."
        text = THOUGHT.format(thought) + CALL.format(command)
        version = "step-120" if number < turns - 1 else "step-121"
        each = recorded(prompt, text, chance=chance, at=at, version=version)
        if number == turns - 1:
            count = len(each.call.sampled)
            spans = [WeightsSpan("step-120", count // 2), WeightsSpan("step-121", count - count // 2)]
            each = replace(each, call=replace(each.call, weights=spans))
        calls.append(each)
        output += "\n" + "".join(f"line {line}: {chance.random():.9f}\n" for line in range(long))
        prompt.extend(each.call.sampled)
        prompt.extend(encode_harmony(OUTPUT.format(output) + START))
        at += 9_000
    answer = "The voucher was subtracted twice: in `cart.py` and in `order.py`. I removed the second; all tests pass."
    calls.append(recorded(prompt, FINAL.format(answer), chance=chance, at=at, version="step-121"))
    prompt.extend(calls[-1].call.sampled)
    if settles:
        # Its reasoning is dropped from the next prompt.
        short = SYSTEM + TASK + START + FINAL.format(answer).replace("<|return|>", "<|end|>")
        asked = f"{short}<|start|>user<|message|>Thanks! Write a test for it, too.<|end|>{START}"
        prompt = as_tokens(encode_harmony(asked))
        text = THOUGHT.format("A test with one voucher in the cart.") + FINAL.format("Done: `test_voucher_once`.")
        calls.append(recorded(prompt, text, chance=chance, at=at + 30_000, version="step-121", finish="length"))
        child = as_tokens(encode_harmony(SYSTEM + "<|start|>user<|message|>Review the change.<|end|>" + START))
        review = recorded(child, FINAL.format("It is fine."), chance=chance, at=at + 31_000, version="step-121")
        calls.append(replace(review, call=replace(review.call, branch="reviewer")))
    return calls


def hostile() -> list[Recorded]:
    """Return a call whose prompt and answer are hostile."""
    chance = random.Random(5)
    prompt = as_tokens(encode_harmony(f"<|start|>user<|message|>{HOSTILE}<|end|>{START}"))
    weights = [WeightsSpan("<b>v1</b>\u202e", len(encode_harmony(FINAL.format(HOSTILE))))]
    named = {"branch": "<i>\u202ebranch", "agent": "</bdi><script>", "weights": weights}
    return [recorded(prompt, FINAL.format(HOSTILE), chance=chance, at=AT * 1000, **named)]


def keep(name: str, calls: Sequence[Recorded], *, rewards: Sequence[RewardObject] = (), **fields: object) -> Rollout:
    """Keep a roll-out whose every call is of a response of its own, as responses keep theirs."""
    values = {
        "id": f"rollout_{name}",
        "project": "default",
        "name": name,
        "created_at": AT,
        "last_at": AT + 41,
        **fields,
    }
    row = row_of(RolloutRecord(**values))  # type: ignore[arg-type]
    row.rewards = list(rewards)
    row.ended_at = utc(AT + 43) if rewards and name != f"{GROUP}.2" else None
    row.save(force_insert=True)
    keeper = GenerationKeeper()
    for number, each in enumerate(calls):
        response_id = f"resp_{name}{number}"
        call = replace(each.call, response_id=response_id)
        added = RecordedResponse(
            project=row.project,
            rollout=RolloutRef(row.name),
            response_id=response_id,
            model=MODEL,
            calls=[Recorded(call, each.prompt)],
        )
        with transaction.atomic():
            keeper.keep(connection, [added], now=AT + 41)
    row.refresh_from_db()
    return row


def seed() -> None:
    for number, reward in enumerate(REWARDS):
        name = f"{GROUP}.{number}"
        of_turn: RewardObject = {"reward": 0.5, "turn": f"resp_{name}1", "at": AT + 20}
        of_all: RewardObject = {"reward": reward, "turn": None, "at": AT + 42}
        sampling = {"temperature": 1.0, "seed": 3}
        keep(
            name, agent(number), rewards=[of_turn, of_all], group=GROUP, sampling=sampling, metadata={"split": "train"}
        )
    keep("hostile", hostile(), metadata={"<b>a": "\u202e<script>"})
    keep("empty", [])
    keep("long", agent(9, turns=43, long=300))
    keep("theirs", agent(8), project="elsewhere", group=GROUP)
