"""The WebSocket's own frames: errors, answers to steering, and two that no SDK knows (every client tried ignores them).

Every other frame is an event, byte for byte as on SSE, with its lane's `stream_id` added.
"""

from collections.abc import Mapping, Sequence

from engine import orjson
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.json_text import dumps

ERROR_HEAD = '{"type":"error",'  # of every frame of an error


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
        frame["error"] = {**body, "headers": error.headers}
    return dumps(frame).decode()


def event_bytes(json: bytes, suffix: bytes | None) -> bytes:
    """Return an event's frame; `suffix` is what `lane_suffix` made of its lane."""
    # The suffix replaces the closing brace: an event is serialised once for all its readers.
    return json if suffix is None else json[:-1] + suffix


def with_headers(frame: bytes, headers: Mapping[str, str]) -> bytes:
    """Return an event's frame with what HTTP would say in the head of the answer, where errors have theirs, too."""
    return b'%b,"headers":%b}' % (frame[:-1], dumps(headers))


def lane_suffix(stream_id: str | None) -> bytes | None:
    """Return what replaces an event's closing brace on this lane, None on the default lane."""
    return None if stream_id is None else b',"stream_id":%b}' % dumps(stream_id)


def ping(last_number: int, timestamp: float) -> bytes:
    """Return the heartbeat of a silent stream. It takes no number of its own; `timestamp` is in Unix seconds."""
    frame = {"type": "response.ping", "sequence_number": last_number, "timestamp": timestamp, "response": {}}
    return dumps(frame)


def connection_expiring(seconds_left: int, closes_at: int) -> str:
    """Return the warning before a connection's end. No error frame: those break running turns."""
    in_minutes = seconds_left == 60 or seconds_left >= 120  # nearer the end, minutes say too little
    number, unit = (round(seconds_left / 60), "minute") if in_minutes else (seconds_left, "second")
    frame = {
        "type": "connection_expiring",
        "message": f"Connection will close in {number} {unit}{'' if number == 1 else 's'}",
        "seconds_left": seconds_left,
        "closes_at": closes_at,
    }
    return dumps(frame).decode()


def reply_frame(reply: JsonObject, last_number: int, stream_id: str | None = None) -> str:
    """Return what answers a client's word on a response that runs: a frame of the connection, no event of the response.

    As with a heartbeat, its number is that of the last event that was sent: a stream that is picked up again has no gap
    where it was.
    """
    # There may be no event yet, and so no number: then it is 0.
    frame = {"type": reply["type"], "sequence_number": max(0, last_number), **reply}
    if stream_id is not None:
        frame["stream_id"] = stream_id
    try:
        return dumps(frame).decode()
    except orjson.JSONEncodeError:  # nested deeper than orjson writes, which is less deep than it reads
        return dumps({**frame, "steer": {"previous_response_id": "", "input": ""}}).decode()


def steer_accepted(steer_id: str, response_id: str) -> JsonObject:
    """Return the answer to steering that was taken: this server has the input now, and has not applied it yet."""
    return {"type": "response.steer.accepted", "steer": {"id": steer_id, "previous_response_id": response_id}}


def steer_pending(steer_id: str, response_id: str, required: Sequence[JsonObject]) -> JsonObject:
    """Return what is said of steering whose response has ended, and waits for what its client has to give."""
    return {
        "type": "response.steer.pending",
        "reason": "waiting_for_required_input",
        "required_input": list(required),
        "steer": {"id": steer_id, "previous_response_id": response_id},
    }


def steer_failed(
    code: str, message: str, response_id: object, input: object, steer_id: str | None = None
) -> JsonObject:
    """Return why steering is not applied, with its input; `steer_id` is that of one that was accepted."""
    # OpenAI's types have texts there, whatever the client has sent.
    target = response_id if isinstance(response_id, str) else ""
    steer: JsonObject = {"previous_response_id": target, "input": "" if input is None else input}
    if steer_id is not None:
        steer["id"] = steer_id
    return {"type": "response.steer.failed", "error": _refusal(code, message), "steer": steer}


def interrupt_accepted(response_id: str) -> JsonObject:
    """Return the answer to an interrupt that ends a response."""
    return {"type": "response.interrupt.accepted", "response_id": response_id}


def interrupt_failed(code: str, message: str, response_id: object) -> JsonObject:
    """Return why an interrupt changes nothing: the response, if there is one, goes on."""
    target = response_id if isinstance(response_id, str) else ""
    return {"type": "response.interrupt.failed", "response_id": target, "error": _refusal(code, message)}


def inject_created(response_id: str) -> JsonObject:
    """Return the answer to outputs that were taken: all of them are kept with the response."""
    return {"type": "response.inject.created", "response_id": response_id}


def inject_failed(code: str, message: str, response_id: str, input: object) -> JsonObject:
    """Return why none of the outputs was taken, with what was sent."""
    error = {"code": code, "message": message}
    return {"type": "response.inject.failed", "response_id": response_id, "input": input, "error": error}


def _refusal(code: str, message: str) -> JsonObject:
    return {"type": "invalid_request_error", "code": code, "message": message}
