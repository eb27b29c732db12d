"""A turn with a grammar that was cut in its middle: what holds the rest of it, and whether the whole fits.

An engine begins a grammar at its first character. So what is left of a turn gets a grammar of its own, where one can be
written: behind a thought, within a thought, and within free text. Within an answer or a call that has a rule the rest
is any text (`loose`); the turn is then read as a whole, before its end is told to anybody.
"""

from collections.abc import Iterator, Sequence

import orjson

from engine.contents.fitting import problem_of as problem_of_content
from engine.formats.base import ItemEnded, ItemKind, ItemStarted, Text, TurnEvent
from engine.formats.chat_template.call_text import CALL_END
from engine.formats.chat_template.grammar import BEHIND_THOUGHT, Tag, structural_tag, thought
from engine.formats.chat_template.reader import CALL, THINK, THINK_END
from engine.grammar import AnyText, TurnGrammar, TurnRules

_CALLS = (ItemKind.CALL, ItemKind.HOSTED_CALL)


def rest_of(whole: TurnGrammar, said: str, *, open: bool) -> TurnGrammar:
    """Return the grammar of what is left of a turn behind what was said; `open`: the prompt ends in a thought."""
    shape = orjson.loads(whole.structural_tag)["format"]
    if shape["type"] == "triggered_tags":
        is_between = said.rfind(CALL) <= said.rfind(CALL_END) and not _may_begin(said, CALL)
        return whole if is_between else _loose(whole.rules)
    if shape["type"] != "sequence":
        return _loose(whole.rules)
    _, held = shape["elements"]
    begun, ends, behind = said.partition(THINK_END)
    if not ends:
        in_thought = (open or begun.startswith(THINK)) and not _may_begin(begun, THINK_END)
        return _grammar(whole.rules, [thought(open=True), held]) if in_thought else _loose(whole.rules)
    if BEHIND_THOUGHT.startswith(behind):
        left = BEHIND_THOUGHT[len(behind) :]
        between: list[Tag] = [{"type": "const_string", "value": left}] if left else []
        return _grammar(whole.rules, [*between, held])
    return _loose(whole.rules)


def _grammar(rules: TurnRules, parts: list[Tag]) -> TurnGrammar:
    shape: Tag = parts[0] if len(parts) == 1 else {"type": "sequence", "elements": parts}
    return TurnGrammar(rules, structural_tag(shape))


def _loose(rules: TurnRules) -> TurnGrammar:
    return TurnGrammar(rules, structural_tag({"type": "any_text"}), loose=True)


def _may_begin(said: str, tag: str) -> bool:
    """Whether a text ends with the beginning of a tag."""
    return any(said.endswith(tag[:size]) for size in range(1, len(tag)))


def problem_of(rules: TurnRules, events: Sequence[TurnEvent], *, has_ended: bool, repairs: int) -> str | None:
    """Say what in a turn, or in its beginning, breaks its rules; None for nothing.

    Blocks for as long as contents take to check.
    """
    if repairs:
        return "a call is malformed"
    said = list(_contents(events))
    problem = next(filter(None, (_problem_of_item(rules, item, text) for item, text in said)), None)
    if problem is not None or not has_ended:
        return problem
    if rules.must_call and not any(item.kind in _CALLS for item, _ in said):
        return "it has to call something"
    has_content = any(item.kind is not ItemKind.REASONING for item, _ in said)
    return None if has_content or isinstance(rules.answer, AnyText) else "it has no answer"


def _contents(events: Sequence[TurnEvent]) -> Iterator[tuple[ItemStarted, str | None]]:
    """Yield the items that have ended, with their texts; None for one that was cut off."""
    started, texts = ItemStarted(ItemKind.ANSWER), [""]
    for event in events:
        match event:
            case ItemStarted():
                started, texts = event, []
            case Text(text):
                texts.append(text)
            case ItemEnded(truncated=truncated):
                yield started, None if truncated else "".join(texts)


def _problem_of_item(rules: TurnRules, item: ItemStarted, text: str | None) -> str | None:
    if item.kind is ItemKind.REASONING:
        return None
    if text is None:
        return "it ends too early"
    contents = {rule.name: rule.content for rule in rules.calls}
    if item.kind not in _CALLS:
        return problem_of_content(rules.answer, text.encode())
    if item.name not in contents:
        return "it calls what cannot be called"
    return problem_of_content(contents[item.name], text.encode())
