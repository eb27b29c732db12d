"""Which replica a chain goes to: properties over any loads, and a simulation with caches that can be measured."""

import random
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.backends.vllm import pool
from engine.backends.vllm.pool import BOUND, KEPT, SLACK, ReplicaChoice

LOADS = st.dictionaries(st.sampled_from([f"http://gpu-{n}:8001" for n in range(9)]), st.integers(0, 50), min_size=1)
CHAINS = st.text(min_size=1, max_size=9)


def at(choice: ReplicaChoice, chain: str, replica: str, *, cached: int | None = 100) -> None:
    """Let a chain have two prompts of 100 tokens on a replica, the second one with so many of them from the cache."""
    choice.place(chain, replica)
    choice.measure(chain, replica, 100, 0)
    choice.measure(chain, replica, 100, cached)


@settings(max_examples=40)
@given(LOADS, st.text(max_size=9))
def test_every_replica_is_named_once_and_the_rest_by_their_loads(loads: dict[str, int], chain: str) -> None:
    first, *rest = ReplicaChoice().order(chain, loads)
    assert sorted([first, *rest]) == sorted(loads)
    assert [loads[each] for each in rest] == sorted(loads[each] for each in rest)


@settings(max_examples=40)
@given(LOADS)
def test_without_a_chain_the_least_loaded_is_first(loads: dict[str, int]) -> None:
    assert loads[ReplicaChoice().order("", loads)[0]] == min(loads.values())


@settings(max_examples=40)
@given(LOADS, CHAINS)
def test_a_new_chain_overloads_nobody(loads: dict[str, int], chain: str) -> None:
    first = ReplicaChoice().order(chain, loads)[0]
    assert loads[first] + 1 <= ceil(BOUND * (sum(loads.values()) + 1) / len(loads))


@settings(max_examples=40)
@given(LOADS, CHAINS)
def test_two_workers_that_see_the_same_agree(loads: dict[str, int], chain: str) -> None:
    turned = dict(reversed(loads.items()))
    assert ReplicaChoice().order(chain, loads) == ReplicaChoice().order(chain, turned)


@settings(max_examples=40)
@given(LOADS, CHAINS, st.data())
def test_a_known_chain_stays_unless_its_home_has_much_more_to_do(
    loads: dict[str, int], chain: str, data: st.DataObject
) -> None:
    home = data.draw(st.sampled_from(sorted(loads)))
    choice = ReplicaChoice()
    at(choice, chain, home)
    first = choice.order(chain, loads)[0]
    mean = (sum(loads.values()) + 1) / len(loads)
    much_more = loads[home] + 1 > ceil(KEPT * mean) and loads[home] + 1 > min(loads.values()) + SLACK
    assert (first == home) or much_more
    if much_more:
        assert loads[first] < loads[home]


@settings(max_examples=40)
@given(LOADS, CHAINS, st.data())
def test_a_chain_that_found_nothing_in_the_cache_stays_only_while_its_home_has_no_more_than_others(
    loads: dict[str, int], chain: str, data: st.DataObject
) -> None:
    home = data.draw(st.sampled_from(sorted(loads)))
    choice = ReplicaChoice()
    at(choice, chain, home, cached=24)
    first = choice.order(chain, loads)[0]
    stays = loads[home] + 1 <= ceil(BOUND * (sum(loads.values()) + 1) / len(loads))
    assert first == home if stays else loads[first] == min(loads.values())
    others = dict.fromkeys(loads, 0) | {home: SLACK - 1}
    assert (choice.order(chain, others)[0] == home) == (len(loads) == 1)
    at(choice, chain, home, cached=25)
    assert choice.order(chain, others)[0] == home, "it has a quarter to lose"


FOUND: dict[str, list[tuple[str, int, int | None]]] = {  # by a replica, of so many tokens, so many in the cache
    "the first turn on a replica": [("b", 100, 0)],
    "a replica that does not tell": [("b", 100, 0), ("b", 100, None)],
    "what another replica measures": [("b", 100, 0), ("b", 100, 100), ("a", 100, 0)],
    "something small beside a long prompt": [("b", 100_000, 0), ("b", 500, 0)],
    "a long prompt behind something small": [("b", 100_000, 0), ("b", 500, 0), ("b", 101_000, 100_000)],
}


@pytest.mark.parametrize("found", FOUND.values(), ids=FOUND)
def test_what_is_no_news_of_a_home_leaves_its_chain_there(found: list[tuple[str, int, int | None]]) -> None:
    choice = ReplicaChoice()
    choice.place("x", "b")
    for replica, tokens, cached in found:
        choice.measure("x", replica, tokens, cached)
    assert choice.order("x", {"a": 0, "b": 5})[0] == "b"


@settings(max_examples=40)
@given(CHAINS)
def test_who_goes_takes_along_only_what_it_had(chain: str) -> None:
    loads = {f"http://gpu-{number}": 0 for number in range(5)}
    first = ReplicaChoice().order(chain, loads)[0]
    for gone in loads:
        now = ReplicaChoice().order(chain, {each: 0 for each in loads if each != gone})[0]
        assert (now == first) == (gone != first)


def test_a_chain_of_no_name_is_not_remembered() -> None:
    choice = ReplicaChoice()
    at(choice, "", "a")
    assert len(choice) == 0


def test_the_memory_is_bounded_and_keeps_what_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MAX_SESSIONS", 3)
    choice = ReplicaChoice()
    for chain in ("x", "a", "b", "x", "c", "d"):
        at(choice, chain, "home")
    assert len(choice) == 3
    assert choice.order("x", {"home": 5, "other": 0})[0] == "home"


@settings(max_examples=40)
@given(LOADS, CHAINS, st.data())
def test_kin_follow_the_one_that_was_asked_last_unless_it_has_much_more_to_do(
    loads: dict[str, int], chain: str, data: st.DataObject
) -> None:
    asked = data.draw(st.sampled_from(sorted(loads)))
    choice = ReplicaChoice()
    choice.follow("task", asked)
    first = choice.order(chain, loads, "task")[0]
    if loads[asked] + 1 > min(loads.values()) + SLACK:
        assert loads[first] == min(loads.values())
    else:
        assert first == asked
    at(choice, chain, asked)
    other = dict.fromkeys(loads, 0) | {"http://gpu-other": 0}
    choice.follow("task", "http://gpu-other")
    assert choice.order(chain, other, "task")[0] == asked, "a chain that is known has more at its own home"


@pytest.mark.parametrize(("attempts", "used"), [(8, 1), (200, 4)])
def test_attempts_at_one_task_share_replicas_and_overload_none(attempts: int, used: int) -> None:
    choice, loads = ReplicaChoice(), {f"http://gpu-{number}": 0 for number in range(4)}
    homes: dict[str, str] = {}
    for number in range(attempts):
        chain = f"attempt-{number}"
        homes[chain] = choice.order(chain, loads, "task")[0]
        choice.follow("task", homes[chain])
        loads[homes[chain]] += 1
    assert len(set(homes.values())) == used
    assert max(loads.values()) - min(loads.values()) <= SLACK
    # Their later turns find what they have said themselves, wherever their kin have gone.
    for chain, home in homes.items():
        choice.place(chain, home)
    chains = [*homes]
    random.Random(5).shuffle(chains)
    for chain in chains:
        loads[homes[chain]] -= 1
        assert choice.order(chain, loads, "task")[0] == homes[chain]
        loads[homes[chain]] += 1


@settings(max_examples=40)
@given(LOADS, CHAINS, st.data())
def test_a_new_chain_goes_to_its_parent_unless_that_has_much_more_to_do_or_it_has_kin(
    loads: dict[str, int], chain: str, data: st.DataObject
) -> None:
    home, asked = (data.draw(st.sampled_from(sorted(loads))) for _ in range(2))
    choice = ReplicaChoice()
    at(choice, "the parent", home)
    first = choice.order(f"child of {chain}", loads, parent="the parent")[0]
    if loads[home] + 1 > min(loads.values()) + SLACK:
        assert loads[first] == min(loads.values())
    else:
        assert first == home
    choice.follow("task", asked)
    none = dict.fromkeys(loads, 0)
    assert choice.order(f"child of {chain}", none, "task", parent="the parent")[0] == asked
    choice.forget("the parent")
    unknown = choice.order(f"child of {chain}", none, parent="the parent")
    assert unknown == choice.order(f"child of {chain}", none)


def test_a_chain_that_was_cut_back_is_believed_after_a_while() -> None:
    choice = ReplicaChoice()
    choice.place("x", "b")
    choice.measure("x", "b", 1000, 0)
    for _ in range(3):
        assert choice.order("x", {"a": 0, "b": 5})[0] == "b"
        choice.measure("x", "b", 200, 0)
    assert choice.order("x", {"a": 0, "b": 5})[0] == "a"


def test_workers_that_do_not_talk_send_a_task_to_the_same_replica() -> None:
    loads = {f"http://gpu-{number}": 0 for number in range(5)}
    for task in map(str, range(20)):
        firsts = {ReplicaChoice().order(f"attempt-{number}", loads, task)[0] for number in range(9)}
        assert len(firsts) == 1
