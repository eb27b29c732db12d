"""Test events of webhooks are counted by project, for a minute."""

from responses_app.tools.webhooks.recent_tests import TESTS_A_MINUTE, RecentTests
from tests.kit.clock import Clock


def test_a_project_has_so_many_a_minute() -> None:
    clock = Clock(100.0)
    tests = RecentTests(clock)
    assert [tests.seconds_until_room("a") for _ in range(TESTS_A_MINUTE)] == [0] * TESTS_A_MINUTE
    assert tests.seconds_until_room("a") == 60
    assert tests.seconds_until_room("b") == 0
    clock.now += 59.5
    assert tests.seconds_until_room("a") == 1
    clock.now += 0.5
    assert tests.seconds_until_room("a") == 0
    assert list(tests._tests) == ["a"]  # of others nothing is kept
