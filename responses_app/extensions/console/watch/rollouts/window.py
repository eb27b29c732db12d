"""One generation of a roll-out as its page shows it: where it broke, and a window of what it read and sampled.

A window has `WINDOW` tokens at most, however many the generation has; links lead to the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from engine.formats.base import ModelFormat
from engine.types import WeightsSpan
from responses_app.extensions.console.watch.rollouts.outline import Outline, OutlineStep, TokenStretch
from responses_app.extensions.console.watch.rollouts.showing import (
    FINISHES,
    MAX_TOPS,
    ShownToken,
    one_text,
    reason_of,
    reward_text,
    steps_of,
    texts_of,
    versions,
)
from responses_app.extensions.console.watch.text import pretty, visible
from responses_app.models import Response
from responses_app.protocol.rollouts.generations import EngineCall
from responses_app.wiring.site import get_site

WINDOW = 512  # tokens
BEFORE = 48  # tokens of a prompt that are shown before what was sampled
SHORT = 256  # tokens: a new part of a prompt with at most so many is shown whole
SIDE = 32  # tokens before and behind a break
MAX_IMAGES = 20
MAX_REWARDS = 20


@dataclass(frozen=True, slots=True)
class ShownStretch:
    """Tokens in a row that one generation has read, or sampled."""

    number: int  # of the generation
    kind: str  # prompt, sampled
    tokens: Sequence[ShownToken]
    version: str  # of the weights
    has_text: bool  # else the tokens' ids are shown


@dataclass(frozen=True, slots=True)
class Side:
    """The tokens of one sequence around the place at which two part."""

    label: str
    same: Sequence[ShownToken]
    other: Sequence[ShownToken]
    before: int  # tokens that are not shown, before and behind
    behind: int
    has_text: bool


@dataclass(frozen=True, slots=True)
class Break:
    """Where a generation does not go on from another one, and why."""

    title: str
    sentence: str
    near: int
    position: int
    near_whole: int
    sides: Sequence[Side]


class TokenReader:
    """Reads tokens of an outline as a page shows them."""

    def __init__(self, outline: Outline) -> None:
        self.outline = outline
        self._models: dict[str, str] = {}  # by responses: only those that are stored are known to have one

    def look_up(self, response_ids: Sequence[str]) -> None:
        """Find which responses are stored, and the models that were asked."""
        project = self.outline.rollout.project
        known = Response.objects.filter(project=project, pk__in=list(set(response_ids)))
        self._models |= dict(known.values_list("pk", "model"))

    def is_stored(self, response_id: str) -> bool:
        """Whether a response that was looked up has a page."""
        return response_id in self._models

    def model_of(self, response_id: str) -> str:
        """Return the model of a response; of one that is not stored that which the roll-out asked last."""
        return self._models.get(response_id) or self.outline.rollout.model

    def format_of(self, response_id: str, call: EngineCall | None) -> ModelFormat | None:
        """Return the format of a call's model, None where this server does not serve it."""
        models = get_site().service.models
        if call is not None and call.vocabulary:
            return models.format_of(call.vocabulary)
        served = models.named(self.model_of(response_id))
        return served.format if served is not None and served.format.is_loaded else None

    def window(self, number: int, begin: int, end: int) -> list[ShownStretch]:
        """Return the tokens of a generation's sequence from the place `begin` up to `end`."""
        read = list(self.outline.window(number, begin, end))
        numbers = [each.stretch.step.number for each in read]
        response_ids = self.outline.response_ids(numbers)
        self.look_up(list(response_ids.values()))
        calls = self.outline.calls(numbers)
        return [
            self._shown(each, response_ids[number], calls.get(number))
            for each, number in zip(read, numbers, strict=True)
            if len(each.tokens)
        ]

    def _shown(self, read: TokenStretch, response_id: str, call: EngineCall | None) -> ShownStretch:
        stretch, written = read.stretch, self.format_of(response_id, call)
        first, count = stretch.first, len(read.tokens)
        is_sampled = stretch.kind == "sampled"
        spans = call.weights if call is not None and is_sampled else ()
        known_versions = _each_version(spans, first, count)
        tops = call.tops if call is not None and is_sampled else None
        roles = {} if is_sampled or written is None else dict(written.messages_in(read.tokens, whole=not stretch.begin))
        shown = []
        for at, (token, text) in enumerate(zip(read.tokens, texts_of(read.tokens, written), strict=True)):
            likeliest = tops[first + at][:MAX_TOPS] if tops is not None and first + at < len(tops) else ()
            shown.append(
                ShownToken(
                    place=stretch.begin + at,
                    id=token,
                    shown=text,
                    logprob=None if read.logprobs is None else read.logprobs[at],
                    version=known_versions[at] if known_versions else None,
                    role=roles.get(at, ""),
                    tops=[(one_text(other, written), other, value) for other, value in likeliest],
                )
            )
        return ShownStretch(stretch.step.number, stretch.kind, shown, versions(spans), written is not None)

    def side(self, label: str, number: int, position: int, *, before: int = SIDE, behind: int = SIDE) -> Side:
        """Return the tokens of a generation's sequence around a place."""
        begin, whole = max(0, position - before), self.outline.steps[number].whole
        end = min(whole, position + behind)
        stretches = self.window(number, begin, end)
        tokens = [token for each in stretches for token in each.tokens]
        same = list(islice(tokens, position - begin))
        has_text = all(each.has_text for each in stretches)
        return Side(label, same, tokens[len(same) :], begin, whole - end, has_text)


def break_of(reader: TokenReader, step: OutlineStep) -> Break | None:
    """Return where a generation broke; None where it goes on from another one, or is the first."""
    near = reader.outline.steps.get(-1 if step.near is None else step.near)
    if not step.cut or near is None:
        return None
    title, sentence = reason_of(step.cut)
    labels = ((f"g{near.number} had", near.number), (f"g{step.number} has", step.number))
    sides = [reader.side(label, number, step.shared) for label, number in labels]
    return Break(title, sentence, near.number, step.shared, near.whole, sides)


def generation_page(outline: Outline, step: OutlineStep, *, at: int | None, as_table: bool) -> dict[str, Any]:
    """Return what the template of one generation needs; the window begins at the place `at`, if it is given."""
    reader = TokenReader(outline)
    begin = _first_shown(step) if at is None else max(0, min(at, step.whole - 1))
    end = min(step.whole, begin + WINDOW)
    stretches = reader.window(step.number, begin, end)
    before = step.origin
    calls = outline.calls([step.number, *([] if before is None else [before])])
    call = calls.get(step.number)
    rewards: Sequence[Mapping[str, Any]] = outline.rollout.rewards
    own = [each for each in rewards if call is not None and each["turn"] == call.response_id]
    return {
        "step": step,
        "call": call,
        "stretches": stretches,
        "begin": begin,
        "end": end,
        "is_table": as_table,
        "has_text": all(each.has_text for each in stretches),
        "steps_to": _steps_to(step, begin, end),
        "cut": break_of(reader, step),
        "facts": _facts(reader, step, call, calls.get(-1 if before is None else before)),
        "rewards": [reward_text(each["reward"]) for each in own[-MAX_REWARDS:]],
        "response_id": call.response_id if call is not None and reader.is_stored(call.response_id) else "",
        "images": [(place, digest[:64]) for place, digest in (call.images if call is not None else ())][:MAX_IMAGES],
    }


def _first_shown(step: OutlineStep) -> int:
    """Return where a window begins: before the new part of the prompt, if it is short, else before the sampled part."""
    begin = step.shared if step.new <= SHORT else step.prompt
    return max(0, min(begin - BEFORE, step.whole - 1))


def _steps_to(step: OutlineStep, begin: int, end: int) -> list[tuple[str, int]]:
    """Return the links to other windows: a name, and where each begins."""
    places = []
    if begin > 0:
        places += [("Beginning", 0), ("Earlier", max(0, begin - WINDOW))]
    if end < step.whole:
        places += [("Later", end), ("End", max(0, step.whole - WINDOW))]
    shown = range(begin, end)
    if step.new and step.shared and step.shared not in shown:
        places.append(("New in the prompt", max(0, step.shared - 16)))
    if step.sampled and step.prompt not in shown:
        places.append(("Sampled", max(0, step.prompt - 16)))
    return places


def _facts(
    reader: TokenReader, step: OutlineStep, call: EngineCall | None, before: EngineCall | None
) -> list[tuple[str, str]]:
    read = f"{step.prompt:,} tokens"
    if step.shared and step.parent is not None:
        read += f": {step.shared:,} as in g{step.parent}, {step.new:,} new"
    facts = [("Read", read), ("Sampled", f"{step.sampled:,} tokens")]
    if call is None:
        return [*facts, ("Details", "too large for this page: read them by the API")]
    model = visible(reader.model_of(call.response_id))[:200]
    finish = FINISHES.get(call.finish or "", "something else ended it")
    facts += [
        ("Ended", f"{visible(call.finish or 'not known')[:40]}: {finish}"),
        ("Model", model),
        ("Weights", versions(call.weights)),
        ("Branch", visible(call.branch)[:200]),
        ("Agent", visible(call.agent or "")[:200]),
        ("API", f"{visible(call.api)}, turn {call.turn + 1:,} of its response" if call.turn else visible(call.api)),
        ("Sampling", visible(pretty(call.sampling))[:500] if call.sampling else ""),
        ("Grammar", "One held it: its log probabilities are of what that allowed." if call.grammar else ""),
        ("Times", ", ".join(f"{name} {value}" for name, value in steps_of(call, step.sampled, before))),
        ("Reasoning", f"{call.reasoning:,} tokens" if call.reasoning else ""),
        ("Not read", f"{call.dropped:,} tokens behind the end of the turn" if call.dropped else ""),
        ("Summary", "It sums up what came before." if call.summary else ""),
        ("Experts", "recorded; read them by the API" if call.experts else ""),
    ]
    return [(name, value) for name, value in facts if value]


def _each_version(spans: Sequence[WeightsSpan], first: int, count: int) -> list[str | None]:
    """Return the version of each of `count` sampled tokens, from the one numbered `first` on; none without spans."""
    found: list[str | None] = []
    at = 0
    for span in spans:
        overlap = min(first + count, at + span.tokens) - max(first, at)
        found += [span.version and visible(span.version)] * max(0, overlap)
        at += span.tokens
    return found if len(found) == count else []
