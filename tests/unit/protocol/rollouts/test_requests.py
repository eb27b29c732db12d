"""What requests say of roll-outs, and what of it is refused."""

from typing import Any

import pytest

from responses_app.protocol.errors import ApiError
from responses_app.protocol.rollouts.requests import RolloutRef, named, parse_reward, parse_rollout, ref_of
from tests.unit.protocol.refusals import refusal


@pytest.mark.parametrize(
    ("headers", "metadata", "name"),
    [
        ({}, None, None),
        ({}, {"rollout_id": "a"}, "a"),
        ({"x-rollout-id": "a"}, {"other": "b"}, "a"),
        ({"x-rollout-id": "a"}, {"rollout_id": "a"}, "a"),
    ],
)
def test_a_request_names_its_rollout(headers: Any, metadata: Any, name: str | None) -> None:
    ref = named(ref_of(headers, "chat"), metadata)
    assert (None if ref is None else ref.name) == name


def test_a_request_of_two_rollouts_is_refused() -> None:
    with pytest.raises(ApiError, match="it is 'b', and the request came for 'a'") as refused:
        named(RolloutRef("a"), {"rollout_id": "b"})
    assert (refused.value.status, refused.value.param) == (400, "metadata.rollout_id")


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a,b", "a\n", "export", "ä", "a" * 129, "a/b", "\0"])
def test_what_is_no_id_is_refused(name: str) -> None:
    assert refusal(ref_of, {"x-rollout-id": name}, "chat").status == 400
    assert refusal(named, None, {"rollout_id": name}).status == 400


@pytest.mark.parametrize(
    "field",
    [
        *({"weights_wanted": value} for value in ("", "a b", "x" * 257, 7)),
        *({"max_staleness": value} for value in (-1, 2**31, 0.5, "1", True)),
    ],
)
def test_what_is_no_version_and_no_number_of_them_is_refused(field: dict[str, object]) -> None:
    assert refusal(parse_rollout, {"id": "a", **field}).param == next(iter(field))
    assert parse_rollout({"id": "a", **dict.fromkeys(field)}).id == "a"


@pytest.mark.parametrize(
    ("turn", "response"),
    [
        (None, None),
        ("resp_1a", "resp_1a"),
        ("chatcmpl-1a", "resp_1a"),
        ("msg_1a", "resp_1a"),
        ("cmpl-1a", "cmpl-1a-0"),
        ("cmpl-1a-1", "cmpl-1a-1"),
    ],
)
def test_a_reward_is_of_the_response_that_a_client_knows_by_any_name(turn: str | None, response: str | None) -> None:
    assert parse_reward({"reward": 1, "turn": turn}).turn == response
