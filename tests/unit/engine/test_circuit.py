"""The circuit breaker of a server: when it opens, when it is tried again."""

from engine.backends.vllm.replica import CALM_SECONDS, FAILURE_SECONDS, MAX_FAILURES, WAITS, Circuit


def closed(now: float = 0.0) -> Circuit:
    circuit = Circuit()
    assert not circuit.is_closed
    circuit.close(now)
    return circuit


def test_too_many_failures_in_a_row_are_told() -> None:
    circuit = closed()
    assert [circuit.note_failure(1.0) for _ in range(MAX_FAILURES + 1)] == [False, False, True, True]


def test_failures_that_are_far_apart_are_not_too_many() -> None:
    circuit = closed()
    assert not any(circuit.note_failure(number * FAILURE_SECONDS) for number in range(20))


def test_a_success_between_them_forgives() -> None:
    circuit = closed()
    for _ in range(10):
        assert not circuit.note_failure(1.0)
        assert not circuit.note_failure(1.0)
        circuit.note_success()
    assert not circuit.is_suspect(1.0)


def test_one_that_just_failed_is_suspect_for_a_while() -> None:
    circuit = closed()
    circuit.note_failure(1.0)
    assert circuit.is_suspect(1.0 + FAILURE_SECONDS)
    assert not circuit.is_suspect(1.1 + FAILURE_SECONDS)


def test_probes_come_ever_later() -> None:
    circuit = closed()
    circuit.open(CALM_SECONDS)
    assert not circuit.is_closed
    assert [circuit.next_wait() for _ in range(len(WAITS) + 1)] == [*WAITS, WAITS[-1]]


def test_one_that_works_for_a_moment_only_does_not_begin_anew() -> None:
    circuit, now, waits = closed(), CALM_SECONDS, []
    for _ in WAITS:
        circuit.open(now)
        waits.append(circuit.next_wait())
        circuit.close(now)
        now += CALM_SECONDS / 2
    assert waits == list(WAITS)
    circuit.open(now + CALM_SECONDS)
    assert circuit.next_wait() == WAITS[0]
