"""The WebSocket's own frames."""

import json

import pytest

from responses_app.protocol import connection_errors
from responses_app.protocol.errors import (
    ApiError,
    context_length_exceeded,
    invalid_request,
    model_not_found,
    overloaded,
    previous_response_in_progress,
    previous_response_not_found,
    rate_limited,
    server_error,
)
from responses_app.protocol.events import Event, EventType
from responses_app.protocol.frames import (
    connection_expiring,
    error_frame,
    event_bytes,
    lane_suffix,
    ping,
    steer_failed,
)


def test_an_error_frame() -> None:
    frame = json.loads(error_frame(previous_response_not_found("resp_1")))
    assert frame == {
        "type": "error",
        "status": 400,
        "error": {
            "type": "invalid_request_error",
            "code": "previous_response_not_found",
            "message": "Previous response with id 'resp_1' not found.",
            "param": "previous_response_id",
        },
    }


def test_an_error_frame_of_a_lane_with_headers_in_both_places() -> None:
    frame = json.loads(error_frame(rate_limited("Slow down.", retry_after=3), "a"))
    assert frame["stream_id"] == "a"
    assert frame["headers"] == frame["error"]["headers"] == {"retry-after": "3"}


TABLE = [
    (connection_errors.not_json("not an object"), "invalid_json", 400, "invalid_request_error"),
    (connection_errors.unknown_event_type("x", ["y"]), "unknown_event_type", 400, "invalid_request_error"),
    (connection_errors.invalid_lane(), "invalid_stream_id", 400, "invalid_request_error"),
    (connection_errors.too_many_lanes(32), "websocket_stream_limit_reached", 400, "invalid_request_error"),
    (previous_response_not_found("r"), "previous_response_not_found", 400, "invalid_request_error"),
    (previous_response_in_progress("r"), "previous_response_in_progress", 400, "invalid_request_error"),
    (context_length_exceeded(9, 8), "context_length_exceeded", 400, "invalid_request_error"),
    (invalid_request("No.", code="invalid_value"), "invalid_value", 400, "invalid_request_error"),
    (model_not_found("m", ["n"]), "model_not_found", 404, "not_found_error"),
    (connection_errors.concurrent_request(), "concurrent_request", 409, "invalid_request_error"),
    (connection_errors.message_too_large(2, 1), "message_too_large", 413, "invalid_request_error"),
    (connection_errors.connections_exhausted(), "websocket_connection_limit_reached", 429, "rate_limit_error"),
    (connection_errors.lifetime_over(3600), "websocket_connection_limit_reached", 400, "invalid_request_error"),
    (connection_errors.queue_full(64), "rate_limit_exceeded", 429, "rate_limit_error"),
    (server_error("req_1", code="processing_error"), "processing_error", 500, "server_error"),
    (overloaded("Loading.", retry_after=5), "server_is_overloaded", 503, "server_error"),
]


@pytest.mark.parametrize(("error", "code", "status", "type"), TABLE, ids=[row[1] for row in TABLE])
def test_the_table_of_errors(error: ApiError, code: str, status: int, type: str) -> None:
    frame = json.loads(error_frame(error))
    assert (frame["error"]["code"], frame["status"], frame["error"]["type"]) == (code, status, type)
    assert ("headers" in frame) == (status in (429, 503)), "without retry-after Codex gives up at once"


def test_a_wait_is_at_least_a_second() -> None:
    assert rate_limited("No.", retry_after=0).headers == {"retry-after": "1"}


@pytest.mark.parametrize("lane", [None, "a", "A-z_0.9"])
def test_an_event_bytes_is_the_event_with_its_lane(lane: str | None) -> None:
    event = Event(EventType.TEXT_DELTA, 7, {"delta": 'é "}'})
    frame = json.loads(event_bytes(event.as_json(), lane_suffix(lane)))
    assert frame == {**json.loads(event.as_json()), **({} if lane is None else {"stream_id": lane})}


def test_a_ping_takes_no_number_of_its_own() -> None:
    assert json.loads(ping(4, 1.5)) == {
        "type": "response.ping",
        "sequence_number": 4,
        "timestamp": 1.5,
        "response": {},
    }


@pytest.mark.parametrize(
    ("seconds", "said"), [(300, "5 minutes"), (60, "1 minute"), (1, "1 minute"), (90, "2 minutes")]
)
def test_the_warning(seconds: int, said: str) -> None:
    frame = json.loads(connection_expiring(seconds, 1_700_000_000))
    assert frame["message"] == f"Connection will close in {said}"
    assert (frame["type"], frame["seconds_left"], frame["closes_at"]) == ("connection_expiring", seconds, 1_700_000_000)


def test_steering_fails_with_what_was_sent() -> None:
    frame = json.loads(steer_failed({"type": "response.steer", "input": [{"role": "user", "content": "x"}]}))
    assert frame["steer"] == {"previous_response_id": None, "input": [{"role": "user", "content": "x"}]}
    assert "id" not in frame["steer"]
    assert frame["error"]["code"] == "steering_not_supported"
