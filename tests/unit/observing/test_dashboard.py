"""The dashboard for Grafana shows the numbers that there are: all of them, and no others."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from responses_app.observing.metrics import Metrics, Numbers
from tests.kit.server import ROOT

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
