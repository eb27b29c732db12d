"""A row of every model of a project is counted, and goes with the project, or when its time is over; others stay."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count as numbers
from typing import Any
from unittest.mock import patch

import pytest
from django.db import models, transaction

from responses_app.kit.kept import REMOVALS, Removal, kept_models
from responses_app.kit.places import leave
from responses_app.models import ApprovalClaim, Response
from responses_app.resources.vector_stores.model import VectorStore
from responses_app.stores.database.transfer.erasure import Subject, count, erase, erase_past

OLD = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = {model: model.kept for model in sorted(kept_models(), key=lambda model: model is not Response)}
SHOWN = {kept.shown[1] for kept in ROWS.values() if kept.shown}
_numbers = numbers(1)


class Rows:
    """One of each model, of one project."""

    def __init__(self, alias: str, project: str, at: datetime) -> None:
        self._alias, self.project, self._at = alias, project, at
        self._keys: dict[Any, object] = {}
        for model, kept in ROWS.items():
            # What a response has beside it has its id; so has the chat that it begins.
            is_named_alike = kept.owner == "Response" and isinstance(model._meta.pk, models.CharField)
            self._keys[model] = self._keys[Response] if is_named_alike else self._new_key(model._meta.pk)
        with transaction.atomic(using=alias):
            for model in ROWS:
                columns = {field.attname: self._value(model, field) for field in model._meta.concrete_fields}
                model(**columns).save(using=alias, force_insert=True)

    def there(self) -> set[type[models.Model]]:
        """Return the models whose rows are there."""
        rows = {model: model._default_manager.using(self._alias) for model in ROWS}
        return {model for model in ROWS if rows[model].filter(pk=self._keys[model]).exists()}

    def counts(self) -> dict[str, int]:
        """Return how many of each kind are counted."""
        return dict(count(Subject(project=self.project), using=self._alias))

    def _new_key(self, field: Any) -> object:
        if field.related_model is not None:
            return self._keys[field.related_model]
        own = self.project if field.name == "name" else f"row_{next(_numbers)}"
        return own if isinstance(field, models.CharField) else next(_numbers)

    def _value(self, model: type[models.Model], field: Any) -> object:
        if field.primary_key:
            return self._keys[model]
        if field.related_model in ROWS and not field.null:
            return self._keys[field.related_model]
        if field.name in ("response_id", "chat_id", "owner"):
            return self._keys[Response]
        if field.name == "project":
            return self.project
        if isinstance(field, models.DateTimeField):
            return self._at
        if field.null or field.has_default():
            return field.get_default()
        kinds: dict[type[Any], object] = {models.BooleanField: False, models.BinaryField: b"x", models.IntegerField: 1}
        value = next((value for kind, value in kinds.items() if isinstance(field, kind)), None)
        return f"{next(_numbers)}"[-(field.max_length or 9) :] if value is None else value


@pytest.fixture
def make(alias: str) -> Iterator[Callable[[str, datetime], Rows]]:
    """Make rows; all go at the end."""
    made: list[Rows] = []

    def make_rows(project: str, at: datetime) -> Rows:
        made.append(Rows(alias, project, at))
        return made[-1]

    yield make_rows
    for rows in made:
        for _ in erase(Subject(project=rows.project), using=alias):
            pass


def test_all_of_a_project_is_counted_and_erased(make: Callable[[str, datetime], Rows], alias: str) -> None:
    mine, theirs = make("mine", OLD), make("theirs", OLD)
    assert mine.counts() == theirs.counts() == dict.fromkeys(SHOWN, 1)
    assert len(list(erase(Subject(project="mine"), using=alias))) == 1, "it yields the response"
    assert mine.there() == set()
    assert set(mine.counts().values()) == {0}
    assert theirs.there() == set(ROWS)
    assert theirs.counts() == dict.fromkeys(SHOWN, 1)


def test_what_a_server_notes_of_files_that_go_is_erased_too(make: Callable[[str, datetime], Rows], alias: str) -> None:
    rows, usual = make("mine", OLD), REMOVALS[VectorStore]

    def remove_while_files_go(stores: "models.QuerySet[Any]", ids: Any) -> None:
        leave(alias, "mine", ids[0], {"file": 1}, at=OLD)
        usual.remove(stores, ids)

    with patch.dict(REMOVALS, {VectorStore: Removal(remove_while_files_go)}):
        list(erase(Subject(project="mine"), using=alias))
    assert set(rows.counts().values()) == {0}


def test_what_is_past_its_time_goes_with_all_that_belongs_to_it(
    make: Callable[[str, datetime], Rows], alias: str
) -> None:
    now = datetime.now(UTC)
    old, theirs = make("mine", OLD), make("theirs", OLD)
    stays = {model for model, kept in ROWS.items() if kept.stays}
    yesterday = (now - timedelta(days=1)).timestamp()
    list(erase_past(alias, "mine", OLD.timestamp() - 1, running=True))
    assert old.there() == set(ROWS), "it is not past its time yet"
    list(erase_past(alias, "mine", yesterday, running=True))
    assert old.there() == stays | {ApprovalClaim}, "a claim goes a day later, by itself"
    assert theirs.there() == set(ROWS)
