"""`GET /v1/models` and `GET /v1/models/{id}`; ids may hold slashes (`openai/gpt-oss-20b`).

Codex asks for `/v1/models?client_version=0.169.0`, and wants a catalogue of its own; OpenAI's SDKs never say that.
"""

from django.http import HttpRequest, HttpResponse

from responses_app.http import caller_of, json_response, only_reads
from responses_app.protocol.codex import catalogue
from responses_app.protocol.errors import JsonObject, model_not_found
from responses_app.runs.served import ServedModel
from responses_app.views.queries import query_of
from responses_app.wiring import get_site


async def index(request: HttpRequest) -> HttpResponse:
    """List the models this server serves, under each of their names."""
    only_reads(request)
    models = get_site().service.models.allowed(caller_of(request).models)
    named = [(name, model) for model in models for name in model.names]
    if any(query_of(request).get("client_version", ())):
        return json_response(catalogue((name, _length(model)) for name, model in named))
    return json_response({"object": "list", "data": [_model(name, model) for name, model in named]})


async def detail(request: HttpRequest, model: str) -> HttpResponse:
    """Return one model."""
    only_reads(request)
    models = get_site().service.models
    allowed, found = models.allowed(caller_of(request).models), models.named(model)
    if found is None or found not in allowed:
        raise model_not_found(model, [each.name for each in allowed])
    return json_response(_model(model, found))


def _model(name: str, model: ServedModel) -> JsonObject:
    described: JsonObject = {"id": name, "object": "model", "created": model.created, "owned_by": "respsite"}
    if name != model.name:
        described["root"] = model.name  # as vLLM says what a name stands for
    length = _length(model)
    if length is not None:
        described["max_model_len"] = length
    return described


def _length(model: ServedModel) -> int | None:
    """Return how many tokens the model can read and write; None until its engine has started."""
    info = model.info()
    return info.max_model_len if info is not None else None
