"""What is kept of a project, or of what one API key asked for: counted, written out, and erased, as models declare it.

Erasing goes in small steps, each a transaction or two, so that a server may run beside it. A response that runs is
erased too: its worker is told, and where it is not, what it would keep at its end finds no row, and is not kept.

    count(subject)          how many rows there are, a number a kind
    lines(subject)          what clients could read of it as JSON, a line each
    erase(subject)          yields the ids of responses that are gone, step by step
    erase_past(…)           the same of what was made until a time
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from django.db import connections
from django.db.models import Model, QuerySet

from responses_app.kit.clock import utc
from responses_app.kit.kept import WRITERS, Line, Write, kept_models, remove_some
from responses_app.kit.resources import modules_of_resources
from responses_app.kit.sql import read_in_chunks
from responses_app.models import Response, json_text
from responses_app.protocol.json_text import one_line
from responses_app.protocol.requests.resources import RUNNING
from responses_app.resources.rollouts.removal import remove_all_hidden
from responses_app.stores import idempotency  # noqa: F401
from responses_app.stores.database import pictures  # noqa: F401
from responses_app.stores.database.responses import removal  # noqa: F401

# These register how their rows are removed and written, as the three above do.
list(modules_of_resources("keeping", "removal"))

AT_ONCE = 200  # rows that are read together


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Whose things are meant: a whole project's, or those responses that were asked for with one key of it."""

    project: str
    key_id: str = ""  # "" for all of the project

    def rows(self, using: str) -> "dict[type[Model], QuerySet[Model]]":
        """Return its rows of each model that may have some, in the order of counts."""
        rows = {model: _of_project(model, self.project, using) for model in kept_models()}
        if not self.key_id:
            return rows
        columns = {model: model.kept.key for model in rows if model.kept.key is not None}
        return {
            model: rows[model].filter(**{column: self.key_id}) if column else rows[model].none()
            for model, column in columns.items()
        }


def _of_project(model: type[Model], project: str, using: str) -> "QuerySet[Model]":
    return model._default_manager.using(using).filter(**{model.kept.project: project})


def count(subject: Subject, *, stays: bool = True, using: str = "default") -> Mapping[str, int]:
    """Return how many rows of each kind there are; without `stays` of those that a retention reaches.

    All are 0 once nothing is left.
    """
    shown = [(model.kept, rows) for model, rows in subject.rows(using).items() if model.kept.shown]
    return {kept.shown[1]: rows.count() for kept, rows in shown if stays or not kept.stays}


def lines(subject: Subject, *, using: str = "default") -> Iterator[str]:
    """Yield what clients could read of it, as JSON, a line each: `{"response": …, "input_items": […]}`, and so on."""
    with read_in_chunks(using):
        for line in _lines(subject, using):
            yield one_line(line.encode()).decode()


def _lines(subject: Subject, using: str) -> Iterator[str]:
    written = [(model, rows) for model, rows in subject.rows(using).items() if model.kept.line]
    for model, rows in sorted(written, key=lambda pair: pair[0].kept.line.order):
        line: Line = model.kept.line
        write: Write = WRITERS.get(model, lambda _, head, __: iter([json_text(head)]))
        ordered = rows.filter(line.where).order_by(*line.by.split())
        for row in ordered.iterator(chunk_size=AT_ONCE):
            yield from write(row, line.head(row), using)


def erase(subject: Subject, *, using: str = "default") -> Iterator[Sequence[str]]:
    """Erase all of it, and yield the ids of the responses of each step; keys go last, so that nobody is surprised.

    What comes in meanwhile is erased too, as long as it comes slower than it goes: revoke the keys first.
    """
    # What belongs to other rows goes with them; what of it is left, or came in meanwhile, goes after all of these.
    in_order = sorted(subject.rows(using).items(), key=lambda pair: (pair[0].kept.erased, bool(pair[0].kept.owner)))
    for model, rows in in_order:
        # Each step looks anew, so that it also finds what came in meanwhile.
        while model.kept.goes_alone and (ids := remove_some(rows)):
            if model is Response:
                yield ids
    if not subject.key_id:
        remove_all_hidden(connections[using])


def dated_models() -> list[type[Model]]:
    """Return the models whose rows a retention reaches by themselves, in the order in which they go: responses last."""
    dated = [model for model in kept_models() if model.kept.dated]
    return sorted(dated, key=lambda model: (model is Response, model.kept.erased))


def past(model: type[Model], project: str, oldest: float, *, using: str, running: bool = True) -> "QuerySet[Model]":
    """Return a project's rows that were made until then (Unix seconds), responses that run only where `running`."""
    rows = _of_project(model, project, using).filter(**{f"{model.kept.dated}__lte": utc(oldest)})
    return rows if running or model is not Response else rows.exclude(status__in=RUNNING)


def erase_past(using: str, project: str, oldest: float, *, running: bool) -> Iterator[Sequence[str]]:
    """Remove all that a project has made until then (Unix seconds), and yield the ids of responses that are gone.

    Those that run go too where that is wanted. It blocks.
    """
    for model in dated_models():
        while ids := remove_some(past(model, project, oldest, using=using, running=running)):
            if model is Response:
                yield ids
