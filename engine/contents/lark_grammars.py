"""Lark grammars of custom tools, in the EBNF that xgrammar reads."""

from engine.errors import GrammarRefused


def to_ebnf(grammar: str) -> str:
    """Return a Lark grammar as EBNF; raises `GrammarRefused`."""
    raise GrammarRefused("Lark grammars cannot be enforced yet.")
