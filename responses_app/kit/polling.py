"""What workers ask the database again and again: whether there is anything for them to do.

    each second   webhooks, batches, orphans, … ── a question each ──> one statement on one thread

Nearly always there is nothing. Then a call on a thread and a statement cost far more than the answer, so the questions
that come together are asked together (`DatabaseReaders.poll`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.backends.utils import CursorWrapper

Row = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Question:
    """A SELECT of a text and a number, without an order and without a limit."""

    columns: str
    rest: str  # from FROM on
    values: tuple[str | datetime, ...] = ()  # of its parameters


def any_of(rest: str, *values: str | datetime) -> Question:
    """Return the question whether there is any row; `rest` is behind FROM. Its answer has one row, or none."""
    return Question("'', 1", f"WHERE EXISTS (SELECT 1 FROM {rest})", values)


def answers(cursor: CursorWrapper, questions: Sequence[Question]) -> Sequence[Sequence[Row]]:
    """Return the rows of each question, of all with one statement."""
    parts = (f"SELECT {place}, {each.columns} {each.rest}" for place, each in enumerate(questions))
    values = (value for each in questions for value in each.values)
    adapted = cursor.db.ops.adapt_datetimefield_value  # not every driver takes a time
    cursor.execute(
        " UNION ALL ".join(parts), [adapted(value) if isinstance(value, datetime) else value for value in values]
    )
    found: list[list[Row]] = [[] for _ in questions]
    for place, text, number in cursor.fetchall():
        found[place].append((text, number))
    return found
