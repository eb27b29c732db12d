"""The alerts in `deploy/prometheus`: each fires by the numbers that `/metrics` has, where it should, and only there."""

import operator
import re
from collections import defaultdict
from collections.abc import Callable

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from docs.extension.error_texts import REQUESTS, RESPONSES, TYPES
from responses_app.observing.exposition import page
from responses_app.observing.metrics import Metrics
from tests.kit.server import ROOT

RULES = yaml.safe_load((ROOT / "deploy/prometheus/respsite.rules.yaml").read_text())["groups"][0]["rules"]
PAGE = (ROOT / "docs/how-to/watching.md").read_text()
Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
COMPARISON = re.compile(r"(?P<left>.+?) (?P<sign>[<>]) (?:ignoring\((?P<ignored>[\w, ]+)\) group_left )?(?P<right>.+)")
SUM = re.compile(r"sum without \((?P<labels>[\w, ]+)\) \((?P<inner>.+)\)")
OVER = re.compile(r"(?:rate|max_over_time)\((?P<inner>.+)\[\w+\]\)")
SELECTOR = re.compile(r'(?P<name>\w+)(?:\{(?P<label>\w+)=~"(?P<values>[^"]+)"\})?')
SIGNS = {"<": operator.lt, ">": operator.gt}


class Prometheus:
    """As much of its language as the rules speak; what was before, over which `rate` and the like go, is `past`."""

    def __init__(self, metrics: Metrics, past: "Prometheus | None" = None) -> None:
        families = text_string_to_metric_families(page(metrics, "")[0].decode())
        self._samples = [sample for family in families for sample in family.samples]
        self._past = past

    def fires(self, expression: str) -> bool:
        """Whether anything is left of a comparison."""
        match = COMPARISON.fullmatch(expression)
        assert match, expression
        left, compare = self.vector(match["left"]), SIGNS[match["sign"]]
        if re.fullmatch(r"[\d.]+", match["right"]):
            return any(compare(value, float(match["right"])) for value in left.values())
        right, ignored = self.vector(match["right"]), set((match["ignored"] or "").split(", "))
        matched = {labels: right[without(labels, ignored)] for labels in left if without(labels, ignored) in right}
        assert matched or not left, f"no two labels of {expression} are the same, so it never fires"
        return any(compare(left[labels], value) for labels, value in matched.items())

    def vector(self, expression: str) -> Vector:
        """Return the values by their labels."""
        if match := SUM.fullmatch(expression):
            sums: Vector = defaultdict(float)
            for labels, value in self.vector(match["inner"]).items():
                sums[without(labels, set(match["labels"].split(", ")))] += value
            return sums
        if match := OVER.fullmatch(expression):
            now, past = self.vector(match["inner"]), {} if self._past is None else self._past.vector(match["inner"])
            if expression.startswith("rate"):
                return {labels: value - past.get(labels, 0) for labels, value in now.items()}
            return {labels: max(value, past.get(labels, value)) for labels, value in now.items()}
        match = SELECTOR.fullmatch(expression)
        assert match, expression
        named = [sample for sample in self._samples if sample.name == match["name"]]
        assert named, f"there is no {match['name']}"
        if match["label"]:
            assert all(match["label"] in sample.labels for sample in named), expression
            assert set(match["values"].split("|")) <= {*REQUESTS, *RESPONSES, *TYPES}, "codes of errors"
            named = [each for each in named if re.fullmatch(match["values"], each.labels[match["label"]])]
        return {frozenset(sample.labels.items()): sample.value for sample in named}


def without(labels: Labels, names: set[str]) -> Labels:
    assert names <= {name for name, _ in labels} | {""}, f"{names} of {labels}"
    return frozenset((name, value) for name, value in labels if name not in names)


def well() -> Metrics:
    """Return the numbers of a server that is well, and has seen each kind of error."""
    metrics = Metrics()
    metrics.workers.set(3)
    for service in ("database", "engine", "redis"):
        metrics.reaching.set(3, service)
    metrics.unsaved.set(0)
    metrics.engine_waiting.set(1, "m", "default")
    metrics.error("http", 500, "server_error")
    metrics.error("http", 404, "model_not_found")
    return metrics


WRONG: dict[str, Callable[[Metrics], None]] = {
    "RespsiteWorkersMissing": lambda metrics: (
        [metrics.workers.set(2)] + [metrics.reaching.set(2, each) for each in ("database", "engine", "redis")]
    ),
    "RespsiteServiceOutOfReach": lambda metrics: metrics.reaching.set(2, "redis"),
    "RespsiteEndsUnsaved": lambda metrics: metrics.unsaved.set(1),
    "RespsiteErrors": lambda metrics: metrics.error("response", None, "server_is_overloaded"),
    "RespsiteEngineFull": lambda metrics: metrics.engine_waiting.set(11, "m", "default"),
}


@pytest.mark.parametrize("wrong", [None, *WRONG])
def test_an_alert_fires_where_it_should(wrong: str | None) -> None:
    metrics, past = well(), Prometheus(well())
    if wrong is not None:
        WRONG[wrong](metrics)
    now = Prometheus(metrics, past)
    assert [rule["alert"] for rule in RULES if now.fires(rule["expr"])] == [wrong] * (wrong is not None)


def test_each_is_tried_and_told() -> None:
    assert [rule["alert"] for rule in RULES] == list(WRONG) == re.findall(r"^\| `(Respsite\w+)`", PAGE, re.MULTILINE)


@pytest.mark.parametrize(
    "expression",
    [
        "respsite_workers_reaching < respsite_workers",
        "respsite_engine_wait > 1",
        'respsite_errors_total{code=~"server_err"} > 0',
        "sum without (model, tiers) (respsite_engine_waiting) > 1",
    ],
)
def test_one_that_can_never_fire_is_found(expression: str) -> None:
    with pytest.raises(AssertionError):
        Prometheus(well(), Prometheus(well())).fires(expression)
