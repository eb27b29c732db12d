"""What is left of a response for those who may see its figures and not its content: its shape.

Fields are named that stay, so that a new field of the object is content until somebody has looked at it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from responses_app.protocol.response.timeline import Timeline

# Numbers, switches, ids and words of the API's own; no text of a client or a model.
_STAYS = frozenset(
    "id object created_at completed_at status background model previous_response_id usage incomplete_details "
    "max_output_tokens max_tool_calls parallel_tool_calls temperature top_p presence_penalty frequency_penalty "
    "top_logprobs truncation service_tier".split()
)
NOT_SHOWN = "Its text belongs to the content, which your permissions do not include."


def shape_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a response's object without its content: no output, no instructions, no metadata, tools by their types."""
    shape = {name: value for name, value in body.items() if name in _STAYS}
    if isinstance(error := body.get("error"), dict):
        shape["error"] = {"code": error.get("code"), "message": NOT_SHOWN}
    if isinstance(reasoning := body.get("reasoning"), dict):
        shape["reasoning"] = {"effort": reasoning.get("effort")}
    if isinstance(tools := body.get("tools"), list):
        shape["tools"] = [{"type": tool.get("type")} for tool in tools if isinstance(tool, dict)]
    return {**shape, "output": []}


def unnamed(timeline: Timeline) -> Timeline:
    """Return a timeline that does not name tools: clients and models choose the names of functions."""
    return replace(timeline, phases=[replace(phase, name="") for phase in timeline.phases])
