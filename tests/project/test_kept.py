"""Each model says whose its rows are (`kit.kept`): else nobody counts, exports or erases them with their project."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from django.apps import apps
from django.db.models import DateTimeField, Model

from responses_app.kit.extension import Extension
from responses_app.kit.kept import Kept, OfNoProject, check_kept, kept_models

MODELS = {model.__name__: model for model in apps.get_models() if model.__module__.startswith("responses_app.")}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_model_says_whose_its_rows_are(model: type[Model]) -> None:
    said: Any = vars(model).get("kept")
    if isinstance(said, OfNoProject):
        assert said.reason
        return
    assert isinstance(said, Kept), f"{model.__name__} needs kept = Kept(…), or OfNoProject(…) with a reason"
    assert str(model._default_manager.filter(**{said.project: "team"}).query), "its lookup names a column"
    assert sum(map(bool, (said.dated, said.owner, said.stays))) == 1, "one of them says when its rows go"
    assert not said.owner or said.owner in MODELS
    assert not said.dated or isinstance(model._meta.get_field(said.dated), DateTimeField)
    assert said.goes_alone <= bool(said.shown), "what is erased by itself is counted, so that it is seen to be gone"
    if said.line:
        assert said.line.head(model()).keys() == {said.line.name}, "its fields are columns"


@pytest.mark.parametrize(
    ("kept", "warnings"), [(None, 1), (Kept(stays="for a test"), 0), (OfNoProject("for a test"), 0)], ids=repr
)
def test_a_model_of_an_extension_that_does_not_say_it_is_warned_of(
    kept: object, warnings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = SimpleNamespace(_meta=SimpleNamespace(app_config=Extension.__new__(Extension)), kept=kept)
    monkeypatch.setattr(apps, "get_models", lambda: [model])
    assert [each.obj for each in check_kept(None)] == [model] * warnings


def test_orders_and_names_are_said_once() -> None:
    kept = [model.kept for model in kept_models()]
    lines = [(each.owner if each.moved else "", line) for each in kept for line in (each.line or each.moved,) if line]
    orders = [(owner, line.order) for owner, line in lines] + [each.shown[0] for each in kept if each.shown]
    names = [(owner, line.name) for owner, line in lines] + [each.shown[1] for each in kept if each.shown]
    assert [each for each, number in Counter([*orders, *names]).items() if number > 1] == []
