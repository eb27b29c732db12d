"""Server-sent events over HTTP: how an answer of them begins, what it says while there is nothing to say, how it ends.

What the events are is for who makes them: responses, chats and completions have their own.
"""

from collections.abc import AsyncGenerator

import orjson
from django.http import StreamingHttpResponse

from responses_app.protocol.errors import ApiError

PING = b": ping\n\n"  # the heartbeat of a silent stream: a comment, which no client reads
DONE = b"data: [DONE]\n\n"  # behind the last event of a stream that is whole
HEAD_SECONDS = 15.0  # at most, until a client hears that its request is taken
GONE = "its client disconnected"


def seconds_to_head(ping_seconds: float) -> float:
    """Return how long an answer waits for its first event before it begins with a heartbeat.

    Until then its status is open: what fails before anything was said is an error with a status of its own, as it is
    without a stream, since no SDK tries again what fails behind a 200. `ping_seconds` is as for heartbeats, 0: never.
    """
    return min(ping_seconds or HEAD_SECONDS, HEAD_SECONDS)


async def server_sent(events: AsyncGenerator[bytes, None]) -> StreamingHttpResponse:
    """Return an answer that is a stream of `events`.

    The first of them is empty, and is taken here: only a generator that has begun is closed, and so lets go of what it
    holds, in any case.
    """
    await anext(events)
    response = StreamingHttpResponse(events, content_type="text/event-stream")
    response["cache-control"] = "no-cache"
    response["x-accel-buffering"] = "no"
    return response


def error_event(error: ApiError) -> bytes:
    """Return what a chat or a completion says that breaks in its middle: SDKs raise it."""
    return b"data: %b\n\n" % orjson.dumps({"error": error.body()})
