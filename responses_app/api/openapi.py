"""The OpenAPI 3.1 document of the API, as JSON (`GET /openapi.json`) and as a page for people (`GET /openapi`).

It is made of the table of endpoints, and of the schemas of what goes in and out (`schemas`). It is for whoever asks,
and tells nothing of a project or a key. The page needs nothing but itself: no script, and no style from elsewhere.
"""

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from django.http import HttpResponse
from django.template.loader import render_to_string
from typing_extensions import TypedDict

from engine import orjson
from responses_app import __version__
from responses_app.api.schemas import name_of, ref, schemas
from responses_app.protocol.errors import ErrorAnswer, JsonObject
from responses_app.protocol.messages.errors import ErrorSchema, MessagesErrorAnswer, messages_status
from responses_app.protocol.transport import FORM_TYPE
from responses_app.web.endpoint import HTML, JSON, Endpoint, Parameter, routes
from responses_app.web.http import ApiRequest, json_bytes
from responses_app.web.phrases import PHRASES
from responses_app.wiring.site import get_site

BEARER = "bearerAuth"
_DESCRIPTION = (
    "OpenAI's Responses API for open models. Each path below /v1 works without it, too. A WebSocket at /v1/responses "
    "takes the same requests as frames; OpenAPI cannot describe it."
)
_ALWAYS = (400, 500)  # the host may be unknown here, and anything may break
_WITH_KEY = (401, 403, 503)  # and the keys, or what is stored, may be away
_WITH_BODY = (408, 413, 415)  # too slow, too large, of another type
_WITH_IDEMPOTENCY_KEY = (409, 422)  # what became of the first request is not known; it was another one
_WHEN_TO_RETURN = (429, 503)  # answers that say when to try again
_SAYS = {
    400: "The request is invalid.",
    401: "The API key is missing or invalid.",
    403: "The API key lacks the scope for this, or the web page may not use this server.",
    404: "A resource that the request names does not exist, or not any more.",
    408: "The body did not arrive in time.",
    409: "The request conflicts with the state of the resource.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "The `Idempotency-Key` was sent with another request before.",
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
    needed: JsonObject = {BEARER: []}
    return {
        "openapi": "3.1.0",
        "info": {"title": "respsite", "version": __version__, "description": _DESCRIPTION},
        "servers": [{"url": "/"}],
        # An empty object stands for "no key": with AUTH=auto it depends on who asks.
        "security": {"on": [needed], "off": []}.get(auth, [needed, {}]),
        "paths": _paths(endpoints),
        "components": {
            "schemas": schemas(endpoints, engine_fields=engine_fields),
            "responses": {
                _error_name(status, answer): _error(status, answer)
                for answer in dict.fromkeys(each.error_answer for each in endpoints)
                for status in _SAYS
            },
            "headers": _HEADERS,
            "securitySchemes": {BEARER: {"type": "http", "scheme": "bearer", "description": "An API key."}},
        },
    }


def _paths(endpoints: Iterable[Endpoint]) -> JsonObject:
    paths: dict[str, JsonObject] = {}
    for each in endpoints:
        schema: JsonObject = {"type": "string", "minLength": 1}
        named: list[JsonObject] = [
            {"name": name, "in": "path", "required": True, "schema": schema} for name in each.parameters
        ]
        of_path = paths.setdefault(each.shown_path, {"parameters": [*named, _REQUEST_ID]})
        of_path[each.method.lower()] = _operation(each)
    return dict(paths)


def _operation(endpoint: Endpoint) -> JsonObject:
    described: JsonObject = {
        "operationId": endpoint.id,
        "summary": f"{endpoint.summary}.",
        "tags": [endpoint.tag],
        "parameters": [_parameter(each) for each in endpoint.shown_parameters],
        "responses": _responses(endpoint),
    }
    bodies: JsonObject = {}  # by their media types
    if endpoint.form is not None:
        bodies[FORM_TYPE] = {"schema": ref(endpoint.form.name)}
    if endpoint.body is not None:
        bodies[JSON] = {"schema": ref(name_of(endpoint.body))}
    if bodies:
        described["requestBody"] = {"required": True, "content": bodies}
    if endpoint.is_open:
        described["security"] = []
    return described


def _parameter(parameter: Parameter) -> JsonObject:
    described: JsonObject = {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.required,
        "description": parameter.about,
        "schema": parameter.schema,
    }
    # deepObject: `metadata[key]=value`.
    return (
        {**described, "style": "deepObject", "explode": True} if parameter.schema.get("type") == "object" else described
    )


def _responses(endpoint: Endpoint) -> JsonObject:
    """Return what an endpoint can answer, by status."""
    body = _WITH_BODY if endpoint.body is not None or endpoint.form is not None else ()
    named = (404,) if endpoint.parameters else ()
    once = _WITH_IDEMPOTENCY_KEY if endpoint.is_once else ()
    statuses = {*_ALWAYS, *endpoint.errors, *named, *body, *once, *(() if endpoint.is_open else _WITH_KEY)}
    answers: JsonObject = {
        kind: {"schema": ref(name_of(schema)) if schema else {"type": "string"}}
        for kind, schema in endpoint.contents.items()
    }
    headers = _headers(*_EVERY_ANSWER, *(() if endpoint.is_open else _OF_LIMITS))
    errors = endpoint.error_answer
    responses: JsonObject = {
        str(sent): {"$ref": f"#/components/responses/{_error_name(status, errors)}"}
        for status in statuses
        for sent in _sent(status, errors)
    }
    responses["200"] = {"description": "It is done.", "headers": headers, "content": answers}
    for status, meaning in endpoint.also.items():
        headers = _headers(*_EVERY_ANSWER, *(("retry-after",) if status in _WHEN_TO_RETURN else ()))
        responses[str(status)] = {"description": meaning, "headers": headers, "content": answers}
    return dict(sorted(responses.items()))


def _name(status: int) -> str:
    return PHRASES[status].replace(" ", "")


def _sent(status: int, answer: ErrorSchema) -> set[int]:
    """Return the statuses that an error has on the wire: Anthropic's clients know some of them by another number."""
    if answer is ErrorAnswer:
        return {status}
    of_messages = messages_status(status)
    return {of_messages} if answer is MessagesErrorAnswer else {status, of_messages}


def _error_name(status: int, answer: ErrorSchema) -> str:
    """Return the name of an error's description; those of OpenAI's shape have the plain one."""
    return _name(status) if answer is ErrorAnswer else f"{answer.__name__.removesuffix('ErrorAnswer')}{_name(status)}"


def _error(status: int, answer: ErrorSchema) -> JsonObject:
    headers = _headers(*_EVERY_ANSWER, *_OF_LIMITS, *(("retry-after",) if status in _WHEN_TO_RETURN else ()))
    content: JsonObject = {"application/json": {"schema": ref(name_of(answer))}}
    return {"description": _SAYS[status], "headers": headers, "content": content}


def _headers(*names: str) -> JsonObject:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


METHODS = ("get", "post", "put", "patch", "delete")
_REFERENCE = "#/components/schemas/"
_BOUNDS = {
    **{"minimum": "≥ {}", "maximum": "≤ {}", "exclusiveMinimum": "> {}", "minLength": "≥ {} characters"},
    **{"maxLength": "≤ {} characters", "minItems": "≥ {} entries", "maxItems": "≤ {} entries", "const": "“{}”"},
}


def shown(document: JsonObject) -> JsonObject:
    """Return what the template shows: operations by their tags, and schemas by their names."""
    whole: Any = document
    meanings = {name: each["description"] for name, each in whole["components"]["responses"].items()}
    tags: dict[str, list[JsonObject]] = {}
    for path, item in whole["paths"].items():
        of_path = [each for each in item["parameters"] if each["in"] == "path"]
        for method in (each for each in METHODS if each in item):
            operation = _shown_operation(item[method], of_path, meanings) | {"method": method.upper(), "path": path}
            tags.setdefault(item[method]["tags"][0], []).append(operation)
    schemas = [_shown_schema(name, each) for name, each in whole["components"]["schemas"].items()]
    return {"info": whole["info"], "tags": list(tags.items()), "schemas": schemas}


def _shown_operation(operation: Mapping[str, Any], of_path: list[Any], meanings: Mapping[str, str]) -> JsonObject:
    """Return an operation; `meanings` are those of the errors, by their names."""
    answers: list[JsonObject] = []
    errors = []
    for status, answer in operation["responses"].items():
        if "$ref" in answer:
            errors.append((status, meanings[answer["$ref"].rpartition("/")[2]]))
        else:
            answers += [{**each, "status": status} for each in _contents(answer["content"])]
    return {
        "id": operation["operationId"],
        "summary": operation["summary"],
        "fields": [
            _shown_field(each["name"], each["schema"], each, where=f"{each['in']}: ", is_required=each["required"])
            for each in (*of_path, *operation["parameters"])
        ],
        "bodies": _contents(operation.get("requestBody", {}).get("content", {})),
        "answers": answers,
        "errors": errors,
    }


def _contents(content: Mapping[str, Any]) -> list[JsonObject]:
    """Return the media types of a body, each with the schema it has by name; "" for none."""
    return [
        {"media_type": kind, "schema": str(each["schema"].get("$ref", "")).removeprefix(_REFERENCE)}
        for kind, each in content.items()
    ]


def _shown_field(
    name: str, schema: Any, described: Mapping[str, Any], *, where: str = "", is_required: bool
) -> JsonObject:
    """Return a parameter, or a field of an object. `links` are the schemas that its type names."""
    about = described.get("description", "")
    kind, links = f"{where}{kind_of(schema)}", list(_names_in(schema))
    return {"name": name, "kind": kind, "about": about, "is_required": is_required, "links": links}


def _shown_schema(name: str, schema: Mapping[str, Any]) -> JsonObject:
    """Return an object that goes in or out: its fields, or what it is where it has none."""
    fields = [
        _shown_field(each, inner, inner, is_required=each in schema.get("required", ()))
        for each, inner in schema.get("properties", {}).items()
    ]
    about = schema.get("description", "")
    return {"name": name, "about": about, "kind": kind_of(schema), "fields": fields, "links": list(_names_in(schema))}


def kind_of(schema: Any) -> str:
    """Return in a few words what a value may be."""
    if not isinstance(schema, dict) or not schema:
        return "anything"
    if "$ref" in schema:
        return str(schema["$ref"]).removeprefix(_REFERENCE)
    several = schema.get("anyOf") or schema.get("oneOf")
    # With a type beside it, `anyOf` only says more of that type, such as which fields are needed.
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


_PLACES = Path(__file__).parent.parent / "static/respsite/places.css"  # the bar that all pages have
STYLE = _PLACES.read_text() + (
    # Every colour is named: a browser's own blue of links has too little contrast in the dark.
    ":root{color-scheme:light dark;background:light-dark(#fff,#15171c);color:light-dark(#1b1f27,#e6e8ec)}"
    "a{color:light-dark(#1a4fd6,#9db8ff)}"
    "body{font:16px/1.5 system-ui,sans-serif;margin:0}"
    "body>header,main{margin:0 auto;max-width:64rem;padding:1rem}"
    ".parts a{margin-right:.75rem}summary{cursor:pointer;padding:.25rem 0}summary span{margin-left:.5rem}"
    "code{font-family:ui-monospace,monospace;font-size:.9em;overflow-wrap:anywhere}"
    "table{border-collapse:collapse;margin:.5rem 0;width:100%}caption{text-align:left;font-weight:600}"
    "th,td{border-top:1px solid #8886;padding:.25rem .5rem;text-align:left;vertical-align:top;overflow-wrap:anywhere}"
    "th{font-weight:400;width:14rem}details{border-bottom:1px solid #8886}"
    "@media(max-width:40rem){th,td{display:block;border:0;width:auto}tr{border-top:1px solid #8886;display:block}}"
)
# The policy lets in this very style and nothing else, so the page needs no style of its own file.
_STYLE_HASH = b64encode(sha256(STYLE.encode()).digest()).decode()
_POLICY = (
    f"default-src 'none'; img-src 'self'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; frame-ancestors 'none'"
)


async def _openapi(request: ApiRequest) -> HttpResponse:
    return json_bytes(_written(*_settings()))


async def _page(request: ApiRequest) -> HttpResponse:
    content = _drawn(*_settings())
    headers = {"content-length": str(len(content)), "content-security-policy": _POLICY}
    headers["x-content-type-options"] = "nosniff"
    return HttpResponse(content, content_type="text/html; charset=utf-8", headers=headers)


def _settings() -> tuple[bool, str]:
    """Return what the document depends on beside the table: whether engine fields are taken, and who needs a key."""
    site = get_site()
    return site.takes_engine_fields, site.settings.auth


@cache  # a process has one set of settings
def _written(engine_fields: bool, auth: str) -> bytes:
    return orjson.dumps(_document(engine_fields, auth))


@cache
def _drawn(engine_fields: bool, auth: str) -> bytes:
    return render_to_string("openapi/page.html", {**shown(_document(engine_fields, auth)), "style": STYLE}).encode()


def _document(engine_fields: bool, auth: str) -> JsonObject:
    endpoints = [each for route in routes() for each in route.endpoints]
    return document(endpoints, engine_fields=engine_fields, auth=auth)


_endpoint = partial(Endpoint, "GET", tag="Server", scope=None)

ENDPOINTS = (
    _endpoint("/v1/openapi.json", _openapi, "getOpenApi", "Return this document", answers={JSON: OpenApi}),
    _endpoint("/v1/openapi", _page, "getOpenApiPage", "Show this document as a page", answers={HTML: ""}),
)
