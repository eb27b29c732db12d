"""The tree of a response and the turns before it, of rows that no server writes."""

from datetime import UTC, datetime, timedelta

import pytest

from responses_app.extensions.console.watch.family import ChainNode, _branch, _Parents
from responses_app.extensions.console.watch.page import Surroundings, WatchedResponse, response_page
from responses_app.protocol.response.timeline import untimed
from tests.inprocess.admin import samples


def test_a_chain_in_a_circle_has_an_end() -> None:
    path = ["a", "b", "a", "b"]
    nodes = {each: ChainNode(each) for each in path}
    branch = _branch("a", nodes, _Parents(path), frozenset(path), depth=0)
    assert [node.id for node in branch] == ["a", "b"]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("age", "project", "ttl", "count"), [(9, "mine", 60, 2), (99, "mine", 60, 1), (9, "other", 60, 1)]
)
def test_a_client_is_shown_those_turns_before_that_it_may_read(age: int, project: str, ttl: float, count: int) -> None:
    now = datetime.now(UTC)
    first = samples.response(1, asked=[samples.said("One")], project=project, created_at=now - timedelta(seconds=age))
    second = samples.response(2, asked=[samples.said("Two")], project="mine", after=first.pk)
    timeline = untimed(int(now.timestamp() * 1000), None)
    shown = WatchedResponse(second, second.body, second.input_items, timeline, timeline.created, ttl)
    page = response_page(shown, Surroundings("watch-response", staff=False), turns="1")
    assert len(page["conversation"]) == count
