"""The formats of exports, where the packages that read them do not tell: see `tests/system/trainers`."""

import io
import math
import sys
from collections.abc import Iterable
from typing import Any

import orjson
import pytest

from engine.types import WeightsSpan
from responses_app.extensions.training import training_rows
from responses_app.extensions.training.exports import (
    ExportQuery,
    JsonRows,
    ParquetMissing,
    ParquetRows,
    Selection,
    parse_export,
)
from responses_app.extensions.training.training_rows import FORMATS, oldest_version
from responses_app.protocol.rollouts.generations import as_logprobs
from responses_app.protocol.rollouts.tree import RolloutTree
from tests.kit.recorded import by_chance, head, recorded, tree
from tests.unit.protocol.refusals import refusal

REWARDS = [{"reward": {"tests": 1.0, "style": 0.25}, "turn": None, "at": 5}]


def rows(of: RolloutTree, name: str) -> list[dict[str, Any]]:
    return [orjson.loads(JsonRows().add(row)) for row in FORMATS[name](of)]


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_begins_with_its_rollout_so_that_an_export_can_be_resumed(name: str) -> None:
    of = tree(by_chance(1), head("a-1"))

    lines = [JsonRows().add(row) for row in FORMATS[name](of)]

    key = b"id" if name == "tree" else b"rollout_id"
    assert lines
    assert all(line.startswith(b'{"%s":"a-1",' % key) and line.endswith(b"\n") for line in lines)


@pytest.mark.parametrize("seed", range(20))
def test_each_sampled_token_is_trained_on_once(seed: int) -> None:
    of = tree(by_chance(seed))
    sampled = sum(len(path.generation.call.sampled) for path in of.paths)

    assert sum(sum(row["completion_mask"]) for row in rows(of, "trl")) == sampled
    assert sum(sum(row["datum"]["loss_fn_inputs"]["mask"]["data"]) for row in rows(of, "tinker")) == sampled
    assert sum(len(row["generation_token_ids"]) for row in rows(of, "nemo-gym")) == sampled
    assert sum(sum(node["mask"]) for row in rows(of, "verifiers") for node in row["nodes"]) == sampled


def test_a_token_without_a_log_probability_is_not_trained_on() -> None:
    of = tree(
        [
            recorded([1], [2, 3]),
            recorded([1, 2, 3, 4], [5, 6], logprobs=as_logprobs([math.nan, -1.0])),
            recorded([1, 2, 3, 4, 5, 6, 7], [8]),
            recorded([9], [10], logprobs=None),
        ]
    )

    one, *none = rows(of, "trl")
    assert none == []
    assert one["completion_mask"] == [0, 1, 1, 0, 0, 1, 0, 1]
    assert one["old_log_probs"] == [0, -0.25, -0.375, 0, 0, -1, 0, -1]
    assert len(rows(of, "tinker")) == 1
    first, third = rows(of, "nemo-gym")  # what the second has sampled is in the prompt of the third
    assert (third["parent_call_id"], third["prompt_token_ids"]) == (first["model_call_id"], [4, 5, 6, 7])
    assert third["cum_len"] == 8
    (context,) = rows(of, "harbor")
    assert context["rollout_details"][0]["completion_token_ids"] == [[2, 3], [8]]
    (trace,) = rows(of, "verifiers")
    assert [(node["mask"], node["logprobs"]) for node in trace["nodes"] if node["sampled"]] == [
        ([True, True], [-0.25, -0.375]),
        ([False, True], [-1.0]),
        ([True], [-1.0]),
        ([False], []),
    ]


def test_what_can_not_be_is_written_as_vllm_writes_it() -> None:
    of = tree([recorded([1], [2], logprobs=as_logprobs([-math.inf]))])

    assert rows(of, "trl")[0]["old_log_probs"] == [0.0, -9999.0]
    assert rows(of, "nemo-gym")[0]["generation_log_probs"] == [-9999.0]


@pytest.mark.parametrize(
    ("versions", "number"),
    [
        (["7"], 7),
        (["v8", "step-7"], 7),
        (["8", None], None),
        (["sha256:ab12"], None),
        (["9f3b2"], None),
        ([], None),
        (["9" * 18], 10**18 - 1),
        (["9" * 19], None),
    ],
)
def test_the_number_of_the_oldest_weights(versions: list[str | None], number: int | None) -> None:
    assert oldest_version([WeightsSpan(version, 1) for version in versions]) == number


def test_weights_count_where_a_sequence_is_the_first_that_has_their_tokens() -> None:
    old, new = [WeightsSpan("3", 2)], [WeightsSpan("4", 1)]
    of = tree(
        [
            recorded([1], [2, 3], weights=old),
            recorded([1, 2, 3, 4], [5], weights=new),
            recorded([1, 2, 3, 6], [7], weights=new),
        ]
    )

    assert [row["model_version"] for row in rows(of, "trl")] == [3, 4]


def test_the_response_of_several_turns_is_named_by_the_turn_that_ended_it() -> None:
    of = tree([recorded([1], [2], response_id="a"), recorded([1, 2, 3], [4], response_id="a")])

    assert [row["response_id"] for row in rows(of, "nemo-gym")] == [None, "a"]


def test_a_reward_in_parts_is_summed_and_named() -> None:
    of = tree([recorded([1], [2])], head(rewards=REWARDS))  # type: ignore[arg-type]

    (sample,) = rows(of, "trl")
    assert (sample["reward"], sample["metrics"]) == (1.25, {"tests": 1.0, "style": 0.25})


def test_prompts_too_long_for_one_row_are_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_rows, "HARBOR_MAX_TOKENS", 4)
    of = tree([recorded([1, 2], [3]), recorded([1, 2, 3, 4], [5])])

    (context,) = rows(of, "harbor")

    assert context["rollout_details"] is None
    assert context["metadata"]["error"] == "its prompts have more than 4 tokens"


@pytest.mark.parametrize(
    ("selection", "taken"),
    [
        (Selection(), True),
        (Selection(group="g"), True),
        (Selection(group="h"), False),
        (Selection(status="ended"), False),
        (Selection(created_after=1_700_000_000), True),
        (Selection(created_after=1_700_000_001), False),
        (Selection(created_before=1_700_000_000), False),
        (Selection(min_reward=1.25), True),
        (Selection(min_reward=1.26), False),
        (Selection(max_reward=1.0), False),
        (Selection(version="1"), True),
        (Selection(version="2"), False),
    ],
)
def test_which_rollouts_are_taken(selection: Selection, taken: bool) -> None:
    of = tree([recorded([1], [2])], head(group="g", rewards=REWARDS))  # type: ignore[arg-type]

    assert (selection.takes(of.head) and selection.takes_tree(of)) == taken


def test_who_asks_for_a_reward_gets_no_rollout_without_one() -> None:
    assert not Selection(max_reward=1.0).takes(head())


def test_the_query_of_an_export() -> None:
    query = {"format": ["trl"], "after": ["a"], "min_reward": ["-0.5"], "created_before": ["12"], "group": [""]}

    wanted = Selection(min_reward=-0.5, created_before=12)
    assert parse_export(query) == ExportQuery(format="trl", after="a", selection=wanted)
    assert parse_export({}) == ExportQuery()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("format", "csv"),
        ("file_type", "zip"),
        ("status", "gone"),
        ("min_reward", "nan"),
        ("max_reward", "inf"),
        ("min_reward", "much"),
        ("created_after", "-1"),
        ("created_before", "1e9"),
        ("after", "a" * 10_000),
        ("after", "../x"),
    ],
)
def test_a_wrong_parameter_is_named(name: str, value: str) -> None:
    error = refusal(parse_export, {name: [value]})

    assert (error.status, error.param) == (400, name)
    assert len(str(error)) < 400


@pytest.mark.parametrize("name", FORMATS)
def test_parquet_has_what_json_lines_have(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arrow = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("responses_app.extensions.training.exports.GROUP_VALUES", 200)
    trees = [tree(by_chance(seed), head(f"a-{seed}", rewards=REWARDS)) for seed in range(5)]  # type: ignore[arg-type]
    writer = ParquetRows(name)

    pieces = [writer.add(row) for of in trees for row in FORMATS[name](of)]
    content = b"".join([*pieces, writer.end()])

    file = arrow.ParquetFile(io.BytesIO(content))
    assert file.num_row_groups > 1
    expected = [row for of in trees for row in rows(of, name)]
    whole = {"tree": "tree", "verifiers": "trace"}.get(name)
    read = file.read().to_pylist()
    if whole:
        assert [orjson.loads(row[whole]) for row in read] == expected
    else:
        assert [texts_read(row) for row in read] == [like(row, read[0]) for row in expected]


def test_a_file_of_parquet_without_rows_is_one() -> None:
    arrow = pytest.importorskip("pyarrow.parquet")

    assert arrow.read_table(io.BytesIO(ParquetRows("trl").end())).num_rows == 0


def test_without_pyarrow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(ParquetMissing, match=r"pip install 'respsite\[parquet\]'"):
        ParquetRows("trl")


JSON_TEXT = {"metrics", "rewards", "metadata", "extra"}


def texts_read(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: orjson.loads(each) if name in JSON_TEXT and isinstance(each, str) else texts_read(each)
            for name, each in value.items()
        }
    if isinstance(value, list):
        return [texts_read(each) for each in value]
    return value


def like(row: dict[str, Any], columns: Iterable[str]) -> Any:
    """Return the part of a row that Parquet has; log probabilities of `tinker` are 32-bit floats there."""
    part = {name: row[name] for name in columns}
    if "datum" in part:
        values = part["datum"]["loss_fn_inputs"]["logprobs"]
        values["data"] = as_floats(values["data"])
    return part


def as_floats(values: Iterable[float]) -> list[float]:
    from array import array

    return list(array("f", values))
