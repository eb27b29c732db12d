"""What a roll-out wants of weights, held against versions that come."""

import pytest

from engine.errors import WeightsNotServed
from engine.types import TokenChunk, WeightsSpan
from responses_app.protocol.errors import ApiError
from responses_app.protocol.rollouts.weights import (
    MAX_KEPT,
    RolloutStale,
    WeightsRule,
    WeightsWanted,
    oldest_of,
    untold,
    versions_after,
)
from tests.kit.recorded import recorded

ORDER = ("v1", "v2", "v3")


def wanted(version: str | None = None, *, most: int | None = None, sampled: tuple[str, ...] = ()) -> WeightsWanted:
    return WeightsWanted(rollout="r", version=version, max_staleness=most, sampled=sampled)


def chunk(version: str | None, *, count: int = 1) -> TokenChunk:
    return TokenChunk(token_ids=[7] * count, weights_version=version)


@pytest.mark.parametrize(
    ("sampled", "current", "oldest"),
    [
        ([], "v3", ("v3", 0)),
        (["v3"], "v3", ("v3", 0)),
        (["v3", "v1", "v2"], "v3", ("v1", 2)),
        (["default", "v3"], "v3", ("default", 3)),  # what the engine was started with, before all that were named
        (["v3"], "v4", ("v3", 1)),  # an update that this worker has not heard of
        (["default"], "v4", ("default", 4)),
        (["v3"], "v2", ("v2", 0)),  # newer ones, while servers change one after the other
        (["v1", "v3"], "v2", ("v1", 1)),
    ],
)
def test_the_oldest_weights_are_so_many_versions_behind(
    sampled: list[str], current: str, oldest: tuple[str, int]
) -> None:
    assert oldest_of(sampled, current, ORDER) == oldest


def test_where_nobody_has_changed_the_weights_nothing_is_stale() -> None:
    assert oldest_of(["default"], "default", ()).behind == 0
    assert oldest_of(["default"], "v1", ()).behind == 1


def test_a_wanted_version_is_that_of_each_token() -> None:
    rule = WeightsRule(wanted("v2"), lambda: ORDER)
    for version in ("v2", None, "v2"):
        rule.take(chunk(version))
    with pytest.raises(WeightsNotServed):
        rule.take(chunk("v3"))
    with pytest.raises(WeightsNotServed):  # the engine tells it at the end alone
        rule.take(TokenChunk(token_ids=[7], weights_version="v2", weights=[WeightsSpan("v2", 3), WeightsSpan("v3", 1)]))


def test_tokens_are_as_old_as_the_oldest_of_the_rollout() -> None:
    rule = WeightsRule(wanted(most=1, sampled=("v1",)), lambda: ORDER)
    rule.take(chunk("v1"))
    rule.take(chunk("v2"))
    with pytest.raises(RolloutStale, match="'v1', which are 2 versions behind 'v3', and its max_staleness is 1"):
        rule.take(chunk("v3"))
    elsewhere = WeightsRule(wanted(most=0), lambda: ORDER)
    elsewhere.note("v2")  # on the worker that began the turn
    with pytest.raises(RolloutStale):
        elsewhere.take(chunk("v3"))


@pytest.mark.parametrize(
    ("wants", "served", "updates", "status", "words"),
    [
        (wanted("v3"), ["v3"], None, None, ""),
        (wanted("v2"), ["v2", "v3"], None, None, ""),
        (wanted("v2"), ["v3"], None, 409, "the engine has 'v3'. Update the weights"),
        (wanted("v4"), ["v3"], "v4", 409, "An update is under way"),
        (wanted("v4"), ["v3"], "", 409, "An update is under way"),
        (wanted("v2"), ["v3"], "v4", 409, "being changed to 'v4'"),
        (wanted("v2"), [], None, 400, "does not tell"),
        (wanted(most=0), [], None, 400, "does not tell"),
        (wanted(most=1, sampled=("v2",)), ["v3"], None, None, ""),
        (wanted(most=0, sampled=("v2",)), ["v3"], None, 409, "1 version behind"),
    ],
)
def test_a_request_is_refused_by_what_is_known(
    wants: WeightsWanted, served: list[str], updates: str | None, status: int | None, words: str
) -> None:
    if status is None:
        wants.check(served, "v3", ORDER, updates=updates)
        return
    with pytest.raises(ApiError, match=words) as refused:
        wants.check(served, "v3", ORDER, updates=updates)
    assert refused.value.status == status


def test_of_a_chunk_that_is_not_told_only_the_others_weights_are() -> None:
    last = TokenChunk(token_ids=[1, 2, 3], weights=[WeightsSpan("a", 4), WeightsSpan("b", 1), WeightsSpan("c", 1)])
    told = untold(last)
    assert (list(told.token_ids), told.finish_reason) == ([], None)
    assert told.weights == [WeightsSpan("a", 3)]


def test_the_first_and_the_newest_versions_are_kept() -> None:
    calls = [recorded([1], [2], weights=[WeightsSpan(version, 1)]).call for version in ("b", None, "a", "b")]
    assert versions_after(("a",), calls) == ("a", "b")
    many = tuple(map(str, range(MAX_KEPT)))
    assert versions_after(many, calls) == ("0", *many[3:], "b", "a")
