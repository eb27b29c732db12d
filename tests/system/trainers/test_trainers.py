"""Each format of an export is read by the package whose format it is, and tells it what the engine read and sampled.

The packages are in a venv of their own. `read.py` runs there; what it returns is compared with the tree. The fault that
only these tests can find: a format that we write and test ourselves, and that the trainer it is for cannot read. They
are here for what they install, where nobody has done so: some 50 s.
"""

import json
import os
import subprocess
from array import array
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from responses_app.extensions.training.exports import JsonRows
from responses_app.extensions.training.training_rows import FORMATS
from responses_app.protocol.rollouts.tree import Path as TreePath
from responses_app.protocol.rollouts.tree import RolloutTree, tree_of
from tests.kit import pip
from tests.kit.recorded import by_chance, head, placed, recorded

HERE = Path(__file__).parent
READ_SECONDS = 240.0  # of which imports take some, on a machine that does other things
REWARD = {"reward": {"tests": 1.0, "style": 0.25}, "turn": None, "at": 5}

# One agent that goes on, one of whose turns ended in a fork; a compaction; a sub-agent; and what chance makes.
STRAIGHT = [
    recorded([1, 2, 3], [4, 5], response_id="resp_a"),
    recorded([1, 2, 3, 4, 5, 6], [7, 8], response_id="resp_b"),
    recorded([1, 2, 3, 4, 5, 6, 7, 8, 9], [10], response_id="resp_c"),
]
SHAPES = {
    "straight": STRAIGHT,
    "fork": [*STRAIGHT, recorded([1, 2, 3, 4, 5, 6, 11], [12, 13], response_id="resp_d")],
    "compaction": [
        *STRAIGHT,
        recorded([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20], [21, 22], response_id="resp_d", summary=True),
        recorded([1, 2, 21, 22, 30], [31], response_id="resp_e", compacted=True),
        recorded([1, 2, 21, 22, 30, 31, 32], [33], response_id="resp_f"),
    ],
    "sub-agent": [
        STRAIGHT[0],
        recorded([40, 41], [42], response_id="resp_x", branch="helper"),
        recorded([40, 41, 42, 43], [44, 45], response_id="resp_y", branch="helper"),
        *STRAIGHT[1:],
    ],
    **{f"chance-{seed}": by_chance(seed) for seed in range(25)},
}


@cache
def trees() -> dict[str, RolloutTree]:
    return {
        name: tree_of(head(name, group="g", rewards=[REWARD]), placed(calls))  # type: ignore[list-item]
        for name, calls in SHAPES.items()
    }


def read(name: str, of: Iterable[RolloutTree], folder: Path, before: Sequence[bytes] = ()) -> Any:
    """Return what the package of a format reads in these roll-outs."""
    file = folder / "export.jsonl"
    lines = [JsonRows().add(row) for tree in of for row in FORMATS[name](tree)]
    file.write_bytes(b"".join([*before, *lines]))
    done = subprocess.run(
        [pip.installed(HERE / "requirements.txt", any_python=True), HERE / "read.py", name, file],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "TRL_EXPERIMENTAL_SILENCE": "1"},
        capture_output=True,
        text=True,
        timeout=READ_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def whole(tree: RolloutTree, path: TreePath) -> tuple[list[int], list[int], list[float]]:
    """Return what a call has read and sampled, and the log probabilities of that."""
    tokens = [token for place in path.nodes for token in tree.nodes[place].token_ids]
    generation = path.generation
    return tokens[: generation.prompt_tokens], tokens[generation.prompt_tokens :], list(generation.call.logprobs or ())


def calls_of(tree: RolloutTree, *, summaries: bool = True) -> dict[str, list[Any]]:
    """Return the calls of a roll-out, each as `whole` has it, by their branch; summaries by themselves, if asked."""
    found: dict[str, list[Any]] = {}
    for path in tree.paths:
        call = path.generation.call
        found.setdefault(f"{call.branch} {call.response_id if call.summary and summaries else ''}", []).append(
            whole(tree, path)
        )
    return found


def as_floats(values: Iterable[float]) -> list[float]:
    """Return numbers as 32-bit floats have them."""
    return list(array("f", values))


@pytest.mark.representative
def test_nemo_gym_makes_trajectories_of_token_entries(tmp_path: Path) -> None:
    read_back = read("nemo-gym", trees().values(), tmp_path)

    assert [each["rollout"] for each in read_back] == list(trees())
    for (name, tree), built in zip(trees().items(), read_back, strict=True):
        # Every parent was found, and begins the prompt of its child by NeMo Gym's own digest.
        assert built["failures"] == {}, name
        links = [link for chain in built["chains"] for link in chain]
        for path in tree.paths:
            assert [list(part) for part in whole(tree, path)] in links, name
        # Of each chain, every call is in the prompt of the next one.
        for chain in built["chains"]:
            for (prompt, sampled, _), (following, _, _) in pairwise(chain):
                assert following[: len(prompt) + len(sampled)] == prompt + sampled
    by_name = {each["rollout"]: each for each in read_back}
    straight = by_name["straight"]
    assert (straight["masked"], straight["error"]) == (False, None)
    assert [item["generation_log_probs"] for item in straight["delivered"]["output"]] == [
        list(path.generation.call.logprobs or ()) for path in trees()["straight"].paths
    ]
    # The last response of the fixture's last roll-out is the terminal that it is asked for.
    last = read_back[-1]["terminal"]
    assert (last["method"], last["call_id"], last["chain"]) == ("response_id", "chance-24.g11", "delivered")


def test_harbor_reads_contexts_with_rollout_details(tmp_path: Path) -> None:
    read_back = read("harbor", trees().values(), tmp_path)

    for (name, tree), context in zip(trees().items(), read_back, strict=True):
        assert context["metadata"]["rollout_id"] == name
        assert context["metadata"]["reward"] == 1.25
        details = [
            {key: detail[key] for key in ("prompt_token_ids", "completion_token_ids", "logprobs")}
            for detail in context["rollout_details"]
        ]
        # Harbor's own chat, given the same calls, keeps the same of them.
        assert context["gathered"] == details
        turns = [list(zip(*detail.values(), strict=True)) for detail in details]
        main = next(calls for key, calls in calls_of(tree).items() if key.endswith(" "))
        assert turns[0] == main, name
        assert sorted(turns) == sorted(calls_of(tree).values()), name


def test_verifiers_reads_traces_whose_branches_are_samples(tmp_path: Path) -> None:
    read_back = read("verifiers", trees().values(), tmp_path)

    for (name, tree), trace in zip(trees().items(), read_back, strict=True):
        assert (trace["id"], trace["reward"]) == (name, 1.25)
        assert trace["output_tokens"] == sum(len(path.generation.call.sampled) for path in tree.paths)
        branches = [
            (branch["token_ids"], as_floats(branch["logprobs"]), branch["mask"]) for branch in trace["branches"]
        ]
        leaves = {node.id for node in tree.nodes} - {node.parent for node in tree.nodes}
        expected = [
            (list(each.token_ids), *sampled_of(tree, each.nodes))
            for each in tree.sequences
            if tree.nodes[each.nodes[-1]].id in leaves
        ]
        assert sorted(branches) == sorted(expected), name


def sampled_of(tree: RolloutTree, nodes: Sequence[int]) -> tuple[list[float], list[bool]]:
    """Return the log probabilities along a path, 0 for a prompt's tokens, and which tokens were sampled."""
    logprobs, mask = list[float](), list[bool]()
    for place in nodes:
        node = tree.nodes[place]
        logprobs += [0.0] * len(node.token_ids) if node.logprobs is None else list(node.logprobs)
        mask += [bool(node.mask)] * len(node.token_ids)
    return as_floats(logprobs), mask


def test_tinker_reads_datums(tmp_path: Path) -> None:
    read_back = read("tinker", trees().values(), tmp_path)

    sequences = [sequence for tree in trees().values() for sequence in tree.sequences]
    assert len(read_back) == len(sequences)
    for sequence, datum in zip(sequences, read_back, strict=True):
        tokens, mask = list(sequence.token_ids), [float(on) for on in sequence.mask]
        logprobs = [value if on else 0.0 for value, on in zip(sequence.logprobs, sequence.mask, strict=True)]
        assert datum["input"] == tokens[:-1]
        assert datum["tensors"] == {
            "target_tokens": ["int64", tokens[1:]],
            "logprobs": ["float32", as_floats(logprobs[1:])],
            "mask": ["float32", mask[1:]],
        }
        assert datum["advantages"] == [on * 0.5 for on in mask[1:]]


def test_trl_reads_samples_and_would_have_made_the_same(tmp_path: Path) -> None:
    # TRL joins the calls of a conversation, each of which goes on from the last one, or else begins a new sample.
    of = [trees()[name] for name in ("straight", "fork", "compaction", "sub-agent")]
    conversations = [list(calls) for tree in of for calls in calls_of(tree, summaries=False).values()]
    (read_back,) = read("trl", of, tmp_path, [json.dumps(conversations).encode() + b"\n"])

    made = [row for conversation in read_back["own"] for row in conversation["rows"]]
    assert sorted(sample[:3] for sample in read_back["samples"]) == sorted(made)
    assert len(made) == 7
    assert {sample[3] for sample in read_back["samples"]} == {1}
