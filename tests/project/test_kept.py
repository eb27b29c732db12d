"""Each model says whose its rows are (`kit.kept`): else nobody counts, exports or erases them with their project."""

from collections import Counter
from typing import Any

import pytest
from django.apps import apps
from django.db.models import DateTimeField, Model

from responses_app.kit.kept import Kept, OfNoProject, kept_models

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


def test_orders_and_names_are_said_once() -> None:
    kept = [model.kept for model in kept_models()]
    lines = [(each.owner if each.moved else "", line) for each in kept for line in (each.line or each.moved,) if line]
    orders = [(owner, line.order) for owner, line in lines] + [each.shown[0] for each in kept if each.shown]
    names = [(owner, line.name) for owner, line in lines] + [each.shown[1] for each in kept if each.shown]
    assert [each for each, number in Counter([*orders, *names]).items() if number > 1] == []
