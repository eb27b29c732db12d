"""`ClientCalls`: the calls of a response that its client executes, and what the client says came of them.

A response that waits goes on in the same stream once each call has its output. What came of them stands in its output
behind the calls, as items of their own and in the order of the calls, whatever the order in which they were given: so
a client that sends the items again sends all that the model has read.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from engine.formats.base import ModelFormat
from responses_app.protocol import ids
from responses_app.protocol.errors import JsonObject, ResponseError
from responses_app.protocol.events.events import Event
from responses_app.protocol.items.calls import Call, call_of, open_calls
from responses_app.protocol.items.tool_items import function_tool
from responses_app.protocol.output.stream import ResponseStream
from responses_app.protocol.response.inputs import OutputGiven

CallState = Literal["open", "answered", "unknown"]
_TOOL_SEARCH_OUTPUT = "tool_search_output"  # all others are called as their calls, with `_output` behind


def required_input(output: Sequence[JsonObject]) -> list[JsonObject]:
    """Return what a client has yet to say of a response that has ended with this output: OpenAI's stubs of items."""
    unanswered = open_calls(output)
    calls = [_stub(item) for item in output if (call := call_of(item)) is not None and call.id in unanswered]
    asked = [item["id"] for item in output if item.get("type") == "mcp_approval_request"]
    return [*calls, *({"type": "mcp_approval_response", "approval_request_id": each} for each in asked)]


def _stub(call: JsonObject) -> JsonObject:
    kind, call_id = str(call["type"]), call["call_id"]
    if kind == "tool_search_call":
        return {"type": _TOOL_SEARCH_OUTPUT, "call_id": call_id, "execution": "client"}
    named = {"name": call["name"]} if kind == "function_call" else {}
    return {"type": f"{kind}_output", "call_id": call_id, **named}


def no_output(call_ids: Sequence[str], seconds: float) -> ResponseError:
    """Return the `error` object of a response whose client did not say in time what came of its calls."""
    calls = "the call " + call_ids[0] if len(call_ids) == 1 else "the calls " + ", ".join(call_ids)
    message = f"No output came within {seconds:g} s (RESPONSES_TOOL_TIMEOUT) for {calls}. Send the request again."
    return {"code": "server_error", "message": message}


class ClientCalls:
    """The calls of one response; `stream` has its output."""

    def __init__(self, stream: ResponseStream, model_format: ModelFormat) -> None:
        self._stream = stream
        self._format = model_format
        self._given: dict[str, OutputGiven] = {}  # and not read by the model yet
        self._told: set[str] = set()  # calls whose output the model has read

    def state(self, call_id: str) -> CallState:
        """Return where a call stands."""
        if call_id in self._given or call_id in self._told:
            return "answered"
        return "open" if call_id in self.unanswered else "unknown"

    @property
    def unanswered(self) -> tuple[str, ...]:
        """The calls that have no output yet."""
        return tuple(call_id for call_id in self._calls() if call_id not in self._given and call_id not in self._told)

    @property
    def have_news(self) -> bool:
        """Whether the model has not read all outputs yet."""
        return bool(self._given)

    def take(self, given: OutputGiven) -> None:
        """Take what came of a call."""
        self._given[given.call_id] = given

    def add_outputs(self) -> list[Event]:
        """Add what was given since the last time to the output, in the order of the calls."""
        events: list[Event] = []
        for call_id, (call, item) in self._calls().items() if self._given else ():
            given = self._given.pop(call_id, None)
            if given is not None:
                self._told.add(call_id)
                output = _output_item(item, given, self._stream.new_id(ids.FUNCTION_CALL_OUTPUT))
                tool = function_tool(call.called)
                events += self._stream.add_output(output, self._format.output(tool.name, given.text))
        return events

    def _calls(self) -> Mapping[str, tuple[Call, JsonObject]]:
        """Return the calls that are to be answered by their ids, each with its item."""
        calls = ((call_of(item), item) for item in self._stream.output)
        return {call.id: (call, item) for call, item in calls if call is not None and call.is_open}


def _output_item(call: JsonObject, given: OutputGiven, item_id: str) -> JsonObject:
    """Return the item of a call's output, in the form that OpenAI's types have for its kind."""
    item = {"id": item_id, **_stub(call), "status": "completed", "output": given.output}
    item.pop("name", None)  # a stub has it so that clients know what to answer
    match call["type"]:
        case "shell_call":  # the client gives one text; that form has to say how the command ended, too
            item["output"] = [{"stdout": given.text, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
        case "apply_patch_call" | "local_shell_call":
            item["output"] = given.text
        case "tool_search_call":
            item["tools"] = []
    return item
