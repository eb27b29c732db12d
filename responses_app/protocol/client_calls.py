"""`ClientCalls`: the calls of a response that its client executes, and what the client says came of them.

A response that waits goes on in the same stream once each call has its output. What came of them stands in its output
behind the calls, as items of their own and in the order of the calls, whatever the order in which they were given: so
a client that sends the items again sends all that the model has read.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from engine.formats.base import ModelFormat
from responses_app.protocol import ids
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events import Event
from responses_app.protocol.inputs import OutputGiven
from responses_app.protocol.stream import ResponseStream
from responses_app.protocol.tool_items import UNKNOWN, Tool, ToolOutput, called_tool, read_tool_item

CallState = Literal["open", "answered", "unknown"]


def client_call_id(item: JsonObject) -> str | None:
    """Return the id of a call that waits for its client; None for any other item.

    Tools of servers have no `call_id`. One that is `async` keeps nobody waiting, and a call that was cut is not made.
    """
    call_id = item.get("call_id")
    is_call = str(item["type"]).endswith("_call") and item.get("status", "completed") == "completed"
    return call_id if isinstance(call_id, str) and is_call and not item.get("async") else None


def required_input(output: Sequence[JsonObject]) -> list[JsonObject]:
    """Return what a client has yet to say of a response that has ended with this output: OpenAI's stubs of items."""
    answered = {item.get("call_id") for item in output if str(item["type"]).endswith("_output")}
    stubs: list[JsonObject] = []
    for item in output:
        call_id = client_call_id(item)
        if call_id is None or call_id in answered:
            continue
        kind = str(item["type"])
        stub: JsonObject = {"type": f"{kind}_output", "call_id": call_id}
        if kind == "function_call":
            stub["name"] = item["name"]
        elif kind == "tool_search_call":
            stub |= {"type": "tool_search_output", "execution": "client"}
        stubs.append(stub)
    return stubs


def no_output(call_ids: Sequence[str], seconds: float) -> JsonObject:
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
        for call_id, call in self._calls().items() if self._given else ():
            given = self._given.pop(call_id, None)
            if given is not None:
                self._told.add(call_id)
                item = _output_item(call, given, self._stream.new_id(ids.FUNCTION_CALL_OUTPUT))
                tool = _tool_of(call, item)
                message = self._format.output(tool.name, given.text, hosted=tool.hosted)
                events += self._stream.add_output(item, message)
        return events

    def _calls(self) -> Mapping[str, JsonObject]:
        items = self._stream.output
        return {call_id: item for item in items if (call_id := client_call_id(item)) is not None}


def _output_item(call: JsonObject, given: OutputGiven, item_id: str) -> JsonObject:
    """Return the item of a call's output, in the form that OpenAI's types have for its kind."""
    kind = str(call["type"])
    output: object = given.output
    if kind == "shell_call":
        output = [{"stdout": given.text, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
    elif kind in ("apply_patch_call", "local_shell_call"):
        output = given.text
    return {
        "id": item_id,
        "type": f"{kind}_output",
        "status": "completed",
        "call_id": given.call_id,
        "output": output,
    }


def _tool_of(call: JsonObject, item: JsonObject) -> Tool:
    """Return the tool whose output this is, as the model knows it from a history with the same items."""
    called = called_tool(call)
    if called is not None:
        return called[1]
    read = (each.tool for each in read_tool_item(item, lambda _: None) if isinstance(each, ToolOutput))
    return next(read, Tool(UNKNOWN))
