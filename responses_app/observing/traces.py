"""Traces: what was done for whom, as spans that OpenTelemetry exports. Off, they cost a call that does nothing.

A span makes its children, so whoever has one needs nothing else: the request's goes with the request's `Origin` into
the run, which makes those of its turns and tool calls. `NO_SPAN` makes itself. With TRACES=on the spans are real ones,
and only then OpenTelemetry is imported. Where they go, how many are kept and what the service is called, its own
environment variables say (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_TRACES_SAMPLER`, `OTEL_SERVICE_NAME`, …).

Names and attributes are OpenTelemetry's for HTTP and for generative AI (`gen_ai`), where it has any. None is ever a
content, but for projects that TRACES_CONTENT names. With TRACES_CONTENT_IN=events contents stand in events, which are
exported as logs are (`/v1/logs`), and never in spans.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Container, Mapping, Sequence
from importlib.util import find_spec
from types import TracebackType
from typing import Any

logger = logging.getLogger("respsite")

SERVICE = "respsite"  # unless OTEL_SERVICE_NAME says otherwise
LAST_SPANS_SECONDS = 3.0  # how long a stop waits for those that are not exported yet, and for events
TRACEPARENT = "traceparent"  # https://www.w3.org/TR/trace-context/
SPAN = "respsite.span"  # the key of a request's span in its ASGI scope
Value = str | bool | int | float | Sequence[str]
ALL = "*"  # in TRACES_CONTENT: every project


def can_be_exported() -> bool:
    """Whether OpenTelemetry's SDK and its exporter are installed; neither is loaded."""
    try:
        return all(map(find_spec, ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")))
    except ModuleNotFoundError:  # not even the packages that they are in
        return False


class Span:
    """A span that does nothing; its subclass is real. It ends with its `with`; an exception's type is its error."""

    def child(
        self, name: str, attributes: Mapping[str, Value] | None = None, *, calls: bool = False, answers: bool = False
    ) -> "Span":
        """Begin a span below this one. `calls`: somebody else does the work; `answers`: it is a request of theirs."""
        return self

    def note(self, attributes: Mapping[str, Value]) -> None:
        """Add attributes."""

    def fail(self, error: str) -> None:
        """It has failed; `error` is a code, never a text that may show a content."""

    @property
    def headers(self) -> Mapping[str, str]:
        """What whoever is called here is to be sent, so that its spans come below this one."""
        return {}

    def shows(self, project: str) -> bool:
        """Whether spans may have contents of this project, as far as TRACES_CONTENT says."""
        return False

    def tells(self, project: str) -> bool:
        """Whether `event` takes contents of this project; never where spans have them."""
        return False

    def event(self, name: str, attributes: Mapping[str, Any]) -> None:
        """Send an event that happened in this span; also where the span itself is not sampled."""

    def end(self) -> None:
        """It is over."""

    def __enter__(self) -> "Span":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A client that leaves is not an error, nor is a generator that is closed when its reader has all.
        if kind is not None and kind not in (asyncio.CancelledError, GeneratorExit):
            self.fail(kind.__name__)
        self.end()


NO_SPAN = Span()


class Traces:
    """Begins spans that no span of ours is above. `enabled`: with TRACES=on; else all of them are `NO_SPAN`.

    `content`: the names of projects whose contents are sent, or `ALL`; `content_in`: in `spans` or in `events`.
    """

    def __init__(self, *, enabled: bool, content: Container[str] = (), content_in: str = "spans") -> None:
        self.enabled = enabled
        self._content = content
        self._content_in = content_in
        self._providers: list[Any] = []  # of spans, and of events
        self._maker: _Maker | None = None

    def start(self) -> None:
        """Begin to export."""
        if not self.enabled:
            return
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        service = Resource.create()
        # The SDK's own name where the environment gives none: "unknown_service:python".
        if str(service.attributes["service.name"]).startswith("unknown_service"):
            service = service.merge(Resource({"service.name": SERVICE}))
        provider = TracerProvider(resource=service)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._providers.append(provider)
        events = None
        if self._content_in == "events":
            logs = _logs_of(service)
            self._providers.append(logs)
            events = logs.get_logger(SERVICE)
        self._maker = _Maker(provider.get_tracer(SERVICE), events, self._content)

    async def aclose(self) -> None:
        """Export what is left, for `LAST_SPANS_SECONDS` at most."""
        providers, self._providers, self._maker = self._providers, [], None
        if not providers:
            return
        done, loop = asyncio.Event(), asyncio.get_running_loop()

        def shut_down() -> None:
            for provider in providers:
                provider.shutdown()
            loop.call_soon_threadsafe(done.set)

        # A thread that nobody waits for: one that exports to nowhere tries for longer than a stop may take.
        threading.Thread(target=shut_down, name="last spans", daemon=True).start()
        try:
            await asyncio.wait_for(done.wait(), LAST_SPANS_SECONDS)
        except TimeoutError:
            logger.warning("the last spans could not be exported within %g s", LAST_SPANS_SECONDS)

    def under(self, traceparent: str | None) -> Span:
        """Return what stands for a caller's span, by its header; without one its children begin traces of their own."""
        if self._maker is None:
            return NO_SPAN
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        context = TraceContextTextMapPropagator().extract({TRACEPARENT: traceparent} if traceparent else {})
        return _Caller(self._maker, context)


def _logs_of(service: Any) -> Any:
    """Return what exports events, which OpenTelemetry has as logs with a name."""
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

    provider = LoggerProvider(resource=service)
    provider.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
    return provider


class _Maker:
    """Begins real spans, and sends events where there is a logger for them."""

    def __init__(self, tracer: Any, events: Any, content: Container[str]) -> None:
        self._tracer = tracer
        self._events = events
        self._content = content

    def span(
        self, name: str, context: Any, attributes: Mapping[str, Value] | None, *, calls: bool, answers: bool
    ) -> "_RealSpan":
        """Begin a span, as `Span.child` does."""
        from opentelemetry.trace import SpanKind

        kind = SpanKind.CLIENT if calls else SpanKind.SERVER if answers else SpanKind.INTERNAL
        return _RealSpan(self, self._tracer.start_span(name, context, kind, attributes))

    def shows(self, project: str) -> bool:
        """Whether contents of a project may stand in spans."""
        return self._events is None and self._may_show(project)

    def tells(self, project: str) -> bool:
        """Whether contents of a project may stand in events."""
        return self._events is not None and self._may_show(project)

    def _may_show(self, project: str) -> bool:
        return ALL in self._content or project in self._content

    def event(self, name: str, attributes: Mapping[str, Any], span: Any) -> None:
        """Send an event that happened in a span."""
        if self._events is None:
            return
        from opentelemetry._logs import SeverityNumber
        from opentelemetry.trace import set_span_in_context

        self._events.emit(
            timestamp=time.time_ns(),
            context=set_span_in_context(span),
            severity_number=SeverityNumber.DEBUG,
            severity_text="DEBUG",
            event_name=name,
            attributes=dict(attributes),
        )


class _Caller(Span):
    """A span of somebody else, or none."""

    def __init__(self, maker: _Maker, context: Any) -> None:
        self._maker = maker
        self._context = context

    def child(
        self, name: str, attributes: Mapping[str, Value] | None = None, *, calls: bool = False, answers: bool = False
    ) -> Span:
        return self._maker.span(name, self._context, attributes, calls=calls, answers=answers)

    def shows(self, project: str) -> bool:
        return self._maker.shows(project)

    def tells(self, project: str) -> bool:
        return self._maker.tells(project)


class _RealSpan(Span):
    """A span that is exported once it has ended."""

    def __init__(self, maker: _Maker, span: Any) -> None:
        self._maker = maker
        self._span = span

    def child(
        self, name: str, attributes: Mapping[str, Value] | None = None, *, calls: bool = False, answers: bool = False
    ) -> Span:
        from opentelemetry.trace import set_span_in_context

        context = set_span_in_context(self._span)
        return self._maker.span(name, context, attributes, calls=calls, answers=answers)

    def note(self, attributes: Mapping[str, Value]) -> None:
        """Add attributes."""
        self._span.set_attributes(attributes)

    def fail(self, error: str) -> None:
        """Mark it."""
        from opentelemetry.trace import StatusCode

        self._span.set_status(StatusCode.ERROR)
        self._span.set_attribute("error.type", error)

    @property
    def headers(self) -> Mapping[str, str]:
        """`traceparent`, and `tracestate` where the caller has sent one."""
        from opentelemetry.trace import set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier, set_span_in_context(self._span))
        return carrier

    def shows(self, project: str) -> bool:
        return self._maker.shows(project)

    def tells(self, project: str) -> bool:
        return self._maker.tells(project)

    def event(self, name: str, attributes: Mapping[str, Any]) -> None:
        self._maker.event(name, attributes, self._span)

    def end(self) -> None:
        """Hand it to the exporter."""
        self._span.end()
