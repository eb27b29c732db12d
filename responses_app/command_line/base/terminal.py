"""What commands write to: a console without colour in pipes, and text of others without control sequences."""

import re
import sys
from functools import cache

from rich.console import Console

# C0 and C1 controls but tab and newline: in a terminal they move the cursor, rename windows, answer as if typed.
_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}
# What a line that somebody decides by must not hold: all controls, ends of lines, and what turns its order around.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@cache
def console() -> Console:
    """Return the console of standard output. It has colour in a terminal, unless NO_COLOR is set."""
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=True)


@cache
def errors() -> Console:
    """Return the console of standard error: what is said about the work, beside its result."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)


def is_conversation() -> bool:
    """Whether a person sits at both ends."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def printable(text: str) -> str:
    """Return text of a model or a tool as a terminal may show it: without control characters."""
    return text.translate(_CONTROLS)


def one_line(text: str) -> str:
    """Return text of others as one line, in which what cannot be seen is an escape, such as `\\u202e`."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
