"""The contract of a tool that the server runs inside a response.

    a request's `tools` ──> offer() ──> what the model is told, and what it may call
    a call of the model ──> call()  ──> what the model reads, what the call's item shows

A tool lives as long as the process and serves all responses; what is a response's own comes with each call. It writes
no item and no event: the machine does (`protocol.output.hosted_items`), so a stream can be made again without the tool.
`tests/contracts/tools.py` holds every tool to one suite.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from engine import orjson
from responses_app.kit.retention import Retentions
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.offers import Offer

if TYPE_CHECKING:
    from responses_app.resources.files.store import Files
    from responses_app.resources.skills.store import Skills


def json_object(text: str) -> JsonObject | None:
    """Return the arguments of a call, which the model wrote; none where there is no text, None for anything else."""
    try:
        value = orjson.loads(text) if text else {}
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolParts:
    """What tools are made of: parts of the server that they may use."""

    settings: Any  # all of them; an instance of each class of settings that there is
    files: "Files"
    skills: "Skills"
    stored_items: Callable[[str, Collection[str]], Awaitable[Mapping[str, JsonObject]]]  # of a project, by their ids
    now: Callable[[], float]  # the store's Unix time
    retentions: Retentions
    mcp: "BaseTool | None" = None  # the tool of MCP servers, where there are any


class ToolFailed(Exception):
    """The tool cannot do a call; the model reads the text, which may reach the client, too.

    `shown` are fields of the call's item, such as a typed `error`. The response goes on.
    """

    def __init__(self, message: str, *, shown: JsonObject | None = None) -> None:
        super().__init__(message)
        self.shown = shown or {}


async def nothing_to_call(call: JsonObject) -> JsonObject:
    """Answer a call of a program that may call nothing."""
    return {"error": "there is nothing to call"}


async def nothing_to_confirm() -> None:
    """Confirm a call that may be made at any time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """A tool as one request declares it."""

    declared: JsonObject  # the request's own declaration, as it is echoed
    # Fields of it that nobody keeps or shows, such as credentials; missing where another worker goes on.
    private: JsonObject = field(default_factory=dict, repr=False)
    project: str  # whose request it is
    response_id: str
    chain_id: str  # the same for all responses that continue each other: the id of the first
    at: str = "tools"  # where the request declares it, for errors
    container_at: str = "tools"  # the field in which a request says what container it is to have, for errors
    include: Collection[str] = ()  # what the request has in its `include`
    # Oldest first: those that the chain keeps for tools (`chain.kept_items`), and those of the request and its
    # conversation that are new to the chain.
    items: Sequence[JsonObject] = field(default=(), repr=False)
    # What calls of the tool have left in the chain (`ToolResult.state`).
    state: JsonObject | None = field(default=None, repr=False)
    unkept: bool = (
        False  # the project keeps nothing: what the tool makes for the response goes with it (`forget_response`)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that the model makes."""

    use: ToolUse
    name: str  # as the model calls it
    arguments: str  # whatever the model wrote
    item_id: str  # of the call's item
    tool: str = ""  # the name that an MCP server has for it; "" for other tools
    state: JsonObject | None = None  # what an earlier call of the chain left by `ToolResult.state`
    # Says how far the work is: the call has then `BaseTool.idle_seconds` again, and readers hear what the item's
    # builder makes of the fields.
    report: Callable[[JsonObject], None] = field(default=lambda _: None, repr=False)
    # Awaited right before the call goes out, where time may have passed; where it raises, the call is not made.
    confirm: Callable[[], Awaitable[None]] = field(default=nothing_to_confirm, repr=False)
    # Makes what a program calls: `{"name", "arguments"}`, as it was sent, becomes `{"output"}` or `{"error"}`.
    answer: Callable[[JsonObject], Awaitable[JsonObject]] = field(default=nothing_to_call, repr=False)


@dataclass(frozen=True, slots=True)
class ToolImage:
    """An image that a tool gives back, of any format."""

    data: bytes | str = field(repr=False)  # its file, or that as base64


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call."""

    text: str  # for a model that cannot see; cut at SERVER_TOOL_MAX_OUTPUT_BYTES
    # Fields of the call's item: its outputs, or with `failed` a typed error.
    shown: JsonObject = field(default_factory=dict)
    failed: bool = False  # the tool ran, and says that it failed
    # For later calls of the chain, on whatever worker: JSON of `MAX_STATE_BYTES` at most. None: what was kept stays.
    state: JsonObject | None = None
    seen: Sequence[str | ToolImage] = field(default=(), repr=False)  # for one that sees, where it has images


# Makes the result of a call that was begun early, of the call as it is asked for then; raises as `BaseTool.call` does.
Finish = Callable[[ToolCall], Awaitable[ToolResult]]
MAX_STATE_BYTES = 64 * 1024  # of one tool, as JSON; a state that is larger is not kept


class ToolList(NamedTuple):
    """The tools of a server, as an `mcp_list_tools` item shows them."""

    tools: Sequence[JsonObject]
    problem: str | None = None  # what is left out of them, and why


class ContainerLimits(NamedTuple):
    """The limits of the containers of a tool."""

    idle_seconds: float  # without a call or a transfer of files; then one expires
    file_bytes: int  # of all files in one


class BaseTool(ABC):
    """One tool, or several under one namespace.

    Which setting sets a tool up, `protocol.requests.server_tools` says: errors name it where there is no tool.
    """

    kinds: ClassVar[Collection[str]]  # the `type`s by which a request's `tools` ask for it
    max_seconds: float = 120.0  # that one call may take; of a tool that is made late, its maker says it
    idle_seconds: float = 120.0  # that one call may take without a report
    max_shown_bytes: int = 4 * 1024 * 1024  # of what a call's item shows, as JSON
    container_limits: ContainerLimits | None = None  # of a tool with containers that requests can name

    async def start(self) -> None:  # noqa: B027 - most tools have nothing to start
        """Get ready. Raises nothing: a tool that cannot be used says so by `problem`."""

    async def aclose(self) -> None:  # noqa: B027
        """End everything that it keeps or runs. Safe to call twice."""

    def problem(self) -> str | None:
        """Return why it cannot be used now, in one sentence that says what to do; None if it can."""
        return None

    def missing(self) -> str:
        """Return a sentence on what must be installed on this machine before it can be used; "" for nothing."""
        return ""

    def refusal(self, declared: JsonObject) -> str | None:
        """Return why it cannot be used as this request declares it, in one sentence; None if it can."""
        return None

    @abstractmethod
    async def offer(self, use: ToolUse) -> Offer | None:
        """Return the tools and descriptions that the model gets; None where they are asked for later, by `list_tools`.

        Raises `ApiError` for a declaration that it cannot serve: the request is refused.
        """

    async def list_tools(self, use: ToolUse) -> ToolList:
        """Return its tools. Raises `ToolFailed`."""
        raise NotImplementedError("its offer is known at once")

    def offer_listed(self, use: ToolUse, tools: Sequence[JsonObject]) -> Offer:
        """Return the same where these are its tools. Pure; raises nothing."""
        raise NotImplementedError("its offer is known at once")

    @abstractmethod
    async def call(self, call: ToolCall) -> ToolResult:
        """Run it. Raises `ToolFailed`; cancelling it ends its work."""

    async def begin(self, call: ToolCall) -> Finish:
        """Begin the long part of a call that may never be asked for, of a tool that only `reads`.

        The call has no item yet, and may be asked for with another `state`. Raises as `call` does: then it is called
        once it is asked for.
        """
        result = await self.call(call)

        async def finish(later: ToolCall) -> ToolResult:
            return result if later.state == call.state else await self.call(later)

        return finish

    async def forget_response(self, use: ToolUse) -> None:  # noqa: B027 - most tools keep nothing
        """Remove all that it keeps of a response that has ended, whose project keeps nothing. Raises nothing."""

    async def expire(self, project: str, oldest: float) -> None:  # noqa: B027
        """Remove what it keeps for a project that was made before `oldest`, in Unix seconds. Raises nothing."""


def container_limits(tools: Iterable[BaseTool]) -> ContainerLimits | None:
    """Return the limits of the containers that requests can name; None where no tool has any."""
    return next((tool.container_limits for tool in tools if tool.container_limits is not None), None)
