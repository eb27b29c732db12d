"""What the model calls in a response: the items of calls of the client's tools, as they are written, and `Called`.

A function's arguments and a custom tool's input are streamed as they come. The other kinds (a shell, a patch) have an
item with fields of its own, which must be whole: nothing is said of such a call until it has ended, and then it is
there at once. What does not fit those fields becomes a function call of that tool's name, which a client can answer as
any other: so nothing that the model said is lost.

`Called` knows which item each call becomes, and what later turns ask about them. A tool is the client's, or this server
runs it (hosted), or it is not there; then what the model wrote is kept as a thought.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import ClassVar

from engine import orjson
from engine.formats.base import ItemKind, ItemStarted
from responses_app.protocol import ids
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events.events import EventType
from responses_app.protocol.items.calls import CLIENT_KINDS, ClientKind
from responses_app.protocol.items.client_tools import ClientTools, read_tools
from responses_app.protocol.items.offers import OfferedTool
from responses_app.protocol.items.resources import ClientCallItem, CustomCallItem, FunctionCallItem, ItemStatus
from responses_app.protocol.output.builders import (
    ItemBuilder,
    PendingEvents,
    ReasoningBuilder,
    SilentInput,
    with_fields,
)
from responses_app.protocol.output.hosted import HostedBuilder
from responses_app.protocol.output.hosted_items import builder_of

_WRAPPING = '{"input":"'  # how a model that knows JSON calls only begins to call a custom tool
_MAX_UNDECIDED = 64  # characters, with the blanks in them, after which a text does not begin like that any more


class CallBuilder(ItemBuilder):
    """A call that the client answers."""

    def __init__(self, new_id: Callable[[str], str], name: str, decorations: JsonObject | None = None) -> None:
        super().__init__(new_id)
        self.name = name
        self.call_id = new_id(ids.CALL)
        self._decorations = decorations or {}  # further fields of its item: `namespace` and `async`

    @property
    def fits(self) -> bool:
        """Whether its item can hold what it is called with: JSON, or the fields of its kind. No schema is looked at."""
        return True

    @property
    def is_async(self) -> bool:
        """Whether the model goes on before its output has come."""
        return self._decorations.get("async") is True


class FunctionCallBuilder(CallBuilder):
    """A call of a function."""

    prefix = ids.FUNCTION_CALL
    delta_type = EventType.ARGUMENTS_DELTA

    @property
    def fits(self) -> bool:
        return _is_json(self.text)

    def closed(self) -> PendingEvents:
        return [(EventType.ARGUMENTS_DONE, {"name": self.name, "arguments": self.text})]

    def item(self, status: ItemStatus) -> FunctionCallItem:
        item: FunctionCallItem = {
            "id": self.id,
            "type": "function_call",
            "status": status,
            "call_id": self.call_id,
            "name": self.name,
            "arguments": self.text,
        }
        return with_fields(item, self._decorations) if self._decorations else item


class CustomCallBuilder(CallBuilder):
    """A call of a custom tool, whose input is text.

    Models that were trained on JSON calls sometimes write `{"input": "…"}` all the same. Where `unwraps`, a text that
    begins like that is held back until its end, and unwrapped if it is just that; every other text is told as it comes.
    """

    prefix = ids.CUSTOM_TOOL_CALL
    delta_type = EventType.CUSTOM_INPUT_DELTA
    holds_back = True

    def __init__(
        self, new_id: Callable[[str], str], name: str, decorations: JsonObject | None = None, *, unwraps: bool = True
    ) -> None:
        super().__init__(new_id, name, decorations)
        self._is_wrapped: bool | None = None if unwraps else False  # None: it may still be
        self._held: list[str] = []  # text that is not told yet

    def told(self, text: str) -> str:
        if self._is_wrapped is False:
            return text
        self._held.append(text)
        if self._is_wrapped is None:
            self._is_wrapped = _is_wrapped("".join(self._held))
        # True keeps all until the end, where it is unwrapped; None keeps it until that is decided.
        return "" if self._is_wrapped is not False else self._released()

    def rest(self) -> str:
        return _unwrapped(self._released())

    def closed(self) -> PendingEvents:
        return [(EventType.CUSTOM_INPUT_DONE, {"input": self.text})]

    def item(self, status: ItemStatus) -> CustomCallItem:
        item: CustomCallItem = {
            "id": self.id,
            "type": "custom_tool_call",
            "status": status,
            "call_id": self.call_id,
            "name": self.name,
            "input": self.text,
        }
        return with_fields(item, self._decorations) if self._decorations else item

    def _released(self) -> str:
        held = "".join(self._held)
        self._held.clear()
        return held


class ActionCallBuilder(SilentInput, CallBuilder):
    """A call of a kind of tool whose item has fields of its own."""

    at_once: ClassVar[bool] = True

    def __init__(self, new_id: Callable[[str], str], kind: ClientKind) -> None:
        self.prefix = kind.prefix  # type: ignore[misc]  # each kind has its own
        super().__init__(new_id, kind.type)
        self._kind = kind
        self._fields: JsonObject = {}

    def closed(self) -> PendingEvents:
        return []

    def settled(self, status: ItemStatus) -> ItemBuilder:
        fields = self._kind.read(self.text) if status == "completed" else None
        if fields is None:
            return _UnfitCallBuilder(self)
        self._fields = fields
        return self

    def item(self, status: ItemStatus) -> ClientCallItem:
        item: ClientCallItem = {"id": self.id, "type": self._kind.item, "status": status, "call_id": self.call_id}
        return with_fields(item, self._fields)


class _UnfitCallBuilder(FunctionCallBuilder):
    """A call that was cut, or whose arguments its own item cannot hold; it has the ids that were made for that."""

    def __init__(self, call: ActionCallBuilder) -> None:
        # Not `super().__init__`, which would make further ids: another worker that makes this response again must make
        # as many.
        self.id, self.name, self.call_id = call.id, call.name, call.call_id
        self.texts: list[str] = []
        self._decorations: JsonObject = {}
        self._held = call.text

    @property
    def fits(self) -> bool:
        return False

    def rest(self) -> str:
        return self._held


def call_builder(tools: ClientTools, called: str, new_id: Callable[[str], str]) -> CallBuilder:
    """Return what writes the item of a call; what nobody declared is the client's function all the same."""
    tool = tools.get(called)
    if tool is None:
        return FunctionCallBuilder(new_id, called)
    namespace = tool.namespace or (tool.name if tool.found else None)  # as OpenAI marks what a search has found
    decorations: JsonObject = {"namespace": namespace} if namespace else {}
    if tool.is_async:
        decorations["async"] = True
    if tool.is_custom:
        return CustomCallBuilder(new_id, tool.name, decorations, unwraps=not tool.definition)
    if tool.type in CLIENT_KINDS:
        return ActionCallBuilder(new_id, CLIENT_KINDS[tool.type])
    return FunctionCallBuilder(new_id, tool.name, decorations)


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _is_wrapped(text: str) -> bool | None:
    """Whether a text begins as a JSON call does; None while that is not decided."""
    begins = "".join(text[:_MAX_UNDECIDED].split())  # however the text was cut into chunks
    if begins.startswith(_WRAPPING):
        return True
    # Blanks count for the bound: else a text of blanks alone would be held back without end.
    return None if _WRAPPING.startswith(begins) and len(text) < _MAX_UNDECIDED else False


def _unwrapped(text: str) -> str:
    """Return the one text of `{"input": "…"}`, and every other text as it is."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    if isinstance(value, dict) and value.keys() == {"input"} and isinstance(value["input"], str):
        return value["input"]
    return text


NewId = Callable[[str], str]
SEARCH_NAMES = "browser."  # how the names begin by which models know the web search
NO_SEARCH = "Nothing searches the web here: the operator has set neither SEARCH_URL nor SEARCH_MCP."
HostedTools = Mapping[str, Callable[[NewId], ItemBuilder]]


class Called:
    """What one response calls, and which item each call becomes."""

    def __init__(
        self, new_id: NewId, tools: ClientTools | None, hosted: HostedTools | None, *, searches: bool = False
    ) -> None:
        self._new_id = new_id
        self._tools = tools or ClientTools()  # they make the items of calls that clients answer
        self._hosted = dict(hosted or {})  # what makes the items of calls, by the names of the tools
        self.hosts = bool(self._hosted)  # the server runs any tools for this response
        self._searches = searches  # the request declares a web search, perhaps one that nothing runs here
        self.offered: dict[str, OfferedTool] = {}  # this server's tools that the response may use, by name
        self.max_hosted: int | None = None  # how many calls of them it may make
        self.made = 0  # and how many it has made
        self.asks = False  # the user is asked to approve one
        self.anything = False  # that is there was called
        self.background: list[str] = []  # names that the model has called and goes on without
        self.unknown: list[str] = []  # names that it has called and that are not there
        self.last_unknown: str | None = None  # what the last item called, where that is not there
        self.waits_for_client = False  # a call wants an output
        self.misfits = 0  # calls that do not fit: see `CallBuilder.fits`

    @property
    def may_host(self) -> bool:
        """Whether one more of this server's tools may be called."""
        return self.max_hosted is None or self.made < self.max_hosted

    def offer(self, tools: Iterable[OfferedTool]) -> None:
        """Take tools of this server that the model may call."""
        for tool in tools:
            self.offered[tool.name] = tool
            self._hosted[tool.name] = partial(builder_of, tool)
        self.hosts = bool(self._hosted)

    def share(self, other: "Called") -> None:
        """Take the tools of another agent of the same response."""
        self._tools, self.max_hosted, self._searches = other._tools, other.max_hosted, other._searches
        self.offer(other.offered.values())

    def learn(self, tools: Sequence[JsonObject], offered: Iterable[OfferedTool]) -> None:
        """Take what a search has found: tools of the client's, and of this server."""
        self.declare(tools)
        self.offer(offered)

    def knows(self, name: str) -> bool:
        """Whether there is a tool of this server of this name, whether it may be called or not."""
        return name in self._hosted

    def is_hosted(self, name: str) -> bool:
        """Whether the server runs the tool of this name when it is called now."""
        return name in self._hosted and self.may_host

    def shown(self, functions: Collection[str]) -> list[str]:
        """Return those of the client's tools that the model is shown, among the names of all that it can call."""
        hidden = set(self._tools.names).difference(tool.called for tool in self._tools.shown())
        return [name for name in functions if name not in hidden]

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
            # A call that asks for approval is not made in this response.
            self.made += not (offered and offered.asks)
            return self._hosted[name](self._new_id)
        self.unknown.append(name)
        self.last_unknown = name
        if self._searches and name.startswith(SEARCH_NAMES) and name not in self._hosted:
            unserved = builder_of(OfferedTool(name=name, item="web_search_call"), self._new_id)
            assert isinstance(unserved, HostedBuilder), "nobody is asked to approve it"
            unserved.unserved = {"type": "web_search_error", "message": NO_SEARCH}
            return unserved
        return ReasoningBuilder(self._new_id)

    def note(self, name: str, call: CallBuilder, status: ItemStatus) -> None:
        """Take a call of the client's that has ended."""
        self.misfits += not call.fits
        if call.is_async:
            self.background.append(name)
        # A call that was cut is not run by anybody.
        elif status == "completed":
            self.waits_for_client = True
