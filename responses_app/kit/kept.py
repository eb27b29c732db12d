"""Rows that are a project's. Each model says beside itself, as `kept`, whose its rows are, and how they come and go.

    class Batch(WithId):
        kept = Kept(shown=(190, "batches"), dated="created_at", line=Line(20, "batch", "id status metadata"))

From that are computed the counts that `forget` shows, the lines that it exports and the rows that it erases; what goes
when a project's retention is over; and what `respsite export` takes along with a response. What a plain DELETE or the
plain fields cannot do, a store registers (`removes`, `writes_lines`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Warning, register
from django.db.models import Model, Q, QuerySet

from responses_app.kit.extension import Extension


@dataclass(frozen=True, slots=True)
class Line:
    """How rows are written as JSON: as an object of some of their fields, under a name."""

    order: int  # among the other models, the lowest first
    name: str
    fields: str = ""  # with spaces between
    by: str = "pk"  # the order of rows
    where: Q = field(default_factory=Q)  # of rows that are written

    def head(self, row: Model) -> Mapping[str, Any]:
        """Return the object: `{"batch": {"id": …, "status": …}}`."""
        values = {name: getattr(row, name) for name in self.fields.split()}
        return {self.name: {k: v.isoformat() if isinstance(v, datetime) else v for k, v in values.items()}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """How the rows of a model are a project's. One of `dated`, `owner` and `stays` says when they go."""

    project: str = "project"  # the lookup of the project's name
    key: str | None = None  # the column of the API key that made them; "": it is not noted; None: they are no key's
    dated: str = ""  # the column of times by which a retention finds what is past
    owner: str = ""  # the model of the rows that they belong to, with which they go, or soon after
    stays: str = ""  # why a retention does not reach them
    shown: tuple[int, str] | None = None  # their order in counts, and their name there; None: only the owner is counted
    erased: int = 0  # the order of erasing: the lowest first
    line: Line | None = None  # of what is exported for people; None: nothing, or with the lines of the owner
    moved: Line | None = None  # what is exported for another database, beside the row of the owner

    @property
    def goes_alone(self) -> bool:
        """Whether rows are erased by themselves. Those that know their project by their owner go with it."""
        return "__" not in self.project


@dataclass(frozen=True, slots=True)
class OfNoProject:
    """The rows of a model are nobody's in particular, or outlive every project."""

    reason: str


def kept_models() -> list[Any]:
    """Return the models of all apps whose rows are a project's, in the order of counts; `kept` of each says how."""
    models: list[Any] = [model for model in apps.get_models() if isinstance(getattr(model, "kept", None), Kept)]
    return sorted(models, key=lambda model: model.kept.shown or (0, ""))


@register()
def check_kept(app_configs: Sequence[Any] | None, **options: Any) -> list[CheckMessage]:
    """Warn of models of extensions that do not say whose their rows are: these would outlive their project."""
    return [
        Warning(
            "The rows are not counted, exported and erased with their project.",
            hint="Give the model kept = Kept(…), or OfNoProject(…) with the reason.",
            obj=model,
            id="respsite.W002",
        )
        for model in apps.get_models()
        if isinstance(model._meta.app_config, Extension)
        and not isinstance(getattr(model, "kept", None), Kept | OfNoProject)
    ]


Remove = Callable[["QuerySet[Any]", Sequence[Any]], object]
Write = Callable[[Any, Mapping[str, Any], str], Iterator[str]]


@dataclass(frozen=True, slots=True)
class Removal:
    """How rows are removed: a few at once, in small transactions, between which a server writes."""

    remove: Remove
    at_once: int = 200  # rows


REMOVALS: dict[type[Model], Removal] = {}
WRITERS: dict[type[Model], Write] = {}


def removes(model: type[Model], *, at_once: int = 1) -> Callable[[Remove], Remove]:
    """Register what removes rows of a model, or, where that is too much for one step, something of them.

    It gets them as a query and as their keys, at most `at_once` of them. It has come to its end when the rows are gone.
    """

    def register(remove: Remove) -> Remove:
        REMOVALS[model] = Removal(remove, at_once)
        return remove

    return register


def writes_lines(model: type[Model]) -> Callable[[Write], Write]:
    """Register what writes the lines of a row: it gets the row, the object of its `Line`, and its database's alias."""

    def register(write: Write) -> Write:
        WRITERS[model] = write
        return write

    return register


def remove_some(rows: "QuerySet[Any]") -> Sequence[Any]:
    """Remove a few of these rows with what belongs to them, or a part of that; return their keys, none at the end."""
    removal = REMOVALS.get(rows.model, _PLAIN)
    if keys := list(rows.values_list("pk", flat=True)[: removal.at_once]):
        removal.remove(rows.filter(pk__in=keys), keys)
    return keys


_PLAIN = Removal(lambda rows, _: rows.delete())
