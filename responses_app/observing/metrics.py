"""`Metrics`: every number that a worker counts, by its name in Prometheus, and the few ways in which it is counted.

Labels are bounded: models that are served, transports, codes of errors; never an id, a key or a project. A response is
counted once, when it ends. Only the gap between two tokens is measured as they come, by a `TurnMeter`.

Counters, gauges and histograms are plain Python numbers: what counts holds a cell, and adds to it. No lock and no file:
a cell belongs to the event loop's thread. So an addition costs a tenth of a microsecond, and nothing else. `dump` and
`add` are the way from one worker to another, and into the folder that they share.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from responses_app.observing.gen_ai import CHAT, PROVIDER
from responses_app.protocol.errors import ApiError

Labels = tuple[str, ...]

MAX_SERIES = 1000  # of one number; labels beyond it are counted as `other`
OTHER = "other"


class Cell:
    """One number."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def dump(self) -> object:
        """Return it as JSON has it."""
        return self.value

    def add(self, dumped: Any) -> None:
        """Add what another one has dumped. Raises `TypeError` or `ValueError` for what is not of its kind."""
        self.value += float(dumped)


class Timings:
    """Seconds, counted by how long they were: one count for each bound, and one for what was longer."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        # Of each bound those that are not longer, and longer than the bound before
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0  # seconds

    def note(self, seconds: float) -> None:
        """Count a time."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    def dump(self) -> object:
        """Return it as JSON has it."""
        return [self.counts, self.total]

    def add(self, dumped: Any) -> None:
        """Add what another one has dumped. Raises `TypeError` or `ValueError` for what is not of its kind."""
        counts, total = dumped
        self.counts = [mine + int(theirs) for mine, theirs in zip(self.counts, counts, strict=True)]
        self.total += float(total)


class Numbers:
    """A number with a name, once for each of its labels' values; the values come from a bounded set."""

    kind: ClassVar[str]

    def __init__(self, name: str, about: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self.about = about
        self.labels = tuple(labels)
        self.cells: dict[Labels, Any] = {}

    def at(self, *values: str) -> Any:
        """Return the cell of these labels' values."""
        cell = self.cells.get(values)
        if cell is None:
            if len(values) != len(self.labels):
                raise ValueError(f"{self.name} has the labels {self.labels}")
            # Whatever somebody manages to put into a label, memory and scrapes stay bounded.
            if len(self.cells) >= MAX_SERIES:
                values = (OTHER,) * len(values)
            cell = self.cells.get(values) or self._new()
            self.cells[values] = cell
        return cell

    def _new(self) -> Any:
        return Cell()

    def dump(self) -> list[tuple[Labels, object]]:
        """Return all cells as JSON has them."""
        return [(values, cell.dump()) for values, cell in self.cells.items()]

    def add(self, dumped: Iterable[tuple[Iterable[str], object]]) -> None:
        """Add what another worker has counted. Raises `TypeError` or `ValueError` for what has another form."""
        for values, cell in dumped:
            self.at(*values).add(cell)


class Counter(Numbers):
    """Only grows; its name in Prometheus ends in `_total`."""

    kind = "counter"

    def count(self, *values: str, by: float = 1) -> None:
        """Add to it."""
        (self.cells.get(values) or self.at(*values)).value += by


class Gauge(Numbers):
    """Goes up and down: how many there are now. That of all workers is their sum."""

    kind = "gauge"

    def set(self, value: float, *values: str) -> None:
        """Say how many there are."""
        self.at(*values).value = value


class Histogram(Numbers):
    """How long something takes, in seconds, up to each of its bounds."""

    kind = "histogram"

    def __init__(self, name: str, about: str, bounds: Sequence[float], labels: Sequence[str] = ()) -> None:
        super().__init__(name, about, labels)
        self.bounds = tuple(bounds)

    def _new(self) -> Timings:
        return Timings(self.bounds)

    def note(self, seconds: float, *values: str) -> None:
        """Count a time."""
        self.at(*values).note(seconds)


# Bounds of histograms, in seconds. The last three are those that OpenTelemetry's conventions give.
FIRST_TOKEN = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
GAP = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
DURATION = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
SERVER_DURATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
SERVER_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
SERVER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
LAG = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
REFUSED = (401, 403)  # statuses of answers to those who are not let in
TRANSPORTS = ("json", "sse", "websocket", "background", "chat", "messages", "batch")
STATUSES = ("completed", "incomplete", "failed", "cancelled")
SUCCESSFUL = ("completed", "incomplete")
F = TypeVar("F", bound=Numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """How long a response took, in milliseconds."""

    first_token_ms: int | None  # None where nothing was said
    duration_ms: int  # from the beginning of its run to its end


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a response, a completion or decisions ended."""

    transport: str  # one of TRANSPORTS
    status: str  # one of STATUSES
    duration: float  # seconds
    input_tokens: int
    cached_tokens: int  # of the input tokens, those from the prefix cache
    output_tokens: int
    operation: str = CHAT  # as OpenTelemetry's conventions call it
    error: str | None = None  # its code
    first_token: float | None = None  # seconds; None where nothing was said
    # The rest is of responses alone.
    reasoning_tokens: int = 0
    calls: Iterable[str] = ()  # types of the items that are calls
    repairs: int = 0  # malformed items that were read all the same
    unknown_tools: int = 0  # calls of tools that are not there
    misfits: int = 0  # calls whose arguments their item cannot hold
    journal_bytes: int = 0


class TurnMeter:
    """Measures the tokens of one generation as they come; those that come at once have no gap."""

    __slots__ = ("_clock", "_gaps", "_last", "_tokens")

    def __init__(self, model: "ModelMeter", clock: Callable[[], float]) -> None:
        self._gaps, self._tokens = model.gaps, model.output
        self._clock = clock
        self._last = 0.0

    def note(self, tokens: int) -> None:
        """Count tokens that came now."""
        now = self._clock()
        # 0 before the first tokens, which end no gap.
        if self._last:
            self._gaps.note(now - self._last)
        self._last = now
        self._tokens.value += tokens


class ModelMeter:
    """Counts the responses of one model."""

    def __init__(self, metrics: "Metrics", model: str) -> None:
        self._metrics = metrics
        self._model = model
        self.gaps = metrics.token_gaps.at(model)
        self.output = metrics.output_tokens.at(model)
        metrics.turns_continued.at(model)
        for how in ("used", "unused", "failed"):
            metrics.early_calls.at(model, how)
        for transport in TRANSPORTS:
            for status in STATUSES:  # from 0 on: Prometheus sees no growth in a series that begins
                metrics.responses.at(model, transport, status)

    def turn(self) -> TurnMeter | None:
        """Return what measures a generation; None where nobody wants to know."""
        return TurnMeter(self, time.perf_counter) if self._metrics.enabled else None

    def continued(self) -> None:
        """Count a turn that was cut and goes on: on another replica of the engine, mostly."""
        self._metrics.turns_continued.count(self._model)

    def early(self, how: str) -> None:
        """Count a call of a tool that was begun early, by what became of it."""
        self._metrics.early_calls.count(self._model, how)

    def waited(self, tier: str, seconds: float) -> None:
        """Count a turn that was waited for."""
        self._metrics.engine_waits.note(seconds, self._model, tier)

    def ended(self, outcome: Outcome) -> None:
        """Count a response that has ended here."""
        metrics, model = self._metrics, self._model
        metrics.responses.count(model, outcome.transport, outcome.status)
        metrics.durations.note(outcome.duration, model, outcome.transport)
        if outcome.first_token is not None:
            metrics.first_tokens.note(outcome.first_token, model, outcome.transport)
        if outcome.error is not None:
            metrics.errors.count("response", outcome.error)
        if metrics.enabled:
            error = "" if outcome.status != "failed" else outcome.error or OTHER
            metrics.gen_ai.ended(outcome.operation, model, outcome.duration, error=error)
            if outcome.status in SUCCESSFUL and outcome.first_token is not None:
                metrics.gen_ai.said(outcome, model, outcome.first_token)
        metrics.input_tokens.count(model, by=outcome.input_tokens)
        metrics.cached_tokens.count(model, by=outcome.cached_tokens)
        metrics.reasoning_tokens.count(model, by=outcome.reasoning_tokens)
        for kind in outcome.calls:
            metrics.tool_calls.count(model, kind)
        metrics.repairs.count(model, by=outcome.repairs)
        metrics.unknown_tools.count(model, by=outcome.unknown_tools)
        metrics.misfits.count(model, by=outcome.misfits)
        metrics.journal_bytes.count(by=outcome.journal_bytes)


class GenAiMeter:
    """What OpenTelemetry's conventions count of a server, under their names, as Prometheus writes these."""

    def __init__(self, metrics: "Metrics") -> None:
        labels = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")
        self.durations = metrics.histogram(
            "gen_ai_server_request_duration_seconds",
            "Duration of requests to models, by OpenTelemetry's conventions.",
            SERVER_DURATION,
            *labels,
            "error_type",
        )
        self.first_tokens = metrics.histogram(
            "gen_ai_server_time_to_first_token_seconds",
            "Time to first token of successful responses, by OpenTelemetry's conventions.",
            SERVER_FIRST_TOKEN,
            *labels,
        )
        self.tokens = metrics.histogram(
            "gen_ai_server_time_per_output_token_seconds",
            "Time per output token after the first one, the mean of each successful response, by OpenTelemetry's "
            "conventions.",
            SERVER_TOKEN,
            *labels,
        )

    def ended(self, operation: str, model: str, seconds: float, *, error: str) -> None:
        """Count a request; `error` is its code, "" for none."""
        self.durations.note(seconds, operation, PROVIDER, model, error)

    def said(self, outcome: Outcome, model: str, first_token: float) -> None:
        """Count how fast a successful response was said."""
        self.first_tokens.note(first_token, outcome.operation, PROVIDER, model)
        if outcome.output_tokens > 1:
            seconds = max(0.0, outcome.duration - first_token) / (outcome.output_tokens - 1)
            self.tokens.note(seconds, outcome.operation, PROVIDER, model)


class Metrics:
    """All numbers of one process; another object adds up those of several. `enabled`: whether anybody wants to know."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self._families: dict[str, Numbers] = {}
        self._declare_responses()
        self.gen_ai = GenAiMeter(self)
        self._declare_embeddings()
        self._declare_server()
        # Begun with 0, as in `ModelMeter`.
        for what in ("query", "chunks"):
            self.search_embedding_failures.at(what)
        for how in ("continued", "failed"):
            self.takeovers.at(how)
        for code in ("invalid_api_key", "missing_scope"):
            self.auth_failures.at(code)

    def _declare_responses(self) -> None:
        model, way = ("model",), ("model", "transport")
        self.responses = self._counter("responses", "Responses that have ended, by status.", *way, "status")
        self.durations = self._histogram("response_seconds", "Duration of responses.", DURATION, *way)
        self.first_tokens = self._histogram(
            "first_token_seconds", "Time to first token of responses.", FIRST_TOKEN, *way
        )
        self.engine_waits = self._histogram(
            "engine_wait_seconds",
            "How long turns waited for the engine, of those that had to wait.",
            FIRST_TOKEN,
            "model",
            "tier",
        )
        self.token_gaps = self._histogram(
            "token_gap_seconds",
            "Time between tokens of a response; tokens that arrive together have no gap.",
            GAP,
            *model,
        )
        self.input_tokens = self._counter("input_tokens", "Prompt tokens, of responses that have ended.", *model)
        self.cached_tokens = self._counter("cached_tokens", "Prompt tokens that were in the prefix cache.", *model)
        self.output_tokens = self._counter("output_tokens", "Generated tokens, counted as they arrive.", *model)
        self.reasoning_tokens = self._counter("reasoning_tokens", "Generated tokens of reasoning.", *model)
        self.tool_calls = self._counter("tool_calls", "Tool calls, by the type of their item.", *model, "type")
        self.early_calls = self._counter(
            "early_tool_calls",
            "Calls of tools that were begun before they were asked for: used, unused, or failed and made again.",
            *model,
            "how",
        )
        self.repairs = self._counter(
            "parse_repairs", "Malformed items of a model's output that could be read all the same.", *model
        )
        self.unknown_tools = self._counter("unknown_tool_calls", "Calls of server tools that do not exist.", *model)
        self.misfits = self._counter("misfit_calls", "Tool calls whose arguments do not fit their item.", *model)
        self.journal_bytes = self._counter(
            "journal_bytes", "Bytes of the events of responses, as they are kept in memory."
        )
        self.turns_continued = self._counter(
            "turns_continued", "Turns that continued after their engine failed.", *model
        )
        self.takeovers = self._counter(
            "takeovers", "Responses of dead workers that this worker took over, by result.", "how"
        )
        self.usage_lost = self._counter("usage_lost", "Requests whose usage could not be kept in the database.")

    def _declare_embeddings(self) -> None:
        model = ("model",)
        self.embeddings = self._counter("embeddings", "Requests for embeddings that have ended.", *model, "status")
        self.embedding_seconds = self._histogram(
            "embedding_seconds", "Duration of requests for embeddings.", FIRST_TOKEN, *model
        )
        self.embedded_inputs = self._counter("embedded_inputs", "Inputs that were embedded.", *model)
        self.embedded_tokens = self._counter("embedded_tokens", "Tokens that were embedded.", *model)
        self.search_embedding_failures = self._counter(
            "file_search_embedding_failures",
            "Failures of the embedding model of file search, by what it was for.",
            "what",
        )

    def _declare_server(self) -> None:
        self.errors = self._counter(
            "errors",
            "Errors by code: HTTP answers, WebSocket frames, failed responses.",
            "where",
            "code",
        )
        self.auth_failures = self._counter(
            "auth_failures",
            "Requests refused for a missing or wrong API key (401), or for a missing scope (403).",
            "code",
        )
        self.answers = self._counter("http_answers", "Answers of the API over HTTP.", "status")
        self.lag = self._histogram("loop_lag_seconds", "Lag of the event loop.", LAG)
        self.cpu_seconds = self._counter("cpu_seconds", "CPU time of the workers.")
        self.memory = self._gauge("memory_bytes", "Memory that the workers hold.")
        self.workers = self._gauge("workers", "Workers that are running.")
        self.reaching = self._gauge("workers_reaching", "Workers that can reach a service.", "service")
        self.reaching_model = self._gauge(
            "workers_reaching_model", "Workers that can reach the engine of a model.", "model"
        )
        self.connections = self._gauge("websocket_connections", "Open WebSockets.")
        self.lanes = self._gauge("websocket_lanes", "Lanes of WebSockets with a running response.")
        self.waiting_creates = self._gauge("websocket_creates_waiting", "Requests that wait on their WebSocket.")
        self.in_flight = self._gauge("responses_in_flight", "Responses that are running or waiting.", "transport")
        self.background_waiting = self._gauge("background_waiting", "Background responses that are waiting.")
        self.engine_waiting = self._gauge("engine_waiting", "Turns that are waiting for the engine.", "model", "tier")
        self.replicas = self._gauge(
            "engine_replicas",
            "vLLM servers by state: serving, away or leaving; the sum of what each worker sees.",
            "model",
            "state",
        )
        self.streams_kept = self._gauge("streams_kept", "Streams in memory that can be resumed.")
        self.streams_kept_bytes = self._gauge("streams_kept_bytes", "Memory of the streams that can be resumed.")
        self.unsaved = self._gauge("unsaved_ends", "Finished responses that are not yet written to the database.")

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return self._known(Counter(f"respsite_{name}", about, labels))

    def _gauge(self, name: str, about: str, *labels: str) -> Gauge:
        return self._known(Gauge(f"respsite_{name}", about, labels))

    def _histogram(self, name: str, about: str, bounds: tuple[float, ...], *labels: str) -> Histogram:
        return self.histogram(f"respsite_{name}", about, bounds, *labels)

    def histogram(self, name: str, about: str, bounds: tuple[float, ...], *labels: str) -> Histogram:
        """Declare a histogram."""
        return self._known(Histogram(name, about, bounds, labels))

    def _known(self, family: F) -> F:
        self._families[family.name] = family
        return family

    @property
    def families(self) -> Iterable[Numbers]:
        """All numbers."""
        return self._families.values()

    def model(self, name: str) -> ModelMeter:
        """Return what counts the responses of a model."""
        return ModelMeter(self, name)

    def error(self, where: str, status: int | None, code: str) -> None:
        """Count an error that a client was told."""
        self.errors.count(where, code)
        if status in REFUSED:
            self.auth_failures.count(code)

    def turned_away(self, error: ApiError) -> None:
        """Count an answer over HTTP that is an error, of a request that the API did not see."""
        self.error("http", error.status, error.code or error.type)
        self.answers.count(str(error.status))

    def dump(self) -> dict[str, Any]:
        """Return everything as JSON has it."""
        return {name: family.dump() for name, family in self._families.items()}

    def add(self, dumped: Mapping[str, Any], *, gauges: bool) -> None:
        """Add what another worker has counted, and, with `gauges`, what there is with it now.

        What another version counts in another form is left out.
        """
        for name, cells in dumped.items():
            family = self._families.get(name)
            if family is None or (family.kind == "gauge" and not gauges):
                continue
            try:
                family.add(cells)
            # A rolling update: both versions run, and only what they share is added up.
            except (TypeError, ValueError):
                continue
