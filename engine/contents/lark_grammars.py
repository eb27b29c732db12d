"""Lark grammars of custom tools, in the EBNF that xgrammar reads."""

from engine.errors import GrammarRefused


def to_ebnf(grammar: str) -> str:
    """Return a Lark grammar as EBNF; raises `GrammarRefused`."""
    raise GrammarRefused("Lark grammars cannot be enforced yet.")


def check_lark(grammar: str) -> None:
    """Return if a model can be held to a Lark grammar; else raise `GrammarRefused` with a reason."""
    to_ebnf(grammar)
