"""`ServerCalls`: the tools of this server in one response, from what the servers list to what each call gave back.

    Offered ─> next() ─> ListTools ─> ToolsListed ─> next() ─> CallTool (approved) ─> ToolReturned ─> next() ─> None
                                                               CallTool (of a turn) ─> ToolReturned

What is to be done before the model goes on stands in a queue: first the servers that are to list their tools, then the
calls that the user has approved. Each has its item, which is open as long as it takes.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from engine.formats.base import ModelFormat
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events.events import Event
from responses_app.protocol.items.offers import ApprovedCall, OfferedTool
from responses_app.protocol.output.builders import HostedCall
from responses_app.protocol.output.citations import Sources
from responses_app.protocol.output.hosted_items import ListToolsBuilder, McpCallBuilder
from responses_app.protocol.output.page_stack import PAGES, PageStack
from responses_app.protocol.output.produced_files import FILES, ProducedFiles
from responses_app.protocol.output.stream import LocalProtocolError, ResponseStream
from responses_app.protocol.requests.file_searches import FOUND, FoundFiles
from responses_app.protocol.response.commands import CallTool, ListTools, Step
from responses_app.protocol.response.inputs import Offered, ToolReturned, ToolsListed

NO_MORE_CALLS = "Error: this response may call no more tools of the server (max_tool_calls). Answer with what you have."
LAST_CALL = "[This response may call no more tools of the server (max_tool_calls). Answer with what you have.]"


class ServerCalls:
    """Of one response; `stream` has its output. `max_calls` is how many of this server's tools it may call."""

    def __init__(self, stream: ResponseStream, model_format: ModelFormat, *, max_calls: int | None = None) -> None:
        self._stream = stream
        self._format = model_format
        self._called = stream.called
        self._called.max_hosted = max_calls
        self._to_list: deque[str] = deque()
        self._approved: deque[ApprovedCall] = deque()
        self._list: ListToolsBuilder | None = None
        self.states: dict[str, JsonObject] = {}
        self.news: dict[str, JsonObject] = {}  # those of the states that this response has changed

    def offer(self, given: Offered) -> None:
        """Take what may be used, before the response begins."""
        self._called.offer(given.tools)
        self._to_list.extend(given.servers)
        self._approved.extend(given.approved)
        self.states.update(given.states)
        self._know_sources()
        if FILES in self.states:
            self._files().know(self.states[FILES])

    def next(self) -> Step | None:
        """Return what is to be done before the model goes on, and what is said of it; None for nothing."""
        if self._to_list:
            server = self._to_list.popleft()
            self._list = ListToolsBuilder(self._stream.new_id, server)
            return Step(self._stream.open_own(self._list), ListTools(server))
        while self._approved:
            call = self._approved.popleft()
            if self._called.may_host:
                return self._make(call)
            self._tell(call.name, NO_MORE_CALLS)
        return None

    def due(self) -> CallTool | None:
        """Return the call of the turn that has just ended, if it has made one."""
        call = self._stream.hosted_call
        return self._command(call, self._offered(call.name)) if call is not None else None

    def listed(self, given: ToolsListed) -> list[Event]:
        """Take the tools of the server that was asked last."""
        if self._list is None:
            raise LocalProtocolError("a server listed tools that was not asked")
        self._list.tools, self._list.error = given.tools, given.error
        self._list = None
        self._called.offer(given.offered)
        return self._stream.close_own()

    def returned(self, given: ToolReturned) -> list[Event]:
        """Take what the tool that runs gave back: the model reads it before it goes on."""
        call = self._stream.hosted_call
        if call is None:
            raise LocalProtocolError("a tool returned that was not called")
        if given.state is not None:
            item = self._offered(call.name).item
            self.states[item] = self.news[item] = given.state
            self._know_sources()
            if item == FILES:
                self._files().learn(given.state)
        events = self._stream.end_call(given.shown, failed=given.failed)
        self._tell(call.name, given.text if self._called.may_host else f"{given.text}\n{LAST_CALL}")
        return events

    def refuse_excess(self, name: str) -> bool:
        """Tell the model that it may call no more tools, if that is why `name` was not called; return whether it was.

        Else there is no such tool.
        """
        if self._called.may_host or not self._called.knows(name):
            return False
        self._tell(name, NO_MORE_CALLS)
        return True

    def _make(self, call: ApprovedCall) -> Step:
        offered = self._offered(call.name)
        if not offered.tool:
            offered = replace(offered, server=call.server, tool=call.tool)
        item = McpCallBuilder(self._stream.new_id, offered, call.request_id)
        self._called.made += 1
        events = self._stream.open_call(item, call.name, call.arguments)
        hosted = self._stream.hosted_call
        assert hosted is not None, "it was just opened"
        return Step(events, self._command(hosted, offered))

    def _command(self, call: HostedCall, offered: OfferedTool) -> CallTool:
        state = self.states.get(offered.item)
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
        shown, found = self.states.get(PAGES), self.states.get(FOUND)
        if shown is not None or found is not None:
            self._stream.sources = Sources(PageStack.from_json(shown).source, FoundFiles(found).file)

    def _files(self) -> ProducedFiles:
        """Return the files that messages may cite, of code of this chain."""
        self._stream.files = self._stream.files or ProducedFiles()
        return self._stream.files

    def _tell(self, name: str, text: str) -> None:
        self._stream.interject(self._format.output(name, text, hosted=True))


def hosted_names(stream: ResponseStream) -> Iterator[str]:
    """Yield the tools of this server that the model can still call."""
    return iter(stream.called.offered) if stream.called.may_host else iter(())
