"""TRACES=on: what a real collector is sent over OTLP, from a request down to the header that vLLM is sent."""

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from responses_app.observing import traces
from responses_app.observing.traces import NO_SPAN, Traces
from responses_app.web.servers.layers import name_of
from tests.kit.clients import Socket, http_client
from tests.kit.collector import Collector, told
from tests.kit.gen_ai_conventions import problems
from tests.kit.inprocess import Server
from tests.kit.waiting import eventually

OURS = "0af7651916cd43dd8448eb211c80319c"  # a trace, and two spans of clients
POSTED, OPENED = "b7ad6b7169203331", "00f067aa0ba902b7"
SECRET = "the hidden word is xylophone"


async def test_a_trace_goes_from_the_client_through_the_response_to_its_turns(
    tmp_path: Path, collector: Collector
) -> None:
    parent = {"traceparent": f"00-{OURS}-{POSTED}-01"}
    with Server(tmp_path, traces="on") as server:
        async with http_client(server) as http:
            answer = await http.post("/responses?secret=xylophone", json={"input": SECRET}, headers=parent)
            response_id = answer.json()["id"]
            outside = await http.get("/models", headers={**parent, "via": "1.1 a-proxy"})
            assert outside.status_code == 401, "who comes from elsewhere needs a key"
            assert (await http.get(f"/responses/{response_id}x")).status_code == 404
        opened = {"traceparent": f"00-{OURS}-{OPENED}-01"}
        async with await Socket.open(server.ws_url, additional_headers=opened) as socket:
            second = await socket.ask(SECRET)
        await eventually(lambda: len(collector.spans()) >= 7)
        await asyncio.to_thread(server.stop)
    assert collector.services() == {"respsite"}
    assert not any(b"xylophone" in body for body in collector.bodies), "contents stay here"

    spans = {span.span_id.hex(): span for span in collector.spans()}
    for span in spans.values():
        assert problems(span.name, span.kind, span.status.code, told(span)) == []
    by_name: dict[str, list[Any]] = {}
    for span in spans.values():
        by_name.setdefault(span.name, []).append(span)
    assert {name: len(found) for name, found in by_name.items()} == {
        "POST /v1/responses": 1,
        "GET /v1/responses/{id}": 1,
        "GET /v1/models": 1,
        "chat demo": 2,
        "turn": 2,
    }
    (posted,) = by_name["POST /v1/responses"]
    assert posted.kind == posted.SPAN_KIND_SERVER
    assert (posted.trace_id.hex(), posted.parent_span_id.hex()) == (OURS, POSTED)
    assert told(posted)["http.response.status_code"] == 200
    (read,) = by_name["GET /v1/responses/{id}"]
    assert read.trace_id.hex() != OURS
    assert told(read)["http.response.status_code"] == 404
    (refused,) = by_name["GET /v1/models"]
    assert refused.trace_id.hex() != OURS, "who has no key says nothing about what is kept"
    responses = {told(span)["gen_ai.response.id"]: span for span in by_name["chat demo"]}
    assert responses[response_id].parent_span_id == posted.span_id
    assert responses[second["id"]].parent_span_id.hex() == OPENED
    assert {told(span)["respsite.transport"] for span in responses.values()} == {"json", "websocket"}
    for span in responses.values():
        assert span.trace_id.hex() == OURS
        assert told(span)["gen_ai.response.model"] == "demo"
        assert told(span)["gen_ai.response.finish_reasons"] == ["stop"]
        assert told(span)["respsite.project"] == "default"
        assert told(span)["respsite.status"] == "completed"
        assert int(str(told(span)["gen_ai.usage.output_tokens"])) > 0
    assert {turn.parent_span_id for turn in by_name["turn"]} == {span.span_id for span in responses.values()}
    assert {turn.kind for turn in by_name["turn"]} == {turn.SPAN_KIND_CLIENT for turn in by_name["turn"]}, "of engines"


async def test_a_vllm_server_is_told_which_span_it_works_for(tmp_path: Path, collector: Collector) -> None:
    """What the front end sends, a second server receives: its requests are vLLM's own."""
    seen: list[str] = []

    class Engine(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            seen.append(self.headers["traceparent"] or "")
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    from engine.backends.client import ServerClient, Timeouts, open_session
    from engine.backends.vllm.wire import GENERATE, TokenStream
    from engine.errors import EngineUnavailable

    spans = Traces(enabled=True)
    spans.start()
    with ThreadingHTTPServer(("127.0.0.1", 0), Engine) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        async with open_session("") as session:
            client = ServerClient(url, session=session, timeouts=Timeouts(connect=5, silence=5, look=5))
            with spans.under(f"00-{OURS}-{POSTED}-01").child("turn", calls=True) as span:
                stream = client.stream("/generate", b"{}", TokenStream(GENERATE, max_tokens=1), headers=span.headers)
                with pytest.raises(EngineUnavailable):  # it answers nothing
                    await anext(stream)
        server.shutdown()
    await spans.aclose()
    (sent,) = collector.spans()
    assert seen == [f"00-{OURS}-{sent.span_id.hex()}-01"]


def test_without_it_nothing_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    off = Traces(enabled=False)
    off.start()
    assert off.under(f"00-{OURS}-{POSTED}-01") is NO_SPAN
    assert NO_SPAN.child("response", {"a": 1}) is NO_SPAN
    assert NO_SPAN.headers == {}
    assert find_spec("opentelemetry.sdk") is not None
    monkeypatch.setattr(traces, "find_spec", lambda _: None)
    assert not traces.can_be_exported()


@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        ("POST", "/v1/responses", "POST /v1/responses"),
        ("POST", "/v1/responses/", "POST /v1/responses"),
        ("GET", "/v1/responses/resp_1", "GET /v1/responses/{id}"),
        ("GET", "/v1/responses/whatever-comes", "GET /v1/responses/{id}"),
        ("DELETE", "/v1/conversations/conv_1/items/msg_1", "DELETE /v1/conversations/{id}/items/{id}"),
        ("GET", "/v1/models/org/name", "GET /v1/models/{id}"),
        ("GET", "/v1/wp-login.php", "GET"),
        ("BREW", "/v1/models", "HTTP /v1/models"),
    ],
)
def test_spans_have_few_names_whatever_is_asked_for(method: str, path: str, name: str) -> None:
    assert name_of(method, path) == name
