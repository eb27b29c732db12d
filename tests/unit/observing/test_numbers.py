"""Numbers, how those of several workers are added up, and the page that is made of them."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from responses_app.observing.exposition import page
from responses_app.observing.metrics import MAX_SERIES, Counter, Histogram, Metrics, Outcome


def ended(metrics: Metrics, **changes: object) -> None:
    fields: dict[str, object] = {
        **{"transport": "sse", "status": "completed", "error": None, "input_tokens": 10, "cached_tokens": 4},
        "output_tokens": 29,
        **{"reasoning_tokens": 2, "first_token": 0.2, "duration": 3.0, "calls": ["function_call"], "repairs": 1},
        **{"unknown_tools": 0, "misfits": 0, "journal_bytes": 900},
    }
    metrics.model("m").ended(Outcome(**{**fields, **changes}))  # type: ignore[arg-type]


class Samples:
    """What Prometheus reads: the value of a name with its labels' values, in any order."""

    def __init__(self, metrics: Metrics) -> None:
        text, content_type = page(metrics, "")
        assert content_type.startswith("text/plain; version=0.0.4")
        families = text_string_to_metric_families(text.decode())
        self._values = {
            (sample.name, frozenset(sample.labels.values())): sample.value
            for family in families
            for sample in family.samples
        }
        self.names = {name for name, _ in self._values}

    def __getitem__(self, key: tuple[str, ...]) -> float:
        return self._values[key[0], frozenset(key[1:])]


def test_a_response_is_counted_once_it_has_ended() -> None:
    metrics = Metrics()
    ended(metrics)
    ended(metrics, status="failed", error="server_error", first_token=None, calls=["shell_call", "function_call"])
    read = Samples(metrics)
    assert read["respsite_responses_total", "m", "sse", "completed"] == 1
    assert read["respsite_responses_total", "m", "sse", "failed"] == 1
    assert read["respsite_input_tokens_total", "m"] == 20
    assert read["respsite_tool_calls_total", "m", "function_call"] == 2
    assert read["respsite_errors_total", "response", "server_error"] == 1
    assert read["respsite_journal_bytes_total",] == 1800
    assert read["respsite_first_token_seconds_count", "m", "sse"] == 1
    assert read["respsite_response_seconds_sum", "m", "sse"] == 6


def test_the_gaps_between_tokens_are_those_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    meter = metrics.model("m").turn()
    times = iter([100.0, 100.004, 100.5])
    monkeypatch.setattr(meter, "_clock", lambda: next(times))
    for tokens in (1, 2, 3):
        meter.note(tokens)
    read = Samples(metrics)
    assert read["respsite_output_tokens_total", "m"] == 6
    assert read["respsite_token_gap_seconds_count", "m"] == 2
    assert read["respsite_token_gap_seconds_bucket", "m", "0.0025"] == 0
    assert read["respsite_token_gap_seconds_bucket", "m", "0.005"] == 1
    assert read["respsite_token_gap_seconds_bucket", "m", "0.5"] == 2
    assert read["respsite_token_gap_seconds_bucket", "m", "+Inf"] == 2
    assert read["respsite_token_gap_seconds_sum", "m"] == pytest.approx(0.5)


def test_where_nobody_wants_to_know_tokens_are_not_measured() -> None:
    assert Metrics(enabled=False).model("m").turn() is None


def test_series_are_bounded() -> None:
    counter = Counter("c", "", ["code"])
    for number in range(2 * MAX_SERIES):
        counter.count(str(number))
    assert len(counter.cells) == MAX_SERIES + 1
    assert counter.at("other").value == MAX_SERIES
    assert counter.at("brand new") is counter.at("other")


def test_a_wrong_number_of_labels_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="has the labels"):
        Counter("c", "", ["code"]).count("a", "b")


def test_workers_are_added_up() -> None:
    one, two = Metrics(), Metrics()
    for metrics in (one, two):
        ended(metrics)
        metrics.workers.set(1)
    whole = Metrics()
    whole.add(one.dump(), gauges=True)
    whole.add(two.dump(), gauges=False)
    read = Samples(whole)
    assert read["respsite_responses_total", "m", "sse", "completed"] == 2
    assert read["respsite_first_token_seconds_bucket", "m", "sse", "0.25"] == 2
    assert read["respsite_workers",] == 1  # the other one is dead


def test_what_another_version_counts_is_left_out() -> None:
    metrics = Metrics()
    strange = {
        "respsite_gone": [[[], 1]],
        "respsite_responses": [[["m"], 1]],
        "respsite_loop_lag_seconds": [[[], [[1, 2], 3.0]]],
        "respsite_input_tokens": [[["m"], "many"]],
        "respsite_output_tokens": 3,
        "respsite_takeovers": [[["continued"], 2]],
    }
    metrics.add(strange, gauges=True)
    read = Samples(metrics)
    assert read["respsite_takeovers_total", "continued"] == 2
    assert "respsite_responses_total" not in read.names  # no model is served
    assert sum(histogram.total for histogram in metrics.lag.cells.values()) == 0


def test_a_cell_is_kept_when_an_earlier_worker_is_added() -> None:
    """Whoever counts holds a cell: it must be the one that is read."""
    metrics = Metrics()
    meter = metrics.model("m").turn()
    before = Metrics()
    before.output_tokens.count("m", by=5)
    metrics.add(before.dump(), gauges=False)
    meter.note(2)
    assert Samples(metrics)["respsite_output_tokens_total", "m"] == 7


def test_open_metrics_are_spoken_too() -> None:
    content, content_type = page(Metrics(), "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert content.endswith(b"# EOF\n")


def test_labels_may_have_any_character() -> None:
    metrics = Metrics()
    metrics.errors.count("http", 'a"b\\c\nd')
    assert Samples(metrics)["respsite_errors_total", "http", 'a"b\\c\nd'] == 1


def test_a_histogram_counts_bounds_as_prometheus_does() -> None:
    histogram = Histogram("h", "", [1.0, 2.0])
    for seconds in (0.5, 1.0, 1.5, 2.5):
        histogram.note(seconds)
    assert histogram.at().counts == [2, 1, 1]  # up to a bound, the bound included
