"""The WebSocket's own frames: errors and the two that no SDK knows (every client tried ignores them).

Every other frame is an event, byte for byte as on SSE, with its lane's `stream_id` added.
"""

import orjson

from responses_app.protocol.errors import ApiError, JsonObject


def error_frame(error: ApiError, stream_id: str | None = None) -> str:
    """Return the frame of an error: `status` and nested `error`, without which Codex waits for its idle timeout.

    Headers stand at the top level, where Codex reads them, and inside `error`, where OpenAI's types have them.
    """
    body = error.body()
    frame: JsonObject = {"type": "error", "status": error.status, "error": body}
    if stream_id is not None:
        frame["stream_id"] = stream_id
    if error.headers:
        frame["headers"] = error.headers
        body["headers"] = error.headers
    return orjson.dumps(frame).decode()


def event_bytes(json: bytes, suffix: bytes | None) -> bytes:
    """Return an event's frame; `suffix` is what `lane_suffix` made of its lane."""
    return json if suffix is None else json[:-1] + suffix


def lane_suffix(stream_id: str | None) -> bytes | None:
    """Return what replaces an event's closing brace on this lane, None on the default lane."""
    return None if stream_id is None else b',"stream_id":%b}' % orjson.dumps(stream_id)


def ping(last_number: int, timestamp: float) -> bytes:
    """Return the heartbeat of a silent stream. It takes no number of its own; `timestamp` is in Unix seconds."""
    frame = {"type": "response.ping", "sequence_number": last_number, "timestamp": timestamp, "response": {}}
    return orjson.dumps(frame)


def connection_expiring(seconds_left: int, closes_at: int) -> str:
    """Return the warning before a connection's end. No error frame: those break running turns."""
    minutes = max(1, round(seconds_left / 60))
    frame = {
        "type": "connection_expiring",
        "message": f"Connection will close in {minutes} minute{'s' if minutes > 1 else ''}",
        "seconds_left": seconds_left,
        "closes_at": closes_at,
    }
    return orjson.dumps(frame).decode()


def steer_failed(frame: JsonObject) -> str:
    """Answer a `response.steer`: this server does not steer yet."""
    steer = {"previous_response_id": frame.get("previous_response_id"), "input": frame.get("input")}
    error = {
        "type": "invalid_request_error",
        "code": "steering_not_supported",
        "message": "This server cannot steer a running response yet. Wait for its terminal event and continue it.",
    }
    answer = {"type": "response.steer.failed", "sequence_number": 0, "error": error, "steer": steer}
    try:
        return orjson.dumps(answer).decode()
    except orjson.JSONEncodeError:  # nested deeper than orjson writes, which is less deep than it reads
        return orjson.dumps({**answer, "steer": {"previous_response_id": None, "input": None}}).decode()
