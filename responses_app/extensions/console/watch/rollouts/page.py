"""The page of a roll-out: its numbers, the tree of its generations, its rewards, its settings; and one generation.

Of a generation it shows where it broke, and a window of what it read and sampled. A window has `WINDOW` tokens at most,
however many the generation has; links lead to the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from django.utils.html import format_html

from engine.formats.base import ModelFormat
from engine.types import WeightsSpan
from responses_app.extensions.console.watch.rollouts.outline import Outline, OutlineStep, Rail, Rails, TokenStretch
from responses_app.extensions.console.watch.rollouts.showing import (
    FINISHES,
    LEGEND,
    MAX_TOPS,
    ShownToken,
    one_text,
    reason_of,
    reward_text,
    steps_of,
    text_of,
    texts_of,
    versions,
    whole_reward,
)
from responses_app.extensions.console.watch.text import (
    NONE,
    Places,
    ago,
    in_bytes,
    milliseconds,
    moment,
    pretty,
    visible,
)
from responses_app.models import Response
from responses_app.protocol.rollouts.generations import EngineCall
from responses_app.protocol.rollouts.requests import MAIN, RolloutObject
from responses_app.resources.rollouts.model import Rollout
from responses_app.resources.rollouts.rows import record_of
from responses_app.wiring.site import get_site

PAGE = 60  # generations of one page
PREVIEW = 32  # tokens of what was sampled, of which a row shows `CHARACTERS` at most
CHARACTERS = 120
MAX_REWARDS = 50  # that are shown, the last ones
WINDOW = 512  # tokens
BEFORE = 48  # tokens of a prompt that are shown before what was sampled
SHORT = 256  # tokens: a new part of a prompt with at most so many is shown whole
SIDE = 32  # tokens before and behind a break
MAX_IMAGES = 20
MAX_TURN_REWARDS = 20  # of the response of one generation


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
    if at is None:  # before the new part of the prompt, if it is short, else before the sampled part
        at = (step.shared if step.new <= SHORT else step.prompt) - BEFORE
    begin = max(0, min(at, step.whole - 1))
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
        "rewards": [reward_text(each["reward"]) for each in own[-MAX_TURN_REWARDS:]],
        "response_id": call.response_id if call is not None and reader.is_stored(call.response_id) else "",
        "images": [(place, digest[:64]) for place, digest in (call.images if call is not None else ())][:MAX_IMAGES],
    }


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


@dataclass(frozen=True, slots=True)
class GenerationRow:
    """A generation in the tree."""

    step: OutlineStep
    rail: Rail
    url: str  # of the page with its tokens
    cut: tuple[str, str] | None  # why it broke: in a word or two, in a sentence
    call: EngineCall | None  # None where it is too large for the page
    preview: str
    chips: Sequence[str]  # its branch and its agent, where it has one
    reward: str  # of its response
    version: str
    took: str
    bar: tuple[float, float, float]  # what it shares, what is new in its prompt and what it sampled, in percent
    response_id: str  # "" where it is not stored

    @property
    def bar_new(self) -> float:
        """Where the sampled part of the bar begins."""
        return round(self.bar[0] + self.bar[1], 3)

    @property
    def goes_on(self) -> bool:
        """Whether it continues another generation that is not the one before it."""
        return not self.cut and self.step.parent is not None and self.step.parent != self.step.number - 1


def rollout_page(
    rollout: Rollout, places: Places, *, first: int | None, opened: int | None, at: int | None, as_table: bool
) -> dict[str, Any]:
    """Return what the template of the page needs.

    It has the generations from the one numbered `first` on; of the one numbered `opened` it has tokens, from the place
    `at` on.
    """
    outline = Outline.of(rollout)
    rails = Rails.of(outline)
    is_known = opened in outline.steps
    begin = first if first is not None else (opened // PAGE * PAGE if opened is not None and is_known else 0)
    shown = [step for number, step in outline.steps.items() if begin <= number < begin + PAGE]
    rows = rows_of(outline, rails, shown, places)
    cuts = sum(1 for step in outline.steps.values() if step.cut)
    return {
        "title": "Roll-out",
        "name": rollout.name,
        "rollout": rollout,
        "model": visible(rollout.model)[:200],
        "is_ended": rollout.ended_at is not None,
        "has_content": True,
        "figures": _figures(rollout, outline, rails, cuts),
        "rows": rows,
        "first_row": begin,
        "pages": _pages(rollout, outline, places, begin),
        "opened": opened if is_known else None,
        "generation": generation_page(outline, outline.steps[opened], at=at, as_table=as_table)  # type: ignore[index]
        if is_known
        else None,
        "here": places.rollout(rollout, **({"from": first} if first is not None else {})),
        "legend": LEGEND,
        "facts": facts_of(rollout, places),
        "asked": [(visible(name)[:80], visible(value)[:200]) for name, value in list(rollout.sampling.items())[:16]],
        "metadata": [(visible(name)[:80], visible(value)[:200]) for name, value in list(rollout.metadata.items())[:16]],
        "rewards": _rewards(rollout, outline, places),
        "rewards_left_out": max(0, len(rollout.rewards) - MAX_REWARDS),
        "left_out": outline.left_out,
    }


def without_content(context: dict[str, Any]) -> dict[str, Any]:
    """Return what the template gets for who may see figures alone: no tokens, no texts, nothing that clients wrote."""
    rows = [replace(row, preview="", chips=()) for row in context["rows"]]
    return {**context, "rows": rows, "asked": [], "metadata": [], "has_content": False}


def rows_of(outline: Outline, rails: Rails, shown: Sequence[OutlineStep], places: Places) -> list[GenerationRow]:
    """Return the rows of generations, which are in order."""
    numbers = [step.number for step in shown]
    calls = outline.calls([*numbers, *(step.origin for step in shown if step.origin is not None)])
    response_ids, begun = outline.response_ids(numbers), outline.beginnings(numbers, PREVIEW)
    reader = TokenReader(outline)
    reader.look_up(list(response_ids.values()))
    rewards = {each["turn"]: reward_text(each["reward"]) for each in outline.rollout.rewards if each["turn"]}
    largest = max((step.whole for step in outline.steps.values()), default=1) or 1
    rows = []
    for step, rail in zip(shown, rails.rows(shown), strict=True):
        number, call = step.number, calls.get(step.number)
        response_id = response_ids.get(number, "")
        parts = [round(count / largest * 100, 3) for count in (step.shared, step.new, step.sampled)]
        rows.append(
            GenerationRow(
                step=step,
                rail=rail,
                url=places.rollout(outline.rollout, g=number),
                cut=reason_of(step.cut) if step.cut else None,
                call=call,
                preview=text_of(begun.get(number, ()), reader.format_of(response_id, call))[:CHARACTERS],
                chips=_chips(call),
                reward=rewards.get(response_id, ""),
                version="" if call is None else versions(call.weights),
                took=_took(call),
                bar=(parts[0], parts[1], parts[2]),
                response_id=response_id if reader.is_stored(response_id) else "",
            )
        )
    return rows


def _chips(call: EngineCall | None) -> list[str]:
    """Return what tells whose a generation is."""
    if call is None:
        return []
    names = [call.branch if call.branch != MAIN else "", call.agent or "", "summary" if call.summary else ""]
    return [visible(name)[:80] for name in names if name]


def _took(call: EngineCall | None) -> str:
    if call is None:
        return ""
    begin, end = call.times.asked, call.times.ended
    return milliseconds(max(0, end - begin)) if begin is not None and end is not None else ""


def _figures(rollout: Rollout, outline: Outline, rails: Rails, cuts: int) -> list[tuple[str, str, str]]:
    strands = len(rails.strands)
    reward = whole_reward(rollout.rewards)
    shown = f"{len(reward)} values" if isinstance(reward, dict) else reward_text(reward)
    of_turns = sum(1 for each in rollout.rewards if each["turn"] is not None)
    return [
        ("Reward", shown, f"{of_turns} of turns" if of_turns else ""),
        ("Generations", f"{rollout.generations:,}", ""),
        ("Sequences", f"{strands:,}", ""),
        ("Breaks", f"{cuts:,}", ""),
        ("Prompt tokens", f"{rollout.prompt_tokens:,}", "each once"),
        ("Sampled tokens", f"{rollout.sampled_tokens:,}", ""),
    ]


def facts_of(rollout: Rollout, places: Places) -> list[tuple[str, Any]]:
    """Return what is known of a roll-out beside its numbers."""
    now = datetime.now(UTC)
    head = shown_of(rollout)
    facts: list[tuple[str, Any]] = [
        ("Status", "ended" if rollout.ended_at else "open"),
        ("Created", format_html("{} UTC, {}", moment(rollout.created_at), ago(rollout.created_at, now))),
        ("Last", format_html("{} UTC, {}", moment(rollout.last_at), ago(rollout.last_at, now))),
    ]
    if rollout.ended_at:
        facts.append(("Ended", format_html("{} UTC", moment(rollout.ended_at))))
    if rollout.group:
        link = format_html('<a href="{}">{}</a>', places.group(rollout), visible(rollout.group))
        facts.append(("Group", link))
    facts += [("Model", visible(rollout.model) or NONE), ("Project", visible(rollout.project))]
    if head["weights_wanted"]:
        facts.append(("Weights wanted", visible(head["weights_wanted"])))
    if head["max_staleness"] is not None:
        facts.append(("Max staleness", f"{head['max_staleness']:,}"))
    if stale := stale_text(head):
        facts.append(("Stale", stale))
    facts.append(("Size", in_bytes(rollout.bytes)))
    return facts


def shown_of(rollout: Rollout) -> RolloutObject:
    """Return a roll-out as the API shows it."""
    return get_site().rollouts.shown(record_of(rollout))


def stale_text(head: RolloutObject) -> str:
    """Return whether a roll-out is older than its weights may be; "" where it has no bound, or nobody can tell."""
    return {True: "yes", False: "no", None: ""}[head["stale"]]


def _rewards(rollout: Rollout, outline: Outline, places: Places) -> list[tuple[str, str, str]]:
    """Return the last rewards: what each is of, the link to that, and the reward."""
    last = rollout.rewards[-MAX_REWARDS:]
    known = outline.numbers_of([each["turn"] for each in last if each["turn"]])
    shown = []
    for each in last:
        number = known.get(each["turn"])
        name = "the whole" if each["turn"] is None else f"g{number}" if number is not None else visible(each["turn"])
        link = "" if number is None else f"{places.rollout(rollout, g=number)}#g{number}"
        shown.append((name, link, reward_text(each["reward"])))
    return shown


def _pages(rollout: Rollout, outline: Outline, places: Places, begin: int) -> list[tuple[str, str]]:
    """Return the links to other pages of the tree."""
    last = len(outline.steps)
    pages = []
    if begin > 0:
        pages += [("First", 0), ("Earlier generations", max(0, begin - PAGE))]
    if begin + PAGE < last:
        pages += [("Later generations", begin + PAGE), ("Last", (last - 1) // PAGE * PAGE)]
    return [(name, places.rollout(rollout, **{"from": number})) for name, number in pages]
