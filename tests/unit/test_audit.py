"""What of the audit trail needs no database: heads, recent views, and that each action is told."""

import pytest

from responses_app.resources.audit import store
from responses_app.resources.audit.fields import NO_HASH, Action, Head
from responses_app.resources.audit.store import RecentViews


def test_each_action_has_its_sentence() -> None:
    assert all(action.about.endswith(".") for action in Action)
    assert f"{Action.SIGNED_IN}" == "signed_in" == Action("signed_in").value


def test_a_head_is_read_as_it_is_printed() -> None:
    head = Head(17, "ab" * 32)
    assert Head.parsed(f" {head}\n") == head
    for wrong in ("", "17", f"x:{NO_HASH}", f"-1:{NO_HASH}", "17:abc", f"17:{'g' * 64}", f"{'9' * 30}:{NO_HASH}"):
        with pytest.raises(ValueError, match=r"^"):
            Head.parsed(wrong)


def test_a_view_is_the_same_for_a_while_and_few_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    views = RecentViews(lambda: now)
    assert not views.has("session", "resp_1")
    views.add("session", "resp_1")
    assert views.has("session", "resp_1")
    assert not views.has("other session", "resp_1")
    assert not views.has("session", "resp_2")
    now = store.VIEW_SECONDS
    assert not views.has("session", "resp_1")
    monkeypatch.setattr(store, "MAX_VIEWS", 2)
    for subject in ("a", "b", "c"):
        views.add("session", subject)
    assert [views.has("session", subject) for subject in ("resp_1", "a", "b", "c")] == [False, False, True, True]
