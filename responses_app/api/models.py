"""`GET /v1/models` and `GET /v1/models/{id}`: the models that are served; ids may hold slashes (`openai/gpt-oss-20b`).

Clients of Anthropic's API, which say so in a header, are given the models as that has them.

Codex asks for `/v1/models?client_version=0.169.0`, and wants a catalogue of its own; OpenAI's SDKs never say that. It
reads a catalogue whole or not at all: one entry without a field that it requires, and every model of the provider is
unknown to it. It says then that it has no metadata, and offers the model no apply_patch.
"""

from collections.abc import Iterable
from functools import partial
from typing import Literal, NamedTuple, NotRequired

from typing_extensions import TypeAliasType, TypedDict

from responses_app.kit.clock import rfc3339
from responses_app.protocol.api_keys import Area
from responses_app.protocol.errors import JsonObject, invalid_request, invalid_value, model_not_found
from responses_app.protocol.fields import note_unknown, whole_number
from responses_app.protocol.messages.errors import EitherErrorAnswer
from responses_app.protocol.requests.pages import Query
from responses_app.protocol.transport import ANTHROPIC_VERSION as VERSION
from responses_app.runs.plan.served import ServedModel
from responses_app.runs.stateless.embedding import ServedEmbeddings
from responses_app.web.endpoint import Endpoint, Parameter, text
from responses_app.web.http import ApiRequest
from responses_app.wiring.site import get_site

Served = ServedModel | ServedEmbeddings

GENERATES = ("/v1/responses", "/v1/chat/completions", "/v1/messages", "/v1/completions", "/v1/decisions")
EMBEDS = ("/v1/embeddings",)


class Model(TypedDict):
    """A model that is served, and what it can do.

    `max_model_len` is in tokens; `root` is the model that an alias stands for, `dimensions` how long embeddings are.
    """

    id: str
    object: Literal["model"]
    created: int  # Unix seconds: when this process started
    owned_by: str
    max_model_len: NotRequired[int]  # tokens that it reads and writes; not there until its engine has started
    root: NotRequired[str]  # the model that an alias stands for
    capabilities: NotRequired[list[str]]  # such as "generate", "logprobs", "images"
    endpoints: NotRequired[list[str]]  # paths at which it answers
    dimensions: NotRequired[int]  # how long its embeddings are


class ModelList(TypedDict):
    """The models that are served."""

    object: Literal["list"]
    data: list[Model]


class AnthropicModel(TypedDict):
    """A model as Anthropic's API has it. `max_input_tokens` and `max_tokens` share the model's context."""

    type: Literal["model"]
    id: str
    display_name: str  # the id
    created_at: str  # RFC 3339: when this process started
    lifecycle: Literal["active"]
    max_input_tokens: int | None  # None until its engine has started
    max_tokens: int | None


class AnthropicModelList(TypedDict):
    """A part of a list of models as Anthropic's API has it."""

    data: list[AnthropicModel]
    has_more: bool  # in the direction that was asked for
    first_id: str | None  # None where the list is empty
    last_id: str | None


SHOWN_TOKENS = 10_000  # of a command's output, at most; Codex cuts the middle out of a longer one
SHOWN_SHARE = 8  # and no more than an eighth of the model's length
EFFORTS = {
    "low": "Answers fast, with little thought",
    "medium": "Thinks as long as everyday work needs",
    "high": "Thinks longest, for hard problems",
}
INSTRUCTIONS = """\
You are a coding agent in the Codex CLI. You and the user share a computer: you work in a folder of theirs, by calling \
tools, until what they asked for is done.

# Work
- Find out before you change anything: read the files that matter, search with `rg` where it is installed. Never guess \
what a file says.
- Fix the cause of a problem, and not more than was asked for. Keep to the style of the code around you.
- Leave alone what you did not make: changes that you find in the folder are the user's. Do not commit or branch \
unless you are asked to.
- Run the tests or the program afterwards, where there are any, and read what comes out. If you could not check \
something, say so.
- A file named AGENTS.md holds the user's rules for its folder and everything below; the one deepest down decides, and \
what the user says to you counts more.
- Go on by yourself. Ask only where the answer changes what you would do and you cannot find it out.
- A command that is refused is the user's decision: do not try to reach the same by another way. Say what you could \
not do.

# Tools
- `exec_command` runs a command in a shell. Several short commands are better than one that does everything.
{patching}
# Answers
Say in a line or two what you are about to do before a longer piece of work. In the end say what you changed, where \
(`path/file.py:12`), and what you found when you checked it. Be brief and plain. Do not repeat files that you wrote: \
the user can open them.
"""


PATCHES = """\
- `apply_patch` is how you write, change, move and delete files. Its input is the patch itself, not JSON:

*** Begin Patch
*** Add File: path/of/a/new_file.txt
+every line of it begins with a plus
*** Update File: path/of/a/file.py
*** Move to: path/of/a/renamed_file.py
@@ def of_a_function():
 three lines before what changes, each behind one space
-a line that goes
+a line that comes
 three lines after it
*** Delete File: path/of/an/old_file.txt
*** End Patch

Paths are relative. `@@` names the function or class where the lines alone could be found more than once; without it \
there is none. `*** Move to:` stands only where a file gets another name.
"""
NO_PATCHES = "- There is no tool for files: write, change, move and delete them by commands, too.\n"


class ModelCatalogue(TypedDict):
    """The same as the Codex CLI reads it, which asks with `client_version`."""

    models: list[JsonObject]


class CatalogueModel(NamedTuple):
    """A model as the catalogue describes it."""

    name: str
    length: int | None  # in tokens; None: not known yet
    sees: bool
    is_held: bool = True  # its engine takes the grammar of apply_patch


def catalogue(models: Iterable[CatalogueModel]) -> ModelCatalogue:
    """Return Codex's catalogue of models."""
    return {"models": [_entry(model, rank) for rank, model in enumerate(models)]}


def _entry(model: CatalogueModel, rank: int) -> JsonObject:
    shown = SHOWN_TOKENS if model.length is None else min(SHOWN_TOKENS, model.length // SHOWN_SHARE)
    return {
        "slug": model.name,
        "display_name": model.name,
        "description": "Served by respsite",
        "visibility": "list",
        "supported_in_api": True,
        "priority": rank,
        "upgrade": None,
        # Required as a text, though an empty one would do: without it Codex has no catalogue at all.
        "base_instructions": INSTRUCTIONS.replace("{patching}\n", PATCHES if model.is_held else NO_PATCHES),
        "context_window": model.length,
        "truncation_policy": {"mode": "tokens", "limit": shown},
        "input_modalities": ["text", "image"] if model.sees else ["text"],
        "default_reasoning_level": "medium",
        "supported_reasoning_levels": [{"effort": effort, "description": EFFORTS[effort]} for effort in EFFORTS],
        "supports_reasoning_summaries": True,
        "support_verbosity": False,
        "default_verbosity": None,
        "shell_type": "unified_exec",
        # A custom tool with a Lark grammar; there is no other any more.
        "apply_patch_tool_type": "freeform" if model.is_held else None,
        "supports_parallel_tool_calls": True,
        "experimental_supported_tools": [],
    }


Models = TypeAliasType("Models", ModelList | ModelCatalogue | AnthropicModelList)
EitherModel = TypeAliasType("EitherModel", Model | AnthropicModel)


async def _list(request: ApiRequest) -> Models:
    """List the models this server serves, under each of their names: those that generate, then those that embed."""
    models, embedding_models = _allowed(request)
    named = [(name, model) for model in models for name in model.names]
    if _is_anthropics(request):
        return anthropic_page([_anthropic_model(name, model) for name, model in named], request.query)
    for name in request.query.keys() & {each.name for each in _PAGE_OF_ANTHROPICS}:
        note_unknown(name, request.ignored)  # OpenAI's list has no parts
    if any(request.query.get("client_version", ())):
        return catalogue(
            CatalogueModel(name, _length(model), model.sees, model.engine.supports_grammar) for name, model in named
        )
    others = [_model(name, model) for model in embedding_models for name in model.names]
    return {"object": "list", "data": [*(_model(name, model) for name, model in named), *others]}


async def _get(request: ApiRequest, model: str) -> EitherModel:
    """Return one model."""
    allowed: list[Served] = [each for several in _allowed(request) for each in several]
    match = next((each for each in allowed if model in each.names), None)
    if match is None:
        raise model_not_found(model, [each.name for each in allowed])
    return _anthropic_model(model, match) if _is_anthropics(request) else _model(model, match)


def _is_anthropics(request: ApiRequest) -> bool:
    return request.headers.get(VERSION) is not None


def _anthropic_model(name: str, model: Served) -> AnthropicModel:
    length = _length(model)
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": rfc3339(model.created),
        "lifecycle": "active",
        "max_input_tokens": length,
        "max_tokens": length,
    }


def anthropic_page(models: list[AnthropicModel], query: Query) -> AnthropicModelList:
    """Return the part of a list that is asked for. Raises `ApiError`."""
    after, before = ((query.get(name) or [""])[-1] for name in ("after_id", "before_id"))
    limit_text = (query.get("limit") or [str(_PAGE)])[-1]
    limit = whole_number(limit_text, 1, _LONGEST_PAGE)
    if limit is None:
        raise invalid_value("limit", f"{limit_text[:40]!r}. It is a number from 1 to {_LONGEST_PAGE}.")
    names = [each["id"] for each in models]
    for cursor in filter(None, (after, before)):
        if cursor not in names:
            raise invalid_request(f"There is no model with the id {cursor[:80]!r}.", code="invalid_value")
    end = names.index(before) if before else len(models)
    begin = names.index(after) + 1 if after else max(0, end - limit) if before else 0
    page = models[begin : min(end, begin + limit)]
    return {
        "data": page,
        "has_more": begin > 0 if before and not after else begin + limit < end,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
    }


def _allowed(request: ApiRequest) -> tuple[list[ServedModel], list[ServedEmbeddings]]:
    """Return the models that who asks may use."""
    site, names = get_site(), request.caller.models
    return list(site.service.models.allowed(names)), list(site.embeddings.service.models.allowed(names))


def _model(name: str, model: Served) -> Model:
    described: Model = {"id": name, "object": "model", "created": model.created, "owned_by": "respsite"}
    if name != model.name:
        described["root"] = model.name  # as vLLM says what a name stands for
    length = _length(model)
    if length is not None:
        described["max_model_len"] = length
    if isinstance(model, ServedModel):
        return {**described, "capabilities": _capabilities(model), "endpoints": list(GENERATES)}
    if length is not None:
        described["dimensions"] = model.engine.dimensions
    return {**described, "capabilities": ["embed"], "endpoints": list(EMBEDS)}


def _capabilities(model: ServedModel) -> list[str]:
    """Return what a model can do here, which its engine has a part in."""
    engine = model.engine
    known = (
        ("logprobs", engine.supports_logprobs),
        ("structured_outputs", engine.supports_grammar),
        ("images", model.sees),
    )
    return ["generate", *(name for name, has in known if has)]


def _length(model: Served) -> int | None:
    """Return how many tokens the model can read and write; None until its engine has started."""
    info = model.info()
    return info.max_model_len if info is not None else None


_MODELS = "/v1/models"
_PAGE, _LONGEST_PAGE = 20, 1000  # models of one answer to a client of Anthropic's API
_SPEAKS = Parameter(VERSION, "Sent by clients of Anthropic's API: they are given the models as that has them.", text(),
                    where="header")  # fmt: skip
_PAGE_OF_ANTHROPICS = (
    Parameter(
        "limit",
        "For clients of Anthropic's API: the maximum number of models.",
        {"type": "integer", "minimum": 1, "maximum": _LONGEST_PAGE, "default": _PAGE},
    ),
    Parameter("after_id", "For the same: the id of the model after which the list begins.", text()),
    Parameter("before_id", "For the same: the id of the model before which the list ends.", text()),
)
_CLIENT_VERSION = Parameter(
    "client_version", "The version of the Codex CLI: it is given a catalogue of its own.", text()
)
_endpoint = partial(Endpoint, tag="Server", scope=Area.MODELS, error_answer=EitherErrorAnswer)

ENDPOINTS = (
    _endpoint(
        "GET",
        _MODELS,
        _list,
        "listModels",
        "List the models",
        takes=(_CLIENT_VERSION, _SPEAKS, *_PAGE_OF_ANTHROPICS),
    ),
    _endpoint("GET", f"{_MODELS}/{{model:path}}", _get, "retrieveModel", "Return a model", takes=(_SPEAKS,)),
)
