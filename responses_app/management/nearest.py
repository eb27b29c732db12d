"""What was perhaps meant by a command or a flag that does not exist."""

import re
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

_CHOICE = re.compile(r"invalid choice: '([^']*)'")  # as argparse says it


def meant(word: str, known: Iterable[str]) -> str:
    """Return a question that names the nearest of what is known; nothing if none is near."""
    near = get_close_matches(word, known, n=1)
    return f" Did you mean {near[0]}?" if near else ""


def suggest(parser: ArgumentParser) -> None:
    """Let a parser say which of its flags and choices was perhaps meant, and refuse a flag that it does not know.

    This is done to the parser itself: those of `respsite manage` are made by Django.
    """
    parse, fail = parser.parse_known_args, parser.error
    given: Sequence[str] = ()

    def strict(args: Any = None, namespace: Any = None) -> tuple[Namespace, list[str]]:
        nonlocal given
        given = args or ()
        found, unknown = parse(args, namespace)
        if unknown:
            # Here, and not in the parser of the whole program: what is shown is the usage of this command.
            parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(message: str) -> NoReturn:
        fail(f"{message}{_hint(parser, message, given)}")

    parser.parse_known_args = strict  # type: ignore[method-assign, assignment]
    parser.error = error  # type: ignore[method-assign]


def _hint(parser: ArgumentParser, message: str, given: Sequence[str]) -> str:
    if choice := _CHOICE.search(message):
        known = [str(each) for action in parser._actions for each in action.choices or ()]
        return _sentence(meant(choice[1], known))
    every = [flag for action in parser._actions for flag in action.option_strings]
    shown = [flag for action in parser._actions if action.help != SUPPRESS for flag in action.option_strings]
    for word in given:
        flag = word.partition("=")[0]
        if flag == "--":
            break
        # Django's parsers take the beginning of a flag, too.
        if flag.startswith("--") and not any(each.startswith(flag) for each in every):
            return _sentence(meant(flag, shown))
    return ""


def _sentence(question: str) -> str:
    return f".{question}" if question else ""
