"""The fields of a `POST /v1/responses`, each of the right type, and what becomes of those that are not carried out.

`GenerationFields` are those of every request that generates a text. `engine.types` declares how it is sampled; what
an API needs of it beside stands here: where the text ends, and which of the names are OpenAI's own. `text.format` says
the shape of the answer, and so does `structured_outputs`, in vLLM's own way.
"""

import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SkipValidation

from engine import orjson
from engine.contents.regexes import check_regex
from engine.errors import GrammarRefused
from engine.types import SAMPLED, AnyObject, AnyText, Content, JsonSchema, Lark, Regex, TextSampling
from responses_app.protocol.errors import JsonObject, invalid_value
from responses_app.protocol.fields import (
    CACHES_ALL,
    ClientModel,
    Metadata,
    Refused,
    one_of,
    or_text,
    validate,
    wrong_type,
)
from responses_app.protocol.items.compaction import MIN_THRESHOLD
from responses_app.protocol.stop_strings import Stops
from responses_app.protocol.tiers import ServiceTier

KNOWN_INCLUDES = frozenset(
    "code_interpreter_call.outputs computer_call_output.output.image_url file_search_call.results "
    "message.input_image.image_url message.output_text.logprobs reasoning.encrypted_content "
    "web_search_call.action.sources web_search_call.results".split()
)
# What another API of this server wants beside; no client can name it. Outputs of code have the ids of its files in
# place of its images' data.
FILE_OUTPUTS = "code_interpreter_call.files"
ENGINE_FIELDS = (  # known to vLLM or some forks of it only, and taken where RESPONSES_COMPATIBILITY_MODE is off
    "request_id",
    "priority",
    "cache_salt",
    "enable_response_messages",
    "previous_input_messages",
)
LOGPROBS = "message.output_text.logprobs"
TOKENS = "tokens"  # of this server: items have the tokens that they come of, with log probabilities
ENCRYPTED_REASONING = "reasoning.encrypted_content"


MAX_STOP_TOKENS = 64  # of one request
# The fields of sampling that OpenAI has: in its older APIs, and in the Responses API.
OF_COMPLETIONS = tuple("temperature top_p presence_penalty frequency_penalty seed logit_bias stop".split())
OF_RESPONSES = ("temperature", "top_p")


class GenerationFields(ClientModel, TextSampling):
    """How a text is sampled, and where it ends."""

    stop: Stops | None = None
    stop_token_ids: Annotated[list[int] | None, Field(max_length=MAX_STOP_TOKENS)] = None


def not_openais(theirs: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names that OpenAI does not have in an API, where it has `theirs`."""
    return tuple(name for name in (*SAMPLED, "stop", "stop_token_ids") if name not in theirs)


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Verbosity = Literal["low", "medium", "high"]
Summary = Literal["auto", "concise", "detailed"]


class ReasoningOptions(ClientModel):
    """How much the model thinks. gpt-oss knows low, medium and high; the rest is mapped to the nearest.

    `generate_summary` is the older name of `summary`.
    """

    effort: Effort | None = None
    summary: Summary | None = None
    generate_summary: Summary | None = None

    refused: ClassVar = {
        "context": Refused(
            "The model reads what it thought since the last message of the user, and no more: use 'current_turn'.",
            takes=("auto", "current_turn"),
        ),
        "mode": Refused("This server has one mode: use 'standard'.", takes=("standard",)),
    }

    @property
    def wanted_summary(self) -> Summary | None:
        """The summary that is asked for, under either name."""
        return self.summary or self.generate_summary


class TextOptions(ClientModel):
    """Options of the answer's text; `format` is what `parse_text_format` reads."""

    format: SkipValidation[object] = None
    verbosity: Verbosity | None = None

    idle: ClassVar = {"verbosity": "The models here know no such wish: say it in the instructions."}
    told: ClassVar = ("verbosity",)


FORMAT_AT = "text.format"


class _Format(ClientModel):
    """What all formats have in common: where the request says it."""

    at: ClassVar = FORMAT_AT
    schema_at: ClassVar = f"{FORMAT_AT}.schema"


class PlainText(_Format):
    """Any text."""

    type: Literal["text"] = "text"
    content: ClassVar[Content] = AnyText()  # that the answer may have

    def echoed(self) -> JsonObject:
        """Return it as OpenAI does."""
        return {"type": self.type}


class AnyJson(_Format):
    """Some JSON object."""

    type: Literal["json_object"]
    content: ClassVar[Content] = AnyObject()

    def echoed(self) -> JsonObject:
        """Return it as OpenAI does."""
        return {"type": self.type}


class FittingJson(_Format):
    """JSON that fits a schema: always, whether it is asked for strictly or not."""

    type: Literal["json_schema"]
    name: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")
    # Another name, since `schema` is a method of pydantic's models.
    json_schema: dict[str, object] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None  # echoed; the answer fits in any case

    @property
    def content(self) -> Content:
        """The content that the answer may have."""
        return JsonSchema(orjson.dumps(self.json_schema).decode())

    def echoed(self) -> JsonObject:
        """Return it as OpenAI does."""
        return {
            "type": self.type,
            "name": self.name,
            "description": self.description,
            "schema": self.json_schema,
            "strict": bool(self.strict),
        }


TextFormat = PlainText | AnyJson | FittingJson
FORMATS: Mapping[str, type[TextFormat]] = {"text": PlainText, "json_object": AnyJson, "json_schema": FittingJson}


def parse_text_format(value: object) -> TextFormat:
    """Validate a request's `text.format`. Raises `ApiError`."""
    if value is None:
        return PlainText()
    if not isinstance(value, dict):
        raise wrong_type(FORMAT_AT, "an object", value)
    return validate(FORMATS[one_of(f"{FORMAT_AT}.type", value.get("type"), FORMATS)], value, at=FORMAT_AT)


STRUCTURED_AT = "structured_outputs"
MAX_CHOICES = 1000  # they become one regular expression
_STRUCTURED = ("json", "regex", "choice", "grammar", "json_object")  # of which a request sets exactly one
_ONE = Refused("The engine here writes JSON in its own way; leave it out.")


class StructuredOutputs(ClientModel):
    """What an answer is held to: exactly one of the fields says it. `grammar` is one of Lark."""

    json_schema: dict[str, Any] | str | None = Field(default=None, alias="json")  # an object, or its text
    regex: str | None = Field(default=None, min_length=1)
    choice: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=MAX_CHOICES)] | None = (
        None
    )
    grammar: str | None = Field(default=None, min_length=1)
    json_object: bool | None = None

    refused: ClassVar = {
        **dict.fromkeys(("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"), _ONE),
        "structural_tag": Refused("Declare tools, or send 'json'."),
    }
    own: ClassVar = (*_STRUCTURED, *refused)


class HeldText:
    """An answer that is held to something else than a format of `text`. It is a format of its own to the model."""

    at = schema_at = STRUCTURED_AT  # where the request says it

    def __init__(self, content: Content) -> None:
        self.content = content


def held_text(outputs: StructuredOutputs) -> HeldText:
    """Return the content that an answer is held to. Raises `ApiError`."""
    # `json` is a method of pydantic's models, so its field has another name here.
    names = [name for name in ("json_schema", *_STRUCTURED[1:]) if getattr(outputs, name) not in (None, False)]
    if len(names) != 1:
        raise invalid_value(
            STRUCTURED_AT, f"exactly one of {', '.join(map(repr, _STRUCTURED))} says what the answer is."
        )
    return HeldText(_held_content(outputs))


def _held_content(outputs: StructuredOutputs) -> Content:
    if outputs.json_object:
        return AnyObject()
    if outputs.grammar is not None:
        return Lark(outputs.grammar)
    if outputs.json_schema is not None:
        return JsonSchema(_schema(outputs.json_schema))
    # A choice is a regular expression of texts that mean themselves.
    pattern = outputs.regex or "|".join(map(re.escape, outputs.choice or ()))
    try:
        check_regex(pattern)
    except GrammarRefused as refused:
        name = "regex" if outputs.regex else "choice"
        raise invalid_value(f"{STRUCTURED_AT}.{name}", f"{refused.reason.rstrip('.')}.") from refused
    return Regex(pattern)


def _schema(schema: dict[str, Any] | str) -> str:
    if isinstance(schema, str):
        try:
            read = orjson.loads(schema)
        except orjson.JSONDecodeError:
            read = None
        if not isinstance(read, dict):
            raise invalid_value(f"{STRUCTURED_AT}.json", "it should be a JSON schema: an object, or the text of one.")
        return schema
    return orjson.dumps(schema).decode()


HIDES_NOTHING = {"include_obfuscation": "Nothing is added to a stream that would hide how long its parts are."}


class StreamOptions(ClientModel):
    """Options of a stream."""

    include_obfuscation: bool | None = None

    refused: ClassVar = {
        **dict.fromkeys(
            ("include_usage", "continuous_usage_stats"),
            Refused("The last event of a stream has the usage; leave it out.", takes=(False, True)),
        )
    }
    own: ClassVar = ("include_usage", "continuous_usage_stats")


class CacheOptions(ClientModel):
    """Options of prompt caching; `prewarm` makes a request a warm-up."""

    prewarm: bool | None = None

    idle: ClassVar = {
        "ttl": CACHES_ALL,
        "mode": CACHES_ALL,
        "comparison_response_id": "`usage` says how much of a prompt came from the cache; there are no other findings.",
    }


class ConversationReference(ClientModel):
    """The conversation a response reads and appends to."""

    id: str = Field(min_length=1, max_length=256)


_EITHER = or_text(lambda id: {"id": id}, ConversationReference, "text_or_object")


class ContextManagement(ClientModel):
    """When to compact: a prompt of more tokens than this begins with a summary of what came before."""

    type: Literal["compaction"]
    compact_threshold: int | None = Field(default=None, ge=MIN_THRESHOLD)


class BackgroundOptions(ClientModel):
    """How soon a background response is wanted (in hours: everything else goes first), and what it goes on with.

    One that is not done within its window fails. Responses with one `continuation_id` go to the same engine.
    """

    completion_window: Literal["soonest", "2h", "8h"] | None = None
    continuation_id: str | None = Field(default=None, min_length=1, max_length=256)

    @property
    def window_seconds(self) -> float | None:
        """How long it may take; None where it is wanted soon."""
        return {"2h": 7_200.0, "8h": 28_800.0}.get(self.completion_window or "")


DEFAULT_CONCURRENT = 3  # OpenAI's default of `max_concurrent_subagents`


class MultiAgent(ClientModel):
    """Whether the model may start agents beside itself, and how many of them work at once."""

    enabled: bool
    max_concurrent_subagents: int = Field(default=DEFAULT_CONCURRENT, ge=1)

    own: ClassVar = ("enabled", "max_concurrent_subagents")  # of a beta, which has types of its own


def _moved(name: str) -> Refused:
    # Fields of other APIs are refused with their name here: without effect they would be missed.
    return Refused(f"In the Responses API it is '{name}'.")


NOT_OPENAIS = "It is not part of the OpenAI API. Leave it out, or set RESPONSES_COMPATIBILITY_MODE=false."
_OWN_TEMPLATE = "The conversation is written as the model's format wants it; leave it out."
_NO_OPTIONS: tuple[object, ...] = (False, {})  # of what has options alone: without one it asks for nothing
_OWN_IMAGES = "This server prepares images for the model itself; leave it out."
_OF_CHATS = {  # fields of Chat Completions and of vLLM's other paths, by what there is in their place
    "messages": _moved("input"),
    "response_format": _moved("text.format"),
    "max_tokens": _moved("max_output_tokens"),
    "max_completion_tokens": _moved("max_output_tokens"),
    "reasoning_effort": _moved("reasoning.effort"),
    "verbosity": _moved("text.verbosity"),
    "functions": _moved("tools"),
    "function_call": _moved("tool_choice"),
    "logprobs": Refused(f"In the Responses API it is 'include' with '{LOGPROBS}', and 'top_logprobs'."),
    "n": Refused("A response is one answer: send the request several times, or use /v1/chat/completions.", takes=(1,)),
    "modalities": Refused("The model here writes text only; leave it out.", takes=(["text"],)),
    "audio": Refused("This server makes no sound; leave it out."),
    "prediction": Refused("The engine here takes no predicted output; leave it out."),
    "web_search_options": Refused("In the Responses API it is the tool 'web_search'."),
}
GUIDED = dict.fromkeys(
    ("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    Refused("It is older than vLLM's 'structured_outputs', which responses and chats take."),
)
NO_SUCH_SAMPLING = Refused("This server does not sample so; leave it out.")
OF_ENGINES = {  # what vLLM's own path takes, and this server does not carry out
    **dict.fromkeys(("mm_processor_kwargs", "media_io_kwargs"), Refused(_OWN_IMAGES, takes=_NO_OPTIONS)),
    "include_stop_str_in_output": Refused("A stop string is never part of the answer."),
    "skip_special_tokens": Refused("Special tokens are never part of the answer.", takes=(True,)),
    "chat_template": Refused(_OWN_TEMPLATE),
    "chat_template_kwargs": Refused(_OWN_TEMPLATE, takes=_NO_OPTIONS),
    "documents": Refused("Put the texts into a message; leave it out."),
    "ec_transfer_params": Refused(
        "Engines here do not share what they have read of images; leave it out.", takes=_NO_OPTIONS
    ),
    "vllm_xargs": Refused("No extension of the engine is known here; leave it out.", takes=_NO_OPTIONS),
    "watermarking": Refused("The engine here marks no text; leave it out."),
    "use_beam_search": Refused("The engine here does not search beams; leave it out."),
    **dict.fromkeys(("allowed_token_ids", "bad_words", "thinking_token_budget"), NO_SUCH_SAMPLING),
}
_IDLE = {
    "personality": "Its names are those of OpenAI's models; say in the instructions how to answer.",
    "client_metadata": "It is for those who run the client; Codex sends it with every request.",
    "prompt_cache_retention": CACHES_ALL,
    "session_id": "What continues a response goes to the engine that knows its beginning, by itself.",
}


class Fields(GenerationFields):
    """The fields of a request, each of the right type."""

    refused: ClassVar = {
        "prompt": Refused("This server has no prompt templates; send 'instructions' and 'input'."),
        "moderation": Refused("This server does not moderate; leave it out."),
        "image": Refused("Images are made by the tool 'image_generation' here; leave it out."),
        "access_programs": Refused("This server has no access programs; leave it out."),
        "kv_transfer_params": Refused("Send the request to /v1/chat/completions or /v1/completions, which take it."),
        "include_reasoning": Refused("Leave the items of the type 'reasoning' out in the client.", takes=(True,)),
        **dict.fromkeys(("min_tokens", "length_penalty"), NO_SUCH_SAMPLING),
        **_OF_CHATS,
        **GUIDED,
        **OF_ENGINES,
    }
    idle: ClassVar = _IDLE
    told: ClassVar = ("personality",)
    beside: ClassVar = ("input", "tools", "tool_choice", "type", "stream_id")  # the last two are a WebSocket frame's
    own: ClassVar = (
        *("generate", "type", "stream_id", *ENGINE_FIELDS, *not_openais(OF_RESPONSES)),
        *("structured_outputs", "return_token_ids"),
        *("multi_agent", "client_metadata", "session_id", "personality", *_OF_CHATS, *GUIDED, *OF_ENGINES),
        *("kv_transfer_params", "include_reasoning", "min_tokens", "length_penalty"),
    )

    model: str | None = Field(default=None, min_length=1, max_length=256)
    instructions: str | None = None
    previous_response_id: str | None = Field(default=None, min_length=1, max_length=256)
    conversation: Annotated[ConversationReference, _EITHER] | None = None
    store: bool | None = None  # None: as the server does by default
    stream: bool | None = None
    background: bool | None = None
    background_options: BackgroundOptions | None = None
    generate: bool | None = None  # False: a warm-up
    max_output_tokens: int | None = Field(default=None, ge=1)  # of all turns together, with the thoughts
    max_tool_calls: int | None = Field(default=None, ge=1)  # of this server's tools, in all turns together
    top_logprobs: int | None = Field(default=None, ge=0, le=20)  # alternatives to each token
    truncation: Literal["auto", "disabled"] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    stream_options: StreamOptions | None = None
    # Fields of items that are left out otherwise: see `KNOWN_INCLUDES`.
    include: Annotated[list[str], Field(fail_fast=True)] | None = None
    metadata: Metadata | None = None
    multi_agent: MultiAgent | None = None
    service_tier: ServiceTier | None = None
    user: str | None = Field(default=None, max_length=1024)
    safety_identifier: str | None = Field(default=None, max_length=1024)
    # Requests with one key go to the same engine.
    prompt_cache_key: str | None = Field(default=None, min_length=1, max_length=1024)
    prompt_cache_retention: str | None = Field(default=None, max_length=64)
    prompt_cache_options: CacheOptions | None = None
    context_management: Annotated[list[ContextManagement], Field(fail_fast=True)] | None = None
    # The response's public id: see `ids`.
    request_id: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]{1,64}$")
    structured_outputs: StructuredOutputs | None = None
    return_token_ids: bool | None = None  # as `TOKENS` in `include`
    priority: int | None = Field(default=None, ge=-(2**31), lt=2**31)  # vLLM's: lower runs first
    # Prompts with different salts share nothing in the engine's cache.
    cache_salt: str | None = Field(default=None, min_length=1, max_length=1024)
    enable_response_messages: bool | None = None  # asks for `input_messages` and `output_messages` in the response
    # What came before, in the model's own words or as messages of Chat Completions.
    previous_input_messages: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None

    @property
    def wants_tokens(self) -> bool:
        """Whether the items of its answer are to have the tokens that they come of."""
        return bool(self.return_token_ids) or TOKENS in (self.include or ())


def check_create(fields: Fields) -> None:
    """Refuse an `include` that a create may not have."""
    if fields.include:
        check_include(fields.include, own=(TOKENS,))
    if (fields.stream or fields.background) and fields.wants_tokens:
        raise invalid_value(
            "return_token_ids" if fields.return_token_ids else "include",
            "tokens of items come with a whole answer only: leave 'stream' and 'background' out, or read the tokens "
            "of a roll-out.",
        )


def check_include(include: list[str] | None, *, own: Collection[str] = ()) -> None:
    """Refuse an `include` that OpenAI does not know, but for `own`; one that cannot be served is left out silently."""
    for index, name in enumerate(include or ()):
        if name not in KNOWN_INCLUDES and name not in own:
            known = ", ".join(sorted((*KNOWN_INCLUDES, *own)))
            raise invalid_value(f"include[{index}]", f"{name[:80]!r}. Supported values are: {known}.")
