"""What is recorded of a roll-out, in plain words."""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.types import WeightsSpan
from responses_app.protocol.rollouts.generations import Break, EngineCall
from responses_app.watch.text import NONE, milliseconds, visible

REASONS: Mapping[Break, tuple[str, str]] = {
    "reasoning_settled": (
        "Reasoning left out",
        "The model no longer reads its earlier reasoning. It is not part of this prompt.",
    ),
    "compaction": ("Compaction", "A summary has replaced the history, or is being written here."),
    "instructions_changed": ("Instructions changed", "The system or developer message, or the tools, are different."),
    "history_changed": ("History changed", "The client sent a different history from what was said before."),
    "fork": ("Fork", "The same prompt is answered again."),
    "sub_agent": ("Another agent", "The conversation of another agent or another session begins here."),
    "end_token": (
        "End token",
        "The model's format writes the token that ended the answer differently once something follows.",
    ),
    "template": (
        "Rendered differently",
        "The server rendered what was said as different tokens. The text may be the same.",
    ),
}
FINISHES = {
    "stop": "the model ended its turn",
    "length": "the limit of tokens was reached",
    "abort": "it was cancelled",
}
MAX_NAMED = 8  # values of one reward that are shown
MAX_VERSIONS = 6


def reason_of(cut: Break) -> tuple[str, str]:
    """Return a reason in a word or two, and in a sentence."""
    return REASONS.get(cut) or (visible(cut).replace("_", " "), "")


def reward_text(reward: object) -> str:
    """Return a reward."""
    if isinstance(reward, dict):
        shown = [f"{visible(name)[:40]} {_number(value)}" for name, value in list(reward.items())[:MAX_NAMED]]
        return ", ".join([*shown, *(["…"] if len(reward) > MAX_NAMED else [])])
    return NONE if reward is None else _number(reward)


def reward_number(reward: object) -> float | None:
    """Return what a reward is sorted by: itself, or the sum of its values."""
    if isinstance(reward, dict):
        return float(sum(reward.values()))
    return None if reward is None else float(reward)  # type: ignore[arg-type]


def _number(value: Any) -> str:
    return f"{value:.6g}".replace("-", "−")


def whole_reward(rewards: Sequence[Mapping[str, Any]]) -> Any:
    """Return the last reward of a whole roll-out, None without one."""
    return next((each["reward"] for each in reversed(rewards) if each["turn"] is None), None)


def versions(spans: Sequence[WeightsSpan]) -> str:
    """Return versions of weights in order, each with how many tokens were sampled from it where there are several."""
    if not any(span.version for span in spans):
        return ""
    if len(spans) == 1:
        return visible(spans[0].version)[:80]
    shown = [f"{visible(span.version or 'unknown')[:80]} ({span.tokens:,})" for span in spans[:MAX_VERSIONS]]
    return ", then ".join([*shown, *(["…"] if len(spans) > MAX_VERSIONS else [])])


def steps_of(call: EngineCall, sampled: int, before: EngineCall | None) -> list[tuple[str, str]]:
    """Return how long the steps of a call took, with the time since the call before it ended."""
    times, steps = call.times, []
    if before is not None and before.times.ended is not None and times.queued is not None:
        steps.append(("between", _between(before.times.ended, times.queued)))
    steps += [
        ("queued", _between(times.queued, times.asked)),
        ("prefill", _between(times.asked, times.first_token)),
        ("decode", _between(times.first_token, times.ended)),
    ]
    if times.first_token is not None and times.ended is not None and times.ended > times.first_token and sampled > 1:
        rate = (sampled - 1) * 1000 / (times.ended - times.first_token)
        steps.append(("speed", f"{rate:,.0f} tokens/s"))
    return [(name, value) for name, value in steps if value != NONE]


def _between(begin: int | None, end: int | None) -> str:
    return NONE if begin is None or end is None else milliseconds(max(0, end - begin))
