"""The grammar of a turn of a model with a chat template, in xgrammar's words.

    turn   = [thought] (call {call} | answer)            calls alone where the turn must call
    turn   = text with calls in it                       where anything may be said: only calls are held to something
    call   = <tool_call>\n{"name": NAME, "arguments": what the tool takes}\n</tool_call>     or, as Llama 3 writes it,
             {"name": NAME, "parameters": what the tool takes}

It is a grammar of text: the token that stops the model is the engine's affair.

An engine begins a grammar at its first character. So what is left of a turn that was cut in its middle gets a grammar
of its own (`rest_of`), where one can be written: behind a thought, within a thought, and within free text. Within an
answer or a call that has a rule the rest is any text (`loose`); the turn is then read as a whole (`problem_of`), before
its end is told to anybody.
"""

from collections.abc import Iterator, Sequence

from engine import orjson
from engine.contents.ebnf import in_json_string
from engine.contents.schemas import json_tag
from engine.contents.validation import problem_of as problem_of_content
from engine.errors import GrammarRefused
from engine.formats.base import ItemEnded, ItemKind, ItemStarted, Text, TurnEvent
from engine.formats.chat_template.prompt import FREEFORM
from engine.formats.chat_template.reader import CALL, CALL_END, THINK, THINK_END, CallStyle
from engine.types import AnyObject, AnyText, CallRule, Content, JsonSchema, TurnGrammar, TurnRules

# What templates write between a thought and an answer.
BEHIND_THOUGHT = "\n\n"
_CALLS = (ItemKind.CALL, ItemKind.HOSTED_CALL)

Tag = dict[str, object]


def turn_grammar(rules: TurnRules, style: CallStyle, *, thinks: bool, open: bool) -> TurnGrammar | None:
    """Return the grammar of a turn; None where there is nothing to hold the model to, or no way to write a call.

    `thinks`: it may think first, between tags; `open`: the first tag stands in the prompt. Raises `GrammarRefused`.
    """
    if rules.must_call and style is CallStyle.NONE:
        return None
    calls = [_call(rule, style) for rule in rules.calls] if style is not CallStyle.NONE else []
    if not rules.must_call and isinstance(rules.answer, AnyText):
        # Calls without a tag cannot be told from text, so nothing can be held in the middle of it.
        if not calls or style is CallStyle.JSON or all(isinstance(rule.content, AnyText) for rule in rules.calls):
            return None
        return _grammar(
            rules,
            {
                "type": "triggered_tags",
                "triggers": [CALL],
                "tags": calls,
                "at_least_one": False,
                "stop_after_first": False,
            },
        )
    options: list[Tag] = []
    if calls:
        separator = "\n" if style is CallStyle.HERMES else "; "
        row = {"type": "tags_with_separator", "tags": calls, "separator": separator, "at_least_one": True}
        options.append(row)
    if not rules.must_call:
        options.append(_answer(rules.answer))
    outcome: Tag = options[0] if len(options) == 1 else {"type": "or", "elements": options}
    return _grammar(rules, *((_thought(open=open), outcome) if thinks else (outcome,)))


def _grammar(rules: TurnRules, *parts: Tag, loose: bool = False) -> TurnGrammar:
    shape: Tag = parts[0] if len(parts) == 1 else {"type": "sequence", "elements": list(parts)}
    return TurnGrammar(rules, orjson.dumps({"type": "structural_tag", "format": shape}).decode(), loose)


def _thought(*, open: bool) -> Tag:
    """Return a thought, with what stands behind it; `open`: its first tag was said already."""
    end = THINK_END + BEHIND_THOUGHT
    if open:
        return {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": end}
    tag = {"type": "tag", "begin": THINK, "content": {"type": "any_text"}, "end": end}
    return {"type": "optional", "content": tag}


def _call(rule: CallRule, style: CallStyle) -> Tag:
    name = orjson.dumps(rule.name).decode()
    content = _arguments(rule.content)
    if style is CallStyle.JSON:
        return {"type": "tag", "begin": f'{{"name": {name}, "parameters": ', "content": content, "end": "}"}
    begin = f'{CALL}\n{{"name": {name}, "arguments": '
    return {"type": "tag", "begin": begin, "content": content, "end": f"}}\n{CALL_END}"}


def _arguments(content: Content) -> Tag:
    """Return what a tool takes. Text with a grammar of its own is held to it as it stands within JSON."""
    match content:
        case JsonSchema() | AnyObject():
            return json_tag(content)
        case AnyText():
            return json_tag(AnyObject())
    begin: Tag = {"type": "const_string", "value": f'{{"{FREEFORM}": "'}
    text: Tag = {"type": "grammar", "grammar": in_json_string(content)}
    return {"type": "sequence", "elements": [begin, text, {"type": "const_string", "value": '"}'}]}


def _answer(content: Content) -> Tag:
    match content:
        case JsonSchema() | AnyObject():
            return json_tag(content)
        case AnyText():
            return {"type": "any_text"}
    raise GrammarRefused("This model's answers can be held to JSON only.")


def rest_of(whole: TurnGrammar, text: str, *, open: bool) -> TurnGrammar:
    """Return the grammar of what is left of a turn behind what was said; `open`: the prompt ends in a thought."""
    shape = orjson.loads(whole.structural_tag)["format"]
    if shape["type"] == "triggered_tags":
        # Behind the last end tag, or before the first tag: the next call is still to begin.
        is_between = text.rfind(CALL) <= text.rfind(CALL_END) and not _may_begin(text, CALL)
        return whole if is_between else _loose(whole.rules)
    if shape["type"] != "sequence":
        return _loose(whole.rules)
    _, held = shape["elements"]
    begun, ends, behind = text.partition(THINK_END)
    if not ends:
        # Text that ends with the beginning of a tag leaves it open whether it is one.
        in_thought = (open or begun.startswith(THINK)) and not _may_begin(begun, THINK_END)
        return _grammar(whole.rules, _thought(open=True), held) if in_thought else _loose(whole.rules)
    # Some of the line ends may have been sampled already: those that are left are what the grammar begins with.
    if BEHIND_THOUGHT.startswith(behind):
        left = BEHIND_THOUGHT[len(behind) :]
        between: list[Tag] = [{"type": "const_string", "value": left}] if left else []
        return _grammar(whole.rules, *between, held)
    return _loose(whole.rules)


def _loose(rules: TurnRules) -> TurnGrammar:
    return _grammar(rules, {"type": "any_text"}, loose=True)


def _may_begin(text: str, tag: str) -> bool:
    """Whether a text ends with the beginning of a tag."""
    # Shorter than the tag: a whole one would have been found before.
    return any(text.endswith(tag[:size]) for size in range(1, len(tag)))


def problem_of(rules: TurnRules, events: Sequence[TurnEvent], *, has_ended: bool, repairs: int) -> str | None:
    """Say what in a turn, or in its beginning, breaks its rules; None for nothing.

    Blocks for as long as contents take to check.
    """
    if repairs:
        return "a call is malformed"
    items = list(_contents(events))
    problem = next(filter(None, (_problem_of_item(rules, item, text) for item, text in items)), None)
    if problem is not None or not has_ended:
        return problem
    if rules.must_call and not any(item.kind in _CALLS for item, _ in items):
        return "it has to call something"
    has_content = any(item.kind is not ItemKind.REASONING for item, _ in items)
    return None if has_content or isinstance(rules.answer, AnyText) else "it has no answer"


def _contents(events: Sequence[TurnEvent]) -> Iterator[tuple[ItemStarted, str | None]]:
    """Yield the items that have ended, with their texts; None for one that was cut off."""
    # Text that no item began counts as an answer.
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
        # A turn that was cut has its last item truncated: nothing can be said of its content.
        return "it ends too early"
    contents = {rule.name: rule.content for rule in rules.calls}
    if item.kind not in _CALLS:
        return problem_of_content(rules.answer, text.encode())
    if item.name not in contents:
        return "it calls what cannot be called"
    return problem_of_content(contents[item.name], text.encode())
