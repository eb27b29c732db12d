"""`CreateRequest`: the body of `POST /v1/responses` and of the WebSocket's `response.create`, validated.

What becomes of fields that are none of a model's here is said in `fields`. Beside it stands what is read off a request:

    new_response     its response object, as it begins
    parse_compact    the create that a compaction is (`POST /v1/responses/compact`)
    rules_of_turns   what its turns may be, in no model format's own words: see `engine.types`

The rules of turns come from the tools (each that the model is shown can be called, with arguments that fit its schema,
but for `strict: false`), from `tool_choice` (which of them, and whether one must be), and from `text.format` (what the
answer is). Where a request has no tools and asks for plain text, there are no rules: then the model is free, and a call
of a function that nobody declared here goes to the client, which may know of it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import ClassVar, Literal

from pydantic import ConfigDict, Field, SkipValidation

from engine.formats.base import FunctionTool
from engine.types import AnyText, CallRule, TurnRules
from responses_app.protocol.errors import ApiError, JsonObject, invalid_request, invalid_value, unsupported_parameter
from responses_app.protocol.fields import (
    CACHES_ALL,
    MAX_NAMED,
    ClientModel,
    IgnoredFields,
    Refused,
    check_fields,
    check_metadata,
    known_names,
    missing,
    noted,
    validate,
)
from responses_app.protocol.items.client_tools import NO_CLIENT_TOOLS, ClientTools, late_tools, read_tools
from responses_app.protocol.items.items import CompactionTrigger, ParsedItem, parse_input
from responses_app.protocol.items.offers import AGENTS as AGENTS_NAMESPACE
from responses_app.protocol.items.offers import OfferedTool, beta_missing, has_beta
from responses_app.protocol.json_text import json_size
from responses_app.protocol.requests.create_fields import (
    ENGINE_FIELDS,
    LOGPROBS,
    NOT_OPENAIS,
    Fields,
    HeldText,
    PlainText,
    TextFormat,
    check_create,
    held_text,
    parse_text_format,
)
from responses_app.protocol.requests.resources import ResponseObject, Status
from responses_app.protocol.requests.server_tools import item_of, private_fields, refuse_names
from responses_app.protocol.requests.tools import (
    ToolChoice,
    callable_tools,
    content_of,
    parse_tool_choice,
    parse_tools,
    refuse_of_programs,
)
from responses_app.protocol.tiers import ServiceTier


class CreateRequest(Fields):
    """A whole request: its fields, its input and its tools."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    open: ClassVar = True  # the names of its fields were looked at as those of `Fields`

    input: SkipValidation[list[ParsedItem]]  # these are validated already, by `parse_input` and `parse_tools`
    input_json: SkipValidation[list[JsonObject]]  # the same as it is kept; place by place
    tools: SkipValidation[ClientTools]  # that the model can call
    tools_json: SkipValidation[list[JsonObject]]  # all of them, as they are echoed
    tool_choice: SkipValidation[ToolChoice]
    private: SkipValidation[Mapping[str, JsonObject]] = Field(default_factory=dict, repr=False)  # see `server_tools`
    text_format: SkipValidation[TextFormat]
    held: SkipValidation[HeldText | None] = None  # the answer to something that no `text.format` says
    size: SkipValidation[int]  # of what is read of the request, as JSON, in bytes
    ignored: SkipValidation[IgnoredFields | None] = Field(default=None, repr=False)  # what its client is told of
    shows_server_calls: SkipValidation[bool] = True  # else its API has no place for calls of tools that a server runs
    # Names an error as the API does that was asked, where that is another one
    renamed: SkipValidation[Callable[[ApiError], ApiError] | None] = Field(default=None, repr=False)

    @property
    def answer(self) -> TextFormat | HeldText:
        """The format of the answer."""
        return self.held or self.text_format

    def note_ignored(self, path: str) -> None:
        """Tell its client that the value at a path has no effect."""
        if self.ignored is not None:
            error = invalid_request(path, param=path)
            self.ignored.add(str((self.renamed(error) if self.renamed else error).param))

    @property
    def served(self) -> list[JsonObject]:
        """Its tools that a server runs."""
        return [tool for tool in self.tools_json if item_of(tool) is not None]

    @cached_property
    def with_agents(self) -> bool:
        """Whether the model may start agents."""
        return self.multi_agent is not None and self.multi_agent.enabled

    @cached_property
    def warm_up(self) -> bool:
        """Whether nothing is to be generated."""
        return self.generate is False or bool(self.prompt_cache_options and self.prompt_cache_options.prewarm)

    @property
    def hides_sizes(self) -> bool:
        """Whether the deltas of its stream are filled up. OpenAI does so unless told not to, this server if told to."""
        return self.stream_options is not None and bool(self.stream_options.include_obfuscation)

    @property
    def only_compacts(self) -> bool:
        """Whether a summary of everything is all that is wanted."""
        return bool(self.input) and isinstance(self.input[-1], CompactionTrigger) and not self.warm_up

    def compact_threshold(self, max_model_len: int) -> int | None:
        """Return how many tokens a prompt may have before it is compacted; None: as many as the model takes."""
        thresholds = [entry.compact_threshold for entry in self.context_management or ()]
        if not thresholds:
            return None
        # Where no number is given, three quarters of the context; and a prompt must leave room for one token.
        return min(*(threshold or max_model_len * 3 // 4 for threshold in thresholds), max_model_len - 1)

    @property
    def conversation_id(self) -> str | None:
        """The conversation to read and append to."""
        return self.conversation.id if self.conversation else None

    def as_json(self) -> JsonObject:
        """Return a request that `parse_create` reads as this one."""
        fields = self.model_dump(mode="json", include=set(Fields.model_fields), exclude_none=True, by_alias=True)
        return {**fields, "input": self.input_json, "tools": self.tools_json, "tool_choice": self.tool_choice.echo}

    @property
    def offered_functions(self) -> list[FunctionTool]:
        """The functions the model may call now: none where the request forbids calls."""
        return [] if self.tool_choice.mode == "none" else [tool.declaration() for tool in self.tools.shown()]

    @property
    def logprobs(self) -> int | None:
        """How many alternatives to each token the answer is to name; None where no log probabilities are asked for."""
        are_asked_for = bool(self.top_logprobs) or LOGPROBS in (self.include or ())
        return (self.top_logprobs or 0) if are_asked_for else None

    @property
    def session_key(self) -> str | None:
        """The key of requests that belong together, as their client says it; None where it does not."""
        options = self.background_options
        return self.prompt_cache_key or (options.continuation_id if options else None)

    @cached_property
    def effort(self) -> Literal["none", "low", "medium", "high"]:
        """The reasoning effort as models know it, and none; medium by default."""
        effort = self.reasoning.effort if self.reasoning else None
        match effort:
            case "none":
                return "none"
            case "minimal" | "low":
                return "low"
            case "high" | "xhigh" | "max":
                return "high"
        return "medium"


def only_known(frame: object) -> object:
    """Return a WebSocket's frame without the fields that nobody reads of a create: it is kept while its run lasts.

    Of unknown fields some names stay: enough of them for the client to be told. Of a value only whether it is null.
    """
    if not isinstance(frame, dict) or frame.get("type") != "response.create":
        return frame
    # One more than are named, so that the client hears that there are more.
    unknown = islice((name for name in frame if name not in _KNOWN), MAX_NAMED + 1)
    read = {name: value for name, value in frame.items() if name in _KNOWN}
    return read | {name[:_LONGEST_NAME]: None if frame[name] is None else True for name in unknown}


def parse_create(data: Mapping[str, object], *, engine_fields: bool = False) -> CreateRequest:
    """Validate a request; `engine_fields`: with the fields that are the engine's, not OpenAI's.

    Raises `ApiError` that names the field and says what it takes.
    """
    if not engine_fields:
        for name in ENGINE_FIELDS:
            if data.get(name) is not None:
                raise unsupported_parameter(name, NOT_OPENAIS)
    check_fields(Fields, data)
    read = {name: data[name] for name in Fields.model_fields if name in data}
    # Before items and tools are read: a request that is nested too deeply is refused here.
    size = json_size({name: data[name] for name in ("input", "tools") if name in data} | read)
    items, input_json = parse_input(data.get("input"), nameless=True)
    tools_json = parse_tools(data.get("tools"))
    tools = callable_tools(tools_json) if tools_json else NO_CLIENT_TOOLS
    text = data.get("text")
    parsed = {
        "input": items,
        "input_json": input_json,
        "tools": tools,
        "tools_json": tools_json,
        "tool_choice": _tool_choice(data, tools, input_json, tools_json),
        "private": private_fields(data["tools"]) if tools_json else {},
        "text_format": parse_text_format(text.get("format") if isinstance(text, dict) else None),
        "size": size,
        "ignored": noted(),
    }
    # Fields were looked at above, so this checks their types only: the parsed ones are taken as they are.
    request = validate(CreateRequest, {**read, **parsed})
    _check_together(request)
    if request.structured_outputs is not None:
        request = request.model_copy(update={"held": held_text(request.structured_outputs)})
    check_create(request)
    if request.metadata:
        check_metadata(request.metadata)
    return request


def _tool_choice(
    data: Mapping[str, object], tools: ClientTools, input_json: list[JsonObject], tools_json: list[JsonObject]
) -> ToolChoice:
    """Validate a request's choice among its tools, those in its input, and those of the response that it continues."""
    value = data.get("tool_choice")
    if value is None:
        return ToolChoice()
    # What is continued may declare the tool: then the choice waits until that is known.
    continues = any(data.get(name) is not None for name in ("previous_response_id", "conversation"))
    joined = tools.joined(read_tools(late_tools(input_json), at="input"))
    refuse_of_programs(value, tools_json)
    served = [tool for tool in tools_json if item_of(tool) is not None]
    return parse_tool_choice(value, joined, served=served, continues=continues)


def with_choice(request: CreateRequest, tools: ClientTools) -> CreateRequest:
    """Return a request whose pending `tool_choice` is known now that all `tools` are. Raises `ApiError`."""
    choice = parse_tool_choice(request.tool_choice.echo, tools, served=request.served)
    return request.model_copy(update={"tool_choice": choice})


def _check_window(request: CreateRequest) -> None:
    """Refuse a response that may take hours where its client waits for it, or asks for another urgency."""
    why = ""
    if not request.background:
        why = "only a background response may take hours. Set 'background' to true"
    elif request.stream:
        why = "a response that may take hours is not streamed. Leave 'stream' out"
    elif request.service_tier not in (None, "auto", "default"):
        why = "a response that may take hours has the service tier 'default'. Leave 'service_tier' out"
    if why:
        raise invalid_value("background_options.completion_window", f"{why}, or leave the window out.")


def _check_together(request: CreateRequest) -> None:
    for index, item in enumerate(request.input[:-1]):
        if isinstance(item, CompactionTrigger):
            raise invalid_value(f"input[{index}]", "a 'compaction_trigger' must be the last item.")
    options = request.background_options
    if options is not None and options.window_seconds is not None:
        _check_window(request)
    if request.conversation and request.previous_response_id:
        both = "'previous_response_id' and 'conversation'. Each says what comes before; send one of them."
        raise _mutually_exclusive("conversation", both)
    if request.with_agents:
        _check_agents(request)
    if request.request_id in _RESERVED_IDS:
        raise invalid_value("request_id", f"{request.request_id!r} is part of the API's paths. Choose another id.")
    if request.previous_input_messages and (request.previous_response_id or request.conversation):
        raise _mutually_exclusive(
            "previous_input_messages",
            "'previous_input_messages' and what continues a response or a conversation. Each says what comes before; "
            "send one of them.",
        )
    if request.structured_outputs is not None and not isinstance(request.text_format, PlainText):
        both = "'structured_outputs' and 'text.format'. Send one of them."
        raise _mutually_exclusive("structured_outputs", both)


def _mutually_exclusive(param: str, both: str) -> ApiError:
    return invalid_request(f"Mutually exclusive parameters: {both}", param=param, code="mutually_exclusive_parameters")


def check_beta(header: str | None) -> None:
    """Refuse agents where `OpenAI-Beta` does not name their beta. Raises `ApiError`."""
    if not has_beta(header):
        raise beta_missing()


def _check_agents(request: CreateRequest) -> None:
    """Refuse fields that are not carried out for several agents; OpenAI refuses the first two, too."""
    summary = request.reasoning is not None and request.reasoning.wanted_summary is not None
    clashes = {
        "max_tool_calls": request.max_tool_calls is not None,
        "reasoning.summary": summary,
        "context_management": bool(request.context_management),
        "enable_response_messages": bool(request.enable_response_messages),
        "generate": request.warm_up,
        "input": request.only_compacts,
    }
    for name, is_there in clashes.items():
        if is_there:
            raise invalid_request(
                f"'{name}' cannot be had together with 'multi_agent'. Leave one of them out.",
                param=name,
                code="unsupported_parameter",
            )
    refuse_names(request.tools_json, [AGENTS_NAMESPACE])
    for index, tool in enumerate(request.tools_json):
        if tool["type"] == "mcp" and tool.get("require_approval") != "never":
            raise invalid_request(
                "With 'multi_agent', tools of MCP servers run without approval: set 'require_approval' to 'never'.",
                param=f"tools[{index}].require_approval",
                code="unsupported_parameter",
            )


_LONGEST_NAME = 256  # characters of an unknown field that are kept
_RESERVED_IDS = ("compact", "input_tokens")  # paths under `/v1/responses/`, where an id stands, too
_KNOWN = known_names(Fields)  # whatever becomes of them


def new_response(
    request: CreateRequest,
    *,
    response_id: str,
    created_at: int,
    model: str,
    store: bool,
    service_tier: ServiceTier = "default",
) -> ResponseObject:
    """Return the response object of a request at its start: every field of the spec, most of them an echo.

    `created_at` is in Unix seconds; `service_tier` is the tier that runs.
    """
    text = request.text
    response: ResponseObject = {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "completed_at": None,
        "status": (Status.QUEUED if request.background else Status.IN_PROGRESS).value,
        "background": bool(request.background),
        "conversation": {"id": request.conversation.id} if request.conversation else None,
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": request.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "presence_penalty": request.presence_penalty or 0.0,
        "frequency_penalty": request.frequency_penalty or 0.0,
        "previous_response_id": request.previous_response_id,
        "prompt": None,
        "prompt_cache_key": request.prompt_cache_key,
        "prompt_cache_retention": request.prompt_cache_retention,
        "reasoning": {
            "effort": request.reasoning.effort if request.reasoning else None,
            "summary": request.reasoning.wanted_summary if request.reasoning else None,
        },
        "safety_identifier": request.safety_identifier,
        "service_tier": service_tier,
        "store": store,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": {
            "format": request.text_format.echoed(),
            "verbosity": (text.verbosity if text else None) or "medium",
        },
        "tool_choice": request.tool_choice.echo,
        "tools": request.tools_json,
        "top_logprobs": request.top_logprobs or 0,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "truncation": request.truncation or "disabled",
        "usage": None,
        "user": request.user,
    }
    if request.with_agents and request.multi_agent is not None:
        response["multi_agent"] = request.multi_agent.model_dump()
    return response


COMPACT_FIELDS = (  # the fields of a create that a compaction takes, too; everything else means nothing there
    "model",
    "previous_response_id",
    "instructions",
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_retention",
)


class CompactFields(ClientModel):
    """The names of the fields of a compaction. Those that it shares with a create are read as those of one."""

    beside: ClassVar = ("input", *COMPACT_FIELDS)
    refused: ClassVar = {
        "conversation": Refused(
            "Name a response of the conversation with 'previous_response_id', or send its items as 'input'."
        ),
        "image": Fields.refused["image"],
    }
    idle: ClassVar = {
        "prompt_cache_options": CACHES_ALL,
        **dict.fromkeys(
            sorted(
                known_names(Fields).difference(
                    ("input", "conversation", "image", "prompt_cache_options"), COMPACT_FIELDS
                )
            ),
            "A summary is made in one way: no other field of a create changes it.",
        ),
    }
    own: ClassVar = ("conversation", *(name for name in idle if name != "prompt_cache_options"))


_TRIGGER: JsonObject = {"type": "compaction_trigger"}


def parse_compact(data: Mapping[str, object]) -> CreateRequest:
    """Validate `POST /v1/responses/compact`, a create that only compacts. Raises `ApiError` that names the field."""
    check_fields(CompactFields, data)
    if "model" not in data:
        raise missing("model")
    json_size({"input": data.get("input")})
    _, items = parse_input(data.get("input"))
    if not items or items[-1]["type"] != _TRIGGER["type"]:
        items.append(_TRIGGER)
    fields = {name: data[name] for name in COMPACT_FIELDS if name in data}
    # Not stored: the summary is the client's to keep.
    return parse_create({**fields, "input": items, "store": False})


@dataclass(frozen=True, slots=True)
class RulesOfTurns:
    """The rules of a response's turns."""

    first: TurnRules  # until the model has called something
    after_call: TurnRules  # from then on


def rules_of_turns(
    request: CreateRequest, tools: ClientTools, *, hosted: Iterable[tuple[OfferedTool, CallRule]] = ()
) -> RulesOfTurns | None:
    """Return the rules of the turns of a request; None where they may be anything.

    `tools` are those that the model can call, `hosted` those that this server runs. A call that is demanded is demanded
    once: a response goes on behind it where the server ran the tool.
    """
    choice = request.tool_choice
    served = [rule for tool, rule in hosted if choice.allows(tool)]
    answer = request.answer.content
    # No rules at all: then the model may also call what only the client knows.
    must_call = choice.mode == "required"
    if not (tools.by_name or served or must_call) and isinstance(answer, AnyText):
        return None
    if choice.mode == "none":
        rules = TurnRules(answer=answer)
        return RulesOfTurns(rules, rules)
    shown = [tool for tool in tools.shown() if choice.allowed is None or tool.called in choice.allowed]
    calls = [*(CallRule(tool.called, content_of(tool)) for tool in shown), *served]
    free = TurnRules(calls=tuple(calls), answer=answer)
    return RulesOfTurns(replace(free, must_call=must_call), free)


def enforced_field(request: CreateRequest, tools: ClientTools) -> str | None:
    """Return the field of a request that an engine must be able to enforce, if there is one.

    Functions that the model calls if it likes can be had without: then their arguments may be wrong. The grammar of a
    custom tool cannot: what its client gets has to follow it.
    """
    # The model is shown all of its tools.
    if request.tool_choice.mode == "required" or request.tool_choice.allowed is not None:
        return "tool_choice"
    if not isinstance(request.answer.content, AnyText):
        return request.answer.at
    if request.tool_choice.mode == "none":
        return None
    return next((tool.field for tool in tools if tool.definition), None)
