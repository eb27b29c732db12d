"""`Called`: what the model has called in a response: which item each call becomes, and what later turns ask about them.

A tool is the client's, or this server runs it (hosted), or it is not there; then what the model wrote is kept as a
thought.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from engine.formats.base import ItemKind, ItemStarted
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.client_tools import ClientTools, read_tools
from responses_app.protocol.items.offers import OfferedTool
from responses_app.protocol.items.output_items import ItemStatus
from responses_app.protocol.output.builders import ItemBuilder
from responses_app.protocol.output.call_items import CallBuilder, call_builder
from responses_app.protocol.output.hosted_items import builder_of
from responses_app.protocol.output.reasoning_items import ReasoningBuilder

NewId = Callable[[str], str]
HostedTools = Mapping[str, Callable[[NewId], ItemBuilder]]


class Called:
    """Of one response. `tools` make the items of calls that clients answer, `hosted` those of this server's tools.

    `offered` are those of this server's tools that were offered to it. `max_hosted` is how many calls of them may be
    made, `made` how many were. `asks`: the user is asked to approve one.

    `anything` that is there was called; `background` are the names that the model goes on without; `unknown` those that
    are not there, and `last_unknown` what the last item called, where that is not there. `waits_for_client`: a call
    wants an output. `misfits` counts the calls that do not fit: see `CallBuilder.fits`.
    """

    def __init__(self, new_id: NewId, tools: ClientTools | None, hosted: HostedTools | None) -> None:
        self._new_id = new_id
        self._tools = tools or ClientTools()
        self._hosted = dict(hosted or {})
        self.offered: dict[str, OfferedTool] = {}
        self.max_hosted: int | None = None
        self.made = 0
        self.asks = False
        self.anything = False
        self.background: list[str] = []
        self.unknown: list[str] = []
        self.last_unknown: str | None = None
        self.waits_for_client = False
        self.misfits = 0

    @property
    def hosts(self) -> bool:
        """Whether the server runs any tools for this response."""
        return bool(self._hosted)

    @property
    def may_host(self) -> bool:
        """Whether one more of this server's tools may be called."""
        return self.max_hosted is None or self.made < self.max_hosted

    def offer(self, tools: Iterable[OfferedTool]) -> None:
        """Take tools of this server that the model may call."""
        for tool in tools:
            self.offered[tool.name] = tool
            self._hosted[tool.name] = partial(builder_of, tool)

    def knows(self, name: str) -> bool:
        """Whether there is a tool of this server of this name, whether it may be called or not."""
        return name in self._hosted

    def is_hosted(self, name: str) -> bool:
        """Whether the server runs the tool of this name when it is called now."""
        return name in self._hosted and self.may_host

    def declare(self, tools: Sequence[JsonObject]) -> Collection[str]:
        """Take further tools of the client's; return the names of all that the model can call."""
        self._tools = self._tools.joined(read_tools(list(tools)))
        return self._tools.names

    def builder(self, call: ItemStarted) -> ItemBuilder:
        """Return what writes the item of a call that begins."""
        name = call.name or ""
        if call.kind is ItemKind.CALL:
            self.anything = True
            return call_builder(self._tools, name, self._new_id)
        if self.is_hosted(name):
            self.anything = True
            offered = self.offered.get(name)
            self.made += not (offered and offered.asks)
            return self._hosted[name](self._new_id)
        self.unknown.append(name)
        self.last_unknown = name
        return ReasoningBuilder(self._new_id)

    def note(self, name: str, call: CallBuilder, status: ItemStatus) -> None:
        """Take a call of the client's that has ended."""
        self.misfits += not call.fits
        if call.is_async:
            self.background.append(name)
        elif status == "completed":
            self.waits_for_client = True
