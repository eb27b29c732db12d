"""What commands write to: a console without colour in pipes, and text of others without control sequences.

`progress` shows how far long work is: a bar in a terminal, elsewhere, in a log say, a line now and then.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import Event, Thread

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

# C0 and C1 controls but tab and newline: in a terminal they move the cursor, rename windows, answer as if typed.
_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}


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


SECONDS = 5.0  # between two lines


Tell = Callable[[int], None]  # takes how much is done


@contextmanager
def progress(word: str, total: int | None) -> Iterator[Tell]:
    """Show how much is done, as the block tells it, of `total` where that is known; `word` says what is counted."""
    if not errors().is_terminal:
        done = 0

        def tell(now: int) -> None:
            nonlocal done
            done = now

        with now_and_then(lambda: f"{done:,} {word}" if total is None else f"{done:,} of {total:,} {word}"):
            yield tell
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn(word), TimeRemainingColumn())
    with Progress(*columns, console=errors(), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def now_and_then(text: Callable[[], str]) -> Iterator[None]:
    """Print a line every SECONDS while the block runs, even if it hangs, and a last one; none if it is short."""
    ended, began = Event(), time.monotonic()

    def lines() -> None:
        while not ended.wait(SECONDS):
            errors().print(f"… {text()}")

    thread = Thread(target=lines, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if time.monotonic() - began >= SECONDS:
            errors().print(f"… {text()}")
