"""Charts: numbers become coordinates here, and a template draws them as SVG."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 640, 220
# In units of the drawing, which the page scales.
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 10, 24  # what the axes take
_PLOT_WIDTH, _PLOT_HEIGHT = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM


@dataclass(frozen=True, slots=True)
class Series:
    """Numbers over the bins."""

    name: str  # also the class that has its colour
    label: str
    values: Sequence[float | None]  # None where there is none


@dataclass(frozen=True, slots=True)
class ChartBar:
    """A rectangle of a series."""

    name: str  # the series'
    x: float  # of its left upper corner, in units of the drawing, as all that follows is
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class ChartLine:
    """A series as lines."""

    name: str
    paths: Sequence[str]  # between gaps
    dots: Sequence[tuple[float, float]]  # at values that stand alone


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark of an axis."""

    at: float  # along the axis, in units of the drawing
    text: str


@dataclass(frozen=True, slots=True)
class ChartSlot:
    """The whole height over a bin, which tells its numbers."""

    x: float
    width: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartPlan:
    """What a chart is to show."""

    key: str  # what ids on the page end with
    title: str
    summary: str
    names: Sequence[str]  # of the bins
    marks: Sequence[tuple[int, str]]  # the texts under some of the bins, by their numbers
    series: Sequence[Series]
    write: Callable[[float], str]  # writes a number of the axis

    @property
    def slot(self) -> float:
        """The width of a bin."""
        return _PLOT_WIDTH / max(1, len(self.names))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """All a template needs."""

    plan: ChartPlan
    bars: Sequence[ChartBar]
    lines: Sequence[ChartLine]
    y_ticks: Sequence[Tick]
    x_ticks: Sequence[Tick]
    slots: Sequence[ChartSlot]
    rows: Sequence[tuple[str, Sequence[str]]]  # the numbers as a table: a bin's name, then a text for each series
    empty: bool
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    plot_height: int = _PLOT_HEIGHT


def bar_chart(plan: ChartPlan) -> Chart:
    """Return stacked bars, the first series at the bottom."""
    totals = [sum(each.values[index] or 0 for each in plan.series) for index in range(len(plan.names))]
    top = nice_top(max(totals, default=0))
    # Between two bars.
    gap = min(3.0, plan.slot * 0.2)
    bars = []
    for index in range(len(plan.names)):
        floor = float(HEIGHT - BOTTOM)
        for each in plan.series:
            height = (each.values[index] or 0) / top * _PLOT_HEIGHT
            floor -= height
            if height:
                x = LEFT + index * plan.slot + gap / 2
                bars.append(ChartBar(each.name, _r(x), _r(floor), _r(plan.slot - gap), _r(height)))
    return _chart(plan, top, bars=bars)


def line_chart(plan: ChartPlan) -> Chart:
    """Return lines with gaps where nothing is known."""
    top = nice_top(max((value for each in plan.series for value in each.values if value is not None), default=0))
    return _chart(plan, top, lines=[_line(each, top, plan.slot) for each in plan.series])


def nice_top(value: float) -> float:
    """Return a round number not below `value`, that can be halved: the top of an axis."""
    if value <= 2:
        return 2.0
    size = 10.0 ** math.floor(math.log10(value))
    # Below 10 only even numbers can be halved into whole ones.
    steps = (2, 4, 6, 8, 10) if size == 1 else (1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10)
    # A little less than the value, as 1.2 * 10 is not exactly 12.
    return next(round(step * size) for step in steps if step * size >= value * 0.999999)


def _line(series: Series, top: float, slot: float) -> ChartLine:
    paths, dots, path = [], [], list[tuple[float, float]]()
    # The None at the end closes the last path.
    for index, value in enumerate([*series.values, None]):
        if value is not None:
            y = HEIGHT - BOTTOM - value / top * _PLOT_HEIGHT
            path.append((_r(LEFT + (index + 0.5) * slot), _r(y)))
        elif path:
            dots += path if len(path) == 1 else []
            paths += [" ".join(f"{x},{y}" for x, y in path)] if len(path) > 1 else []
            path = []
    return ChartLine(series.name, paths, dots)


def _chart(plan: ChartPlan, top: float, *, bars: Sequence[ChartBar] = (), lines: Sequence[ChartLine] = ()) -> Chart:
    rows = [
        (name, ["–" if value is None else plan.write(value) for value in (each.values[index] for each in plan.series)])
        for index, name in enumerate(plan.names)
    ]
    heights = ((HEIGHT - BOTTOM - share * _PLOT_HEIGHT, top * share) for share in (0.0, 0.5, 1.0))
    return Chart(
        plan=plan,
        bars=bars,
        lines=lines,
        y_ticks=[Tick(_r(y), plan.write(value)) for y, value in heights],
        x_ticks=[Tick(_r(LEFT + (index + 0.5) * plan.slot), text) for index, text in plan.marks],
        slots=[
            ChartSlot(
                _r(LEFT + index * plan.slot),
                _r(plan.slot),
                "\n".join([name, *(f"{each.label}: {text}" for each, text in zip(plan.series, texts, strict=True))]),
            )
            for index, (name, texts) in enumerate(rows)
        ],
        rows=[row for index, row in enumerate(rows) if any(each.values[index] for each in plan.series)],
        empty=not any(value for each in plan.series for value in each.values),
    )


def _r(value: float) -> float:
    return round(value, 2)
