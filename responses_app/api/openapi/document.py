"""The document: what the table of endpoints has at each path, and the schemas of what goes in and out."""

from collections.abc import Iterable, Iterator, Sequence
from http import HTTPStatus

from responses_app import __version__
from responses_app.api.openapi.schemas import name_of, ref, schemas
from responses_app.protocol.body_errors import FORM_TYPE
from responses_app.protocol.errors import JsonObject
from responses_app.web.endpoint import JSON, Endpoint
from responses_app.web.parameters import Parameter

BEARER = "bearerAuth"
_DESCRIPTION = (
    "OpenAI's Responses API for open models. Each path below /v1 works without it, too. A WebSocket at /v1/responses "
    "takes the same requests as frames; OpenAPI cannot describe it."
)
_ALWAYS = (400, 500)  # the host may be unknown here, and anything may break
_WITH_KEY = (401, 403, 503)  # and the keys, or what is stored, may be away
_WITH_BODY = (408, 413, 415)
_WHEN_TO_RETURN = (429, 503)
_SAYS = {
    400: "The request is invalid.",
    401: "The API key is missing or invalid.",
    403: "The API key lacks the scope for this, or the web page may not use this server.",
    404: "A resource that the request names does not exist, or not any more.",
    408: "The body did not arrive in time.",
    409: "The request conflicts with the state of the resource.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    429: "A limit is reached.",
    500: "The server failed. Its operator finds the cause by the `x-request-id`.",
    503: "The database, the engine or another part is unreachable, full or loading.",
}
_HEADERS: JsonObject = {
    "x-request-id": {
        "description": "The request's id: the client's own, if it sent one of up to 128 printable characters.",
        "schema": {"type": "string"},
    },
    "openai-processing-ms": {
        "description": "Milliseconds until the answer began.",
        "schema": {"type": "integer"},
    },
    "retry-after": {"description": "Seconds after which to try again.", "schema": {"type": "integer", "minimum": 1}},
    **{
        f"x-ratelimit-{what}-{name}": {"description": f"{said} Only where a limit is set.", "schema": {"type": kind}}
        for name in ("requests", "tokens")
        for what, said, kind in (
            ("limit", f"Of all limits of {name}, the one of which the least is left.", "integer"),
            ("remaining", f"How many {name} are left of that limit.", "integer"),
            ("reset", "How long until the whole limit is available again, like `1s` or `6m0s`.", "string"),
        )
    },
}
_OF_LIMITS = tuple(name for name in _HEADERS if name.startswith("x-ratelimit-"))
_EVERY_ANSWER = ("x-request-id", "openai-processing-ms")
_REQUEST_ID: JsonObject = {
    "name": "x-request-id",
    "in": "header",
    "description": "The client's own id of the request.",
    "schema": {"type": "string"},
}


def document(endpoints: Sequence[Endpoint], *, engine_fields: bool, auth: str) -> JsonObject:
    """Return the document of these endpoints.

    `engine_fields`: a create takes the fields that are the engine's. `auth` is who needs a key, as AUTH says it.
    """
    return {
        "openapi": "3.1.0",
        "info": {"title": "respsite", "version": __version__, "description": _DESCRIPTION},
        "servers": [{"url": "/"}],
        "security": _security(auth),
        "paths": _paths(endpoints),
        "components": {
            "schemas": schemas(endpoints, engine_fields=engine_fields),
            "responses": {_name(status): _error(status) for status in _SAYS},
            "headers": _HEADERS,
            "securitySchemes": {BEARER: {"type": "http", "scheme": "bearer", "description": "An API key."}},
        },
    }


def _security(auth: str) -> list[JsonObject]:
    needed: JsonObject = {BEARER: []}
    return {"on": [needed], "off": []}.get(auth, [needed, {}])


def _paths(endpoints: Iterable[Endpoint]) -> JsonObject:
    found: dict[str, JsonObject] = {}
    for each in endpoints:
        schema: JsonObject = {"type": "string", "minLength": 1}
        named: list[JsonObject] = [
            {"name": name, "in": "path", "required": True, "schema": schema} for name in each.parameters
        ]
        of_path = found.setdefault(each.shown_path, {"parameters": [*named, _REQUEST_ID]})
        of_path[each.method.lower()] = _operation(each)
    return dict(found)


def _operation(endpoint: Endpoint) -> JsonObject:
    described: JsonObject = {
        "operationId": endpoint.id,
        "summary": f"{endpoint.summary}.",
        "tags": [endpoint.tag],
        "parameters": [_parameter(each) for each in endpoint.takes],
        "responses": _responses(endpoint),
    }
    if bodies := dict(_bodies(endpoint)):
        described["requestBody"] = {"required": True, "content": bodies}
    if endpoint.is_open:
        described["security"] = []
    return described


def _bodies(endpoint: Endpoint) -> Iterator[tuple[str, JsonObject]]:
    """Yield the media types of a request's body, each with its schema."""
    if endpoint.form is not None:
        yield FORM_TYPE, {"schema": ref(endpoint.form.name)}
    if endpoint.body is not None:
        yield JSON, {"schema": ref(name_of(endpoint.body))}


def _parameter(parameter: Parameter) -> JsonObject:
    found: JsonObject = {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.required,
        "description": parameter.about,
        "schema": parameter.schema,
    }
    return {**found, "style": "deepObject", "explode": True} if parameter.schema.get("type") == "object" else found


def _responses(endpoint: Endpoint) -> JsonObject:
    """Return what an endpoint can answer, by status."""
    body = _WITH_BODY if endpoint.body is not None or endpoint.form is not None else ()
    named = (404,) if endpoint.parameters else ()
    statuses = {*_ALWAYS, *endpoint.errors, *named, *body, *(() if endpoint.is_open else _WITH_KEY)}
    answers: JsonObject = {
        kind: {"schema": ref(name_of(schema)) if schema else {"type": "string"}}
        for kind, schema in endpoint.contents.items()
    }
    headers = _headers(*_EVERY_ANSWER, *(() if endpoint.is_open else _OF_LIMITS))
    found: JsonObject = {str(status): {"$ref": f"#/components/responses/{_name(status)}"} for status in statuses}
    found["200"] = {"description": "It is done.", "headers": headers, "content": answers}
    for status, meaning in endpoint.also.items():
        headers = _headers(*_EVERY_ANSWER, *(("retry-after",) if status in _WHEN_TO_RETURN else ()))
        found[str(status)] = {"description": meaning, "headers": headers, "content": answers}
    return dict(sorted(found.items()))


def _name(status: int) -> str:
    return HTTPStatus(status).phrase.replace(" ", "")


def _error(status: int) -> JsonObject:
    headers = _headers(*_EVERY_ANSWER, *_OF_LIMITS, *(("retry-after",) if status in _WHEN_TO_RETURN else ()))
    content: JsonObject = {"application/json": {"schema": ref("ErrorAnswer")}}
    return {"description": _SAYS[status], "headers": headers, "content": content}


def _headers(*names: str) -> JsonObject:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}
