"""What the grammar of a turn costs before the engine has it."""

import json
import time
from collections.abc import Iterator
from statistics import median

from bench.report import Result
from bench.servers import Bench
from engine.formats.harmony import grammar as harmony
from engine.types import CallRule, JsonSchema, TurnRules

TOOLS = 20
ROUNDS = 200


def _schema(number: int) -> str:
    place = {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "string"}}, "required": ["x", "y"]}
    texts = {f"text_{each}": {"type": "string", "description": "Some words on what it is."} for each in range(8)}
    properties = {**texts, f"count_{number}": {"type": "integer"}, "places": {"type": "array", "items": place}}
    return json.dumps(
        {"type": "object", "properties": properties, "required": ["text_0"], "additionalProperties": False}
    )


def grammar(bench: Bench) -> Iterator[Result]:
    """Build the grammar of a turn with twenty tools whose schemas are known, as the turns of an agent are."""
    rules = TurnRules(calls=tuple(CallRule(f"tool_{each}", JsonSchema(_schema(each))) for each in range(TOOLS)))
    began = time.perf_counter()
    size = len(harmony.turn_grammar(rules).structural_tag)  # type: ignore[union-attr]
    cold = (time.perf_counter() - began) * 1e3
    built, remembered = [], []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        harmony.to_structural_tag([harmony.turn_shape(rules)])
        built.append((time.perf_counter() - began) * 1e3)
        began = time.perf_counter()
        harmony.turn_grammar(rules)
        remembered.append((time.perf_counter() - began) * 1e3)
    yield Result(
        what=f"building a turn's grammar, {TOOLS} tools with known schemas",
        measured=median(built),
        unit="ms",
        target=2.0,
        details={"remembered ms": median(remembered), "new schemas ms": cold, "KB": size / 1000},
    )
