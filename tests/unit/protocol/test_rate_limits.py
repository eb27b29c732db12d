"""Limits as data: what clients are told of them."""

import pytest

from responses_app.protocol.rate_limits import (
    NO_LIMITS,
    Amount,
    LimitedSubject,
    LimitLine,
    Limits,
    Quantity,
    Rate,
    as_event,
    as_headers,
    duration,
    line_of,
    rate_reached,
    tightest,
)


@pytest.mark.parametrize(
    ("milliseconds", "written"),
    [
        (0, "0ms"),
        (0.2, "1ms"),
        (120, "120ms"),
        (999, "999ms"),
        (999.5, "1s"),
        (1000, "1s"),
        (8640, "8.64s"),
        (59_999, "59.999s"),
        (60_000, "1m0s"),
        (360_000, "6m0s"),
        (90_951, "1m30.951s"),
        (3_600_000, "1h0m0s"),
        (86_348_000, "23h59m8s"),
    ],
)
def test_times_are_written_as_openai_writes_them(milliseconds: float, written: str) -> None:
    assert duration(milliseconds) == written


def test_headers_and_event_say_the_same() -> None:
    lines = [LimitLine("requests", 60, 59, 1000), LimitLine("tokens", 1000, 1, 360_000)]
    assert as_headers(lines) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "1",
        "x-ratelimit-reset-tokens": "6m0s",
    }
    assert as_event(lines)[1] == {"name": "tokens", "limit": 1000, "remaining": 1, "reset_seconds": 360.0}


def test_the_limit_of_which_the_least_is_left_is_told() -> None:
    lines = [LimitLine("tokens", 1000, 900, 1), LimitLine("tokens", 5000, 200, 2), LimitLine("requests", 1, 1, 0)]
    assert tightest(lines) == [LimitLine("tokens", 5000, 200, 2), LimitLine("requests", 1, 1, 0)]


def test_what_is_left_is_never_less_than_nothing() -> None:
    rate = Rate(LimitedSubject("key:a", Limits(output_tokens_per_minute=10)), Quantity.OUTPUT, 10)
    assert line_of(rate, 180_000) == LimitLine("tokens", 10, 0, 180_000)
    error = rate_reached(rate, 1, 180_000)
    assert error.retry_after == 126
    assert "Please try again in 2m6s" in error.message


def test_a_row_without_limits_has_none() -> None:
    class Row:
        requests_per_minute = input_tokens_per_minute = output_tokens_per_minute = None
        tokens_per_day = concurrent_responses = websockets = monthly_spend_cents = None

    assert Limits.of(Row()) is NO_LIMITS
    limited = Row()
    limited.websockets = 0  # type: ignore[assignment]
    assert Limits.of(limited) == Limits(websockets=0)


def test_output_counts_as_far_as_it_may_fit() -> None:
    owner = LimitedSubject("key:a", NO_LIMITS)
    assert Rate(owner, Quantity.OUTPUT, 100).to_take(Amount(1, 5, 5000)) == 100
    assert Rate(owner, Quantity.DAY, 100).to_take(Amount(1, 60, 5000)) == 100
    assert Rate(owner, Quantity.DAY, 100).to_take(Amount(1, 120, 5000)) == 121
    assert Rate(owner, Quantity.REQUESTS, 100).to_take(Amount(1, 120, 5000)) == 1
