"""The document: the paths of the URL table, what is done at each, and the schemas of what goes in and out."""

import re
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus

from responses_app import __version__
from responses_app.openapi.chat_operations import CHAT_OPERATIONS
from responses_app.openapi.file_operations import FILE_OPERATIONS
from responses_app.openapi.model_operations import MODEL_OPERATIONS
from responses_app.openapi.operations import JSON, OPERATIONS, PARAMETERS, REQUIRED, Operation
from responses_app.openapi.schemas import ref, schemas
from responses_app.protocol.errors import JsonObject

ALL_OPERATIONS: Mapping[str, Mapping[str, Operation]] = {
    **OPERATIONS,
    **FILE_OPERATIONS,
    **CHAT_OPERATIONS,
    **MODEL_OPERATIONS,
}
BEARER = "bearerAuth"
_DESCRIPTION = (
    "OpenAI's Responses API for open models. Each path below /v1 works without it, too. A WebSocket at /v1/responses "
    "takes the same requests as frames; OpenAPI has no words for it."
)
_ALWAYS = (400, 500)  # the host may be unknown here, and anything may break
_WITH_KEY = (401, 403, 503)  # and the keys, or what is stored, may be away
_WITH_BODY = (408, 413, 415)
_WHEN_TO_RETURN = (429, 503)
_SAYS = {
    400: "The request cannot be served as it is.",
    401: "The key is missing, or does not open.",
    403: "The key is not made for this, or the web page may not use this server.",
    404: "What is named does not exist here, or not any more.",
    408: "The body did not come in time.",
    409: "What is there already stands against it.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    429: "Too much at once.",
    500: "Something broke here. Its operator finds it by the `x-request-id`.",
    503: "What is needed is away, full, or loading.",
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
            ("limit", f"The limit of {name} of which the least is left.", "integer"),
            ("remaining", f"How many {name} are left of it.", "integer"),
            ("reset", "How long until all of it is there again, like `1s` or `6m0s`.", "string"),
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


def path_of(regex: str) -> str:
    """Return the path of the URL table's regular expression as OpenAPI writes it, with its parameters in braces."""
    path = regex.removeprefix("^").removesuffix("$").removesuffix("/?").replace("(?:v1/)?", "v1/").replace("\\.", ".")
    return "/" + re.sub(r"\(\?P<(\w+)>[^)]*\)", r"{\1}", path)


def document(regexes: Iterable[str], *, engine_fields: bool, auth: str) -> JsonObject:
    """Return the document for the regular expressions of a URL table.

    `engine_fields`: a create takes the fields that are the engine's. `auth` is who needs a key, as AUTH says it.
    Raises `KeyError` for a path of which `ALL_OPERATIONS` does not say what is done there.
    """
    return {
        "openapi": "3.1.0",
        "info": {"title": "respsite", "version": __version__, "description": _DESCRIPTION},
        "servers": [{"url": "/"}],
        "security": _security(auth),
        "paths": {path: _path(path) for path in map(path_of, regexes)},
        "components": {
            "schemas": schemas(engine_fields=engine_fields),
            "responses": {_name(status): _error(status) for status in _SAYS},
            "headers": _HEADERS,
            "securitySchemes": {BEARER: {"type": "http", "scheme": "bearer", "description": "An API key."}},
        },
    }


def _security(auth: str) -> list[JsonObject]:
    needed: JsonObject = {BEARER: []}
    return {"on": [needed], "off": []}.get(auth, [needed, {}])


def _path(path: str) -> JsonObject:
    parameters: list[JsonObject] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)}", path)
    ]
    operations: JsonObject = {method.lower(): _operation(each) for method, each in ALL_OPERATIONS[path].items()}
    return {"parameters": [*parameters, _REQUEST_ID], **operations}


def _operation(operation: Operation) -> JsonObject:
    described: JsonObject = {
        "operationId": operation.id,
        "summary": f"{operation.summary}.",
        "tags": [operation.tag],
        "parameters": [_parameter(name) for name in operation.takes],
        "responses": _responses(operation),
    }
    if operation.body is not None:
        described["requestBody"] = {
            "required": True,
            "content": {kind: {"schema": ref(schema)} for kind, schema in _bodies(operation)},
        }
    if operation.is_open:
        described["security"] = []
    return described


def _bodies(operation: Operation) -> Iterator[tuple[str, str]]:
    """Yield the media types of a request's body, each with its schema."""
    if operation.body is not None:
        yield operation.body_type, operation.body
    if operation.json is not None:
        yield JSON, operation.json


def _parameter(name: str) -> JsonObject:
    where, description, schema = PARAMETERS[name]
    name = name.partition(" ")[0]
    found = {"name": name, "in": where, "required": name in REQUIRED, "description": description, "schema": schema}
    return {**found, "style": "deepObject", "explode": True} if schema.get("type") == "object" else found


def _responses(operation: Operation) -> JsonObject:
    """Return what an operation can answer, by status."""
    body = _WITH_BODY if operation.body is not None else ()
    statuses = {*_ALWAYS, *operation.errors, *body, *(() if operation.is_open else _WITH_KEY)}
    answers: JsonObject = {
        kind: {"schema": ref(schema) if schema else {"type": "string"}} for kind, schema in operation.answers.items()
    }
    headers = _headers(*_EVERY_ANSWER, *(() if operation.is_open else _OF_LIMITS))
    done: JsonObject = {"description": "It is done.", "headers": headers, "content": answers}
    errors: JsonObject = {str(status): {"$ref": f"#/components/responses/{_name(status)}"} for status in statuses}
    return dict(sorted({"200": done, **errors, **_own(operation, answers)}.items()))


def _own(operation: Operation, answers: JsonObject) -> JsonObject:
    """Return the statuses of an operation whose body is not an error's: a server that is not ready says how it is."""
    if operation.id != "getReadiness":
        return {}
    headers = _headers(*_EVERY_ANSWER, "retry-after")
    return {"503": {"description": "Requests cannot be served now.", "headers": headers, "content": answers}}


def _name(status: int) -> str:
    return HTTPStatus(status).phrase.replace(" ", "")


def _error(status: int) -> JsonObject:
    headers = _headers(*_EVERY_ANSWER, *_OF_LIMITS, *(("retry-after",) if status in _WHEN_TO_RETURN else ()))
    content: JsonObject = {"application/json": {"schema": ref("ErrorAnswer")}}
    return {"description": _SAYS[status], "headers": headers, "content": content}


def _headers(*names: str) -> JsonObject:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}
