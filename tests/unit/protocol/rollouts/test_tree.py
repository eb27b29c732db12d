"""The laws of roll-outs, for any generations: where they are placed, the tree of them, and the sequences."""

import math
import time
import tracemalloc
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.formats.base import as_tokens
from engine.types import WeightsSpan
from responses_app.protocol.rollouts.generations import (
    Generation,
    Recorded,
    as_logprobs,
    pack_logprobs,
    pack_tokens,
    unpack_logprobs,
    unpack_tokens,
)
from responses_app.protocol.rollouts.placing import PrefixTree
from responses_app.protocol.rollouts.requests import RewardObject
from responses_app.protocol.rollouts.tree import RolloutTree, tree_of
from tests.kit import recorded as kit
from tests.kit.recorded import head


def recorded(prompt: Sequence[int], sampled: Sequence[int], **fields: Any) -> Recorded:
    """Return a call of the engine whose tokens are of two versions of its weights."""
    spans = [WeightsSpan("1", half := len(sampled) // 2), WeightsSpan("2", len(sampled) - half)]
    return kit.recorded(prompt, sampled, weights=[span for span in spans if span.tokens], **fields)


def tree(*calls: Recorded) -> RolloutTree:
    return kit.tree(calls)


def kept(heads: PrefixTree, number: int, each: Recorded) -> Generation:
    placement = heads.place(each)
    generation = Generation(number=number, call=each.call, **placement._asdict(), tail=each.prompt[placement.shared :])
    heads.add(generation)
    return generation


def path_tokens(of: RolloutTree, nodes: Sequence[int]) -> list[int]:
    return [token for place in nodes for token in of.nodes[place].token_ids]


# Few different tokens, so that prompts share much by chance; and prompts that go on from what was said before.
tokens = st.lists(st.integers(0, 2), max_size=6)


@st.composite
def conversations(draw: Any) -> list[Recorded]:
    calls: list[Recorded] = []
    for _ in range(draw(st.integers(1, 8))):
        base: list[int] = []
        if calls and draw(st.booleans()):
            earlier = draw(st.sampled_from(calls))
            whole = [*earlier.prompt, *earlier.call.sampled]
            base = whole[: draw(st.integers(0, len(whole)))] if draw(st.booleans()) else whole
        prompt = [*base, *draw(tokens)] or [0]
        sampled = draw(st.lists(st.integers(0, 2), min_size=1, max_size=5))
        calls.append(recorded(prompt, sampled, branch=draw(st.sampled_from(("main", "other")))))
    return calls


@given(conversations())
def test_every_generation_is_a_path_from_a_root(calls: list[Recorded]) -> None:
    made = tree(*calls)
    for call, path in zip(calls, made.paths, strict=True):
        assert path_tokens(made, path.nodes) == [*call.prompt, *call.call.sampled]
        assert made.nodes[path.nodes[0]].parent is None
        for one, other in pairwise(path.nodes):
            assert made.nodes[other].parent == made.nodes[one].id


@given(conversations())
def test_masks_sum_to_sampled_tokens_in_nodes_and_in_sequences(calls: list[Recorded]) -> None:
    made, sampled = tree(*calls), sum(len(each.call.sampled) for each in calls)
    assert sum(node.mask * len(node.token_ids) for node in made.nodes) == sampled
    assert sum(sum(sequence.mask) for sequence in made.sequences) == sampled
    assert sum(span.tokens for node in made.nodes for span in node.weights) == sampled


@given(conversations())
def test_nothing_shared_is_kept_twice(calls: list[Recorded]) -> None:
    for generation, each in zip(kit.placed(calls), calls, strict=True):
        before = calls[: generation.number]
        longest = max((_common([*b.prompt, *b.call.sampled], each.prompt) for b in before), default=0)
        clean = [b for b in before if _starts_with(each.prompt, [*b.prompt, *b.call.sampled])]
        assert generation.shared == longest or clean, "it shares most, or continues the whole of one"


@given(conversations())
def test_what_begins_with_the_whole_of_a_sequence_continues_it(calls: list[Recorded]) -> None:
    generations = kit.placed(calls)
    for generation, each in zip(generations, calls, strict=True):
        before = generations[: generation.number]
        leaves = [b for b in before if not any(c.parent == b.number and c.shared == b.whole for c in before)]
        wholes = [[*calls[b.number].prompt, *b.call.sampled] for b in leaves]
        if any(_starts_with(each.prompt, whole) for whole in wholes):
            assert generation.cut == ""
        if generation.cut == "" and generation.parent is not None:
            assert generation.shared == generations[generation.parent].whole


@given(conversations())
def test_a_sequence_is_what_its_generations_read_and_sampled(calls: list[Recorded]) -> None:
    made = tree(*calls)
    wholes = [[*each.prompt, *each.call.sampled] for each in calls]
    for sequence in made.sequences:
        assert sequence.token_ids.tolist() in wholes
        assert len(sequence.mask) == len(sequence.logprobs) == len(sequence.token_ids)
        for token, mask, logprob in zip(sequence.token_ids, sequence.mask, sequence.logprobs, strict=True):
            assert not mask or logprob == -token / 8
    assert all(any(whole == s.token_ids.tolist()[: len(whole)] for s in made.sequences) for whole in wholes)


@given(conversations(), st.randoms(use_true_random=False))
def test_heads_that_others_have_filled_are_the_same(calls: list[Recorded], random: object) -> None:
    generations = kit.placed(calls)
    late = PrefixTree(generations[: len(generations) // 2])
    for generation in generations:
        late.add(generation)
    assert late.place(calls[-1])[:3] == PrefixTree(generations).place(calls[-1])[:3]


@pytest.mark.parametrize(
    ("before", "then", "reason", "position"),
    [
        (recorded([1, 2], [3, 4], reasoning=1), recorded([1, 2, 4, 5], [6]), "reasoning_settled", 2),
        (recorded([1, 2], [3]), recorded([1, 2], [4]), "fork", 2),
        (recorded([1, 2], [3], instructions=2), recorded([1, 9, 3, 5], [6]), "instructions_changed", 1),
        (recorded([1, 2, 3], [4]), recorded([1, 2, 9, 4, 5], [6]), "history_changed", 2),
        (recorded([1], [3, 4, 5, 6, 7], reasoning=3), recorded([1, 9, 4, 5, 6, 7], [8]), "history_changed", 1),
        (recorded([1, 2], [3, 4]), recorded([1, 2, 3, 9, 5], [6]), "end_token", 3),
        (recorded([1, 2], [3, 4, 5]), recorded([1, 2, 3, 9, 9], [6], response_id="resp_2"), "template", 3),
        (recorded([1, 2], [3]), recorded([1, 7], [8], compacted=True), "compaction", 1),
        (recorded([1, 2], [3]), recorded([1, 7], [8], branch="agent"), "sub_agent", 1),
        (recorded([1, 2], [3]), recorded([5], [8], branch="agent"), "sub_agent", 0),
    ],
)
def test_a_break_says_why_and_where(before: Recorded, then: Recorded, reason: str, position: int) -> None:
    [found] = tree(before, then).breaks
    assert (found.reason, found.position, found.generation, found.after) == (reason, position, "g1", "g0")


def test_the_example_of_the_tree() -> None:
    made = tree(recorded([1, 2], [3, 4]), recorded([1, 2, 3, 4, 5], [6]), recorded([1, 2, 3, 4, 7], [8]))
    shown: Any = made.as_json()
    first, second = shown["sequences"] or ()
    assert first["nodes"] == ["n0", "n1", "n2", "n3"]
    assert second["nodes"] == ["n0", "n1", "n4", "n5"]
    assert first["mask"] == [0, 0, 1, 1, 0, 1]
    assert second["mask"] == [0, 0, 0, 0, 0, 1]
    assert (second["parent_sequence"], second["shared_tokens"]) == ("s0", 4)
    assert made.breaks == []


def test_answers_to_one_prompt_share_it() -> None:
    made = tree(recorded([1, 2], [3]), recorded([1, 2], [4]))
    assert [node.token_ids.tolist() for node in made.nodes] == [[1, 2], [3], [4]]


def test_a_long_prompt_is_placed_in_a_moment() -> None:
    prompt = list(range(142_000))
    heads = PrefixTree()
    kept(heads, 0, recorded(prompt, [1, 2]))
    then = recorded([*prompt, 1, 2, 3], [4])
    seconds: list[float] = []
    for _ in range(20):
        began = time.perf_counter()
        placement = heads.place(then)
        seconds.append(time.perf_counter() - began)
    assert placement.shared == 142_002
    assert placement.cut == ""
    assert min(seconds) < 0.02  # 0.1 ms where nothing else runs


def test_a_sequence_has_the_last_reward_that_is_of_it() -> None:
    calls = [recorded([1], [2], response_id="a"), recorded([1, 2], [3], response_id="b"), recorded([1], [4])]
    generations = kit.placed(calls)

    def rewards(*given: tuple[float, str | None]) -> list[object]:
        told: list[RewardObject] = [{"reward": value, "turn": turn, "at": 1} for value, turn in given]
        return [each.reward for each in tree_of(head(rewards=told), generations).sequences]

    assert rewards() == [None, None]
    assert rewards((1, None), (2, None)) == [2, 2]
    assert rewards((1, "a"), (2, "b"), (3, "other")) == [2, None]
    assert rewards((2, "b"), (1, "a")) == [1, None]
    assert rewards((1, "a"), (2, None)) == [2, 2]
    assert rewards((2, None), (1, "a")) == [1, 2]


def test_the_size_of_a_tree_is_known_before_it_is_made() -> None:
    forks = tree(*(recorded(list(range(50)), [100 + fork]) for fork in range(20)))
    shown = forks.as_json()
    nodes = sum(len(node["token_ids"]) for node in shown["nodes"]) + sum(len(g["nodes"]) for g in shown["generations"])
    sequences = sum(len(each["token_ids"]) + len(each["nodes"]) for each in shown["sequences"] or ())
    assert (nodes, sequences) == (50 + 20 + 2 * 20, 20 * (51 + 2))
    assert (forks.numbers(sequences=False), forks.numbers()) == (nodes, nodes + sequences)
    assert forks.as_json(sequences=False) == {**shown, "sequences": None}


def test_a_long_roll_out_takes_memory_by_its_tokens() -> None:
    whole, calls = [1], list[Recorded]()
    for turn in range(400):
        calls.append(recorded(whole, [turn]))
        whole = [*whole, turn, 7]
        calls.append(recorded(whole, [7, turn]))  # which nobody continues
    tracemalloc.start()
    made = tree(*calls)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(made.sequences) == 400
    # Lists of all paths alone would have 8 bytes for each of 300,000 nodes.
    assert made.numbers() > 300_000
    assert held < 3_000_000
    assert [len(made.sequences[place].token_ids) for place in (0, -1)] == [5, len(whole) + 2]


def test_forks_of_a_long_prompt_have_it_once_in_memory() -> None:
    prompt, heads = list(range(20_000)), PrefixTree()
    one = recorded(prompt, [1, 2])
    for number in range(100):
        assert kept(heads, number, one).shared == (20_000 if number else 0)
    assert heads.size < 5 * 20_000 * 4
    # The tokens of all of them are the same; any whose whole it begins with is as good.
    assert heads.place(recorded([*prompt, 1, 2, 3], [4])).cut == ""


def test_of_the_same_tokens_those_are_taken_that_end_where_the_prompt_goes_on() -> None:
    heads = PrefixTree()
    for number, each in enumerate([recorded([1, 2], [3]), recorded([1, 2, 3, 4], [5]), recorded([1, 2], [3, 9])]):
        kept(heads, number, each)
    assert heads.place(recorded([1, 2, 3, 7], [8])) == (0, 3, "", 0)


@given(st.lists(st.integers(0, 2**32 - 1)), st.lists(st.floats() | st.floats(width=32)))
def test_packing_keeps_every_bit(ids: list[int], values: list[float]) -> None:
    assert unpack_tokens(pack_tokens(as_tokens(ids))) == as_tokens(ids)
    logprobs = as_logprobs(values)
    read = unpack_logprobs(pack_logprobs(logprobs))
    assert read is not None
    for one, other in zip(read, logprobs, strict=True):
        assert one == other or (math.isnan(one) and math.isnan(other))
    assert unpack_logprobs(pack_logprobs(None)) is None


def test_a_sampled_token_takes_seven_bytes() -> None:
    logprobs = as_logprobs([-0.5, -math.inf] * 50)
    assert len(pack_tokens(as_tokens([200_018] * 100))) + len(pack_logprobs(logprobs)) == 702


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    return next(
        (n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def _starts_with(prompt: Sequence[int], whole: Sequence[int]) -> bool:
    return len(prompt) >= len(whole) and list(prompt[: len(whole)]) == list(whole)
