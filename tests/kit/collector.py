"""A collector of OpenTelemetry: receives spans and events over OTLP (HTTP, protobuf), on a free loopback port."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Collector(ThreadingHTTPServer):
    """Receives spans and events as an OpenTelemetry collector does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[bytes] = []  # those that have spans
        self.logs: list[bytes] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def environ(self) -> dict[str, str]:
        """What a server has to know to send it its spans soon."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.server_port}",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_BLRP_SCHEDULE_DELAY": "100",
        }

    def spans(self) -> list[Any]:
        """Return those that came so far."""
        return [span for sent in self._sent() for scope in sent.scope_spans for span in scope.spans]

    def events(self) -> list[Any]:
        """Return the log records that came so far."""
        from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

        read = [ExportLogsServiceRequest.FromString(body) for body in list(self.logs)]
        scopes = (scope for request in read for resource in request.resource_logs for scope in resource.scope_logs)
        return [record for scope in scopes for record in scope.log_records]

    def services(self) -> set[str]:
        """Return what those who sent them are called."""
        given = (each for sent in self._sent() for each in sent.resource.attributes)
        return {each.value.string_value for each in given if each.key == "service.name"}

    def _sent(self) -> list[Any]:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        read = (ExportTraceServiceRequest.FromString(body) for body in list(self.bodies))
        return [sent for request in read for sent in request.resource_spans]


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        assert isinstance(self.server, Collector)
        {"/v1/traces": self.server.bodies, "/v1/logs": self.server.logs}[self.path].append(body)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def told(span: Any) -> dict[str, Any]:
    """Return the attributes of a span or an event, as values of Python's."""
    return {each.key: _plain(each.value) for each in span.attributes}


def _plain(value: Any) -> object:
    match value.WhichOneof("value"):
        case None:
            return None
        case "array_value":
            return [_plain(each) for each in value.array_value.values]
        case "kvlist_value":
            return {each.key: _plain(each.value) for each in value.kvlist_value.values}
        case kind:
            return getattr(value, kind)
