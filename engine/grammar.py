"""What a turn may be, in no model format's own words: what can be called, whether it must be, and what an answer is.

A request makes `TurnRules`; its model's format makes a `TurnGrammar` of them, which an engine then holds the model to:

    tools, tool_choice, text.format ──> TurnRules ── ModelFormat.grammar() ──> TurnGrammar ──> GenerationRequest

Whatever the rules are, the model may think, and say something before it calls, as often as it likes.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AnyText:
    """Text without a rule."""


@dataclass(frozen=True, slots=True)
class AnyObject:
    """Any JSON object."""


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """JSON that fits a schema, which is itself JSON text."""

    schema: str


@dataclass(frozen=True, slots=True)
class Regex:
    """Text that a regular expression matches as a whole."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Lark:
    """Text that a Lark grammar derives."""

    grammar: str


Content = AnyText | AnyObject | JsonSchema | Regex | Lark


@dataclass(frozen=True, slots=True)
class CallRule:
    """A tool that can be called, and what may stand in a call of it.

    `name` is without the format's own prefix; `hosted`: a tool of the server's, else of the client's.
    """

    name: str
    content: Content = AnyText()
    hosted: bool = False


@dataclass(frozen=True, slots=True)
class TurnRules:
    """What a turn may be. `calls` are the only tools that can be called; with `must_call` the turn ends with a call."""

    calls: tuple[CallRule, ...] = ()
    must_call: bool = False
    answer: Content = AnyText()


@dataclass(frozen=True, slots=True)
class TurnGrammar:
    """Rules in the words of a model's format.

    `structural_tag` is JSON as xgrammar reads it, at the level of tokens: vLLM takes it as it is. Engines without a
    model read the `rules`. `loose`: it begins in the middle of a content that has a rule, and lets that one go on as
    any text; whether it fits is to be asked once it has ended (`ModelFormat.problem_of`).
    """

    rules: TurnRules
    structural_tag: str
    loose: bool = False
