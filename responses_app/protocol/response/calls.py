"""The calls of one response: those that its client executes, and those of this server's tools.

`ClientCalls`: a response that waits goes on in the same stream once each call has its output; an output may come before
the model has ended its turn, and then nothing is waited for. What came of the calls stands in the output behind them,
as items of their own and in the order of the calls, whatever the order in which they were given: so a client that sends
the items again sends all that the model has read.

`ServerCalls`: the tools of this server, from what the servers list to what each call gave back.

    Offered ─> next() ─> ListTools ─> ToolsListed ─> next() ─> CallTool (approved) ─> ToolReturned ─> next() ─> None
                                                               CallTool (of a turn) ─> ToolReturned

What is to be done before the model goes on stands in a queue: first the servers that are to list their tools, then the
calls that the user has approved. Each has its item, which is open as long as it takes. Behind a turn it tells the model
what lets it go on in the same response: that a tool which it has called does not exist, or may not be called any more,
or that what it has called runs in the background.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from engine.formats.base import Body, ModelFormat
from responses_app.protocol import ids
from responses_app.protocol.errors import JsonObject, ResponseError
from responses_app.protocol.events.events import Event
from responses_app.protocol.items.calls import Call, call_of, called_name, open_calls
from responses_app.protocol.items.offers import (
    MAX_PROGRAM_CALLS,
    PROGRAM,
    PROGRAM_OUTPUT,
    SEARCH_CALL,
    SEARCH_OUTPUT,
    ApprovedCall,
    MadeCall,
    OfferedTool,
    PausedProgram,
    outcome_of,
    program_of,
    state_of_item,
)
from responses_app.protocol.items.tool_items import function_tool
from responses_app.protocol.output.calls import FunctionCallBuilder
from responses_app.protocol.output.citations import FILES, PAGES, PageStack, ProducedFiles, Sources
from responses_app.protocol.output.hosted_items import HostedCall, ListToolsBuilder, McpCallBuilder
from responses_app.protocol.output.stream import LocalProtocolError, ResponseStream
from responses_app.protocol.prompt.rendering import rendered_item
from responses_app.protocol.requests.server_tools import FOUND, FoundFiles
from responses_app.protocol.response.steps import (
    Await,
    CallTool,
    Command,
    ListTools,
    Offered,
    OutputGiven,
    ProgramCalled,
    ProgramEnded,
    ProgramPaused,
    RunProgram,
    SearchTools,
    Step,
    TimedOut,
    ToolReturned,
    ToolsFound,
    ToolsListed,
    WaitBegan,
)

CallState = Literal["open", "answered", "unknown"]


def required_input(output: Sequence[JsonObject]) -> list[JsonObject]:
    """Return what a client has yet to say of a response that has ended with this output: OpenAI's stubs of items."""
    unanswered = open_calls(output)
    calls = [_stub(item) for item in output if (call := call_of(item)) is not None and call.id in unanswered]
    requests = [item["id"] for item in output if item.get("type") == "mcp_approval_request"]
    return [*calls, *({"type": "mcp_approval_response", "approval_request_id": each} for each in requests)]


def _stub(call: JsonObject) -> JsonObject:
    kind, call_id = str(call["type"]), call["call_id"]
    if kind == "tool_search_call":
        # All others are called as their calls, with `_output` behind.
        return {"type": SEARCH_OUTPUT, "call_id": call_id, "execution": "client"}
    named = {"name": call["name"]} if kind == "function_call" else {}
    return {"type": f"{kind}_output", "call_id": call_id, **named}


def no_output(call_ids: Sequence[str], seconds: float) -> ResponseError:
    """Return the `error` object of a response whose client did not say in time what came of its calls."""
    calls = "the call " + call_ids[0] if len(call_ids) == 1 else "the calls " + ", ".join(call_ids)
    message = f"No output came within {seconds:g} s (RESPONSES_TOOL_TIMEOUT) for {calls}. Send the request again."
    return {"code": "server_error", "message": message}


class ClientCalls:
    """The calls of one response that its client answers."""

    def __init__(self, stream: ResponseStream, model_format: ModelFormat) -> None:
        self._stream = stream
        self._format = model_format
        self._outputs: dict[str, OutputGiven] = {}  # outputs that came, and that the model has not read yet
        self._read: set[str] = set()  # calls whose output the model has read
        self.awaited = False  # the response goes on in the same stream behind their outputs
        self.to_programs: dict[str, str] = {}  # what came of the calls of programs, which have not read it yet

    def state(self, call_id: str) -> CallState:
        """Return where a call stands."""
        if call_id in self._outputs or call_id in self._read:
            return "answered"
        return "open" if call_id in self.unanswered else "unknown"

    @property
    def unanswered(self) -> tuple[str, ...]:
        """The calls that have no output yet."""
        return tuple(self.open_tools)

    @property
    def open_tools(self) -> Mapping[str, str]:
        """What was called and has no output yet, by the ids of the calls."""
        done = self._outputs.keys() | self._read
        return {call_id: call.called for call_id, (call, _) in self._calls().items() if call_id not in done}

    @property
    def have_news(self) -> bool:
        """Whether the model has not read all outputs yet."""
        return bool(self._outputs)

    def take(self, input: WaitBegan | OutputGiven, due: Command | None) -> Command | None:
        """Return what is due behind an input, in place of `due`; None: every call has its output.

        Raises `LocalProtocolError` for one that cannot come now.
        """
        if isinstance(input, WaitBegan):
            return replace(awaited(input, due), until=input.until)
        if self.state(input.call_id) != "open":
            raise LocalProtocolError(f"an output that nobody waits for: {input.call_id}")
        self._outputs[input.call_id] = input
        # It came before the turn's end: the turn goes on, and looks for outputs when it ends.
        if not isinstance(due, Await):
            return due
        left = self.unanswered
        return replace(due, call_ids=left) if left else None

    def add_outputs(self) -> list[Event]:
        """Add what was given since the last time to the output, in the order of the calls."""
        events: list[Event] = []
        # Most responses have none: then the calls are not looked for in the output at all.
        for call_id, (call, item) in self._calls().items() if self._outputs else ():
            answer = self._outputs.pop(call_id, None)
            if answer is not None:
                self._read.add(call_id)
                output = _output_item(item, answer, self._stream.new_id(ids.FUNCTION_CALL_OUTPUT))
                if program_of(item) is None:
                    tool = function_tool(call.called)
                    events += self._stream.add_output(output, self._format.output(tool.name, answer.body))
                else:  # the model reads what the program prints
                    events += self._stream.add_output({**output, "caller": item["caller"]})
                    self.to_programs[call_id] = answer.text
        return events

    def _calls(self) -> Mapping[str, tuple[Call, JsonObject]]:
        """Return the calls that are to be answered by their ids, each with its item."""
        calls = ((call_of(item), item) for item in self._stream.output)
        return {call.id: (call, item) for call, item in calls if call is not None and call.is_open}


def _output_item(call: JsonObject, answer: OutputGiven, item_id: str) -> JsonObject:
    """Return the item of a call's output, in the form that OpenAI's types have for its kind."""
    item = {"id": item_id, **_stub(call), "status": "completed", "output": answer.output}
    item.pop("name", None)  # a stub has it so that clients know what to answer
    match call["type"]:
        case "shell_call":  # the client gives one text; that form has to say how the command ended, too
            item["output"] = [{"stdout": answer.text, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
        case "apply_patch_call" | "local_shell_call":
            item["output"] = answer.text
        case "tool_search_call":
            item["tools"] = []
    return item


def awaited(input: WaitBegan | TimedOut, due: Command | None) -> Await:
    """Return the wait that an input is about. Raises `LocalProtocolError` where nothing is waited for."""
    if not isinstance(due, Await):
        raise LocalProtocolError(f"{input!r} in a response that does not wait")
    return due


NO_MORE_CALLS = "Error: this response may call no more tools of the server (max_tool_calls). Answer with what you have."
LAST_CALL = "[This response may call no more tools of the server (max_tool_calls). Answer with what you have.]"
MAX_CORRECTIONS = 1  # how often the model is told, in one response, that a tool does not exist
MAX_TURNS_BEHIND_CALLS = 16  # that run in the background: a model that calls on and on ends its response
RUNS_IN_BACKGROUND = (
    "This runs in the background now, and has no output yet; that will come in a later message. Go on without it: "
    "answer the user, or do something else."
)


class ServerCalls:
    """The calls of this server's tools in one response."""

    def __init__(
        self, stream: ResponseStream, model_format: ModelFormat, *, max_calls: int | None, one_call: bool
    ) -> None:
        self._stream = stream
        self._format = model_format
        self._called = stream.called
        self._called.max_hosted = max_calls  # None: as many as the model wants
        self._one_call = one_call  # a turn ends with its first call, and the client's answer is waited for
        self._corrections = 0  # how often the model was told that a tool does not exist
        self._turns_behind_calls = 0  # turns that followed calls in the background
        self._to_list: deque[str] = deque()  # labels of MCP servers, in the order of the request
        self._approved: deque[ApprovedCall] = deque()  # calls that are to be made before the model goes on
        self._list: ListToolsBuilder | None = None  # of the server that is asked now
        self.program: RunProgram | None = None  # that runs now, or waits for its client
        self._program_id = ""  # its `call_id`
        self._made: list[MadeCall] = []  # what it has called
        self._paused: deque[PausedProgram] = deque()  # programs of earlier responses, which go on before the model does
        # What tools want to know later, by the type of their items: of the chain, and of this response.
        self.states: dict[str, JsonObject] = {}
        self.news: dict[str, JsonObject] = {}  # those of the states that this response has changed: its link keeps them

    def offer(self, input: Offered) -> None:
        """Take what may be used, before the response begins."""
        self._called.offer(input.tools)
        self._to_list.extend(input.servers)
        self._approved.extend(input.approved)
        self._paused.extend(input.programs)
        self.states.update(input.states)
        self._know_sources()
        if FILES in self.states:
            self._files().know(self.states[FILES])

    def next(self) -> Step | None:
        """Return what is to be done before the model goes on, and what is said of it; None for nothing."""
        if self._to_list:
            server = self._to_list.popleft()
            self._list = ListToolsBuilder(self._stream.new_id, server)
            return Step(self._stream.open_own(self._list), ListTools(server))
        # Over `max_tool_calls` they are not made; the model reads why, one note for each.
        while self._approved:
            call = self._approved.popleft()
            if self._called.may_host:
                return self._make(call)
            self._tell(call.name, NO_MORE_CALLS)
        if self._paused:
            paused = self._paused.popleft()
            return Step([], self._run(paused.call_id, paused.code, paused.made))
        return None

    def due(self) -> CallTool | SearchTools | RunProgram | None:
        """Return the call of the turn that has just ended, if it has made one."""
        call = self._stream.hosted_call
        if call is None:
            return None
        offered = self._offered(call.name)
        if offered.item == PROGRAM:
            return RunProgram(call.arguments)
        if offered.item == SEARCH_CALL:
            return SearchTools(call.arguments)
        return self._command(call, offered)

    def listed(self, input: ToolsListed) -> list[Event]:
        """Take the tools of the server that was asked last."""
        if self._list is None:
            raise LocalProtocolError("a server listed tools that was not asked")
        self._list.tools, self._list.error = input.tools, input.error
        self._list = None
        self._called.offer(input.offered)
        return self._stream.close_own()

    def found(self, input: ToolsFound) -> list[Event]:
        """Take what the search for tools has found: the model reads it in the item of its output, and can call it."""
        self._called.learn(input.tools, input.offered)
        events = self._stream.end_asking()
        item: JsonObject = {
            "id": self._stream.new_id(ids.TOOL_SEARCH_OUTPUT),
            "type": SEARCH_OUTPUT,
            "status": "completed",
            "execution": "server",
            "call_id": None,
            "tools": list(input.tools),
        }
        return [*events, *self._stream.add_output(item, *rendered_item(self._format, item))]

    def begin_program(self, command: RunProgram) -> list[Event]:
        """Say which program runs now."""
        events = self._stream.end_asking()
        self._run(str(self._stream.output[-1]["call_id"]), command.code)
        return events

    def _run(self, call_id: str, code: str, made: Sequence[MadeCall] = ()) -> RunProgram:
        # The list grows, and the command with it.
        self._program_id, self._made = call_id, [*made]
        self.program = RunProgram(code, self._made)
        return self.program

    def called_by_program(self, input: ProgramCalled) -> Step:
        """Take a call of the program that runs, unless it may make no more."""
        program = self.program
        if program is None:
            raise LocalProtocolError("a call of a program that does not run")
        if not self._called.may_host or len(self._made) >= MAX_PROGRAM_CALLS:
            return Step([], program)
        self._made.append(MadeCall(input.tool.name, input.arguments))
        self._called.made += 1
        item = McpCallBuilder(self._stream.new_id, replace(input.tool, fields=self._caller()))
        events = self._stream.open_call(item, input.tool.name, input.arguments)
        hosted = self._stream.hosted_call
        assert hosted is not None, "it was just opened"
        return Step(events, self._command(hosted, input.tool))

    def returned_to_program(self, input: ToolReturned) -> Step | None:
        """Take what a tool gave back to the program that runs; None where none does."""
        if self.program is None:
            return None
        self._made[-1] = replace(self._made[-1], outcome=outcome_of(input.shown, text=input.text, failed=input.failed))
        return Step(self._stream.end_call(input.shown, failed=input.failed), self.program)

    def program_paused(self, input: ProgramPaused) -> list[Event]:
        """Say which functions of the client's the program has called."""
        if self.program is None:
            raise LocalProtocolError("a program paused that does not run")
        events: list[Event] = []
        for call in input.calls:
            named: JsonObject = {"namespace": call.namespace} if call.namespace else {}
            item = FunctionCallBuilder(self._stream.new_id, call.name, {**named, **self._caller()})
            events += self._stream.add_call(item, call.arguments)
            called = called_name(call.name, call.namespace)
            self._made.append(MadeCall(called, call.arguments, call_id=item.call_id))
        return events

    def answered_to_program(self, outputs: dict[str, str]) -> RunProgram | None:
        """Take what came of the calls of the program that waits; return what is due, None where none waits."""
        for place, call in enumerate(self._made):
            if call.call_id in outputs:
                self._made[place] = replace(call, outcome={"output": outputs.pop(call.call_id)})
        return self.program

    def _caller(self) -> JsonObject:
        return {"caller": {"type": "program", "caller_id": self._program_id}}

    def program_ended(self, input: ProgramEnded) -> list[Event]:
        """Take what a program has printed, which the model reads."""
        self.program = None
        item: JsonObject = {
            "id": self._stream.new_id(ids.PROGRAM_OUTPUT),
            "type": PROGRAM_OUTPUT,
            "status": "incomplete" if input.failed else "completed",
            "call_id": self._program_id,
            "result": input.text,
        }
        return self._stream.add_output(item, *rendered_item(self._format, item))

    def returned(self, input: ToolReturned) -> list[Event]:
        """Take what the tool that runs gave back: the model reads it before it goes on."""
        call = self._stream.hosted_call
        if call is None:
            raise LocalProtocolError("a tool returned that was not called")
        if input.state is not None:
            item = state_of_item(self._offered(call.name).item)
            self.states[item] = self.news[item] = input.state
            self._know_sources()
            if item == FILES:
                self._files().learn(input.state)
        events, body = self._stream.end_call(input.shown, failed=input.failed), input.body
        if not self._called.may_host:  # the output ends with a note, so the model answers and does not try another call
            body = f"{body}\n{LAST_CALL}" if isinstance(body, str) else [*body, f"\n{LAST_CALL}"]
        self._tell(call.name, body)
        return events

    def add_notes(self, functions: Collection[str]) -> bool:
        """Tell the model what its last call calls for, so that it goes on; return whether there was something.

        `functions` are the names that it can call.
        """
        return self._correct(functions) or self._go_on_without()

    def _correct(self, functions: Collection[str]) -> bool:
        """Tell a model that has just called a tool which does not exist."""
        unknown = self._called.last_unknown
        if unknown is None or self._corrections >= MAX_CORRECTIONS:
            return False
        self._corrections += 1
        # A tool that exists and may not be called any more gets another note than one that does not exist.
        if self._called.knows(unknown) and not self._called.may_host:
            self._tell(unknown, NO_MORE_CALLS)
        else:
            hosted = list(self._called.offered) if self._called.may_host else []
            self._stream.add_note(self._format.no_such_tool(unknown, self._called.shown(functions), hosted))
        return True

    def _go_on_without(self) -> bool:
        """Tell the model that what it has called runs in the background.

        Not where it has called something else, too: then the client's answer to that comes first.
        """
        called = self._called
        if not called.background or called.waits_for_client or self._one_call:
            return False
        if self._turns_behind_calls >= MAX_TURNS_BEHIND_CALLS:
            return False
        self._turns_behind_calls += 1
        for name in called.background:
            self._stream.add_note(self._format.output(name, RUNS_IN_BACKGROUND))
        # Told once: the next turn may call others.
        called.background.clear()
        return True

    def _make(self, call: ApprovedCall) -> Step:
        offered = self._offered(call.name)
        # The server does not offer it any more, or was not asked: the item still says what was approved.
        if not offered.tool:
            offered = replace(offered, server=call.server, tool=call.tool)
        item = McpCallBuilder(self._stream.new_id, offered, call.request_id)
        self._called.made += 1
        events = self._stream.open_call(item, call.name, call.arguments)
        hosted = self._stream.hosted_call
        assert hosted is not None, "it was just opened"
        return Step(events, self._command(hosted, offered))

    def _command(self, call: HostedCall, offered: OfferedTool) -> CallTool:
        state = self.states.get(state_of_item(offered.item))
        return CallTool(
            call.name,
            call.arguments,
            call.item_id,
            tool=offered.tool,
            repeatable=offered.repeatable,
            state=state,
        )

    def _offered(self, name: str) -> OfferedTool:
        return self._called.offered.get(name) or OfferedTool(name=name, item="mcp_call")

    def _know_sources(self) -> None:
        """Let messages cite the pages of the web that the chain was shown, and the files that it has found."""
        pages, files = self.states.get(PAGES), self.states.get(FOUND)
        if pages is not None or files is not None:
            self._stream.sources = Sources(PageStack.from_json(pages).source, FoundFiles(files).file)

    def _files(self) -> ProducedFiles:
        """Return the files that messages may cite, of code of this chain."""
        self._stream.files = self._stream.files or ProducedFiles()
        return self._stream.files

    def _tell(self, name: str, body: Body) -> None:
        self._stream.add_note(self._format.output(name, body, hosted=True))
