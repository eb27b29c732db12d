"""`CreateRequest`: the body of `POST /v1/responses` and of the WebSocket's `response.create`, validated.

Unknown fields are ignored (Codex sends `client_metadata` in every request). A field whose feature is not built yet is
refused when its value asks for the feature, with 400 `unsupported_parameter`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, SkipValidation

from engine.formats.base import FunctionTool
from responses_app.protocol.client_tools import ClientTools, late_tools, read_tools
from responses_app.protocol.compaction import MIN_THRESHOLD
from responses_app.protocol.errors import JsonObject, invalid_request, unsupported_parameter
from responses_app.protocol.items import ClientModel, CompactionTrigger, ParsedItem, parse_input
from responses_app.protocol.json_size import json_size
from responses_app.protocol.metadata import Metadata, check_metadata
from responses_app.protocol.server_tools import ITEMS, private_fields
from responses_app.protocol.text_format import TextFormat, parse_text_format
from responses_app.protocol.tiers import ServiceTier
from responses_app.protocol.tool_choice import ToolChoice, parse_tool_choice
from responses_app.protocol.tools import callable_tools, parse_tools
from responses_app.protocol.validation import validate

KNOWN_INCLUDES = frozenset(
    "code_interpreter_call.outputs computer_call_output.output.image_url file_search_call.results "
    "message.input_image.image_url message.output_text.logprobs reasoning.encrypted_content "
    "web_search_call.action.sources web_search_call.results".split()
)
ENGINE_FIELDS = (  # known to vLLM or some forks of it only, and taken where RESPONSES_COMPATIBILITY_MODE is off
    "request_id",
    "mm_processor_kwargs",
    "priority",
    "cache_salt",
    "enable_response_messages",
    "previous_input_messages",
)
LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"


def _as_reference(value: object) -> object:
    """Read a plain id as a reference."""
    return {"id": value} if isinstance(value, str) else value


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Verbosity = Literal["low", "medium", "high"]


class ReasoningOptions(ClientModel):
    """How much the model thinks. gpt-oss knows low, medium and high; the rest is mapped to the nearest."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class TextOptions(ClientModel):
    """Options of the answer's text; `format` is what `parse_text_format` reads."""

    format: SkipValidation[object] = None
    verbosity: Verbosity | None = None


class StreamOptions(ClientModel):
    """Options of a stream; obfuscation is accepted and left out."""

    include_obfuscation: bool | None = None


class CacheOptions(ClientModel):
    """Options of prompt caching; `prewarm` makes a request a warm-up."""

    prewarm: bool | None = None


class ConversationReference(ClientModel):
    """The conversation a response reads and appends to."""

    id: str = Field(min_length=1, max_length=256)


_EITHER = BeforeValidator(_as_reference, json_schema_input_type=str | ConversationReference)


class ContextManagement(ClientModel):
    """When to compact: a prompt of more tokens than this begins with a summary of what came before."""

    type: Literal["compaction"]
    compact_threshold: int | None = Field(default=None, ge=MIN_THRESHOLD)


class Fields(ClientModel):
    """The fields of a request, each of the right type."""

    model: str | None = Field(default=None, min_length=1, max_length=256)
    instructions: str | None = None
    previous_response_id: str | None = Field(default=None, min_length=1, max_length=256)
    conversation: Annotated[ConversationReference, _EITHER] | None = None
    store: bool | None = None
    stream: bool | None = None
    background: bool | None = None
    generate: bool | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    max_output_tokens: int | None = Field(default=None, ge=1)
    max_tool_calls: int | None = Field(default=None, ge=1)
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    truncation: Literal["auto", "disabled"] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    stream_options: StreamOptions | None = None
    include: Annotated[list[str], Field(fail_fast=True)] | None = None
    metadata: Metadata | None = None
    service_tier: ServiceTier | None = None
    user: str | None = Field(default=None, max_length=1024)
    safety_identifier: str | None = Field(default=None, max_length=1024)
    prompt_cache_key: str | None = Field(default=None, min_length=1, max_length=1024)
    prompt_cache_retention: str | None = Field(default=None, max_length=64)
    prompt_cache_options: CacheOptions | None = None
    context_management: Annotated[list[ContextManagement], Field(fail_fast=True)] | None = None
    request_id: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]{1,64}$")
    priority: int | None = Field(default=None, ge=-(2**31), lt=2**31)
    cache_salt: str | None = Field(default=None, min_length=1, max_length=1024)
    enable_response_messages: bool | None = None
    previous_input_messages: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None


class CreateRequest(Fields):
    """A whole request: its fields, its input and its tools. `input_json` and `tools_json` are kept and echoed."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    input: SkipValidation[list[ParsedItem]]  # these are validated already, by `parse_input` and `parse_tools`
    input_json: SkipValidation[list[JsonObject]]
    tools: SkipValidation[ClientTools]  # that the model can call
    tools_json: SkipValidation[list[JsonObject]]
    tool_choice: SkipValidation[ToolChoice]
    private: SkipValidation[Mapping[str, JsonObject]] = Field(default_factory=dict, repr=False)  # see `server_tools`
    text_format: SkipValidation[TextFormat]
    size: SkipValidation[int]  # of what is read of the request, as JSON, in bytes

    @property
    def served(self) -> list[JsonObject]:
        """Its tools that a server runs."""
        return [tool for tool in self.tools_json if tool["type"] in ITEMS]

    @property
    def warm_up(self) -> bool:
        """Whether nothing is to be generated."""
        return self.generate is False or bool(self.prompt_cache_options and self.prompt_cache_options.prewarm)

    @property
    def only_compacts(self) -> bool:
        """Whether a summary of everything is all that is wanted."""
        return bool(self.input) and isinstance(self.input[-1], CompactionTrigger) and not self.warm_up

    def compact_threshold(self, max_model_len: int) -> int | None:
        """Return how many tokens a prompt may have before it is compacted; None: as many as the model takes."""
        asked = [entry.compact_threshold for entry in self.context_management or ()]
        if not asked:
            return None
        return min(*(wanted or max_model_len * 3 // 4 for wanted in asked), max_model_len - 1)

    @property
    def conversation_id(self) -> str | None:
        """The conversation to read and append to."""
        return self.conversation.id if self.conversation else None

    def as_json(self) -> JsonObject:
        """Return a request that `parse_create` reads as this one."""
        fields = self.model_dump(mode="json", include=set(Fields.model_fields), exclude_none=True)
        return {**fields, "input": self.input_json, "tools": self.tools_json, "tool_choice": self.tool_choice.echo}

    @property
    def offered_functions(self) -> list[FunctionTool]:
        """The functions the model may call now: none where the request forbids calls."""
        return [] if self.tool_choice.forbids else [tool.declaration() for tool in self.tools.shown()]

    @property
    def logprobs(self) -> int | None:
        """How many alternatives to each token the answer is to name; None where no log probabilities are asked for."""
        asked = bool(self.top_logprobs) or LOGPROBS in (self.include or ())
        return (self.top_logprobs or 0) if asked else None

    @property
    def effort(self) -> Literal["none", "low", "medium", "high"]:
        """The reasoning effort as models know it, and none; medium by default."""
        asked = self.reasoning.effort if self.reasoning else None
        match asked:
            case "none":
                return "none"
            case "minimal" | "low":
                return "low"
            case "high" | "xhigh" | "max":
                return "high"
        return "medium"


def only_known(frame: object) -> object:
    """Return a WebSocket's frame without the fields of a create that nobody reads; it is kept while its run lasts."""
    if not isinstance(frame, dict) or frame.get("type") != "response.create":
        return frame
    return {name: value for name, value in frame.items() if name in _KNOWN}


def parse_create(data: Mapping[str, object], *, engine_fields: bool = False) -> CreateRequest:
    """Validate a request; `engine_fields`: with the fields that are the engine's, not OpenAI's.

    Raises `ApiError` that names the field and says what it takes.
    """
    _refuse_unbuilt(data, engine_fields=engine_fields)
    size = _written_size(data)
    items, input_json = parse_input(data.get("input"))
    tools_json = parse_tools(data.get("tools"))
    tools = callable_tools(tools_json)
    text = data.get("text")
    parsed = {
        "input": items,
        "input_json": input_json,
        "tools": tools,
        "tools_json": tools_json,
        "tool_choice": _tool_choice(data, tools, input_json, [tool for tool in tools_json if tool["type"] in ITEMS]),
        "private": private_fields(data.get("tools")),
        "text_format": parse_text_format(text.get("format") if isinstance(text, dict) else None),
        "size": size,
    }
    request = validate(CreateRequest, {**data, **parsed})
    _check_together(request)
    check_include(request.include)
    check_metadata(request.metadata)
    return request


def _tool_choice(
    data: Mapping[str, object], tools: ClientTools, input_json: list[JsonObject], served: list[JsonObject]
) -> ToolChoice:
    """Validate a request's choice among its tools, those in its input, and those of what it continues."""
    value = data.get("tool_choice")
    if value is None:
        return ToolChoice()
    continues = any(data.get(name) is not None for name in ("previous_response_id", "conversation"))
    joined = tools.joined(read_tools(late_tools(input_json), at="input"))
    return parse_tool_choice(value, joined, served=served, continues=continues)


def with_choice(request: CreateRequest, tools: ClientTools) -> CreateRequest:
    """Return a request whose `tool_choice` is known now that all `tools` are. Raises `ApiError` where it is wrong."""
    if not request.tool_choice.pending:
        return request
    choice = parse_tool_choice(request.tool_choice.echo, tools, served=request.served)
    return request.model_copy(update={"tool_choice": choice})


def _check_together(request: CreateRequest) -> None:
    for index, item in enumerate(request.input[:-1]):
        if isinstance(item, CompactionTrigger):
            raise invalid_request(
                f"Invalid value for 'input[{index}]': a 'compaction_trigger' must be the last item.",
                param=f"input[{index}]",
                code="invalid_value",
            )
    if request.background and request.store is False:
        raise invalid_request(
            "A background response must be stored: leave 'store' out, or set 'background' to false.",
            param="background",
            code="invalid_value",
        )
    if request.conversation and request.previous_response_id:
        raise invalid_request(
            "Mutually exclusive parameters: 'previous_response_id' and 'conversation'. Each says what comes before; "
            "send one of them.",
            param="conversation",
            code="mutually_exclusive_parameters",
        )
    if request.request_id in _RESERVED_IDS:
        raise invalid_request(
            f"Invalid value for 'request_id': {request.request_id!r} is part of the API's paths. Choose another id.",
            param="request_id",
            code="invalid_value",
        )
    if request.previous_input_messages and (request.previous_response_id or request.conversation):
        raise invalid_request(
            "Mutually exclusive parameters: 'previous_input_messages' and what continues a response or a conversation. "
            "Each says what comes before; send one of them.",
            param="previous_input_messages",
            code="mutually_exclusive_parameters",
        )


_NOT_OPENAIS = "It is not part of the OpenAI API. Leave it out, or set RESPONSES_COMPATIBILITY_MODE=false."


def _refuse_unbuilt(data: Mapping[str, object], *, engine_fields: bool) -> None:
    for name in ENGINE_FIELDS:
        if data.get(name) is not None and not engine_fields:
            raise unsupported_parameter(name, _UNBUILT.get(name, _NOT_OPENAIS))
    for name, hint in _UNBUILT.items():
        if data.get(name):
            raise unsupported_parameter(name, hint)


_UNBUILT = {
    "prompt": "This server has no prompt templates; send 'instructions' and 'input'.",
    "moderation": "This server does not moderate; leave it out.",
    "image": "Images are made by the tool 'image_generation' here; leave it out.",
    "access_programs": "This server has no access programs; leave it out.",
    "mm_processor_kwargs": "The model here reads text only; leave it out.",
}
_RESERVED_IDS = ("compact", "input_tokens")
_KNOWN = frozenset(
    ("type", "stream_id", "input", "tools", "tool_choice", *Fields.model_fields, *ENGINE_FIELDS, *_UNBUILT)
)


def _written_size(data: Mapping[str, object]) -> int:
    """Return the size of what is read of a request, as JSON, in bytes."""
    read = {name: data[name] for name in ("input", "tools", *Fields.model_fields) if name in data}
    return json_size(read)


def check_include(include: list[str] | None) -> None:
    """Refuse an `include` that OpenAI does not know; those that cannot be served are left out silently."""
    for index, name in enumerate(include or ()):
        if name not in KNOWN_INCLUDES:
            known = ", ".join(sorted(KNOWN_INCLUDES))
            raise invalid_request(
                f"Invalid value for 'include[{index}]': {name[:80]!r}. Supported values are: {known}.",
                param=f"include[{index}]",
                code="invalid_value",
            )
