"""The items of calls of the client's tools, as they are written.

A function's arguments and a custom tool's input are streamed as they come. The other kinds (a shell, a patch) have an
item with fields of its own, which must be whole: nothing is said of such a call until it has ended, and then it is
there at once. What does not fit those fields becomes a function call of that tool's name, which a client can answer as
any other: so nothing that the model said is lost.
"""

from typing import ClassVar

from engine import orjson
from responses_app.protocol import ids
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events.events import EventType, PendingEvents
from responses_app.protocol.items.calls import CLIENT_KINDS, ClientKind
from responses_app.protocol.items.client_tools import ClientTools
from responses_app.protocol.items.resources import ClientCallItem, CustomCallItem, FunctionCallItem, ItemStatus
from responses_app.protocol.output.builders import ItemBuilder, NewId, SilentInput, with_fields

_WRAPPING = '{"input":"'  # how a model that knows JSON calls only begins to call a custom tool
_MAX_UNDECIDED = 64  # characters, with the blanks in them, after which a text does not begin like that any more


class CallBuilder(ItemBuilder):
    """A call that the client answers."""

    def __init__(self, new_id: NewId, name: str, decorations: JsonObject | None = None) -> None:
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
        try:
            orjson.loads(self.text)
        except orjson.JSONDecodeError:
            return False
        return True

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
        self, new_id: NewId, name: str, decorations: JsonObject | None = None, *, unwraps: bool = True
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

    def __init__(self, new_id: NewId, kind: ClientKind) -> None:
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


def call_builder(tools: ClientTools, called: str, new_id: NewId) -> CallBuilder:
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
