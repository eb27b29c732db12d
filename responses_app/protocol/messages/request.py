"""A request of Anthropic's Messages API, validated, and as the request of the Responses API that it stands for.

There is one way to generate here: a message is a `CreateRequest` like any other. What only the wire of this API knows
(stop sequences, whether thoughts are shown) stays in `MessagesRequest`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from engine.types import MessagesSampling
from responses_app.protocol.errors import ApiError, JsonObject, OwnNames, in_own_names
from responses_app.protocol.fields import CACHES_ALL, ClientModel, Refused, missing, note_ignored, or_text, validate
from responses_app.protocol.json_text import json_size
from responses_app.protocol.messages.blocks import MessageItems, SystemText, read_messages
from responses_app.protocol.messages.errors import THREAD
from responses_app.protocol.messages.tools import MessagesToolChoice, ReadTools, choice_fields, read_tools
from responses_app.protocol.prompt.replaying import KnownTurn, PlacedTurn, sampled_items
from responses_app.protocol.requests.create_fields import ENCRYPTED_REASONING, FILE_OUTPUTS, Effort
from responses_app.protocol.requests.requests import CreateRequest
from responses_app.protocol.rollouts.requests import METADATA
from responses_app.protocol.stop_strings import MAX_STOP

MAX_STOPS = 32  # stop sequences of one request
MIN_BUDGET = 1024  # tokens of thought that can be asked for
LITTLE_THOUGHT, SOME_THOUGHT = 4096, 16_384  # tokens up to which a budget is a low or a medium effort
# Claude Code begins its system prompt with a block that another hash is in at each request. A model that read it would
# read another prompt from its first tokens on, so that no request could have what the engine has cached.
BILLING = "x-anthropic-billing-header:"
_DEEP = ("messages", "system", "tools", "mcp_servers", "output_config", "output_format")  # whose values may be nested
RESULTS = ("web_search_call.results", "code_interpreter_call.outputs")  # what blocks of the server's tools show
_NAMES = OwnNames(
    fields=(
        ("text.format.schema", "output_config.format.schema"),
        ("text.format", "output_config.format"),
        ("reasoning.effort", "output_config.effort"),
        ("max_output_tokens", "max_tokens"),
        ("parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
        ("max_tool_calls", "tools"),
        ("instructions", "system"),
        ("user", "metadata.user_id"),
        ("input", "messages"),
    ),
    advice=(
        (", or continue the response that made the call with 'previous_response_id'", ""),
        (", or continue a response with 'previous_response_id' and only the new ones", ""),
        ("Send it as an item of 'input'.", "Send a 'tool_result' for it in the message behind that of the call."),
        ("Shorten the input, start a new chain, or set 'truncation' to 'auto'.", "Send fewer or shorter messages."),
        (
            "Send the item as this server gave it, or leave 'encrypted_content' out: then the item's text is read.",
            "Send the block as this server gave it, or leave the block out.",
        ),
        ("The encrypted content", "The signature"),
        (".parameters", ".input_schema"),
        ("It is 'required'", "It is 'any'"),
    ),
)


class Thinking(ClientModel):
    """Whether the model thinks, and how much: for so many tokens, which is read as an effort, or as it sees fit."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = Field(default=None, ge=MIN_BUDGET)
    display: Literal["summarized", "omitted", "updates"] | None = None  # the last is Claude Code's: they are shown

    idle: ClassVar = {"block_binding": "A thought is read wherever it is given back, if its signature is good."}


class MessagesFormat(ClientModel):
    """What the answer is held to."""

    type: Literal["json_schema"]
    format_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(ClientModel):
    """How the model answers."""

    effort: Effort | None = None
    format: MessagesFormat | None = None

    idle: ClassVar = {"task_budget": "'max_tokens' bounds a message; nothing bounds what comes behind it."}
    told: ClassVar = ("task_budget",)


class RequestMetadata(ClientModel):
    """What is said of a request."""

    own: ClassVar = ("rollout_id",)

    user_id: str | None = Field(default=None, max_length=1024)
    rollout_id: str | None = None  # of this server: the roll-out that the message is part of


class MessagesContainer(ClientModel):
    """Where code runs."""

    id: str | None = Field(default=None, min_length=1, max_length=256)

    refused: ClassVar = {"skills": Refused("Skills are named in the Responses API. Leave them out here.")}


class CountFields(ClientModel):
    """The fields of a request whose tokens are counted, beside its messages and its tools."""

    model: str = Field(min_length=1, max_length=256)
    system: SystemText | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    tool_choice: MessagesToolChoice | None = None
    output_format: MessagesFormat | None = None  # the older name of `output_config.format`

    beside: ClassVar = ("messages", "tools", "mcp_servers")
    refused: ClassVar = {"compaction": Refused("Summaries are made by POST /v1/responses/compact.")}
    idle: ClassVar = {
        "cache_control": CACHES_ALL,
        "context_management": "Nothing is cleared or summed up here; the client sends what the model is to read.",
        "speed": "There is one speed.",
        **dict.fromkeys(
            ("user_profile_id", "workspace_id", "billing_policy"), "It is Anthropic's; the API key says whose it is."
        ),
    }
    told: ClassVar[Collection[str]] = ("context_management", "speed")
    own: ClassVar[Collection[str]] = ("output_format",)  # which the SDK does not have any more


class MessagesFields(CountFields, MessagesSampling):
    """The fields of a request that is to be answered."""

    max_tokens: int = Field(ge=0)  # 0: a warm-up, whose prompt is read into the engine's cache
    stream: bool | None = None
    stop_sequences: list[Annotated[str, Field(min_length=1, max_length=MAX_STOP)]] | None = Field(
        default=None, max_length=MAX_STOPS, fail_fast=True
    )
    metadata: RequestMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    container: Annotated[
        MessagesContainer | None, or_text(lambda id: {"id": id}, MessagesContainer, "text_or_object")
    ] = None

    refused: ClassVar = {
        **CountFields.refused,
        THREAD: Refused(
            "Messages are not stored: send the whole conversation, or use /v1/responses with 'previous_response_id'."
        ),
    }
    idle: ClassVar = {
        **CountFields.idle,
        "fallback_credit_token": "Nothing is billed here.",
        "diagnostics": "`usage` says how much of a prompt came from the cache; there are no other findings.",
        "fallbacks": "The model that is asked for answers, or none.",
        "inference_geo": "It is Anthropic's; models run where this server does.",
    }
    told: ClassVar = (*CountFields.told, "fallbacks")
    own: ClassVar = (*CountFields.own, *MessagesSampling.model_fields)  # the SDK has them no more


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesRequest:
    """A request."""

    create: CreateRequest  # what is generated for
    read: MessageItems  # its messages
    tools: ReadTools  # and its tools
    stops: tuple[str, ...] = ()
    shows_thinking: bool = False  # the answer has blocks of thoughts
    omits_thoughts: bool = False  # which have seals, and no text
    lists_tools: bool = False  # the client knows blocks with the tools of an MCP server
    # Until when a container is kept that was used at a time (Unix seconds), as a date. None: there are none here.
    container_until: Callable[[int], str] | None = None

    @property
    def turns(self) -> Sequence[PlacedTurn]:
        """The turns of the assistant so far."""
        return self.read.turns

    def as_sampled(self, recall: Callable[[bytes], KnownTurn | None]) -> "MessagesRequest":
        """Return the request whose known turns the model reads as it has sampled them."""
        items = sampled_items(self.create.input, self.turns, recall)
        return replace(self, create=self.create.model_copy(update={"input": items}))

    def renamed(self, error: ApiError) -> ApiError:
        """Return an error of its run in the names of this API."""
        return _in_messages_names(error, self.read, self.tools)


def parse_messages(data: Mapping[str, object], parse: Callable[[JsonObject], CreateRequest]) -> MessagesRequest:
    """Validate a request; `parse` validates the one it stands for. Raises `ApiError` that names the field."""
    json_size({name: data[name] for name in _DEEP if name in data})
    fields = validate(MessagesFields, data)
    shown = fields.thinking if fields.thinking is not None and fields.thinking.type != "disabled" else None
    longest: JsonObject = {"max_output_tokens": fields.max_tokens} if fields.max_tokens else {"generate": False}
    asked: JsonObject = {"store": False, **longest}
    same = ("stream", *MessagesSampling.model_fields)
    asked |= {name: value for name in same if (value := getattr(fields, name)) is not None}
    if fields.metadata is not None and fields.metadata.user_id:
        asked["user"] = fields.metadata.user_id
    if fields.metadata is not None and fields.metadata.rollout_id is not None:
        asked["metadata"] = {METADATA: fields.metadata.rollout_id}
    if fields.service_tier is not None:
        asked["service_tier"] = "default" if fields.service_tier == "standard_only" else "auto"
    create, read, tools = _created(data, fields, asked, parse, seals=shown is not None)
    return MessagesRequest(
        create=create,
        read=read,
        tools=tools,
        stops=tuple(fields.stop_sequences or ()),
        shows_thinking=shown is not None,
        omits_thoughts=shown is not None and shown.display == "omitted",
    )


def parse_count(data: Mapping[str, object], parse: Callable[[JsonObject], CreateRequest]) -> MessagesRequest:
    """Validate a request whose tokens are to be counted. Raises `ApiError` that names the field."""
    json_size({name: data[name] for name in _DEEP if name in data})
    create, read, tools = _created(data, validate(CountFields, data), {"store": False}, parse)
    return MessagesRequest(create=create, read=read, tools=tools)


def _created(
    data: Mapping[str, object],
    fields: CountFields,
    asked: JsonObject,
    parse: Callable[[JsonObject], CreateRequest],
    *,
    seals: bool = False,
) -> tuple[CreateRequest, MessageItems, ReadTools]:
    """Return the request of the Responses API with the fields of both kinds of requests; `asked` has its other fields.

    `seals`: thoughts carry their tokens. They also do where the server runs tools: nothing else can carry the tokens of
    those.
    """
    read = read_messages(data.get("messages"))
    asked |= {"model": fields.model, "input": read.items}
    system = _system(fields)
    if system:
        asked["instructions"] = system
    effort = _effort(fields)
    if effort is not None:
        asked["reasoning"] = {"effort": effort}
    answer = (fields.output_config.format if fields.output_config is not None else None) or fields.output_format
    if answer is not None:
        asked["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": answer.format_schema}}
    container = fields.container.id if isinstance(fields, MessagesFields) and fields.container is not None else None
    tools = read_tools(data.get("tools"), data.get("mcp_servers"), container)
    asked |= {"tools": tools.tools} if tools.tools else {}
    asked |= choice_fields(fields.tool_choice, tools)
    asked |= {"max_tool_calls": tools.max_calls} if tools.max_calls is not None else {}
    if seals or tools.serves:
        asked["include"] = [ENCRYPTED_REASONING, *(RESULTS if tools.serves else ())]
    try:
        create = parse(asked)
    except ApiError as error:
        raise _in_messages_names(error, read, tools) from None
    renamed = partial(_in_messages_names, read=read, tools=tools)
    include = [*(create.include or ()), FILE_OUTPUTS]
    return create.model_copy(update={"include": include, "renamed": renamed}), read, tools


def _in_messages_names(error: ApiError, read: MessageItems, tools: ReadTools) -> ApiError:
    return in_own_names(error, _NAMES, read.name_of, tools.name_of)


def _system(fields: CountFields) -> str:
    """Return the text of the developer, without the block that changes with each request and is not for the model."""
    texts = []
    for index, block in enumerate(fields.system or ()):
        if block.text.startswith(BILLING):
            note_ignored(f"system[{index}]")
        elif block.text:
            texts.append(block.text)
    return "\n\n".join(texts)


def _effort(fields: CountFields) -> str | None:
    """Return how much the model is to think; None for as much as it does where nobody says it."""
    asked = fields.output_config.effort if fields.output_config is not None else None
    thinking = fields.thinking
    if thinking is None:
        return asked or "none"
    if thinking.type == "disabled":
        return "none"
    if thinking.type != "enabled":
        return asked
    if thinking.budget_tokens is None:
        raise missing("thinking.budget_tokens")
    budget = thinking.budget_tokens
    return asked or ("low" if budget <= LITTLE_THOUGHT else "medium" if budget <= SOME_THOUGHT else "high")
