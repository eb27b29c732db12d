"""How long a project keeps things: how people write it, and what is past its time."""

import pytest

from responses_app.kit.retention import FOR_EVER, MAX_HOURS, NEVER, oldest, parse_retention, written

NOW = 1_000_000.0


@pytest.mark.parametrize(
    ("text", "hours"),
    [("server", None), ("never", NEVER), ("forever", FOR_EVER), ("1", 1), (str(MAX_HOURS), MAX_HOURS)],
)
def test_it_is_read_as_it_is_written(text: str, hours: int | None) -> None:
    assert parse_retention(text) == hours
    assert written(hours) == text


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "1e3", "87601", "9" * 5000, "٣", "Never", " 1"])
def test_anything_else_is_refused_with_what_it_takes(text: str) -> None:
    with pytest.raises(ValueError, match="is not one of 'server', 'never', 'forever', or a whole number of hours"):
        parse_retention(text)


@pytest.mark.parametrize(
    ("hours", "ttl", "expected"),
    [
        (None, 0.0, -1.0),
        (None, 60.0, NOW - 60),
        (FOR_EVER, 60.0, -1.0),
        (FOR_EVER, 0.0, -1.0),
        (NEVER, 0.0, NOW),
        (NEVER, 60.0, NOW),
        (1, 0.0, NOW - 3600),
        (1, 60.0, NOW - 60),
        (1, 7200.0, NOW - 3600),
    ],
)
def test_the_shorter_of_project_and_server_counts(hours: int | None, ttl: float, expected: float) -> None:
    assert oldest(hours, NOW, ttl=ttl) == expected
