"""`respsite bench URL`: how fast a server streams, at so many requests at once; bounded in count and in time.

Any server with OpenAI's Responses API or Chat Completions can be measured. `ask` measures one streamed request,
`figures_of` sums many up, then they are drawn (bars for a terminal, and as SVG); the command itself is at the end.
"""

import asyncio
import json
import math
import sys
import time
from argparse import Namespace
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from engine.errors import reason_of
from responses_app import __version__
from responses_app.command_line.endpoint import (
    FAILED,
    USAGE,
    CommandFailed,
    RemoteServer,
    endpoint_of,
    message_of,
    session_options,
)
from responses_app.extensions.terminal.streams import events_of
from responses_app.management.terminal import console, errors, printable, progress

Event = Mapping[str, Any]


@dataclass(slots=True)
class Sample:
    """One streamed request, measured. Times are in seconds."""

    seconds: float = 0.0  # until its end
    first: float | None = None  # until its first token; None where none came
    gaps: "array[float]" = field(default_factory=lambda: array("d"))  # between the events that said something
    tokens: int = 0  # as the server counted them, else the events that said something
    error: str = ""  # empty where all went well


@dataclass(frozen=True, slots=True)
class Api:
    """How one of the two APIs is asked and read."""

    path: str
    body: Callable[[str, str | None, int], dict[str, Any]]  # of a prompt, a model and a bound of tokens
    said: Callable[[Event], bool]  # whether an event holds something that the model said
    tokens: Callable[[Event], int | None]  # how many an event says that there were; None where it says nothing of it
    error: Callable[[Event], str]  # what went wrong, as an event tells it; "" for nothing


def _responses_body(prompt: str, model: str | None, most: int) -> dict[str, Any]:
    named = {"model": model} if model else {}
    return {**named, "input": prompt, "max_output_tokens": most, "stream": True, "store": False}


def _chat_body(prompt: str, model: str | None, most: int) -> dict[str, Any]:
    named = {"model": model} if model else {}
    messages = [{"role": "user", "content": prompt}]
    usage = {"stream_options": {"include_usage": True}}
    return {**named, "messages": messages, "max_completion_tokens": most, "stream": True, **usage}


def _chat_said(event: Event) -> bool:
    choices = event.get("choices") or ()
    fields = ("content", "reasoning", "reasoning_content", "tool_calls", "refusal")
    return any((choice.get("delta") or {}).get(name) for choice in choices for name in fields)


def _responses_tokens(event: Event) -> int | None:
    usage = (event.get("response") or {}).get("usage")
    return usage.get("output_tokens") if usage else None


def _chat_tokens(event: Event) -> int | None:
    usage = event.get("usage")
    return usage.get("completion_tokens") if usage else None


def _responses_error(event: Event) -> str:
    if event.get("type") == "error":
        return message_of(event)
    return message_of(event["response"]) if event.get("type") == "response.failed" else ""


APIS = {
    "responses": Api(
        "/responses",
        _responses_body,
        lambda event: str(event.get("type")).endswith(".delta"),
        _responses_tokens,
        _responses_error,
    ),
    "chat": Api(
        "/chat/completions", _chat_body, _chat_said, _chat_tokens, lambda event: message_of(event) * ("error" in event)
    ),
}


async def ask(session: aiohttp.ClientSession, endpoint: RemoteServer, api: Api, body: dict[str, Any]) -> Sample:
    """Send one request and read its stream to the end; what goes wrong is in the sample's `error`."""
    sample = Sample()
    began = time.perf_counter()
    last, counted, usage = began, 0, None
    try:
        async for event in events_of(session, endpoint, api.path, body=body):
            if problem := api.error(event):
                sample.error = problem
            usage = api.tokens(event) or usage
            if not api.said(event):
                continue
            now = time.perf_counter()
            counted += 1
            if sample.first is None:
                sample.first = now - began
            else:
                sample.gaps.append(now - last)
            last = now
    except CommandFailed as problem:
        sample.error = str(problem)
    sample.seconds = time.perf_counter() - began
    sample.tokens = usage if usage is not None else counted
    if not sample.error and sample.first is None:
        sample.error = "The stream had no tokens."
    return sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """How a server did with so many requests at once.

    Times are in milliseconds, but for `seconds`; None where nothing was measured.
    """

    concurrent: int  # requests at once
    requests: int  # all of them, with those that failed
    errors: int  # of the requests
    seconds: float  # that the level took
    tokens_per_second: float  # of all streams together
    stream_tokens_per_second: float | None  # of a stream behind its first token, the median
    first_p50: float | None  # until the first token, the median
    first_p95: float | None  # 95 of 100 came sooner
    gap_p50: float | None  # between two events that say something
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
    # Of 20 values, 0.95 is the 19th.
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def _milliseconds(ordered: Sequence[float], part: float) -> float | None:
    value = percentile(ordered, part)
    return None if value is None else value * 1000


def _paces(samples: Iterable[Sample]) -> Iterable[float]:
    for sample in samples:
        if sample.first is not None and sample.tokens > 1 and sample.seconds > sample.first:
            # The first token is not counted: it took the time before.
            yield (sample.tokens - 1) / (sample.seconds - sample.first)


WIDTH = 36  # of a bar in a terminal, in characters
EIGHTHS = " ▏▎▍▌▋▊▉"  # blocks of 0 to 7 eighths of a character
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
    for name, unit, figure in CHARTS:
        values = [getattr(row, figure) or 0.0 for row in figures]
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


MAX_CONCURRENT = 1000
MAX_REQUESTS = 100_000
TRY_SECONDS = 120.0  # for the first request, which nothing counts


def run(options: Namespace) -> int:
    """Measure, show, and return 1 where nothing could be measured."""
    levels = _levels(options.concurrency)
    if not 0 < options.requests <= MAX_REQUESTS:
        raise CommandFailed(f"--requests takes a number up to {MAX_REQUESTS}.", status=USAGE)
    endpoint = endpoint_of(options.base_url, options.key_variable)
    figures, problems = asyncio.run(_measure(options, endpoint, levels))
    title = f"{endpoint.base_url}, {APIS[options.api].path}"
    if options.json != "-":  # else standard output is for a program
        console().print(table_of(figures))
        console().print(bars_of(figures))
    for text, count in problems.items():
        errors().print(printable(f"{count} × {text}"))
    if options.svg:
        _write(options.svg, svg_of(figures, title=title))
    if options.json:
        about = {"url": endpoint.base_url, "api": options.api, "model": options.model, "respsite": __version__}
        _write(options.json, json.dumps({**about, "levels": [asdict(row) for row in figures]}, indent=2) + "\n")
    return 0 if any(row.requests > row.errors for row in figures) else FAILED


def _levels(text: str) -> list[int]:
    try:
        levels = [int(word) for word in text.split(",")]
    except ValueError:
        levels = []
    if not levels or not all(0 < level <= MAX_CONCURRENT for level in levels):
        accepted = f"numbers up to {MAX_CONCURRENT}, separated by commas"
        raise CommandFailed(f"--concurrency {text} is not valid: it takes {accepted}.", status=USAGE)
    return levels


async def _measure(
    options: Namespace, endpoint: RemoteServer, levels: Sequence[int]
) -> tuple[list[Figures], dict[str, int]]:
    api = APIS[options.api]
    figures: list[Figures] = []
    problems: dict[str, int] = {}
    connector = aiohttp.TCPConnector(limit=max(levels))
    async with aiohttp.ClientSession(connector=connector, **session_options(endpoint)) as session:
        load = Load(session, endpoint, api, options)
        await load.try_once()
        for level in levels:
            errors().print(f"{level} at once …", style="dim")
            began = time.perf_counter()
            samples = await load.run(level)
            figures.append(figures_of(level, samples, time.perf_counter() - began))
            for sample in samples:
                if sample.error:
                    problems[sample.error] = problems.get(sample.error, 0) + 1
    return figures, problems


class Load:
    """Requests of one kind. Each has a number in its prompt's beginning, so that no prefix cache holds it."""

    def __init__(self, session: aiohttp.ClientSession, endpoint: RemoteServer, api: Api, options: Namespace) -> None:
        self._session, self._endpoint, self._api, self._options = session, endpoint, api, options
        self._number = 0

    async def try_once(self) -> None:
        """Ask once, uncounted: it warms the server up. Raises `CommandFailed` where it cannot be measured."""
        try:
            async with asyncio.timeout(TRY_SECONDS):
                sample = await self._ask()
        except TimeoutError:
            raise CommandFailed(f"{self._endpoint.base_url} did not answer within {TRY_SECONDS:.0f} s.") from None
        if sample.error:
            raise CommandFailed(sample.error)

    async def run(self, level: int) -> list[Sample]:
        """Keep `level` requests going, until there were enough of them or their time is over; return their samples.

        What runs at the end of the time is cut, and does not count.
        """
        samples: list[Sample] = []
        enough = max(self._options.requests, level)
        begun = 0

        async def client() -> None:
            nonlocal begun
            # No await between the look and the count: no request is begun twice.
            while begun < enough:
                begun += 1
                samples.append(await self._ask())
                tell(len(samples))

        with progress("requests", enough) as tell:
            tasks = [asyncio.create_task(client(), name="client of the bench") for _ in range(level)]
            _, late = await asyncio.wait(tasks, timeout=self._options.seconds)
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return samples

    async def _ask(self) -> Sample:
        self._number += 1
        prompt = f"{self._number}: {self._options.prompt}"
        body = self._api.body(prompt, self._options.model, self._options.max_tokens)
        return await ask(self._session, self._endpoint, self._api, body)


def _write(path: str, text: str) -> None:
    if path == "-":
        sys.stdout.write(text)
        return
    try:
        Path(path).write_text(text)
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written ({reason_of(error)}).") from None
