"""The alerts for Prometheus and the dashboard for Grafana use the numbers that `/metrics` has, and no others."""

import json
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from docs.extension.error_texts import REQUESTS, RESPONSES, TYPES
from responses_app.observing.exposition import page
from responses_app.observing.metrics import Metrics, Numbers
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


DASHBOARD = json.loads((ROOT / "deploy/grafana/respsite.json").read_text())
SERIES = re.compile(r"(respsite_\w+)(?:\{([^}]*)\})?")
BY = re.compile(r"by \(([^)]*)\)")
LEGEND = re.compile(r"\{\{(\w+)\}\}")
OF_PROMETHEUS = {"job", "instance"}
ENDINGS = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket",)}


def expressions() -> Iterator[tuple[str, str, str]]:
    """Yield each expression with its panel's title and its legend."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"], ""


def series() -> dict[str, Numbers]:
    """Return the families by the names of their series that are asked for."""
    return {family.name + end: family for family in Metrics().families for end in ENDINGS[family.kind]}


@pytest.mark.parametrize(("title", "expression", "legend"), list(expressions()))
def test_every_expression_asks_for_what_there_is(title: str, expression: str, legend: str) -> None:
    known = series()
    named = SERIES.findall(expression)
    assert named
    shown = {label.strip() for labels in BY.findall(expression) for label in labels.split(",")}
    assert set(LEGEND.findall(legend)) <= shown
    for name, selector in named:
        assert name in known, f"{title}: there is no {name}"
        asked = set(re.findall(r"(\w+)=", selector)) | shown
        assert asked <= OF_PROMETHEUS | {*known[name].labels, "le"}
        assert ("histogram_quantile" in expression) == (known[name].kind == "histogram")
        assert ("rate(" in expression or "increase(" in expression) == (known[name].kind != "gauge") or not legend


def test_every_number_is_shown() -> None:
    shown = {name for _, expression, _ in expressions() for name, _ in SERIES.findall(expression)}
    # The others repeat some of these under the names of OpenTelemetry's conventions, for dashboards made for those.
    assert shown == {name for name in series() if name.startswith("respsite_")}


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        assert all(x < 24 for x, _ in cells)
        taken |= cells


def test_ids_are_unique() -> None:
    ids: list[Any] = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
