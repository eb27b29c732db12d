"""The grammar of a turn of a model with a chat template, in xgrammar's words.

    turn   = [thought] (call {call} | answer)            calls alone where the turn must call
    turn   = text with calls in it                       where anything may be said: only calls are held to something
    call   = <tool_call>\\n{"name": NAME, "arguments": what the tool takes}\\n</tool_call>     or, as Llama 3 writes it,
             {"name": NAME, "parameters": what the tool takes}

It is a grammar of text: the token that stops the model is the engine's affair.
"""

import orjson

from engine.contents.grammars_in_json import in_json_string
from engine.contents.schemas import enforceable
from engine.errors import GrammarRefused
from engine.formats.chat_template.call_text import CALL_END
from engine.formats.chat_template.conversation import FREEFORM
from engine.formats.chat_template.reader import CALL, THINK, THINK_END, CallStyle
from engine.grammar import AnyObject, AnyText, CallRule, Content, JsonSchema, TurnGrammar, TurnRules

BEHIND_THOUGHT = "\n\n"
MAX_WHITESPACE = 16  # characters in a row between the parts of a JSON text: a model may repeat spaces without end

Tag = dict[str, object]


def turn_grammar(rules: TurnRules, style: CallStyle, *, thinks: bool, open: bool) -> TurnGrammar | None:
    """Return the grammar of a turn; None where there is nothing to hold the model to, or no way to write a call.

    `thinks`: it may think first, between tags; `open`: the first tag stands in the prompt. Raises `GrammarRefused`.
    """
    if rules.must_call and style is CallStyle.NONE:
        return None
    calls = [_call(rule, style) for rule in rules.calls] if style is not CallStyle.NONE else []
    if not rules.must_call and isinstance(rules.answer, AnyText):
        if not calls or style is CallStyle.JSON or all(isinstance(rule.content, AnyText) for rule in rules.calls):
            return None
        return _grammar(rules, _within_text(calls))
    options = [_row(calls, style)] if calls else []
    if not rules.must_call:
        options.append(_answer(rules.answer))
    said: Tag = options[0] if len(options) == 1 else {"type": "or", "elements": options}
    return _grammar(rules, {"type": "sequence", "elements": [thought(open=open), said]} if thinks else said)


def _grammar(rules: TurnRules, shape: Tag) -> TurnGrammar:
    return TurnGrammar(rules, structural_tag(shape))


def structural_tag(shape: Tag) -> str:
    """Return what a turn may be in xgrammar's words."""
    return orjson.dumps({"type": "structural_tag", "format": shape}).decode()


def thought(*, open: bool) -> Tag:
    """Return a thought, with what stands behind it; `open`: its first tag was said already."""
    end = THINK_END + BEHIND_THOUGHT
    if open:
        return {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": end}
    tag = {"type": "tag", "begin": THINK, "content": {"type": "any_text"}, "end": end}
    return {"type": "optional", "content": tag}


def _within_text(calls: list[Tag]) -> Tag:
    return {
        "type": "triggered_tags",
        "triggers": [CALL],
        "tags": calls,
        "at_least_one": False,
        "stop_after_first": False,
    }


def _row(calls: list[Tag], style: CallStyle) -> Tag:
    separator = "\n" if style is CallStyle.HERMES else "; "
    return {"type": "tags_with_separator", "tags": calls, "separator": separator, "at_least_one": True}


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
        case JsonSchema(schema):
            return _json(orjson.Fragment(enforceable(schema)))
        case AnyObject() | AnyText():
            return _json({"type": "object"})
    begin: Tag = {"type": "const_string", "value": f'{{"{FREEFORM}": "'}
    text: Tag = {"type": "grammar", "grammar": in_json_string(content)}
    return {"type": "sequence", "elements": [begin, text, {"type": "const_string", "value": '"}'}]}


def _answer(content: Content) -> Tag:
    match content:
        case JsonSchema(schema):
            return _json(orjson.Fragment(enforceable(schema)))
        case AnyObject():
            return _json({"type": "object"})
        case AnyText():
            return {"type": "any_text"}
    raise GrammarRefused("This model's answers can be held to JSON only.")


def _json(schema: object) -> Tag:
    return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": MAX_WHITESPACE}
