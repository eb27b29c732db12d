"""MODELS: the models that one server serves, each under its names, with an engine of its own.

    {"gpt-oss-120b": {"engine": "vllm-server", "url": ["http://gpu-1:8001", "http://gpu-2:8001"], "aliases": ["large"]},
     "gpt-oss-20b": {"engine": "vllm-server", "url": "http://gpu-3:8001", "model": "openai/gpt-oss-20b"}}

It may be a file with that JSON, too.
Without MODELS there is one model, that of the settings for one (ENGINE, MODEL, ENGINE_URL, …). What MODELS leaves out
of an entry is as those say that can hold for all: ENGINE, ENGINE_API_KEY, MODEL_FORMAT, REASONING_PARSER, TOOL_PARSER,
IMAGE_TOKEN, CHAT_TEMPLATE_KWARGS, ENGINE_MAX_RUNNING, ENGINE_MAX_QUEUED.
"""

import json
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.backends.model_folder import FORMATS, VLLMS
from engine.backends.vllm.server_lists import WANTED, as_part, as_server, has_secret
from responses_app.protocol.setting import RoomSettings, choice, json_object, setting, text, whole
from responses_app.protocol.tiers import QueueBounds, queue_bounds


def queued(value: str) -> QueueBounds:
    """How many of each service tier may wait."""
    try:
        return queue_bounds(value)
    except ValueError:
        raise ValueError("a whole number of at least 0, and others for some tiers, like 1000,flex=5000") from None


def server_urls(value: str) -> tuple[str, ...]:
    """URLs of servers alone: no names that stand for several, and no files. One with a password is left as above."""
    texts = [part.strip() for part in value.split(",") if part.strip()]
    parts = [part if has_secret(part) else as_server(part) for part in texts]
    named = tuple(part for part in parts if part is not None)
    if not named or len(named) < len(texts):
        raise ValueError("URLs of vLLM servers, separated by commas, like http://127.0.0.1:8002")
    return named


def urls(value: str) -> tuple[str, ...]:
    """Parts of ENGINE_URL. One with a password is left to the engine, whose sentence about it does not show it."""
    texts = [part.strip() for part in value.split(",") if part.strip()]
    parts = [part if has_secret(part) else as_part(part) for part in texts]
    named = tuple(part for part in parts if part is not None)
    if not named or len(named) < len(texts):
        raise ValueError(WANTED)
    return named


MAX_MODELS = 32  # each is a label of metrics
MAX_NAME = 200  # characters
OF_ONE = ("MODEL", "MODEL_NAME", "TOKENIZER", "ENGINE_URL", "ENGINE_OPTIONS", "ENGINE_SCRIPT")

EMBEDS = ("vllm-embeddings", "hashing")  # engines of models that make embeddings, and generate nothing


def own_or_vllms(*own: str) -> Callable[[str], str]:
    """One of these parsers, or one of vLLM's own: `vllm:NAME`."""

    def parse(value: str) -> str:
        name = value.strip()
        if name.startswith(VLLMS) and name != VLLMS:
            return name
        if name.lower() not in own:
            raise ValueError(f"one of {', '.join(own)} or {VLLMS}NAME")
        return name.lower()

    return parse


_ASK_SERVERS = ("vllm-server", "llama-server")  # engines that need a URL
engine_kind = choice("demo", "vllm", *_ASK_SERVERS, "scripted")
_any_engine = choice("demo", "vllm", *_ASK_SERVERS, "scripted", *EMBEDS)
model_format = choice(*FORMATS)
reasoning_parser = own_or_vllms("auto", "none", "think", "qwen3", "think-open", "deepseek_r1")
tool_parser = own_or_vllms("auto", "none", "hermes", "qwen", "json", "llama3_json")
template_variables = json_object('{"enable_thinking": false}')
engine_options = json_object('{"max_model_len": 65536}')
embeddings_options = json_object('{"gpu_memory_utilization": 0.1}')
_EXAMPLE = (
    'models by their names, like {"small": {"engine": "vllm-server", "url": "http://127.0.0.1:8001"}}, or a file '
    "with one"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """One model: the names that clients know, and its engine."""

    name: str  # for clients, and in responses
    engine: str  # its kind, such as "vllm-server"
    model: str  # what the engine loads, or asks its server for
    aliases: tuple[str, ...] = ()  # other names for clients
    format: str = "harmony"
    tokenizer: str = ""  # folder of its tokenizer and chat template; "": what `model` says
    reasoning_parser: str = "auto"
    tool_parser: str = "auto"
    image_token: str = "auto"  # what its chat template writes for a picture; "none": it is shown none
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    url: tuple[str, ...] = ()  # of servers; several of vLLM share the work
    api_key: str = field(default="", repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)  # of the engine, handed on as they are
    script: str = ""  # file of the engine "scripted"
    max_running: int = 0  # turns at once, for one worker; 0: any number
    max_queued: QueueBounds  # requests of one project that may wait, by service tier

    @property
    def embeds(self) -> bool:
        """Whether it makes embeddings, and generates nothing."""
        return self.engine in EMBEDS

    @property
    def names(self) -> tuple[str, ...]:
        """All that clients may call it; answers have the first."""
        return (self.name, *self.aliases)

    @property
    def lacks(self) -> tuple[Sequence[str], str] | None:
        """The field that it needs and does not have, behind those because of which it does; None where it has all."""
        if self.engine in _ASK_SERVERS and not self.url:
            return ("engine",), "url"
        if self.engine == "scripted" and not self.script:
            return ("engine",), "script"
        if self.format == "chat-template" and self.engine in _ASK_SERVERS and not self.tokenizer:
            return ("format", "engine"), "tokenizer"
        return None

    @property
    def has_other_format(self) -> bool:
        """Whether it has another format than its engine, which plays a model that speaks Harmony."""
        return self.format == "chat-template" and self.engine in ("demo", "scripted")


# Sentences name the variable where there is one model, and the field of MODELS where there are several.
_VARIABLES = {  # of the fields of one model
    "engine": "ENGINE",
    "format": "MODEL_FORMAT",
    "url": "ENGINE_URL",
    "script": "ENGINE_SCRIPT",
    "tokenizer": "TOKENIZER",
}
_ABOUT = {
    "url": "like http://127.0.0.1:8001, and MODEL, the name the model has there",
    "script": "the file with its completions",
    "tokenizer": "the folder of its tokenizer",
}

Entries = tuple[tuple[str, Mapping[str, Any]], ...]  # names, and what MODELS says of each


def models(value: str) -> Entries:
    """Read MODELS. Raises `ValueError`, whose text never has a value: one of them is a key."""
    text = value.strip()
    try:
        # A file's name that begins with a brace has to be written with its folder: "./{x}".
        content = text if text.startswith("{") else Path(text).read_text()
        entries_by_name = json.loads(content, object_pairs_hook=_unique)
    except (OSError, ValueError):
        entries_by_name = None
    if not isinstance(entries_by_name, dict) or not 0 < len(entries_by_name) <= MAX_MODELS:
        raise ValueError(f"a JSON object of at most {MAX_MODELS} {_EXAMPLE}")
    entries = tuple((_name(name), _fields(name, fields)) for name, fields in entries_by_name.items())
    names = [each for name, fields in entries for each in (name, *fields.get("aliases", ()))]
    # Of at most MAX_MODELS entries: counting each name is quick enough.
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"each name once, as a name or among the aliases, and {twice!r} is there twice")
    return entries


def complete(entries: Entries, common: ModelSettings) -> tuple[ModelSettings, ...]:
    """Return the models, with what `common` says where an entry says nothing; without entries that is the one."""
    # An entry that does not say what its engine loads means its own name.
    return tuple(replace(common, name=name, **{"model": name, **fields}) for name, fields in entries) or (common,)


def problem_of(served: Sequence[ModelSettings], set_names: Container[str]) -> str | None:
    """Return what is wrong with these models, as a sentence; None where nothing is."""
    return _problem_of_several(served, set_names) if "models" in set_names else _problem_of_one(served[0], set_names)


def _problem_of_one(model: ModelSettings, set_names: Container[str]) -> str | None:
    if model.has_other_format:
        needed = "ENGINE=vllm, vllm-server or llama-server"
        return f"MODEL_FORMAT=chat-template needs {needed}: ENGINE={model.engine} speaks Harmony."
    lacks = model.lacks
    if lacks is None and model.engine == "vllm-server" and "model" not in set_names:
        lacks = ("engine",), "url"
    if lacks is not None:
        because, needed = lacks
        reason = " with ".join(f"{_VARIABLES[name]}={getattr(model, name)}" for name in because)
        about = "like http://127.0.0.1:8080" if model.engine == "llama-server" and needed == "url" else _ABOUT[needed]
        return f"{reason} needs {_VARIABLES[needed]}, {about}."
    if model.engine == "vllm" and "model" not in set_names:
        return "ENGINE=vllm needs MODEL, a model's name on the hub or its folder."
    return None


def _problem_of_entry(model: ModelSettings) -> str | None:
    if model.has_other_format:
        return f"its engine is {model.engine}, which speaks Harmony, and so 'format' cannot be chat-template"
    if model.lacks is None:
        return None
    because, needed = model.lacks
    reason = " and ".join(f"its {name} is {getattr(model, name)}" for name in because)
    return f"{reason}, and so it needs {needed!r}"


def _problem_of_several(served: Sequence[ModelSettings], set_names: Container[str]) -> str | None:
    one = next((name for name in OF_ONE if name.lower() in set_names), None)
    if one is not None:
        return f"{one} is for one model, and MODELS says it of each: leave {one} out."
    for each in served:
        problem = _problem_of_entry(each)
        if problem is not None:
            return f"MODELS is not valid: of {each.name!r}, {problem}."
    if all(each.embeds for each in served):
        return "MODELS is not valid: all of its models make embeddings, and one must generate."
    # vLLM takes the GPU's memory for itself when it starts.
    here = [each.name for each in served if each.engine == "vllm"]
    if len(here) > 1:
        names = ", ".join(map(repr, here))
        return f"A process loads one model with vLLM, and MODELS has {len(here)} with the engine vllm: {names}."
    return None


def _fields(name: str, entry: object) -> Mapping[str, Any]:
    if not isinstance(entry, dict):
        raise ValueError(f"a JSON object as {name!r}")
    unknown = sorted(entry.keys() - _READERS.keys())
    if unknown:
        raise ValueError(f"of {name!r} the fields {', '.join(sorted(_READERS))}, and not {unknown[0]!r}")
    fields = {}
    for key, value in entry.items():
        try:
            fields[key] = _READERS[key](value)
        except ValueError as takes:
            raise ValueError(f"as {key!r} of {name!r} {takes}") from None
    return fields


def _text(parse: Callable[[str], Any]) -> Callable[[object], Any]:
    def read(value: object) -> Any:
        if not isinstance(value, str) or not value.strip():
            raise ValueError("a text that is not empty")
        return parse(value.strip())

    return read


def _number(parse: Callable[[str], Any]) -> Callable[[object], Any]:
    def read(value: object) -> Any:
        # True is an int to Python; an empty text is no number to any parser.
        return parse("" if isinstance(value, bool) else str(value))

    return read


def _urls(value: object) -> tuple[str, ...]:
    several = value if isinstance(value, list) else [value]
    texts = [each for each in several if isinstance(each, str)]
    if len(texts) < len(several):
        raise ValueError("a URL, or a list of URLs")
    return urls(",".join(texts))


def _aliases(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError("a list of names")
    return tuple(map(_name, value))


def _name(value: object) -> str:
    # Chained: not empty, without spaces at its ends, and not too long.
    if not isinstance(value, str) or not 0 < len(value.strip()) == len(value) <= MAX_NAME or not value.isprintable():
        raise ValueError(f"names of 1 to {MAX_NAME} characters that can be printed")
    return value


def _object(parse: Callable[[str], dict[str, Any]]) -> Callable[[object], Mapping[str, Any]]:
    return lambda value: parse(json.dumps(value))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse what JSON allows and means nothing here: a name that is there twice."""
    unique = dict(pairs)
    if len(unique) < len(pairs):
        raise ValueError("a name is there twice")
    return unique


_READERS: Mapping[str, Callable[[object], Any]] = {
    "engine": _text(_any_engine),
    "model": _text(text),
    "aliases": _aliases,
    "format": _text(model_format),
    "tokenizer": _text(text),
    "reasoning_parser": _text(reasoning_parser),
    "tool_parser": _text(tool_parser),
    "image_token": _text(text),
    "chat_template_kwargs": _object(template_variables),
    "url": _urls,
    "api_key": _text(text),
    "options": _object(engine_options),
    "script": _text(text),
    "max_running": _number(whole()),
    "max_queued": _number(queued),
}


@dataclass(frozen=True, kw_only=True)
class EngineSettings(RoomSettings):
    """The settings of engines and models, as `conf` reads them. A field's name in capitals is its variable."""

    engine: str = setting(
        "demo", engine_kind,
        "inference backend: `demo` (no model), `vllm` (vLLM inside respsite), `vllm-server` (vLLM servers at "
        "ENGINE_URL), `llama-server` (llama.cpp's server at ENGINE_URL) or `scripted` (for tests)",
    )  # fmt: skip
    engine_url: tuple[str, ...] = setting(
        (), urls,
        "URLs of the vLLM servers for ENGINE=vllm-server, separated by commas (see Load balancing over several "
        "vLLM servers), or of the one llama-server for ENGINE=llama-server",
        default_text="unset",
    )  # fmt: skip
    engine_api_key: str = setting(
        "", text,
        "API key of the servers at ENGINE_URL and EMBEDDINGS_URL: the value of their flag `--api-key`",
        default_text="unset", secret=True,
    )  # fmt: skip
    engine_core: str = setting(
        "", text,
        "socket of a vLLM engine that several workers with ENGINE=vllm share; `serve --workers` sets it by itself",
        default_text="unset: loaded in this process",
    )  # fmt: skip
    model: str = setting(
        "", text,
        "model to load: a Hugging Face id or a folder; with ENGINE=vllm-server the model's name on that server",
        default_text="the engine's name",
    )  # fmt: skip
    model_format: str = setting(
        "harmony", model_format,
        "prompt and output format: `harmony` (gpt-oss), `chat-template` (the model's own template), or chosen by "
        "the model's files (`auto`; see Serve Qwen, Llama, Mistral and other models)",
    )  # fmt: skip
    tokenizer: str = setting(
        "", text,
        "folder with the model's tokenizer and chat template; required for MODEL_FORMAT=chat-template with "
        "ENGINE=vllm-server or llama-server",
        default_text="what MODEL says",
    )  # fmt: skip
    reasoning_parser: str = setting(
        "auto", reasoning_parser,
        "how reasoning is separated from the answer, with MODEL_FORMAT=chat-template: think tags (`think`, "
        "`qwen3`), think tags whose first tag is in the prompt (`think-open`), no reasoning (`none`), a parser of "
        "vLLM (`vllm:NAME`), or chosen by the model's files (`auto`)",
    )  # fmt: skip
    tool_parser: str = setting(
        "auto", tool_parser,
        "how tool calls are parsed, with MODEL_FORMAT=chat-template: `hermes`, JSON like Llama 3's (`json`), no "
        "tool calls (`none`), a parser of vLLM (`vllm:NAME`), or chosen by the model's files (`auto`)",
    )  # fmt: skip
    image_token: str = setting(
        "auto", text,
        "image placeholder of the model's chat template, with MODEL_FORMAT=chat-template: a text like `<image>`, "
        "chosen by the model's files (`auto`), or `none` for a model that gets no images",
    )  # fmt: skip
    model_name: str = setting(
        "", text, "name of the model for clients, in requests and in `/v1/models`", default_text="what MODEL says"
    )
    chat_template_kwargs: dict[str, Any] = setting(
        {}, template_variables, "variables for the model's chat template, as JSON", default_text="{}"
    )
    engine_options: dict[str, Any] = setting(
        {}, engine_options,
        "options of the engine, as JSON: vLLM's engine arguments for ENGINE=vllm, those of respsite's client for "
        "ENGINE=vllm-server, those of the demo engine (see Options of the demo engine)",
        default_text="{}",
    )  # fmt: skip
    engine_script: str = setting("", text, "file with the script of ENGINE=scripted, for tests", default_text="unset")
    models: Entries = setting(
        (), models,
        "several models, each with its own engine, as JSON or as the path of a JSON file (see Serve several "
        "models)",
        default_text="unset: one model, as ENGINE and MODEL say", secret=True,
    )  # fmt: skip
    engine_max_running: int = setting(
        0, whole(),
        "generations that the engine runs at once for one worker; further ones wait, and projects get equal "
        "shares (see Fair scheduling between projects); 0 = the slots of llama.cpp, eight for the demo engine, "
        "no limit for others",
    )  # fmt: skip
    engine_max_queued: QueueBounds = setting(
        QueueBounds(1000), queued,
        "requests of one project and service tier that may wait for the engine in one worker; `1000,flex=5000` "
        "sets a different limit for one tier",
        default_text="1000",
    )  # fmt: skip

    def problem(self, given: Container[str]) -> str | None:
        """Return what is wrong with the models."""
        return problem_of(self.all_models, given)

    @property
    def served(self) -> tuple[ModelSettings, ...]:
        """The models that generate; the first is meant where a request names none."""
        return tuple(model for model in self.all_models if not model.embeds)

    @property
    def all_models(self) -> tuple[ModelSettings, ...]:
        """Those, and the models of MODELS that make embeddings."""
        common = ModelSettings(
            name=self.model_name or self.model or self.engine,
            engine=self.engine,
            model=self.model or self.engine,
            format=self.model_format,
            tokenizer=self.tokenizer,
            reasoning_parser=self.reasoning_parser,
            tool_parser=self.tool_parser,
            image_token=self.image_token,
            chat_template_kwargs=self.chat_template_kwargs,
            url=self.engine_url,
            api_key=self.engine_api_key,
            options=self.engine_options,
            script=self.engine_script,
            max_running=self.engine_max_running,
            max_queued=self.engine_max_queued,
        )
        return complete(self.models, common)

    @property
    def in_process(self) -> ModelSettings | None:
        """The model that vLLM loads here, or in an engine core beside; None for none."""
        return next((model for model in self.served if model.engine == "vllm"), None)


@dataclass(frozen=True, kw_only=True)
class EmbeddingSettings(RoomSettings):
    """Every setting of them; a field's name in capitals is its environment variable."""

    embeddings_url: tuple[str, ...] = setting(
        (), server_urls,
        "URLs of vLLM servers with an embedding model, separated by commas; their API key is ENGINE_API_KEY (see "
        "Embeddings)",
        default_text="unset",
    )  # fmt: skip
    embeddings_model: str = setting(
        "", text,
        "name of the embedding model, at EMBEDDINGS_URL and for clients; without EMBEDDINGS_URL the model that "
        "vLLM loads inside respsite",
        default_text="the first model there, which clients call `embeddings`",
    )  # fmt: skip
    embeddings_options: dict[str, Any] = setting(
        {}, embeddings_options,
        "options for an embedding model inside respsite, as JSON: fields of vLLM's `AsyncEngineArgs`",
        default_text="{}",
    )  # fmt: skip
