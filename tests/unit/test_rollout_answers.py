"""How large the answer to `GET /v1/rollouts/{id}` may be."""

import json

import pytest

from responses_app.api import rollouts
from responses_app.protocol.errors import ApiError
from responses_app.protocol.rollouts import tree
from responses_app.stores.rollouts import RolloutRecord
from tests.kit.recorded import placed, recorded

HEAD = RolloutRecord(id="rollout_1", project="p", name="task", created_at=1, last_at=1).as_json()
FORKS = placed([recorded(list(range(100)), [1000 + fork]) for fork in range(20)])


def test_a_tree_that_is_too_large_says_how_it_is_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "MAX_NUMBERS", 1_000)
    with pytest.raises(ApiError, match=r"\?sequences=false") as refused:
        rollouts._tree(HEAD, FORKS, "first", True)
    assert (refused.value.status, refused.value.code) == (400, "rollout_too_large")
    shown = json.loads(rollouts._tree(HEAD, FORKS, "first", False))
    assert shown["sequences"] is None
    assert sum(len(node["token_ids"]) for node in shown["nodes"]) == 120
    monkeypatch.setattr(rollouts, "MAX_NUMBERS", 100)
    with pytest.raises(ApiError, match="Export it") as refused:
        rollouts._tree(HEAD, FORKS, "first", False)
    assert "sequences=false" not in refused.value.message


def test_files_leave_sequences_out_that_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    forks = tree.tree_of(HEAD, FORKS)
    for most, count in ((10_000, 20), (1_000, None)):
        monkeypatch.setattr(tree, "MAX_NUMBERS", most)
        sequences = forks.in_files()["sequences"]
        assert (None if sequences is None else len(sequences)) == count


def test_a_tree_of_the_usual_size_has_its_sequences() -> None:
    assert len(json.loads(rollouts._tree(HEAD, FORKS, "first", True))["sequences"]) == 20
