"""What the forced model says in these tests: text of the last message → a Harmony transcript."""

from engine.formats.harmony.encoding import encode_harmony
from engine.formats.harmony.prompt import generation_start, render_text

_THOUGHT = "The user wants the weather of two cities, one after the other, and nothing else at all. "

SHORT = "<|channel|>final<|message|>Hello you<|return|>"
NUMBERS = " ".join(map(str, range(150)))
LONG = f"<|channel|>final<|message|>{NUMBERS}<|return|>"


def _call(city: str) -> str:
    """Call for one city, the recipient before the channel: a rendering of the parsed call gives other tokens."""
    return (
        f"<|channel|>analysis<|message|>{_THOUGHT * 6}Now {city}.<|end|>"
        "<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>"
        f'{{"city": "{city}"}}<|call|>'
    )


# Beginnings: the model samples what follows, under the grammar of its request. It would think without end by itself.
ANSWER = "<|channel|>final<|message|>"
THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
BEGUN = {
    "Answer.": ANSWER,
    "Think, and answer.": f"{THOUGHT}{ANSWER}",
    "Call.": "<|channel|>commentary to=",
    "Think, and call.": f"{THOUGHT} to=",
    "Do something.": "<|channel|>",
    "Think, and do something.": f"{THOUGHT}<|channel|>commentary",
    "Patch a file.": "<|channel|>commentary to=functions.apply_patch<|message|>",
}

SCRIPT: list[dict[str, object]] = [
    *[{"when": when, "say": said, "behind": "sampled"} for when, said in BEGUN.items()],
    *[
        {"when": f"Decide: {when}.", "say": f"{ANSWER}{label}<|return|>"}
        for when, label in (("yes", "yes"), ("two", "2"), ("perhaps", "perhaps"))
    ],
    {"when": "Answer instead of a call.", "say": f"{THOUGHT}{ANSWER}No.<|return|>"},
    {"when": "say short", "say": SHORT},
    {"when": "say long", "say": LONG},
    {"when": "say endless", "say": f"<|channel|>final<|message|>{'word ' * 3500}<|return|>"},
    {"when": "weather of Paris and Rome", "say": _call("Paris")},
    {"when": "18 °C in Paris", "say": _call("Rome")},
    {"when": "18 °C in Rome", "say": "<|channel|>final<|message|>Paris and Rome have 18 °C.<|return|>"},
]


def prompt(text: str) -> list[int]:
    return [*render_text("user", text).tokens, *generation_start()]


def completion(when: str) -> list[int]:
    return next(encode_harmony(str(entry["say"])) for entry in SCRIPT if entry["when"] == when)
