"""Pictures of figures: bars for a terminal, and the same as SVG."""

from collections.abc import Sequence
from html import escape

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from responses_app.command_line.benchmarking.figures import Figures

WIDTH = 36  # of a bar in a terminal, in characters
EIGHTHS = " ▏▎▍▌▋▊▉"
CHARTS = (  # what each shows, its unit, and which figure
    ("Tokens per second, all streams", "/s", "tokens_per_second"),
    ("Time to the first token, 95 of 100", " ms", "first_p95"),
    ("Gap between events, 95 of 100", " ms", "gap_p95"),
)
HEADINGS = "at once|asked|failed|tokens/s|a stream|first|p95|gap|p95|longest".split("|")


def table_of(figures: Sequence[Figures]) -> Table:
    """Return the figures as a table; times are in milliseconds: the median, 95 of 100, and the longest gap."""
    table = Table(box=None, padding=(0, 1), pad_edge=False, collapse_padding=True)
    for heading in HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in figures:
        paces = (row.tokens_per_second, row.stream_tokens_per_second)
        values = (*paces, row.first_p50, row.first_p95, row.gap_p50, row.gap_p95, row.gap_max)
        table.add_row(str(row.concurrent), str(row.requests), str(row.errors), *map(short, values))
    return table


def bars_of(figures: Sequence[Figures]) -> RenderableType:
    """Return a chart of bars for each thing that is shown."""
    shown: list[RenderableType] = []
    for title, unit, name in CHARTS:
        values = [getattr(row, name) or 0.0 for row in figures]
        most = max(values, default=0.0) or 1.0
        shown.append(Text(f"\n{title}", "bold"))
        for row, value in zip(figures, values, strict=True):
            shown.append(Text(f"{row.concurrent:>6} {bar(value / most)} {short(value)}{unit}"))
    return Group(*shown)


def bar(part: float) -> str:
    """Return a bar that is `part` of the whole width, padded to that."""
    eighths = round(min(1.0, max(0.0, part)) * WIDTH * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (EIGHTHS[rest] if rest else "")).ljust(WIDTH)


def short(value: float | None) -> str:
    """Return a number with what of it matters."""
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def svg_of(figures: Sequence[Figures], *, title: str) -> str:
    """Return the charts as an SVG document of 640 pixels."""
    lines, top = [], 46
    for name, unit, field in CHARTS:
        values = [getattr(row, field) or 0.0 for row in figures]
        most = max(values, default=0.0) or 1.0
        lines.append(f'<text x="20" y="{top}" font-weight="bold">{escape(name)}</text>')
        for row, value in zip(figures, values, strict=True):
            top += 22
            lines.append(f'<text x="60" y="{top}" text-anchor="end">{row.concurrent}</text>')
            lines.append(f'<rect x="70" y="{top - 12}" width="{value / most * 430:.1f}" height="14" fill="#3b6ea5"/>')
            lines.append(f'<text x="{75 + value / most * 430:.1f}" y="{top}">{short(value)}{unit}</text>')
        top += 38
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 {top}" font-family="sans-serif" font-size="13">'
    heading = f'<text x="20" y="22" font-size="15">{escape(title)}</text>'
    return "\n".join((head, f'<rect width="640" height="{top}" fill="#fff"/>', heading, *lines, "</svg>\n"))
