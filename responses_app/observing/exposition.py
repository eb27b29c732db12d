"""The numbers as Prometheus reads them: the one file that knows its library."""

from collections.abc import Iterable
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from responses_app.observing.metrics import Histogram, Metrics, Numbers


class _Collected(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """Yield every number."""
        return map(_as_metric, self._metrics.families)


def page(metrics: Metrics, accept: str) -> tuple[bytes, str]:
    """Return the page of all numbers in the format that `accept` (a header) asks for, and its content type."""
    encode, content_type = choose_encoder(accept)
    return encode(_Collected(metrics)), content_type


def _as_metric(family: Numbers) -> Metric:
    if isinstance(family, Histogram):
        timed = HistogramMetricFamily(family.name, family.about, labels=family.labels)
        for values, timings in family.cells.items():
            bounds = [*map(str, timings.bounds), "+Inf"]
            # Prometheus' buckets are cumulative: each has all that is not longer than its bound.
            timed.add_metric(values, list(zip(bounds, accumulate(timings.counts), strict=True)), timings.total)
        return timed
    make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric: CounterMetricFamily | GaugeMetricFamily = make(family.name, family.about, labels=family.labels)
    # A number without labels is shown as 0 before it is counted first.
    for values, cell in family.cells.items() or ([((), None)] if not family.labels else ()):
        metric.add_metric(values, 0.0 if cell is None else cell.value)
    return metric
