"""The page of figures that `make bench-peers` prints: Markdown, with every number as it was measured."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median

from responses_app.extensions.terminal.bench import Figures, short

OWN = "vLLM's own endpoint"
OURS = "respsite"
APIS = {"responses": "/v1/responses", "chat": "/v1/chat/completions"}
NOTABLE = 1.05  # a ratio within this is no difference on a machine that others share

INTRODUCTION = """\
# Benchmarks: respsite, vLLM and LiteLLM

This page compares the speed and the CPU time of respsite with those of vLLM's own endpoint and of LiteLLM's proxy, for
readers who have to choose between them. It shows the overhead of the servers, not the throughput of a GPU: the numbers
depend on the machine, the ratios less so. `make bench-peers` prints this page for your machine.

- **Versions**: respsite {respsite}, vLLM {vLLM}, LiteLLM {LiteLLM}, Python {Python}, on {day}.
- **Machine**: a virtual machine with {cores} cores that other work shared. The engine used one of them; all servers and
  the load shared the other.
- **Model**: no weights, {model}. One vLLM server answers for all.
- **Load**: each request gets the same {tokens} words, over SSE, with nothing stored and no tools.
- **Rounds**: all servers are measured in turn, {rounds} times after a warm-up. A figure is the median of the rounds.

The columns:

- **tokens/s**: the sum over all streams; more is better.
- **first token**: the median time until a stream's first piece of text; less is better.
- **gap**: the time between two pieces of text of a stream, p95; less is better.
- **CPU**: the CPU time per token of all processes between the client and the engine; less is better. Behind a gateway
  this includes vLLM's own server, because it works for the gateway.

The ratio to vLLM's own endpoint is in brackets. Compare only rows of the same table.
"""
CLOSING = """\
## What these figures leave out

- A real model on a GPU needs more time for each token of one stream, and makes more tokens a second for many streams.
  So the servers' share of the time is smaller than here.
- respsite also stores responses, runs tools and holds connections. [`make bench`](../how-to/develop.md) measures that.
  vLLM's own endpoint keeps responses in the memory of one process.
- LiteLLM is made for many providers behind one address, which is not measured either.
"""


@dataclass
class Measured:
    """The rounds of one server over one API at one number of streams."""

    figures: list[Figures] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)  # milliseconds for a token

    def add(self, figures: Figures, *, cpu: float) -> None:
        """Keep a round; `cpu` are the seconds that its servers used."""
        tokens = figures.tokens_per_second * figures.seconds
        self.figures.append(figures)
        if tokens:
            self.cpu.append(cpu / tokens * 1000)


@dataclass(frozen=True)
class Column:
    """A figure: what it is called, its unit, how it is read, and whether more of it is better."""

    title: str
    unit: str
    of: Callable[[Measured], list[float | None]]
    more_is_better: bool = False

    def value(self, measured: Measured) -> float | None:
        """Return the median of the rounds; None where nothing was measured."""
        known = [value for value in self.of(measured) if value is not None]
        return median(known) if known else None

    def is_worse(self, ratio: float) -> bool:
        """Whether a figure with this ratio to another one is notably worse."""
        return ratio < 1 / NOTABLE if self.more_is_better else ratio > NOTABLE


COLUMNS = (
    Column("tokens/s", "", lambda each: [row.tokens_per_second for row in each.figures], more_is_better=True),
    Column("first token", " ms", lambda each: [row.first_p50 for row in each.figures]),
    Column("gap", " ms", lambda each: [row.gap_p95 for row in each.figures]),
    Column("CPU", " ms", lambda each: list(each.cpu)),
)
Results = Mapping[tuple[str, int], Mapping[str, Measured]]  # by API and streams, then by the server


def page(results: Results, environment: Mapping[str, str]) -> str:
    """Return the page. A request that failed is told under its table."""
    parts = [INTRODUCTION.format(**environment)]
    for name, path in APIS.items():
        parts += [f"## {path}\n"]
        for (api, level), servers in results.items():
            if api == name:
                parts += [f"### {level} {'stream' if level == 1 else 'streams at once'}\n", _table(servers)]
    return "\n".join([*parts, "## Where respsite is behind\n", _behind(results), CLOSING]).rstrip("\n")


def _table(servers: Mapping[str, Measured]) -> str:
    head = ("", *(column.title for column in COLUMNS))
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * len(COLUMNS)]
    for name, measured in servers.items():
        lines.append(f"| {' | '.join((name, *(_cell(column, measured, servers[OWN]) for column in COLUMNS)))} |")
    failed = {name: sum(row.errors for row in measured.figures) for name, measured in servers.items()}
    told = [f"Of the requests to {name}, {count} failed.\n" for name, count in failed.items() if count]
    return "\n".join([*lines, "", *told])


def _cell(column: Column, measured: Measured, own: Measured) -> str:
    value, known = column.value(measured), column.value(own)
    if value is None:
        return "-"
    ratio = f" ({value / known:.2f})" if known and measured is not own else ""
    return f"{short(value)}{column.unit}{ratio}"


def _behind(results: Results) -> str:
    found = list(_comparisons(results))
    if not found:
        return "Nowhere by more than 5 %.\n"
    return "By more than 5 %:\n\n" + "\n".join(f"- {each}" for each in found) + "\n"


def _comparisons(results: Results) -> Iterator[str]:
    for (api, level), servers in results.items():
        for ours, theirs in ((ours, theirs) for ours in servers for theirs in servers):
            if not ours.startswith(OURS) or theirs.startswith(OURS):
                continue
            worse = []
            for column in COLUMNS:
                value, other = column.value(servers[ours]), column.value(servers[theirs])
                if value and other and column.is_worse(value / other):
                    worse.append(f"{column.title} {short(value)}{column.unit} to {short(other)}{column.unit}")
            if worse:
                streams = "1 stream" if level == 1 else f"{level} streams"
                yield f"{APIS[api]}, {streams}, {ours} to {theirs}: {'; '.join(worse)}."
