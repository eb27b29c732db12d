"""`Endpoint`: everything about one method of one path, declared once, beside its handler.

A resource has its endpoints at the end of its module, and `api.endpoints` gathers them. From these `routes` computes
what answers a path and which scope it needs, `bodies` how large a body may be, and `api.openapi` the document.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum, auto
from typing import Any

from responses_app.protocol.api_keys import Area
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.web.parameters import Parameter

JSON, EVENTS, TEXT = "application/json", "text/event-stream", "text/plain"
BYTES, HTML = "application/octet-stream", "text/html"
_PARAMETER = re.compile(r"{(\w+)(:path)?}")

Schema = type | str  # a type of which a schema is made, or the name of one that `api.openapi.schemas` puts together
Refusals = Mapping[type[Exception], Callable[..., ApiError]]


class Size(Enum):
    """How much a form may bring."""

    AS_JSON = auto()
    FILE = auto()  # a file that is kept
    PART = auto()  # a part of such a file


@dataclass(frozen=True, slots=True)
class Form:
    """A form with a file, by the name of its schema."""

    name: str
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
    # Statuses that are answered with the same body as a 200, and what they mean.
    also: Mapping[int, str] = field(default_factory=dict)
    # Whether a WebSocket takes the same at this path.
    websocket: bool = False
    # Whether `handler` itself asks for a key, where `scope` is None.
    asks_for_key: bool = False
    # Whether OPTIONS is answered as GET is: load balancers ask so.
    probed: bool = False

    @property
    def is_open(self) -> bool:
        """Whether nobody needs a key."""
        return self.scope is None and not self.asks_for_key

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
        parts = _PARAMETER.split(self.path.removeprefix("/v1").removeprefix("/"))
        found = re.escape(parts[0])
        for name, slashes, literal in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
            found += rf"(?P<{name}>{'.+?' if slashes else '[^/]+'}){re.escape(literal)}"
        return rf"^{'(?:v1/)?' if self.path.startswith('/v1/') else ''}{found}/?$"

    @property
    def contents(self) -> Mapping[str, Schema]:
        """The schemas of a 200 by their media types."""
        return {JSON: self.handler.__annotations__["return"]} if self.answers is None else self.answers

    def answers_to(self, method: str) -> bool:
        """Whether it is what a request with this method is for; HEAD is answered like a GET that does not stream."""
        if method == "HEAD" and EVENTS in self.contents:
            return False
        return self.method == ("GET" if method == "HEAD" or (self.probed and method == "OPTIONS") else method)
