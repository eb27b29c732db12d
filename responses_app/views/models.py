"""`GET /v1/models` and `GET /v1/models/{id}`; ids may hold slashes (`openai/gpt-oss-20b`).

Codex asks for `/v1/models?client_version=0.169.0`, and wants a catalogue of its own; OpenAI's SDKs never say that.
"""

from functools import cache

from django.http import HttpRequest, HttpResponse
from django.urls import Resolver404, resolve

from responses_app.http import caller_of, json_response, only_reads
from responses_app.protocol.codex import catalogue
from responses_app.protocol.errors import JsonObject, model_not_found
from responses_app.runs.embedding import ServedEmbeddings
from responses_app.runs.served import ServedModel
from responses_app.views.queries import query_of
from responses_app.wiring import get_site

Served = ServedModel | ServedEmbeddings

URLS = "responses_app.urls"  # which names this view: so it is not imported
GENERATES = ("/v1/responses", "/v1/chat/completions", "/v1/completions", "/v1/decisions")
EMBEDS = ("/v1/embeddings",)


async def index(request: HttpRequest) -> HttpResponse:
    """List the models this server serves, under each of their names: those that generate, then those that embed."""
    only_reads(request)
    models, embedding_models = _allowed(request)
    named = [(name, model) for model in models for name in model.names]
    if any(query_of(request).get("client_version", ())):
        return json_response(catalogue((name, _length(model)) for name, model in named))
    others = [_model(name, model) for model in embedding_models for name in model.names]
    return json_response({"object": "list", "data": [*(_model(name, model) for name, model in named), *others]})


async def detail(request: HttpRequest, model: str) -> HttpResponse:
    """Return one model."""
    only_reads(request)
    allowed: list[Served] = [each for several in _allowed(request) for each in several]
    found = next((each for each in allowed if model in each.names), None)
    if found is None:
        raise model_not_found(model, [each.name for each in allowed])
    return json_response(_model(model, found))


def _allowed(request: HttpRequest) -> tuple[list[ServedModel], list[ServedEmbeddings]]:
    """Return the models that who asks may use."""
    site, names = get_site(), caller_of(request).models
    return list(site.service.models.allowed(names)), list(site.embeddings.service.models.allowed(names))


def _model(name: str, model: Served) -> JsonObject:
    described: JsonObject = {"id": name, "object": "model", "created": model.created, "owned_by": "respsite"}
    if name != model.name:
        described["root"] = model.name  # as vLLM says what a name stands for
    length = _length(model)
    if length is not None:
        described["max_model_len"] = length
    if isinstance(model, ServedModel):
        return {**described, "capabilities": _capabilities(model), "endpoints": _served(GENERATES)}
    if length is not None:
        described["dimensions"] = model.engine.dimensions
    return {**described, "capabilities": ["embed"], "endpoints": _served(EMBEDS)}


def _capabilities(model: ServedModel) -> list[str]:
    """Return what a model can do here, which its engine has a part in."""
    engine = model.engine
    known = (("logprobs", engine.supports_logprobs), ("structured_outputs", engine.supports_grammar))
    return ["generate", *(name for name, has in known if has)]


@cache  # the table does not change while a process lives
def _served(paths: tuple[str, ...]) -> list[str]:
    """Return those of some paths that this server has."""
    return [path for path in paths if _is_there(path)]


def _is_there(path: str) -> bool:
    try:
        resolve(path, URLS)
    except Resolver404:
        return False
    return True


def _length(model: Served) -> int | None:
    """Return how many tokens the model can read and write; None until its engine has started."""
    info = model.info()
    return info.max_model_len if info is not None else None
