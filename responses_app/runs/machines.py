"""The machine of a response, made of the response object as it began: the same one on every worker, at any time."""

from collections.abc import Collection, Iterable, Mapping

from engine.formats.base import ModelFormat
from responses_app.protocol.client_tools import ClientTools, read_tools
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.ids import DerivedIds, milliseconds_of
from responses_app.protocol.resources import ResponseObject
from responses_app.protocol.response import ResponseMachine
from responses_app.protocol.stream import ResponseStream
from responses_app.tools.base import BaseTool


def wanted_tools(
    tools: Iterable[JsonObject], tool_choice: str | JsonObject, available: Collection[BaseTool]
) -> Mapping[str, BaseTool]:
    """Return the tools of this server that a response may use, by name; the request's own fields ask for them."""
    if tool_choice == "none":
        return {}
    kinds = {tool["type"] for tool in tools}
    return {tool.name: tool for tool in available if tool.kind in kinds}


def machine_of(
    response: ResponseObject, model_format: ModelFormat, *, key: bytes, tools: Mapping[str, BaseTool]
) -> ResponseMachine:
    """Return the machine of a response that has said nothing yet.

    `key` makes its ids, and is the same on all workers; `tools` are those of this server that it may call.
    """
    response_id = response["id"]
    client_tools = ClientTools(read_tools(response["tools"]))
    created_ms = milliseconds_of(response_id) or response["created_at"] * 1000
    stream = ResponseStream(
        response,
        new_id=DerivedIds(response_id, created_ms=created_ms, key=key),
        tools=client_tools,
        hosted={name: tool.builder for name, tool in tools.items()},
    )
    return ResponseMachine(
        stream,
        model_format,
        functions=None if response["tool_choice"] == "none" else client_tools.names,
        one_call=response["parallel_tool_calls"] is False,
    )
