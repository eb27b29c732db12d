"""WebSocket frames under the eyes of OpenAI's types: those of the socket differ from those of a stream.

They add `stream_id`, and `error` is another shape. Two frames are this server's own, on purpose.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, get_args, get_origin

import pydantic
from openai.types.responses import ResponsesServerEvent

from responses_app.protocol.errors import JsonObject
from tests.kit.laws import assert_laws
from tests.kit.oracle import EXTENSIONS, unknown_fields

OUR_OWN = frozenset(("response.ping", "connection_expiring"))
TERMINAL = frozenset(("response.completed", "response.incomplete", "response.failed"))
OUR_FIELDS = EXTENSIONS | {"headers"}  # of `error`, at the top level too, where Codex reads them


def validate_frame(frame: Mapping[str, object]) -> None:
    """Validate a frame strictly against OpenAI's type of that name; raise as `tests.kit.oracle.validate_event` does."""
    kind = frame.get("type")
    if kind in OUR_OWN:
        return
    adapters = _frame_adapters()
    assert kind in adapters, f"OpenAI has no frame {kind!r}"
    model = adapters[kind].validate_python(frame, strict=True)
    unknown = [name for name in unknown_fields(model) if name not in OUR_FIELDS]
    assert not unknown, f"OpenAI does not know {unknown}"


def by_lane(frames: Sequence[JsonObject]) -> dict[object, list[JsonObject]]:
    """Sort frames by their lanes; None is the default lane."""
    lanes: dict[object, list[JsonObject]] = defaultdict(list)
    for frame in frames:
        lanes[frame.get("stream_id")].append(frame)
    return dict(lanes)


def assert_whole_response(frames: Sequence[JsonObject]) -> None:
    """Hold the frames of one response to OpenAI's types and to the laws of a stream."""
    for frame in frames:
        validate_frame(frame)
    assert_laws([frame for frame in frames if frame["type"] not in OUR_OWN])


@lru_cache(maxsize=1)
def _frame_adapters() -> "dict[object, pydantic.TypeAdapter[pydantic.BaseModel]]":
    union = get_args(ResponsesServerEvent)[0] if get_origin(ResponsesServerEvent) is Annotated else ResponsesServerEvent
    by_type = {get_args(model.model_fields["type"].annotation)[0]: model for model in get_args(union)}
    return {kind: pydantic.TypeAdapter(model) for kind, model in by_type.items()}
