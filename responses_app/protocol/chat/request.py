"""A request of Chat Completions, validated, and as the request of the Responses API that it stands for.

There is one way to generate here: a chat is a `CreateRequest` like any other, `n` of them for `n` choices. What only
the wire of Chat Completions knows (stop strings, choices, what the last chunk has) stays in `ChatRequest`.

Errors are told in the names of Chat Completions (`errors.in_own_names`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import Field

from engine.types import SAMPLED
from responses_app.protocol.chat.completion import THOUGHT_NAMES, ChatCompletion, ChatForm, StoredChat, StoredChoice
from responses_app.protocol.chat.messages import AT, AssistantTurn, ChatItems, read_messages, seen_turn
from responses_app.protocol.engine_details import EngineDetails, check_transfer
from responses_app.protocol.errors import ApiError, JsonObject, OwnNames, in_own_names, invalid_request, invalid_value
from responses_app.protocol.fields import CACHES_ALL, ClientModel, Metadata, Refused, missing, validate, wrong_type
from responses_app.protocol.json_text import json_size
from responses_app.protocol.prompt.replaying import KnownTurn, PlacedTurn, SeenTurn, sampled_items
from responses_app.protocol.requests.create_fields import (
    GUIDED,
    HIDES_NOTHING,
    LOGPROBS,
    NO_SUCH_SAMPLING,
    OF_COMPLETIONS,
    OF_ENGINES,
    Effort,
    GenerationFields,
    StructuredOutputs,
    Verbosity,
    not_openais,
)
from responses_app.protocol.requests.requests import CreateRequest
from responses_app.protocol.requests.server_tools import DECLARED_UNASKED
from responses_app.protocol.tiers import ServiceTier

_LIMIT, _OLD_LIMIT = "max_completion_tokens", "max_tokens"
_NAMES = OwnNames(
    fields=(
        ("text.format.type", "response_format.type"),
        ("text.format", "response_format.json_schema"),
        ("text.verbosity", "verbosity"),
        ("reasoning.effort", "reasoning_effort"),
        ("max_output_tokens", _LIMIT),
        ("instructions", "messages"),
        ("input", "messages"),
    ),
    advice=(
        (", or continue the response that made the call with 'previous_response_id'", ""),
        (", or continue a response with 'previous_response_id' and only the new ones", ""),
        ("Send it as an item of 'input'.", "Send it as a message of the role 'tool' behind that of the call."),
        ("Shorten the input, start a new chain, or set 'truncation' to 'auto'.", "Send fewer or shorter messages."),
    ),
)


_OLD_NAMES = (("tool_choice.function", "function_call"), ("tool_choice", "function_call"), ("tools", "functions"))


def names_in(data: Mapping[str, object], *, old_calls: bool) -> OwnNames:
    """Return the names of a chat's fields; `old_calls`: its tools were declared as `functions`."""
    calls = _OLD_NAMES if old_calls else ()
    limit = [("max_output_tokens", _OLD_LIMIT)] if data.get(_LIMIT) is None and _OLD_LIMIT in data else []
    return replace(_NAMES, fields=(*calls, *limit, *_NAMES.fields))


def in_chat_names(error: ApiError, names: OwnNames, places: Sequence[int], tools: Sequence[str]) -> ApiError:
    """Return an error as a client of Chat Completions is to read it.

    `places` has each item's message, and `tools` the path of each tool's own object.
    """

    def item_name(index: int, rest: str) -> str:
        return f"{AT}[{places[index] if index < len(places) else index}]{rest}"

    def tool_name(index: int, rest: str) -> str:
        at = tools[index] if index < len(tools) else f"tools[{index}]"
        whole, _, kind = at.partition(".")
        if not kind:
            return at + rest.removeprefix(".function")
        if not rest or rest.startswith((".type", f".{kind}")):  # of the tool itself, or named as in a chat already
            return whole + rest
        return at + rest.replace(".format.definition", ".format.grammar.definition")

    return in_own_names(error, names, item_name, tool_name)


def _tool_paths(data: Mapping[str, object], *, old_calls: bool) -> list[str]:
    """Return the path of each tool's own object: `functions[0]`, `tools[0].function`, or `tools[0]` as it is."""
    name = "functions" if old_calls else "tools"
    tools = data.get(name)
    paths = []
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        kind = tool.get("type") if not old_calls and isinstance(tool, dict) and "name" not in tool else None
        paths.append(f"{name}[{index}]" + (f".{kind}" if kind in ("function", "custom") else ""))
    return paths


MAX_CHOICES = 8  # of one request: each is a generation of its own
MAX_LOGPROBS = 20  # alternatives to a token, as at OpenAI
_KINDS = ("function", "custom", *DECLARED_UNASKED)  # of tools; those of a server are left out


class ChatStreamOptions(ClientModel):
    """Options of a stream."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None

    idle: ClassVar = HIDES_NOTHING
    own: ClassVar = ("continuous_usage_stats",)


class ChatFields(GenerationFields):
    """The fields of a chat beside its messages, its tools and the format of its answer, each of the right type."""

    model: str | None = Field(default=None, min_length=1, max_length=256)
    store: bool | None = None
    stream: bool | None = None
    stream_options: ChatStreamOptions | None = None
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    structured_outputs: StructuredOutputs | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    include_reasoning: bool | None = None
    verbosity: Verbosity | None = None
    modalities: list[Literal["text"]] | None = None
    metadata: Metadata | None = None
    service_tier: ServiceTier | None = None
    user: str | None = Field(default=None, max_length=1024)
    safety_identifier: str | None = Field(default=None, max_length=1024)
    prompt_cache_key: str | None = Field(default=None, min_length=1, max_length=1024)
    prompt_cache_retention: str | None = Field(default=None, max_length=64)
    priority: int | None = Field(default=None, ge=-(2**31), lt=2**31)
    cache_salt: str | None = Field(default=None, min_length=1, max_length=1024)
    return_token_ids: bool | None = None
    prompt_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    kv_transfer_params: dict[str, Any] | None = None

    beside: ClassVar = ("messages", "tools", "tool_choice", "functions", "function_call", "response_format")
    refused: ClassVar = {
        "audio": Refused("This server makes no sound; leave it out."),
        "web_search_options": Refused(
            "Searching is a tool of the Responses API here: send the request to /v1/responses."
        ),
        "moderation": Refused("This server does not moderate; leave it out."),
        "continue_final_message": Refused("The model begins a message of its own here; leave it out."),
        "add_generation_prompt": Refused("The model begins a message of its own here; leave it out.", takes=(True,)),
        **dict.fromkeys(
            ("previous_response_id", "conversation", "input", "instructions"),
            Refused("It is the Responses API's: send 'messages', or the request to /v1/responses."),
        ),
        "max_output_tokens": Refused("Here it is 'max_completion_tokens'."),
        "text": Refused("Here it is 'response_format', and 'verbosity'."),
        "reasoning": Refused("Here it is 'reasoning_effort'."),
        **dict.fromkeys(("min_tokens", "length_penalty"), NO_SUCH_SAMPLING),
        **GUIDED,
        **OF_ENGINES,
    }
    idle: ClassVar = {
        "verbosity": "The models here know no such wish: say it in a message.",
        "prediction": "The engine guesses what comes next by itself; the answer is the same.",
        "prompt_cache_options": CACHES_ALL,
        "prompt_cache_retention": CACHES_ALL,
    }
    told: ClassVar = ("verbosity",)
    own: ClassVar = (
        *(name for name in refused if name not in ("audio", "web_search_options", "moderation")),
        *not_openais(OF_COMPLETIONS),
        *("cache_salt", "include_reasoning", "kv_transfer_params", "priority"),
        *("prompt_logprobs", "return_token_ids", "structured_outputs"),
    )


SAME = (  # fields that a request of the Responses API has under the same name
    *(*SAMPLED, "stop_token_ids"),
    *("model", "top_logprobs", "parallel_tool_calls", "structured_outputs"),
    *("metadata", "service_tier", "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    *("stream", "priority", "cache_salt"),
)
_DEEP = ("messages", "tools", "functions", "response_format", "kv_transfer_params")  # they may be nested


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A chat."""

    create: CreateRequest  # what each of its choices is generated for
    messages: list[JsonObject]  # as they were sent
    turns: list[AssistantTurn]  # what the assistant said so far
    places: list[int]  # the number of the message of each item of `create`
    n: int = 1  # choices
    stops: tuple[str, ...] = ()  # strings that end a choice's text
    include_usage: bool = False  # a stream ends with a chunk that has the usage
    counts_each: bool = False  # and each chunk says what its choice has used so far, as vLLM has it
    shows_reasoning: bool = True  # else nobody reads the thoughts, nor their tokens
    thought_names: Sequence[str] = THOUGHT_NAMES  # fields of the answer that have the thoughts
    old_calls: bool = False  # functions were declared in the older form, so a call comes as `function_call`
    returns_tokens: bool = False  # vLLM's `return_token_ids`
    # Alternatives to each token of the prompt that are named; None: no log probabilities.
    prompt_logprobs: int | None = None
    kv_transfer_params: Mapping[str, Any] | None = None  # for the engine

    def form(self, version: str) -> ChatForm:
        """Return how its responses are worded by this `version` of the server."""
        return ChatForm(
            stops=self.stops,
            shows_reasoning=self.shows_reasoning,
            old_calls=self.old_calls,
            thought_names=self.thought_names,
            version=version,
        )

    def kept(self, version: str) -> StoredChoice | None:
        """Return the record of its first choice beside the response; None where it is not to be stored."""
        if not self.create.store:
            return None
        chat = StoredChat(messages=self.messages, metadata=self.create.metadata or {}, form=self.form(version))
        return StoredChoice(count=self.n, chat=chat)

    def choice(self, place: int) -> CreateRequest:
        """Return the request of one of its choices: each has a seed of its own, as vLLM gives them."""
        seed = self.create.seed
        return self.create if seed is None or not place else self.create.model_copy(update={"seed": seed + place})

    def details(self, place: int) -> EngineDetails | None:
        """Return the details of the engine's work that are wanted of a choice; of the prompt only the first one's."""
        logprobs = self.prompt_logprobs if place == 0 else None
        if not self.returns_tokens and not self.counts_each and logprobs is None and self.kv_transfer_params is None:
            return None
        return EngineDetails(wanted_logprobs=logprobs, given_transfer=self.kv_transfer_params)

    def with_details(self, completion: ChatCompletion, details: Sequence[EngineDetails | None]) -> ChatCompletion:
        """Return its completion with the details of the engine's work that its client asks for, in vLLM's fields.

        Who may not read the thoughts is given no tokens of them.
        """
        first = details[0]
        if first is None:
            return completion
        detailed = completion.copy()
        if self.returns_tokens:
            detailed["prompt_token_ids"] = list(first.prompt_token_ids)
            for choice, each in zip(detailed["choices"], details, strict=True):
                choice["token_ids"] = each.token_ids if each is not None and self.shows_reasoning else None
        if self.prompt_logprobs is not None:
            detailed["prompt_logprobs"] = first.logprobs_as_json()
        if self.kv_transfer_params is not None:
            detailed["kv_transfer_params"] = first.kv_transfer_params
        return detailed

    def seen_turns(self) -> list[SeenTurn]:
        """Return the assistant's messages as its client has seen them: as long a work as they are."""
        return [seen_turn(turn.message) for turn in self.turns]

    def as_sampled(self, turns: Sequence[SeenTurn], recall: Callable[[bytes], KnownTurn | None]) -> "ChatRequest":
        """Return the chat whose known messages the model reads as it has sampled them.

        `turns` are its `seen_turns`; `recall` finds them by their keys: see `prompt.replaying`.
        """
        placed = [PlacedTurn(seen, turn.begin, turn.end) for turn, seen in zip(self.turns, turns, strict=True)]
        items = sampled_items(self.create.input, placed, recall)
        return replace(self, create=self.create.model_copy(update={"input": items}))

    def renamed(self, error: ApiError) -> ApiError:
        """Return an error of its run in the names of Chat Completions."""
        assert self.create.renamed is not None, "it was made of a chat"
        return self.create.renamed(error)


def parse_chat(
    data: Mapping[str, object],
    parse: Callable[[JsonObject], CreateRequest],
    *,
    engine_fields: bool = False,
    thought_names: Sequence[str] = THOUGHT_NAMES,
) -> ChatRequest:
    """Validate a chat; `parse` validates the request that it stands for. Raises `ApiError` that names the field.

    `engine_fields`: it may have those that are for the engine's operator. `thought_names` are the fields of the answer
    that have the thoughts.
    """
    check_transfer(data, engine_fields=engine_fields)
    # What is nested too deeply is refused before anybody walks through it.
    json_size({name: data[name] for name in _DEEP if name in data})
    fields = validate(ChatFields, data)
    _check_together(fields)
    messages = data.get("messages")
    read = read_messages(messages)
    assert isinstance(messages, list), "they were read"
    # Where both forms are there, the newer one counts.
    old_calls = bool(data.get("functions")) and not data.get("tools")
    names = names_in(data, old_calls=old_calls)
    tools = _tool_paths(data, old_calls=old_calls)
    renamed = partial(in_chat_names, names=names, places=read.places, tools=tools)
    try:
        create = parse(_as_response(data, fields, read))
    except ApiError as error:
        raise renamed(error) from None
    create = create.model_copy(update={"renamed": renamed, "shows_server_calls": False})
    options = fields.stream_options
    return ChatRequest(
        create=create,
        messages=messages,
        turns=read.turns,
        places=read.places,
        n=fields.n or 1,
        stops=tuple(fields.stop or ()),
        include_usage=bool(options and options.include_usage),
        counts_each=bool(options and options.include_usage and options.continuous_usage_stats),
        shows_reasoning=fields.include_reasoning is not False,
        thought_names=thought_names,
        returns_tokens=bool(fields.return_token_ids),
        prompt_logprobs=fields.prompt_logprobs,
        kv_transfer_params=fields.kv_transfer_params or None,
        old_calls=old_calls,
    )


def _check_together(fields: ChatFields) -> None:
    for name, can_be, needs in (
        ("stream_options", fields.stream, "is only allowed when 'stream' is enabled"),
        ("prompt_logprobs", not fields.stream, "is not available when 'stream' is enabled"),  # as vLLM says it
        ("top_logprobs", fields.logprobs, "is only allowed when 'logprobs' is enabled"),
    ):
        if getattr(fields, name) is not None and not can_be:
            raise invalid_request(f"The '{name}' parameter {needs}.", param=name, code="invalid_value")


def _as_response(data: Mapping[str, object], fields: ChatFields, read: ChatItems) -> JsonObject:
    """Return the body of a request of the Responses API."""
    body: JsonObject = {name: data[name] for name in SAME if data.get(name) is not None}
    body |= {"input": read.items, "store": fields.store is True}
    if read.instructions is not None:
        body["instructions"] = read.instructions
    longest = fields.max_completion_tokens or fields.max_tokens
    if longest is not None:
        body["max_output_tokens"] = longest
    if fields.logprobs:
        body["include"] = [LOGPROBS]
    if fields.reasoning_effort is not None:
        body["reasoning"] = {"effort": fields.reasoning_effort}
    form = _text_format(data.get("response_format"))
    if form is not None:
        body["text"] = {"format": form}
    return body | _tools(data)


def _text_format(value: object) -> object:
    """Return `text.format` of a `response_format`, whose schema is in an object of its own."""
    if not isinstance(value, dict):
        if value is not None:
            raise wrong_type("response_format", "an object", value)
        return None
    if value.get("type") is None:
        raise missing("response_format.type")
    if value["type"] != "json_schema":
        return value
    schema = value.get("json_schema")
    if schema is None:
        raise missing("response_format.json_schema")
    if not isinstance(schema, dict):
        raise wrong_type("response_format.json_schema", "an object", schema)
    return {**schema, "type": "json_schema"}


def _tools(data: Mapping[str, object]) -> JsonObject:
    """Return the tools and the choice among them; of the older form where there is no other."""
    tools, choice = data.get("tools"), data.get("tool_choice")
    if data.get("functions") and not tools:
        return _old_tools(data["functions"], data.get("function_call"))
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        kind: Any = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind not in _KINDS:
            raise invalid_value(
                f"tools[{index}].type",
                f"{kind[:80]!r}. Supported values are: 'function' and 'custom'; the other "
                "tools are those of the Responses API.",
            )
        _check_nested(tool, f"tools[{index}]")
    _check_nested(choice, "tool_choice")
    allowed = choice.get("allowed_tools") if isinstance(choice, dict) else None
    entries = allowed.get("tools") if isinstance(allowed, dict) else None
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        _check_nested(entry, f"tool_choice.allowed_tools.tools[{index}]")
    if choice == "any":  # as clients of Mistral's models say it
        choice = "required"
    return {name: value for name, value in (("tools", tools), ("tool_choice", choice)) if value is not None}


def _check_nested(tool: object, at: str) -> None:
    """Refuse a function or a custom tool without the object in which chats have it, and a choice of one."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(tool, dict) and kind in ("function", "custom") and "name" not in tool:
        if tool.get(kind) is None:
            raise missing(f"{at}.{kind}")
        if not isinstance(tool[kind], dict):
            raise wrong_type(f"{at}.{kind}", "an object", tool[kind])


def _old_tools(functions: object, call: object) -> JsonObject:
    if not isinstance(functions, list):
        raise wrong_type("functions", "an array of functions", functions)
    for index, function in enumerate(functions):
        if not isinstance(function, dict):
            raise wrong_type(f"functions[{index}]", "an object", function)
    tools: JsonObject = {
        "tools": [{"type": "function", "function": function} for function in functions],
        "parallel_tool_calls": False,  # an answer has room for one `function_call`
    }
    if isinstance(call, dict):
        return tools | {"tool_choice": {"type": "function", "function": call}}
    return tools if call is None else tools | {"tool_choice": call}
