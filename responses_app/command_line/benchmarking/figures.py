"""What the samples of one level say: percentiles of the times, and how much came in all."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from responses_app.command_line.benchmarking.asking import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of `concurrent` requests at once. Times are in milliseconds; None where nothing was measured."""

    concurrent: int
    requests: int
    errors: int
    seconds: float
    tokens_per_second: float  # of all streams together
    stream_tokens_per_second: float | None  # of a stream behind its first token, the median
    first_p50: float | None
    first_p95: float | None
    gap_p50: float | None
    gap_p95: float | None
    gap_max: float | None


def figures_of(concurrent: int, samples: Sequence[Sample], seconds: float) -> Figures:
    """Sum up samples that took `seconds` together."""
    good = [sample for sample in samples if not sample.error]
    firsts = sorted(sample.first for sample in good if sample.first is not None)
    gaps = sorted(gap for sample in good for gap in sample.gaps)
    return Figures(
        concurrent=concurrent,
        requests=len(samples),
        errors=len(samples) - len(good),
        seconds=seconds,
        tokens_per_second=sum(sample.tokens for sample in good) / seconds if seconds else 0.0,
        stream_tokens_per_second=percentile(sorted(_paces(good)), 0.5),
        first_p50=_milliseconds(firsts, 0.5),
        first_p95=_milliseconds(firsts, 0.95),
        gap_p50=_milliseconds(gaps, 0.5),
        gap_p95=_milliseconds(gaps, 0.95),
        gap_max=_milliseconds(gaps, 1.0),
    )


def percentile(ordered: Sequence[float], part: float) -> float | None:
    """Return the value below which `part` of the ordered ones lie (the nearest rank); None of none."""
    if not ordered:
        return None
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def _milliseconds(ordered: Sequence[float], part: float) -> float | None:
    value = percentile(ordered, part)
    return None if value is None else value * 1000


def _paces(samples: Iterable[Sample]) -> Iterable[float]:
    for sample in samples:
        if sample.first is not None and sample.tokens > 1 and sample.seconds > sample.first:
            yield (sample.tokens - 1) / (sample.seconds - sample.first)
