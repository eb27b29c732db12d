"""The WebSocket's own frames."""

import json

import pytest
from openai.types.responses import ResponseSteerAcceptedEvent, ResponseSteerFailedEvent, ResponseSteerPendingEvent

from responses_app.protocol import transport
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
from responses_app.protocol.events.events import (
    Event,
    EventType,
    connection_expiring,
    error_frame,
    event_bytes,
    interrupt_accepted,
    lane_suffix,
    ping,
    reply_frame,
    steer_accepted,
    steer_failed,
    steer_pending,
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
    (transport.not_json("not an object"), "invalid_json", 400, "invalid_request_error"),
    (transport.unknown_event_type("x", ["y"]), "unknown_event_type", 400, "invalid_request_error"),
    (transport.invalid_lane(), "invalid_stream_id", 400, "invalid_request_error"),
    (transport.too_many_lanes(32), "websocket_stream_limit_reached", 400, "invalid_request_error"),
    (previous_response_not_found("r"), "previous_response_not_found", 400, "invalid_request_error"),
    (previous_response_in_progress("r"), "previous_response_in_progress", 400, "invalid_request_error"),
    (context_length_exceeded(9, 8), "context_length_exceeded", 400, "invalid_request_error"),
    (invalid_request("No.", code="invalid_value"), "invalid_value", 400, "invalid_request_error"),
    (model_not_found("m", ["n"]), "model_not_found", 404, "invalid_request_error"),
    (transport.concurrent_request(), "concurrent_request", 409, "invalid_request_error"),
    (transport.message_too_large(2, 1), "message_too_large", 413, "invalid_request_error"),
    (transport.connections_exhausted(), "websocket_connection_limit_reached", 429, "rate_limit_error"),
    (transport.lifetime_over(3600), "websocket_connection_limit_reached", 400, "invalid_request_error"),
    (transport.queue_full(64), "rate_limit_exceeded", 429, "rate_limit_error"),
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
    ("seconds", "said"),
    [
        (300, "5 minutes"),
        (120, "2 minutes"),
        (90, "90 seconds"),
        (60, "1 minute"),
        (3, "3 seconds"),
        (1, "1 second"),
    ],
)
def test_the_warning(seconds: int, said: str) -> None:
    frame = json.loads(connection_expiring(seconds, 1_700_000_000))
    assert frame["message"] == f"Connection will close in {said}"
    assert (frame["type"], frame["seconds_left"], frame["closes_at"]) == ("connection_expiring", seconds, 1_700_000_000)


STEER_FRAMES = {
    "response.steer.accepted": (steer_accepted("steer_1", "resp_1"), ResponseSteerAcceptedEvent),
    "response.steer.pending": (
        steer_pending("steer_1", "resp_1", [{"type": "function_call_output", "call_id": "call_1", "name": "f"}]),
        ResponseSteerPendingEvent,
    ),
    "response.steer.failed": (
        steer_failed(
            "invalid_input", "No.", "resp_1", [{"role": "user", "content": "x", "type": "message"}], "steer_1"
        ),
        ResponseSteerFailedEvent,
    ),
}


@pytest.mark.parametrize("kind", STEER_FRAMES)
def test_answers_to_steering_are_what_the_sdk_reads(kind: str) -> None:
    reply, event = STEER_FRAMES[kind]
    frame = json.loads(reply_frame(reply, 7, "a"))
    read = event.model_validate(frame, strict=True)
    assert (read.type, read.sequence_number, read.stream_id) == (kind, 7, "a")
    assert read.steer.id == "steer_1"
    assert json.loads(read.model_dump_json(exclude_unset=True)) == frame, "nothing that the SDK does not know"


def test_a_number_is_that_of_the_last_event_and_never_below_0() -> None:
    assert json.loads(reply_frame(interrupt_accepted("resp_1"), -1)) == {
        "type": "response.interrupt.accepted",
        "sequence_number": 0,
        "response_id": "resp_1",
    }


@pytest.mark.parametrize(("response_id", "given"), [(None, None), (7, {"a": 1}), ("resp_1", "x")])
def test_what_was_sent_comes_back_with_a_refusal(response_id: object, given: object) -> None:
    steer = steer_failed("invalid_input", "No.", response_id, given)["steer"]
    assert steer == {
        "previous_response_id": response_id if isinstance(response_id, str) else "",
        "input": "" if given is None else given,
    }
