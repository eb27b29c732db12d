"""`GET /v1/models` and `GET /v1/models/{id}`; ids may hold slashes (`openai/gpt-oss-20b`)."""

from django.http import HttpRequest, HttpResponse

from responses_app.http import MethodNotAllowed, json_response
from responses_app.protocol.errors import JsonObject, model_not_found
from responses_app.runs.served import ServedModel
from responses_app.wiring import get_site


async def index(request: HttpRequest) -> HttpResponse:
    """List the models this server serves."""
    _only_get(request)
    models = get_site().service.models.values()
    return json_response({"object": "list", "data": [_model(model) for model in models]})


async def detail(request: HttpRequest, model: str) -> HttpResponse:
    """Return one model."""
    _only_get(request)
    models = get_site().service.models
    if model not in models:
        raise model_not_found(model, list(models))
    return json_response(_model(models[model]))


def _only_get(request: HttpRequest) -> None:
    if request.method not in ("GET", "HEAD"):
        raise MethodNotAllowed(str(request.method), ["GET"])


def _model(model: ServedModel) -> JsonObject:
    info = model.info()
    described: JsonObject = {"id": model.name, "object": "model", "created": model.created, "owned_by": "respsite"}
    if info is not None:
        described["max_model_len"] = info.max_model_len
    return described
