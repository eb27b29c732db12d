"""`GET /v1/models` and `GET /v1/models/{id}`: the models that are served; ids may hold slashes (`openai/gpt-oss-20b`).

Codex asks for `/v1/models?client_version=0.169.0`, and wants a catalogue of its own; OpenAI's SDKs never say that.
"""

from functools import partial
from typing import Literal, NotRequired

from django.http import HttpRequest
from typing_extensions import TypeAliasType, TypedDict

from responses_app.protocol.api_keys import Area
from responses_app.protocol.codex import ModelCatalogue, catalogue
from responses_app.protocol.errors import model_not_found
from responses_app.runs.plan.served import ServedModel
from responses_app.runs.stateless.embedding import ServedEmbeddings
from responses_app.web.endpoint import Endpoint, Parameter, text
from responses_app.web.http import caller_of, query_of
from responses_app.wiring.site import get_site

Served = ServedModel | ServedEmbeddings

GENERATES = ("/v1/responses", "/v1/chat/completions", "/v1/completions", "/v1/decisions")
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
    capabilities: NotRequired[list[str]]  # such as "generate", "logprobs"
    endpoints: NotRequired[list[str]]  # paths at which it answers
    dimensions: NotRequired[int]  # how long its embeddings are


class ModelList(TypedDict):
    """The models that are served."""

    object: Literal["list"]
    data: list[Model]


Models = TypeAliasType("Models", ModelList | ModelCatalogue)


async def _list(request: HttpRequest) -> Models:
    """List the models this server serves, under each of their names: those that generate, then those that embed."""
    models, embedding_models = _allowed(request)
    named = [(name, model) for model in models for name in model.names]
    if any(query_of(request).get("client_version", ())):
        return catalogue((name, _length(model)) for name, model in named)
    others = [_model(name, model) for model in embedding_models for name in model.names]
    return {"object": "list", "data": [*(_model(name, model) for name, model in named), *others]}


async def _get(request: HttpRequest, model: str) -> Model:
    """Return one model."""
    allowed: list[Served] = [each for several in _allowed(request) for each in several]
    match = next((each for each in allowed if model in each.names), None)
    if match is None:
        raise model_not_found(model, [each.name for each in allowed])
    return _model(model, match)


def _allowed(request: HttpRequest) -> tuple[list[ServedModel], list[ServedEmbeddings]]:
    """Return the models that who asks may use."""
    site, names = get_site(), caller_of(request).models
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
    known = (("logprobs", engine.supports_logprobs), ("structured_outputs", engine.supports_grammar))
    return ["generate", *(name for name, has in known if has)]


def _length(model: Served) -> int | None:
    """Return how many tokens the model can read and write; None until its engine has started."""
    info = model.info()
    return info.max_model_len if info is not None else None


_MODELS = "/v1/models"
_CLIENT_VERSION = Parameter(
    "client_version", "The version of the Codex CLI: it is given a catalogue of its own.", text()
)
_endpoint = partial(Endpoint, tag="Server", scope=Area.MODELS)

ENDPOINTS = (
    _endpoint("GET", _MODELS, _list, "listModels", "List the models", takes=(_CLIENT_VERSION,)),
    _endpoint("GET", f"{_MODELS}/{{model:path}}", _get, "retrieveModel", "Return a model"),
)
