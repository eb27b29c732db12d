"""The machine of a response, made of the response object as it began: the same one on every worker, at any time."""

from collections.abc import Callable

from engine.formats.base import ModelFormat
from responses_app.protocol.ids import DerivedIds, milliseconds_of
from responses_app.protocol.items.client_tools import ClientTools, read_tools
from responses_app.protocol.output.stream import ResponseStream
from responses_app.protocol.prompt.sealed_items import ItemSeals
from responses_app.protocol.requests.resources import ResponseObject
from responses_app.protocol.response.response import ResponseMachine


def machine_of(
    response: ResponseObject,
    model_format: ModelFormat,
    *,
    key: bytes,
    seal: Callable[[str, bytes], str],
    tools: ClientTools | None = None,
) -> ResponseMachine:
    """Return the machine of a response that has said nothing yet.

    `key` makes its ids, and is the same on all workers. `seal` seals for its project what stands in a place, such as an
    item: the same for the same. `tools` are the client's, where they have been read already. Which tools of this server
    it may call comes with its inputs.
    """
    response_id = response["id"]
    client_tools = ClientTools(read_tools(response["tools"])) if tools is None else tools
    created_ms = milliseconds_of(response_id) or response["created_at"] * 1000
    stream = ResponseStream(
        response,
        new_id=DerivedIds(response_id, created_ms=created_ms, key=key),
        tools=client_tools,
        seals=ItemSeals(model_format, seal=seal),
    )
    return ResponseMachine(
        stream,
        model_format,
        functions=None if response["tool_choice"] == "none" else client_tools.names,
        one_call=response["parallel_tool_calls"] is False,
        summary_style=str(response["reasoning"].get("summary") or "auto"),
        max_tool_calls=response["max_tool_calls"],
    )
