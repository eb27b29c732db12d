"""Usage per turn and in sum."""

from hypothesis import given, settings
from hypothesis import strategies as st

from responses_app.protocol.usage import TurnUsage, as_read, usage

counts = st.integers(0, 1000)


def test_clients_read_numbers_unless_they_asked_for_the_turns() -> None:
    used = usage([TurnUsage(100, 64, 20, 5), TurnUsage(130, 112, 7, 7)])
    assert used == {
        "input_tokens": 230,
        "input_tokens_details": {
            "cached_tokens": 176,
            "cache_write_tokens": 0,
            "input_tokens_per_turn": [100, 130],
            "cached_tokens_per_turn": [64, 112],
        },
        "output_tokens": 27,
        "output_tokens_details": {
            "reasoning_tokens": 12,
            "tool_output_tokens": 10,
            "output_tokens_per_turn": [20, 7],
            "tool_output_tokens_per_turn": [0, 10],
        },
        "total_tokens": 257,
    }
    response = {"id": "resp_1", "usage": used}
    assert as_read(response, usage_per_turn=False)["usage"] == {
        **used,
        "input_tokens_details": {"cached_tokens": 176, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 12, "tool_output_tokens": 10},
    }
    assert as_read(response, usage_per_turn=True)["usage"] == used
    assert as_read({"usage": None}, usage_per_turn=False) == {"usage": None}


def test_tool_outputs_are_never_negative() -> None:
    shrunk = usage([TurnUsage(100, 0, 50, 0), TurnUsage(90, 0, 1, 0)])
    assert shrunk["output_tokens_details"]["tool_output_tokens_per_turn"] == [0, 0]  # type: ignore[index]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.builds(TurnUsage, counts, counts, counts, counts), max_size=5))
def test_sums_are_the_sums_of_the_turns(turns: list[TurnUsage]) -> None:
    total = usage(turns)
    details = {**total["input_tokens_details"], **total["output_tokens_details"]}  # type: ignore[dict-item]
    assert total["input_tokens"] == sum(details["input_tokens_per_turn"])
    assert total["output_tokens"] == sum(details["output_tokens_per_turn"])
    assert details["cached_tokens"] == sum(details["cached_tokens_per_turn"])
    assert details["tool_output_tokens"] == sum(details["tool_output_tokens_per_turn"])
    assert total["total_tokens"] == total["input_tokens"] + total["output_tokens"]  # type: ignore[operator]
    assert all(len(details[name]) == len(turns) for name in details if name.endswith("_per_turn"))
