"""The OpenAPI 3.1 document of the API: made of the URL table, of the protocol's types, and of what stands here.

The document: what the table of endpoints has at each path, and the schemas of what goes in and out.

`GET /openapi.json` and `/openapi`: what the API takes and answers, for whoever asks, as a document and as a page.

They tell nothing of a project or a key. The page needs nothing but itself: no script, and no style from elsewhere.
"""

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from hashlib import sha256
from http import HTTPStatus
from typing import Any

import orjson
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from typing_extensions import TypedDict

from responses_app import __version__
from responses_app.api.schemas import name_of, ref, schemas
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.transport import FORM_TYPE
from responses_app.web.endpoint import HTML, JSON, Endpoint, Parameter
from responses_app.web.http import json_bytes
from responses_app.wiring.site import get_site

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


METHODS = ("get", "post", "put", "patch", "delete")
_REFERENCE = "#/components/schemas/"
_BOUNDS = {
    **{"minimum": "≥ {}", "maximum": "≤ {}", "exclusiveMinimum": "> {}", "minLength": "≥ {} characters"},
    **{"maxLength": "≤ {} characters", "minItems": "≥ {} entries", "maxItems": "≤ {} entries", "const": "“{}”"},
}


@dataclass(frozen=True, slots=True)
class Field:
    """A parameter, or a field of an object. `links` are the schemas that its type names."""

    name: str
    kind: str
    about: str
    is_required: bool
    links: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Content:
    """A body: its media type, and the schema it has by name; "" for none. `status` is that of an answer."""

    media_type: str
    schema: str
    status: str = ""


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of a path. `errors` are statuses, each with what it means."""

    method: str
    path: str
    id: str
    summary: str
    fields: tuple[Field, ...]
    bodies: tuple[Content, ...]
    answers: tuple[Content, ...]
    errors: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ShownSchema:
    """An object that goes in or out."""

    name: str
    about: str
    kind: str
    fields: tuple[Field, ...]
    links: tuple[str, ...]


def shown(document: JsonObject) -> JsonObject:
    """Return what the template shows: operations by their tags, and schemas by their names."""
    whole: Any = document
    components = whole["components"]
    tags: dict[str, list[Operation]] = {}
    for path, item in whole["paths"].items():
        for method in (each for each in METHODS if each in item):
            of_path = [each for each in item["parameters"] if each["in"] == "path"]
            entry = _entry(method, path, item[method], of_path, components["responses"])
            tags.setdefault(item[method]["tags"][0], []).append(entry)
    schemas = [_schema(name, each) for name, each in components["schemas"].items()]
    return {"info": whole["info"], "tags": list(tags.items()), "schemas": schemas}


def _entry(
    method: str, path: str, operation: Mapping[str, Any], of_path: list[Any], known: Mapping[str, Any]
) -> Operation:
    parameters = [*of_path, *operation["parameters"]]
    bodies = operation.get("requestBody", {}).get("content", {})
    answers, errors = [], []
    for status, answer in operation["responses"].items():
        if "$ref" in answer:
            errors.append((status, known[answer["$ref"].rpartition("/")[2]]["description"]))
        else:
            answers += [Content(kind, _named(each), status) for kind, each in answer["content"].items()]
    return Operation(
        method=method.upper(),
        path=path,
        id=operation["operationId"],
        summary=operation["summary"],
        fields=tuple(_parameter_field(each) for each in parameters),
        bodies=tuple(Content(kind, _named(each)) for kind, each in bodies.items()),
        answers=tuple(answers),
        errors=tuple(errors),
    )


def _parameter_field(given: Mapping[str, Any]) -> Field:
    about = given.get("description", "")
    return Field(given["name"], f"{given['in']}: {kind_of(given['schema'])}", about, given["required"])


def _schema(name: str, schema: Mapping[str, Any]) -> ShownSchema:
    required = schema.get("required", ())
    fields = tuple(
        Field(each, kind_of(inner), inner.get("description", ""), each in required, tuple(_names_in(inner)))
        for each, inner in schema.get("properties", {}).items()
    )
    about = schema.get("description", "")
    return ShownSchema(
        name, about, "" if fields else kind_of(schema), fields, () if fields else tuple(_names_in(schema))
    )


def kind_of(schema: Any) -> str:
    """Return in a few words what a value may be."""
    if not isinstance(schema, dict) or not schema:
        return "anything"
    if "$ref" in schema:
        return str(schema["$ref"]).removeprefix(_REFERENCE)
    several = schema.get("anyOf") or schema.get("oneOf")
    if several and "type" not in schema:
        return " or ".join(dict.fromkeys(map(kind_of, several)))
    if "enum" in schema:
        return " or ".join(f"“{each}”" for each in schema["enum"])
    kind = schema.get("type", "anything")
    kind = " or ".join(kind) if isinstance(kind, list) else str(kind)
    if kind == "array":
        kind = f"array of {kind_of(schema.get('items'))}"
    bounds = [text.format(schema[name]) for name, text in _BOUNDS.items() if name in schema]
    return f"{kind} ({', '.join(bounds)})" if bounds else kind


def _named(content: Mapping[str, Any]) -> str:
    reference = str(content["schema"].get("$ref", ""))
    return reference.removeprefix(_REFERENCE)


def _names_in(schema: Any) -> Iterator[str]:
    """Yield the schemas that a schema refers to."""
    inner = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    if isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
        yield schema["$ref"].removeprefix(_REFERENCE)
    for each in inner:
        yield from _names_in(each)


class OpenApi(TypedDict):
    """This document."""

    openapi: str
    info: JsonObject
    paths: JsonObject


Table = Callable[[], Sequence[Endpoint]]

STYLE = (
    # Every colour is named: a browser's own blue of links has too little contrast in the dark.
    ":root{color-scheme:light dark;background:light-dark(#fff,#15171c);color:light-dark(#1b1f27,#e6e8ec)}"
    "a{color:light-dark(#1a4fd6,#9db8ff)}"
    "body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;max-width:64rem;padding:1rem}"
    "nav a{margin-right:.75rem}summary{cursor:pointer;padding:.25rem 0}summary span{margin-left:.5rem}"
    "code{font-family:ui-monospace,monospace;font-size:.9em;overflow-wrap:anywhere}"
    "table{border-collapse:collapse;margin:.5rem 0;width:100%}caption{text-align:left;font-weight:600}"
    "th,td{border-top:1px solid #8886;padding:.25rem .5rem;text-align:left;vertical-align:top;overflow-wrap:anywhere}"
    "th{font-weight:400;width:14rem}details{border-bottom:1px solid #8886}"
    "@media(max-width:40rem){th,td{display:block;border:0;width:auto}tr{border-top:1px solid #8886;display:block}}"
)
_STYLE_HASH = b64encode(sha256(STYLE.encode()).digest()).decode()
_POLICY = (
    f"default-src 'none'; img-src 'self'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; frame-ancestors 'none'"
)


def endpoints_of(table: Table) -> Sequence[Endpoint]:
    """Return the endpoints that show a table, which they are in themselves."""

    async def openapi(request: HttpRequest) -> HttpResponse:
        return json_bytes(_written(table, *_taken()))

    async def page(request: HttpRequest) -> HttpResponse:
        content = _page(table, *_taken())
        headers = {"content-length": str(len(content)), "content-security-policy": _POLICY}
        headers["x-content-type-options"] = "nosniff"
        return HttpResponse(content, content_type="text/html; charset=utf-8", headers=headers)

    endpoint = partial(Endpoint, "GET", tag="Server", scope=None)
    return (
        endpoint("/v1/openapi.json", openapi, "getOpenApi", "Return this document", answers={JSON: OpenApi}),
        endpoint("/v1/openapi", page, "getOpenApiPage", "Show this document as a page", answers={HTML: ""}),
    )


def _taken() -> tuple[bool, str]:
    """Return what the document depends on beside the table: whether engine fields are taken, and who needs a key."""
    site = get_site()
    return site.takes_engine_fields, site.settings.auth


@cache  # a process has one set of settings
def _written(table: Table, engine_fields: bool, auth: str) -> bytes:
    return orjson.dumps(document(table(), engine_fields=engine_fields, auth=auth))


@cache
def _page(table: Table, engine_fields: bool, auth: str) -> bytes:
    made = document(table(), engine_fields=engine_fields, auth=auth)
    return render_to_string("openapi/page.html", {**shown(made), "style": STYLE}).encode()
