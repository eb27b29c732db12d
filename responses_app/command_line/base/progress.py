"""How far long work is: a bar in a terminal, and elsewhere, in a log say, a line now and then. On standard error."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from responses_app.command_line.base.terminal import errors

SECONDS = 10.0  # between two lines


class Tell(Protocol):
    """Takes how much is done."""

    def __call__(self, done: int) -> None: ...


@contextmanager
def progress(word: str, total: int | None) -> Iterator[Tell]:
    """Show how much is done, as the block tells it, of `total` where that is known; `word` says what is counted."""
    if not errors().is_terminal:
        yield _lines(word, total)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn(word), TimeRemainingColumn())
    with Progress(*columns, console=errors(), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.update(task, completed=done)


def _lines(word: str, total: int | None) -> Tell:
    last = time.monotonic()

    def tell(done: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= SECONDS:
            last = now
            errors().print(f"… {done:,} {word}" if total is None else f"… {done:,} of {total:,} {word}")

    return tell
