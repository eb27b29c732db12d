"""The table of endpoints: `Endpoint` declares everything about one method of one path, once, beside its handler.

A resource has its endpoints at the end of its module, and `api.endpoints` gathers them. From these `Route` computes
what answers a path and which scope it needs, `bodies` how large a body may be, and `api.openapi` the document. The API
stands above what serves it, so nothing here imports it: paths are found as Django finds them, by the name of the module
that lists them.

What OpenAI's API has and this server does not is in NOT_SERVED, by the beginning of a path below /v1. A request for it
is answered with what is said there, and the page "Limitations" has the same. That each path of OpenAI's SDK
is served or named is tested (`tests/inprocess/conformance/test_paths_sdk.py`).
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import Enum, auto
from functools import cache, partial
from typing import Any

from django.http.response import HttpResponseBase
from django.urls import Resolver404, get_resolver, resolve
from typing_extensions import TypeAliasType

from responses_app.auth.scopes import SAFE_METHODS
from responses_app.kit.errors import StoreError
from responses_app.kit.extension import extensions
from responses_app.kit.retention import keeps_nothing
from responses_app.limits.suspects import holding
from responses_app.protocol.api_keys import Area
from responses_app.protocol.errors import FOREIGN_SEALS, NOTE, REFUSE, ApiError, ErrorAnswer, JsonObject, not_found
from responses_app.protocol.events.dialects import DIALECT_HEADER, PRESETS, Switch
from responses_app.protocol.fields import IgnoredFields, check_query
from responses_app.protocol.idempotency import IDEMPOTENCY_KEY, MAX_KEY
from responses_app.protocol.messages.errors import ErrorSchema
from responses_app.protocol.requests.create_fields import KNOWN_INCLUDES
from responses_app.protocol.requests.pages import DEFAULT_LIMIT, MAX_LIMIT
from responses_app.resources.batches.handlers import LineAnswer, LineHandler, LineRequest
from responses_app.runs.plan.failures import store_away, store_errors
from responses_app.settings.extensions import DEFAULT, load
from responses_app.web.http import ApiRequest, MethodNotAllowed, NotServed, json_response
from responses_app.web.idempotency import Decide, Once, Replay, key_of


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an endpoint, as the OpenAPI document shows it."""

    name: str  # in the query, or of the header
    about: str  # a sentence for people
    schema: JsonObject
    where: str = "query"  # or "header"
    required: bool = False


def text(**more: object) -> JsonObject:
    """Return the schema of a text."""
    return {"type": "string", **more}


def limit_of(what: str, *, maximum: int, default: int) -> Parameter:
    """Return the parameter that bounds a part of a list."""
    schema: JsonObject = {"type": "integer", "minimum": 1, "maximum": maximum, "default": default}
    return Parameter("limit", f"The maximum number of {what}.", schema)


_DIALECTS = "|".join((*PRESETS, *Switch))

LIMIT = limit_of("items", maximum=MAX_LIMIT, default=DEFAULT_LIMIT)
ORDER = Parameter("order", "Whether the newest or the oldest come first.", text(enum=["asc", "desc"], default="desc"))
AFTER = Parameter("after", "The id of the item after which the list begins.", text())
BEFORE = Parameter("before", "The id of the item before which the list ends.", text())
PAGED = (LIMIT, ORDER, AFTER)
INCLUDE = Parameter(
    "include",
    "Additional data to return; `include[]` is the same.",
    {"type": "array", "items": {"type": "string", "enum": sorted(KNOWN_INCLUDES)}},
)
DIALECT = Parameter(
    DIALECT_HEADER,
    f"How events are worded: {', '.join(PRESETS)}, or switches of these; several are separated by commas.",
    text(pattern=f"^({_DIALECTS})(,({_DIALECTS}))*$"),
    where="header",
)

SEALS = Parameter(
    FOREIGN_SEALS,
    "Whether `encrypted_content` that this server cannot open is an error, or the model reads a note in its place.",
    text(enum=[REFUSE, NOTE]),
    where="header",
)


# Parameters that clients put into any query, and the answer is the same: clients of Azure, and both SDKs' beta APIs.
_OF_CLIENTS: Mapping[str, str] = {"api-version": "string", "beta": "string"}

ONCE = Parameter(
    IDEMPOTENCY_KEY,
    "A key of the client's own choice, such as a UUID: the request is carried out once, however often it is sent.",
    text(minLength=1, maxLength=MAX_KEY),
    where="header",
)


JSON, EVENTS, TEXT = "application/json", "text/event-stream", "text/plain"
BYTES, HTML = "application/octet-stream", "text/html"
_PARAMETER = re.compile(r"{(\w+)(:path)?}")  # `{file_id}`, or `{path:path}` with slashes in it

Schema = (
    type | TypeAliasType | str
)  # a type of which a schema is made, or the name of one that `api.openapi.schemas` puts together
Refusals = Mapping[type[Exception], Callable[..., ApiError]]


class Size(Enum):
    """How much a form may bring."""

    AS_JSON = auto()
    FILE = auto()  # a file that is kept
    PART = auto()  # a part of such a file
    SKILL = auto()  # a skill, as a zip file or file by file


@dataclass(frozen=True, slots=True)
class Form:
    """A form with a file, by the name of its schema."""

    name: str  # of the schema
    schema: JsonObject
    size: Size


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path, and what answers it."""

    method: str
    # With its parameters in braces; `{name:path}` takes slashes, too. What begins with /v1 is there without it as well.
    path: str
    # Gets the request and the path's parameters, in their order. What it returns is sent as JSON, or as it is.
    handler: Callable[..., Awaitable[Any]]
    # OpenAI's name of the operation, where it has one.
    id: str
    summary: str
    _: KW_ONLY
    tag: str
    # What a key must be made for, to read or to write by the method; None where nobody needs a key.
    scope: Area | None
    # The schemas of a 200 by their media types, "" where it is not JSON; None for JSON of the type `handler` returns.
    answers: Mapping[str, Schema] | None = None
    # The schema of JSON that is taken.
    body: Schema | None = None
    form: Form | None = None
    takes: tuple[Parameter, ...] = ()
    # Statuses beside those that all endpoints may answer with, and the 404 of what a path names.
    errors: tuple[int, ...] = ()
    # The error that a client is told of one that `handler` raises, made of it and of the path's parameters.
    refusals: Refusals = field(default_factory=dict)
    # The body of an error, as `http.error_response` writes it for clients of this path.
    error_answer: ErrorSchema = ErrorAnswer
    # Statuses that are answered with the same body as a 200, and what they mean.
    also: Mapping[int, str] = field(default_factory=dict)
    # What answers a line of a batch, where lines may ask for this.
    line: LineHandler | None = None
    # Whether a WebSocket takes the same at this path.
    websocket: bool = False
    # Whether `handler` itself asks for a key, where `scope` is None.
    asks_for_key: bool = False
    # A POST that makes and changes nothing: an idempotency key means nothing to it.
    only_asks: bool = False
    # Of one that makes stored responses: the id of the response that a request makes, and the answer of a response by
    # its id. Where there is none of these, an answer is kept as it was sent, for requests with an idempotency key.
    decide: Decide | None = None
    replay: Replay | None = None
    # What it would keep, as a sentence, and what a project can do instead that keeps nothing: there it is refused.
    keeps: tuple[str, str] | None = None
    # Whether OPTIONS is answered as GET is: load balancers ask so.
    probed: bool = False

    @property
    def is_open(self) -> bool:
        """Whether nobody needs a key."""
        return self.scope is None and not self.asks_for_key

    @property
    def is_once(self) -> bool:
        """Whether a request with an idempotency key is carried out once."""
        return self.method == "POST" and self.scope is not None and not self.only_asks

    @property
    def shown_parameters(self) -> tuple[Parameter, ...]:
        """What it takes beside its path and body."""
        return (*self.takes, ONCE) if self.is_once else self.takes

    @property
    def query(self) -> Mapping[str, str]:
        """The names that a query may have, each with its type as JSON has it; `name[]` is told by that."""
        taken = [each for each in self.takes if each.where == "query"]
        return {each.name.removesuffix("[]"): str(each.schema.get("type")) for each in taken}

    @property
    def shown_path(self) -> str:
        """The path as OpenAPI writes it."""
        return self.path.replace(":path}", "}")

    @property
    def parameters(self) -> list[str]:
        """The names of the path's parameters."""
        return [name for name, _ in _PARAMETER.findall(self.path)]

    @property
    def regex(self) -> str:
        """What matches the path, with or without a slash behind it."""
        # A literal, a name, `:path` or None, a literal, and so on: `split` also gives what the groups match.
        parts = _PARAMETER.split(self.path.removeprefix("/v1").removeprefix("/"))
        pattern = re.escape(parts[0])
        # For example "/v1/files/{file_id}" becomes `^(?:v1/)?files/(?P<file_id>[^/]+)/?$`.
        for name, slashes, literal in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
            pattern += rf"(?P<{name}>{'.+?' if slashes else '[^/]+'}){re.escape(literal)}"
        return rf"^{'(?:v1/)?' if self.path.startswith('/v1/') else ''}{pattern}/?$"

    @property
    def contents(self) -> Mapping[str, Schema]:
        """The schemas of a 200 by their media types."""
        return {JSON: self.handler.__annotations__["return"]} if self.answers is None else self.answers

    @property
    def methods(self) -> Sequence[str]:
        """The methods that it answers: HEAD like a GET that does not stream, OPTIONS where it is `probed`."""
        if self.method != "GET":
            return (self.method,)
        return ("GET", *(() if EVENTS in self.contents else ("HEAD",)), *(("OPTIONS",) if self.probed else ()))


_CHATS = "the input and what is remembered of it are in /v1/responses and /v1/conversations"
_OPERATORS = "here the admin pages manage users and their roles: /admin/"
_CERTIFICATES = "certificates of clients; here a proxy in front of the server can check them"
_LIMITS = "`respsite manage set_limits` limits keys and projects"
_OF_PROJECT = "organization/projects/{project_id}"
NOT_SERVED: Mapping[str, str] = {
    "agents": "hosted agents; an agent runs in its client here, on /v1/responses",
    "assistants": f"the older Assistants API; {_CHATS}",
    "audio": "speech and transcriptions; models here read and write text",
    "chatkit": "sessions of ChatKit",
    "content_provenance_checks": "checks of where a picture came from",
    "evals": "evaluations",
    "fine_tuning": "training",
    "images": "images by themselves; the tool `image_generation` of /v1/responses makes them",
    "live": "spoken sessions",
    "moderations": "moderation",
    "organization/certificates": _CERTIFICATES,
    "organization/data_retention": (
        "the retention of an organization; here the server's settings say it, and "
        "/v1/organization/projects/ID/data_retention sets it for one project"
    ),
    "organization/external_keys": "customers' own encryption keys; here you can encrypt the disk of the database",
    "organization/external_storage": "external storage; here everything is in the database of this server",
    "organization/groups": f"groups of users; {_OPERATORS}",
    "organization/invites": f"invitations of users; {_OPERATORS}",
    "organization/roles": f"roles of users; {_OPERATORS}",
    "organization/spend_alerts": "mail about what is spent; /v1/organization/spend_limit limits it",
    "organization/usage/audio_speeches": "usage of speech; models here read and write text",
    "organization/usage/audio_transcriptions": "usage of transcriptions; models here read and write text",
    "organization/usage/code_interpreter_sessions": "sessions of a tool by day; here only tokens are kept",
    "organization/usage/file_search_calls": "searches in files by day; here only tokens are kept",
    "organization/usage/images": "pictures by day; here only tokens are kept",
    "organization/usage/moderations": "usage of moderation",
    "organization/usage/vector_stores": "bytes of vector stores by day; /v1/vector_stores has those of now",
    "organization/usage/web_search_calls": "searches of the web by day; here only tokens are kept",
    "organization/users": f"users; {_OPERATORS}",
    "organization/workload_identity_providers": (
        "workloads that sign in without a key; here keys can be short-lived: `create_key --expires`"
    ),
    f"{_OF_PROJECT}/certificates": _CERTIFICATES,
    f"{_OF_PROJECT}/groups": f"groups of users; {_OPERATORS}",
    f"{_OF_PROJECT}/hosted_tool_permissions": (
        "permissions for hosted tools; here the server's settings switch them on and off for all projects"
    ),
    f"{_OF_PROJECT}/model_permissions": "permissions for models; here `create_key --models` limits those of a key",
    f"{_OF_PROJECT}/rate_limits": f"limits of each model; {_LIMITS}",
    f"{_OF_PROJECT}/service_accounts/{{service_account_id}}/api_keys": (
        "several keys of a service account; here each has one"
    ),
    f"{_OF_PROJECT}/service_tier_settings": (
        "service tiers of a project; here RESPONSES_ALLOWED_SERVICE_TIERS sets those of all"
    ),
    f"{_OF_PROJECT}/spend_alerts": "mail about what is spent; the project's spend_limit limits it",
    f"{_OF_PROJECT}/users": f"users of a project; {_OPERATORS}",
    "projects": f"roles in projects; {_OPERATORS}",
    "realtime": "spoken sessions; the WebSocket of /v1/responses is for text",
    "safety": "alerts and cases",
    "threads": f"threads of the Assistants API; {_CHATS}",
    "vaults": "secrets for hosted agents",
    "videos": "videos",
}
ROLLOUT_BASE = re.compile(r"(/v1)?/rollouts/.*/")  # what may have been meant as one
_LONGEST = max(name.count("/") for name in NOT_SERVED) + 1  # parts of a path that are looked at
METHODS_NOT_SERVED: Mapping[str, str] = {  # of paths that are served
    "DELETE /models/{model}": "models are the operator's: the setting MODELS names them",
}


def look_at_query(names: Iterable[str], taken: Mapping[str, str], noted: IgnoredFields) -> None:
    """Note the names of a query that have no effect; `taken` are those that have. Raises `ApiError`."""
    check_query(names, {**taken, **_OF_CLIENTS}, noted)


ANSWER_KEPT = (
    "With an 'Idempotency-Key' the answer is kept, to be given again",
    "Send the request without this header.",
)
API_URLS = "responses_app.urls"
WEBSOCKET_KEY = "Sec-WebSocket-Key"  # a header of every handshake, which proxies pass on
UPGRADE_NEEDED = " A WebSocket needs an upgrade request to this path."
UPGRADE_LOST = (
    " This is the handshake of a WebSocket, whose header 'Upgrade' did not come along: a proxy in front dropped it. "
    "The proxy has to speak HTTP/1.1 to this server, and pass on the headers 'Upgrade' and 'Connection'."
)


class Route:
    """A path with its endpoints: a view of Django, which has the one of a request's method answer."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self.endpoints = endpoints
        self.path = endpoints[0].shown_path
        self.regex = endpoints[0].regex
        self._by_method = {method: each for each in reversed(endpoints) for method in each.methods}
        area = endpoints[0].scope
        self._reads: str | None = None if area is None else area.scope(writes=False)
        self._writes: str | None = None if area is None else area.scope(writes=True)

    async def __call__(self, request: ApiRequest, **named: str) -> HttpResponseBase:
        """Answer. Raises `ApiError`: 405 for a method that is not taken, 503 where the database is away, its own."""
        endpoint = self._by_method.get(str(request.method))
        if endpoint is None:
            upgrades = any(each.websocket for each in self.endpoints)
            hint = "" if not upgrades else UPGRADE_LOST if WEBSOCKET_KEY in request.headers else UPGRADE_NEEDED
            raise MethodNotAllowed(str(request.method), [each.method for each in self.endpoints], hint)
        key = key_of(request) if IDEMPOTENCY_KEY in request.headers and endpoint.is_once else None
        if key is not None or endpoint.keeps is not None:
            await _check_keeps(request, endpoint.keeps or ANSWER_KEPT)
        if key is None:
            return await self._answer(endpoint, request, named)
        answer = partial(self._answer, endpoint, request, named)
        headers = tuple(each.name for each in endpoint.takes if each.where == "header")
        once = Once(request, key, answer, decide=endpoint.decide, replay=endpoint.replay, headers=headers)
        try:
            return await once.answer()
        except StoreError as error:
            raise store_away(error) from error

    async def _answer(self, endpoint: Endpoint, request: ApiRequest, named: Mapping[str, str]) -> HttpResponseBase:
        if request.META["QUERY_STRING"] and not endpoint.is_open:
            look_at_query(request.query, endpoint.query, request.ignored)
        try:
            answer = await endpoint.handler(request, *named.values())
        except tuple(endpoint.refusals) as problem:
            # The first that fits, in the order of the declaration: subclasses have to come before their bases.
            refuse = next(refuse for kind, refuse in endpoint.refusals.items() if isinstance(problem, kind))
            raise refuse(problem, *named.values()) from None
        except StoreError as error:
            raise store_away(error) from error
        return answer if isinstance(answer, HttpResponseBase) else json_response(answer)

    def endpoint(self, method: str) -> Endpoint | None:
        """Return what answers a method."""
        return self._by_method.get(method)

    def scope(self, method: str) -> str | None:
        """Return the scope that a method needs, also one that is not taken; None where not even a key is needed."""
        return self._reads if method in SAFE_METHODS else self._writes


async def _check_keeps(request: ApiRequest, keeps: tuple[str, str]) -> None:
    """Refuse what would be kept, in a project that keeps nothing. Raises `ApiError`; 503 where nobody knows that."""
    with store_errors():
        retentions = await request.serving.retentions()
    if retentions.keeps_nothing(request.caller.project):
        what, instead = keeps
        raise keeps_nothing(what, instead)


def routes_of(endpoints: Iterable[Endpoint]) -> Sequence[Route]:
    """Return the paths of endpoints."""
    by_path: dict[str, list[Endpoint]] = {}
    for each in endpoints:
        by_path.setdefault(each.path, []).append(each)
    return [Route(same) for same in by_path.values()]


@cache
def routes() -> Sequence[Route]:
    """Return all paths of the API."""
    views = (pattern.callback for pattern in get_resolver(API_URLS).url_patterns)
    return [each for each in views if isinstance(each, Route)]


@cache
def served() -> Sequence[str]:
    """Return the shortest path of each resource that needs a key, as is told to who asks for something else."""
    by_resource: dict[str, list[str]] = {}
    for route in routes():
        if route.scope("GET") is not None:
            path = route.endpoints[0].path.removeprefix("/v1/")
            by_resource.setdefault(path.partition("/")[0], []).append(path)
    return [min(paths, key=len) for paths in by_resource.values()]


@cache
def _beginning() -> re.Pattern[str]:
    # Of "/v1/files/{file_id}" these are "v1" and "files": the API is there without its prefix, too.
    parts = (part for route in routes() for part in route.endpoints[0].path.split("/")[1:3])
    names = dict.fromkeys(part for part in parts if "{" not in part)
    return re.compile(rf"/(?:{'|'.join(map(re.escape, names))})(?:/|$)")


def is_api_path(path: str) -> bool:
    """Whether a path is answered by the API, if only with an error."""
    return _beginning().match(path) is not None


def find(path: str) -> tuple[Route, Mapping[str, str]]:
    """Return what is at a path, and the path's parameters. Raises `NotServed`."""
    try:
        match = resolve(path, API_URLS)
    except Resolver404:
        raise NotServed from None
    assert isinstance(match.func, Route)
    return match.func, match.kwargs


@cache
def in_batches() -> Mapping[str, Endpoint]:
    """Return the endpoints that lines of batches may ask for, by their paths."""
    endpoints = (each for route in routes() for each in route.endpoints)
    return {each.path: each for each in endpoints if each.line is not None}


def line_of(path: str) -> LineHandler:
    """Return how lines of batches are answered that ask for the endpoint at a path."""
    found = in_batches()[path].line
    assert found is not None, "they are those that have one"

    async def answer(line: LineRequest) -> LineAnswer:
        try:
            with holding():
                return await found.answer(line)
        except StoreError as error:
            raise store_away(error) from error

    return replace(found, answer=answer)


def not_served_name(path: str) -> str | None:
    """Return the name in NOT_SERVED of what is asked for at a path; None for what is not there."""
    parts = path.lstrip("/").removeprefix("v1/").split("/", _LONGEST)
    for name in NOT_SERVED:
        named = name.split("/")
        if len(parts) >= len(named) and all(
            theirs == part or theirs.startswith("{") for theirs, part in zip(named, parts, strict=False)
        ):
            return name
    return None


def path_not_found(path: str) -> ApiError:
    """Nothing is served at this path (404); of one that OpenAI has it says so."""
    left_out = set(load((DEFAULT,))).difference(map(type, extensions()))  # by EXTENSIONS, of the server's own
    hint = " Extensions that EXTENSIONS leaves out may have more." if left_out else ""
    message = (
        f"Nothing is served at '{path[:200]}'.{_about(path)} The API begins at /v1 and has {', '.join(served()[:-1])} "
        f"and {served()[-1]}: try GET /v1/models. All paths are told at /openapi.{hint}"
    )
    return not_found(message, code="not_found")


def websocket_not_found(path: str) -> ApiError:
    """No WebSocket is served at this path (404), whether or not something else is."""
    message = f"No WebSocket is served at '{path[:200]}'.{_about(path)} Connect to /v1/responses."
    return not_found(message, code="not_found")


def _about(path: str) -> str:
    """Return a hint, after a space, for a path at which nothing is served; an empty text where there is none."""
    if path.startswith("/v1/v1/"):
        return " The client adds /v1 to its base URL: give it one without."
    if ROLLOUT_BASE.match(path):
        return " The base URL of a roll-out is /rollouts/ID/v1."
    name = not_served_name(path)
    return "" if name is None else f" OpenAI's API has {NOT_SERVED[name]}."
