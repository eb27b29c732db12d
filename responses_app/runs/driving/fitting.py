"""What a tool of this server gives back, cut to what the model's context still holds: a response goes on all the same.

    room of an output = the context − everything that the model has read and said − what is left for its answer

Where not even a note has room, the next turn has none either, and the response ends as `incomplete`, as one does whose
answer comes to the end of the context.
"""

from engine.formats.base import ModelFormat
from responses_app.protocol.response.commands import CallTool
from responses_app.runs.driving.tool_calls import cut_text

MAX_ANSWER = 1024  # tokens that are left for what the model says next, or a quarter of its context
MAX_TRIES = 8
LEFT_OUT = "[The output is left out: it does not fit into what is left of your context.]"


def room_behind(tokens: int, max_model_len: int) -> int:
    """Return how many tokens an output may have, behind so many in a context of this size; below 0 for none."""
    return max_model_len - tokens - min(MAX_ANSWER, max_model_len // 4)


def surely_fits(text: str, wanted: CallTool, *, room: int) -> bool:
    """Whether an output has room however it is cut into tokens: none is less than a byte."""
    return 4 * len(text) + len(wanted.name) + _FRAME <= room


def fitted(text: str, wanted: CallTool, model_format: ModelFormat, *, room: int) -> str:
    """Return an output that has at most `room` tokens, if that can be: cut, with a note of how much is missing."""
    size = _tokens(text, wanted, model_format)
    if size <= room:
        return text
    kept = len(text.encode(errors="replace"))
    for _ in range(MAX_TRIES):
        kept = kept * max(0, room - _FRAME) // size * 15 // 16
        if kept == 0:
            break
        shorter = cut_text(text, kept)
        size = _tokens(shorter, wanted, model_format)
        if size <= room:
            return shorter
    return LEFT_OUT


_FRAME = 32  # tokens of a message around a text, about, and of the note behind it


def _tokens(text: str, wanted: CallTool, model_format: ModelFormat) -> int:
    return len(model_format.output(wanted.name, text, hosted=True).tokens)
