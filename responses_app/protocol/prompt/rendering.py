"""Items → messages as a model format renders them.

An item that this server sampled and that a client replays unchanged comes back as the tokens it was sampled as: see
`SampledMessage`. Everything else is rendered, in the order of the input.

Echoes are left out: messages that a client made of a thought. It shows the thought as if it were said, and gives both
back. GitHub's Copilot CLI does so with a turn that only thinks before it calls a tool. The model has not said it, and
would read another prompt from there on.
"""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard, assert_never

from engine.formats.base import Body, ItemKind, ModelFormat, PicturePart, RenderedMessage, Unanswered, without_pictures
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.calls import (
    OMITTED_PARTS,
    answered_calls,
    begins_turn,
    body_and_omissions,
    call_of,
    comes_back,
    joined,
    may_be_answered,
    needs_its_call,
    ran_in_container,
    types_answered,
    unknown_call,
)
from responses_app.protocol.items.compaction import UNREADABLE, digest, summary_message
from responses_app.protocol.items.items import (
    Compaction,
    CompactionTrigger,
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    ItemReference,
    MediaPart,
    Message,
    OmittedFile,
    OpenedCompaction,
    Part,
    PassedThrough,
    Reasoning,
    RefusalPart,
    SampledInput,
    SampledMessage,
    SeenImage,
    TextPart,
)
from responses_app.protocol.items.offers import SHELL, UNKNOWN, is_of_root, program_of
from responses_app.protocol.items.tool_items import (
    LateFunctions,
    ReadCall,
    ReadOutput,
    Tool,
    ToolItem,
    function_tool,
    mcp_tool,
    read_tool_item,
)
from responses_app.protocol.prompt.chain import ChainLink, calls_before


@dataclass(frozen=True, slots=True)
class Items:
    """Items, parsed and as they came; both have the same length."""

    parsed: Sequence[InputItem] = ()
    raw: Sequence[JsonObject] = ()  # the JSON of each, which is kept and given back


def with_results(items: Items, awaited: Mapping[str, JsonObject]) -> Items:
    """Return a request's items so that calls which come back `completed` are whole.

    Of the calls that are `awaited` it is known what they called, and with what: see `written_calls`. Unless items say
    what came of one of them, nothing did.
    """
    unanswered = awaited.keys() - answered_calls(items.raw)
    parsed, raw = list(items.parsed), list(items.raw)
    for place, (item, sent) in enumerate(zip(items.parsed, items.raw, strict=True)):
        call_id = str(sent.get("call_id"))
        if not comes_back(sent) or call_id not in awaited:
            continue
        made = {**awaited[call_id], **({"output": ""} if call_id in unanswered else {})}
        raw[place] = {**sent, **{name: value for name, value in made.items() if sent.get(name) is None}}
        if isinstance(item, FunctionCall):
            parsed[place] = item.model_copy(update={name: raw[place][name] for name in made})
    return Items(parsed, raw) if raw != items.raw else items


def render_items(
    model_format: ModelFormat,
    items: Sequence[InputItem],
    input_json: Sequence[JsonObject],
    *,
    parent: ChainLink | None,
    sampled: Mapping[str, SampledMessage],
    before: Items = Items(),
) -> list[RenderedMessage]:
    """Render a request's items, and `before` them those of its conversation that the chain of `parent` does not have.

    `sampled` holds what this server knows of the items' ids. Raises `ApiError` for the output of a call that stands
    neither in the items before it nor in the chain of `parent`; in a conversation, which keeps what it is given, the
    model reads such an output without its function's name. What a compaction replaces is left out, and what
    only repeats a thought.
    """
    every = [*before.parsed, *items]
    unread = places_replaced(every) | places_of_echoes(every, sampled)
    raws = [*before.raw, *input_json]
    renderer = _ItemRenderer(model_format, raws, parent, sampled)
    indices = [*(None for _ in before.parsed), *range(len(items))]  # in the request, as its errors name them
    messages: list[RenderedMessage] = []
    for place, (index, item, raw) in enumerate(zip(indices, every, raws, strict=True)):
        # Also an item that a compaction replaces: an output behind it may still name the call.
        renderer.note(raw)
        if place not in unread:
            messages += renderer.render(item, raw, index=index)
    return messages


def rendered_item(model_format: ModelFormat, item: JsonObject) -> list[RenderedMessage]:
    """Render an item that neither names a call nor was sampled."""
    return _ItemRenderer(model_format, (), None, {}).read(item)


def called_tool(item: JsonObject) -> tuple[str, Tool] | None:
    """Return the id and the tool of a call whose output comes as an item that names the id alone."""
    if item.get("type") == "mcp_approval_request":
        request_id = item.get("id")
        return (request_id, mcp_tool(item)) if isinstance(request_id, str) else None
    call = call_of(item)
    if call is None:
        return None
    return call.id, Tool(SHELL, hosted=True) if ran_in_container(item) else function_tool(call.called)


class _ItemRenderer:
    """Renders the items of one request, in their order; knows which calls were made, and which of them are answered."""

    def __init__(
        self,
        model_format: ModelFormat,
        items: Sequence[JsonObject],
        parent: ChainLink | None,
        sampled: Mapping[str, SampledMessage],
    ) -> None:
        self._format = model_format
        self._parent = parent
        self._sampled = sampled
        self._tools = Unanswered[Tool]()  # of the calls
        self._answered_tool: Tool | None = None  # of the call that the present item answers
        self._of_agents: set[str] = set()  # the ids of calls of agents below the root
        self._of_programs = calls_before(parent)  # and of those that programs have made
        outputs = Counter(str(each.get("call_id")) for each in items if types_answered(each))
        calls = ((call_of(each), each.get("output")) for each in items)
        # The ids of calls with an output in themselves that another one replaces.
        self._answered = outputs - Counter(call.id for call, own in calls if call is not None and own is None)

    def note(self, raw: JsonObject) -> None:
        """Remember a call, whose output may follow, or look for the call that an item answers."""
        self._answered_tool, called = None, called_tool(raw)
        if called is not None:
            self._tools.add(*called, kind=str(raw["type"]), waits=may_be_answered(raw))
            if program_of(raw) is not None:
                self._of_programs.add(called[0])
        elif begins_turn(raw):
            self._tools.next_turn()
        elif raw.get("type") == "mcp_approval_response":
            self._answered_tool = self._tools.answer(str(raw.get("approval_request_id")))
        elif kinds := types_answered(raw):
            call_id = str(raw.get("call_id"))
            if self._parent is not None and self._tools.latest(call_id) is None:
                for name, kind in self._parent.calls_named(call_id):
                    self._tools.add(call_id, function_tool(name), kind=kind)
            # Of most calls a chain does not say of which type they are.
            self._answered_tool = self._tools.answer(call_id, kinds=("", *kinds))

    def render(self, item: InputItem, raw: JsonObject, *, index: int | None) -> list[RenderedMessage]:
        """Return what the model reads of an item, the request's `index`-th (None: it is its conversation's).

        Raises `ApiError` for the output of an unknown call in the request.
        """
        if self._is_of_agent(raw):
            return []
        replayed = self._replayed(item, raw)
        match item:
            # The model reads what a program prints, and not what it calls.
            case FunctionCall() if item.call_id in self._of_programs:
                return []
            case FunctionCall():
                made = self._parent is not None and item.called in self._parent.call_names(item.call_id)
                called = [self._format.call(item.called, item.arguments)] if replayed is None else replayed
                # A call that the chain holds is read there. The name counts, too: a client may use the id of an old
                # call for a new one.
                return [*([] if made else called), *self._own_output(raw, item)]
            case FunctionCallOutput():
                tool = self._tool_of(item.call_id)
                if tool is None and index is not None:
                    raise unknown_call(raw, index)
                if item.call_id in self._of_programs:
                    return []
                return [self._output(tool or Tool(UNKNOWN), body_of(item.output))]
            # A call that the chain holds is in the prompt already, as it was sampled.
            case PassedThrough() if replayed is not None or self._was_made(raw):
                return [*([] if self._was_made(raw) else replayed or []), *self._own_output(raw, item)]
            case PassedThrough():
                if index is not None and needs_its_call(raw) and self._tool_of(str(raw["call_id"])) is None:
                    raise unknown_call(raw, index)
                return [*self.read(item.seen or raw), *self._own_output(raw, item)]
        return self._rendered(item) if replayed is None else replayed

    def read(self, item: JsonObject) -> list[RenderedMessage]:
        """Return what the model reads of an item of another tool than a function."""
        return [self._tool_item(read) for read in read_tool_item(item, self._tool_of)]

    def _replayed(self, item: InputItem, raw: JsonObject) -> list[RenderedMessage] | None:
        """Return what an item was sampled as, where that is known: of a seal, or by its id."""
        exact = item.exact if isinstance(item, SampledInput) else None
        # Tokens of another format would be read as other text.
        if exact is not None and exact.format == self._format.name:
            return list(exact.messages)
        known = self._sampled.get(item.id) if item.id else None
        return [known.message] if known is not None and known.is_replayed_by(raw) else None

    def _is_of_agent(self, raw: JsonObject) -> bool:
        """Whether an agent below the root has said or read this: the root has not."""
        if is_of_root(raw):
            return "call_id" in raw and str(raw["call_id"]) in self._of_agents
        if "call_id" in raw:
            self._of_agents.add(str(raw["call_id"]))
        return True

    def _own_output(self, raw: JsonObject, item: FunctionCall | PassedThrough) -> list[RenderedMessage]:
        """Return the output that some clients put into a call itself, unless an item has one."""
        # As the model sees it: the item has the pictures.
        output = item.output if isinstance(item, FunctionCall) else (item.seen or raw).get("output")
        called = called_tool(raw) if output is not None else None
        if called is None or called[0] in self._answered:
            return []
        return [self._output(called[1], body_and_omissions(output)[0])]

    def _was_made(self, raw: JsonObject) -> bool:
        """Whether this is a call that the chain holds."""
        called = called_tool(raw)
        if called is None or self._parent is None:
            return False
        call_id, tool = called
        return any(function_tool(name) == tool for name in self._parent.call_names(call_id))

    def _tool_of(self, call_id: str) -> Tool | None:
        tool = self._answered_tool or self._tools.latest(call_id)
        if tool is not None or self._parent is None:
            return tool
        if names := self._parent.call_names(call_id):
            return function_tool(names[-1])
        # Last, as it is slow: a request for approval is not a call of the chain, and its answer names it by its id.
        requests = (called_tool(item) for item in self._parent.all_tool_items())
        return next((called[1] for called in requests if called is not None and called[0] == call_id), None)

    def _tool_item(self, read: ToolItem) -> RenderedMessage:
        match read:
            case ReadCall(tool=tool):
                return self._format.call(tool.name, read.arguments, hosted=tool.hosted, freeform=read.freeform)
            case ReadOutput():
                return self._output(read.tool, read.body)
            case LateFunctions():
                return self._format.late_functions(read.declarations, hosted=read.hosted)
        return self._format.note(read.text)

    def _output(self, tool: Tool, body: Body) -> RenderedMessage:
        return self._format.output(tool.name, body, hosted=tool.hosted)

    def _rendered(
        self, item: Message | Reasoning | ItemReference | Compaction | CompactionTrigger | OpenedCompaction
    ) -> list[RenderedMessage]:
        match item:
            case Message(role="assistant"):
                kind = ItemKind.PREAMBLE if item.phase == "commentary" else ItemKind.ANSWER
                return [self._format.said(kind, text_of(item.content))]
            case Message(role="user"):
                return [self._format.user(body_of(item.content))]
            case Message():
                return [self._format.developer(text_of(item.content))]
            case Reasoning():
                return [self._format.said(ItemKind.REASONING, text_of(item.content))] if item.content else []
            case OpenedCompaction():
                return item.compacted.messages(self._format)
            case Compaction():
                return [summary_message(self._format, UNREADABLE)]
            case ItemReference() | CompactionTrigger():
                return []
        assert_never(item)  # a new type of item needs a case here, in `_omitted` and in `_characters`


def places_replaced(items: Sequence[InputItem]) -> set[int]:
    """Return the places of the items that a compaction behind them stands for."""
    places: set[int] = set()
    # What the compactions behind stand for: all, or the messages of the user that have these digests.
    whole, digests = False, frozenset[str]()
    # From the end: a compaction stands for what comes before it.
    for place in reversed(range(len(items))):
        item = items[place]
        if whole or (digests and is_of_user(item) and digest(text_of(item.content)) in digests):
            places.add(place)
        elif isinstance(item, OpenedCompaction):
            whole = item.compacted.replaces_all
            digests |= item.compacted.stands_for
    return places


def is_of_user(item: InputItem) -> TypeGuard[Message]:
    """Whether this is a message of the user."""
    return isinstance(item, Message) and item.role == "user"


def count_omitted(items: Sequence[InputItem], input_json: Sequence[JsonObject]) -> int:
    """Count what the model cannot read of a request, and a note replaces in the prompt: parts, and whole items."""
    return sum(map(_omitted, items, input_json))


def _omitted(item: InputItem, raw: JsonObject) -> int:
    match item:
        case Message(content=parts) | FunctionCallOutput(output=parts):
            return sum(isinstance(part, MediaPart) and not isinstance(part, SeenImage) for part in parts)
        case FunctionCall():
            return body_and_omissions(item.output)[1]
        case PassedThrough():
            own = body_and_omissions(raw.get("output"))[1] if called_tool(raw) is not None else 0
            return own + sum(read.omitted for read in read_tool_item(item.seen or raw, lambda _: None))
        case Reasoning() | ItemReference() | Compaction() | CompactionTrigger() | OpenedCompaction():
            return 0
    assert_never(item)


def text_of(parts: Sequence[Part]) -> str:
    """Join content parts as a model reads them that cannot see: a note in place of each image."""
    return without_pictures(body_of(parts))


def body_of(parts: Sequence[Part]) -> Body:
    """Join content parts as the model reads and sees them, a note in place of what it cannot."""
    return joined(map(_read_part, parts))


def _read_part(part: Part) -> str | PicturePart:
    match part:
        case RefusalPart():
            return part.refusal
        case SeenImage():
            return PicturePart(part.digest)
        case OmittedFile():
            return part.note
        case MediaPart():
            return OMITTED_PARTS[part.type]
    # `TextPart`, the last one.
    return part.text


def places_of_echoes(items: Sequence[InputItem | None], sampled: Container[str]) -> set[int]:
    """Return the places of messages that stand between a thought and a call, and say the thought word for word.

    `sampled` are the ids of items that the model is known to have said.
    """
    return {
        place + 1
        for place, (thought, said, call) in enumerate(zip(items, items[1:], items[2:], strict=False))
        if isinstance(thought, Reasoning)
        and isinstance(said, Message)
        and isinstance(call, FunctionCall | PassedThrough)
        and said.role == "assistant"
        and said.id not in sampled
        and said.exact is None  # what has tokens of its own was sampled
        and (text := _text(said.content))
        and text in (_text(thought.content or ()), _text(thought.summary))
    }


def _text(parts: Sequence[object]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextPart))
