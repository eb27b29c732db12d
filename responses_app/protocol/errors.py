"""The errors that clients see, in OpenAI's shape. Raised anywhere below a transport, rendered by the transport.

A message says what was wrong, where, and what to do; it never carries an exception's text, a path of this machine or
anything of another project. `code` is OpenAI's string or None.

A chat, or a request of Anthropic's Messages API, is read as a request of the Responses API. Where that is refused, its
fields have other names than those that the client has sent: `input[3]` is a message, `text.format` is
`response_format`. `in_own_names` tells an error in those. Example: items 0 and 1 of message 4 are its thought and its
call; then `input[1].name` becomes `messages[4].name`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Self

from typing_extensions import TypedDict

JsonObject = dict[str, object]

FOREIGN_SEALS = "Respsite-Foreign-Seals"  # the header that says what becomes of what was sealed elsewhere
NO_RETRY = {"x-should-retry": "false"}  # the header that keeps SDKs from sending a request again by themselves
REFUSE, NOTE = "refuse", "note"  # it is an error, or the model reads a note in its place


class ResponseError(TypedDict):
    """Why a response failed."""

    code: str
    message: str


SERVER_STOPPED: ResponseError = {  # the `error` of a response that was running when its server stopped
    "code": "server_error",
    "message": "The server stopped while this response was running. Send it again.",
}


ENDS_WORKERS: ResponseError = {  # the `error` of a response that is not taken over a third time
    "code": "server_error",
    "message": (
        "This response was running when two worker processes of the server died, so it is not run a third time. "
        "Change it, or tell the operator."
    ),
}


class Error(TypedDict):
    """What went wrong, where, and what to do. `code` is OpenAI's, where it has one."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(TypedDict):
    """The body of every error."""

    error: Error


class ApiError(Exception):
    """An error in OpenAI's shape."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,  # a dotted path into the request, such as `input[2].content`
        retry_after: int | None = None,  # seconds; None: waiting does not help, or nobody knows how long
    ) -> None:
        super().__init__(message)
        # What a transport renders it from: see `body` and `headers`.
        self.message = message
        self.status = status
        self.type = type
        self.code = code
        self.param = param
        self.retry_after = retry_after
        self._further: Mapping[str, str] = {}

    @property
    def headers(self) -> dict[str, str]:
        """The HTTP headers that belong to this error."""
        # Whole seconds, and never 0: clients would come back at once.
        waits = {} if self.retry_after is None else {"retry-after": str(max(1, self.retry_after))}
        return {**waits, **self._further}

    def with_headers(self, headers: Mapping[str, str]) -> Self:
        """Return this error, with further headers of its answer."""
        self._further = headers
        return self

    @property
    def helps_to_wait(self) -> bool:
        """Whether the same request may succeed later."""
        return self.retry_after is not None or self.status in (429, 503)

    def body(self) -> Error:
        """Return the inner `error` object."""
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}


def invalid_request(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """The request cannot be served as it is (400)."""
    return ApiError(message, param=param, code=code)


_MAX_SHOWN_NAME = 80  # characters of a field's name in an error


def dotted(location: tuple[int | str, ...], at: str = "") -> str:
    """Write a location as OpenAI does: `input[2].content[0].text`.

    Of a name that a client has made up, no more than its beginning is written.
    """
    path = at
    for part in location:
        named = f"[{part}]" if isinstance(part, int) else part[:_MAX_SHOWN_NAME]
        path = f"{path}.{named}" if path and isinstance(part, str) else f"{path}{named}"
    return path


def invalid_value(param: str, why: str) -> ApiError:
    """A field has a value that it does not take (400)."""
    return invalid_request(f"Invalid value for '{param}': {why}", param=param, code="invalid_value")


def array_too_long(param: str, value: Sequence[object], limit: int, setting: str = "") -> ApiError:
    """An array of more than `limit` values (400); `setting` is the name of the limit's setting, in brackets."""
    message = (
        f"Invalid '{param}': array too long. Expected an array with maximum length {limit}{setting}, but got an array "
        f"with length {len(value)} instead."
    )
    return invalid_request(message, param=param, code="array_above_max_length")


def not_an_object() -> ApiError:
    """The body of a request is no JSON object (400)."""
    return invalid_request("The body must be a JSON object.", code="invalid_json")


def conflict(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """The request contradicts the present state (409)."""
    return ApiError(message, status=409, type="conflict_error", param=param, code=code)


def unsupported_parameter(param: str, hint: str) -> ApiError:
    """A field whose feature this server does not have, with a value other than its default (400)."""
    return ApiError(f"Unsupported parameter: '{param}'. {hint}", code="unsupported_parameter", param=param)


def forbidden(message: str, *, code: str, param: str | None = None) -> ApiError:
    """Who asks may not do this (403)."""
    return ApiError(message, status=403, type="permission_error", code=code, param=param)


def not_found(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """There is no such thing, or not any more, or it is another project's (404)."""
    return ApiError(message, status=404, param=param, code=code)


def model_not_found(model: str, served: list[str]) -> ApiError:
    """No engine serves this model (404)."""
    others = f"This server serves: {', '.join(served)}." if served else "This server has no model of this kind."
    return not_found(f"The model '{model}' does not exist here. {others}", code="model_not_found", param="model")


def makes_embeddings(model: str, others: list[str]) -> ApiError:
    """This model generates nothing (400)."""
    message = f"The model '{model[:80]}' makes embeddings (/v1/embeddings), and generates no text. "
    hint = f"These do: {', '.join(others)}." if others else "This server has no model that does."
    return invalid_request(message + hint, param="model", code="invalid_value")


def response_not_found(response_id: str) -> ApiError:
    """The store has no such response, or not any more (404)."""
    return not_found(f"Response with id '{response_id[:80]}' not found.", param="response_id")


def conversation_not_found(conversation_id: str, *, param: str = "conversation_id") -> ApiError:
    """There is no such conversation, or not any more (404); or this cannot be the id of one (400)."""
    if not conversation_id.startswith("conv"):
        message = f"Invalid '{param}': {conversation_id[:80]!r}. Expected an ID that begins with 'conv'."
        return invalid_request(message, param=param, code="invalid_value")
    return not_found(f"Conversation with id '{conversation_id[:80]}' not found.", param=param)


def container_not_found(container_id: str, *, param: str = "container_id") -> ApiError:
    """There is no such container, or it has expired (404)."""
    return not_found(f"Container with id '{container_id[:80]}' not found. It may have expired.", param=param)


def previous_response_not_found(response_id: str) -> ApiError:
    """Neither this connection nor the store knows a response that can be continued under this id (400)."""
    message = f"Previous response with id '{response_id}' not found."
    return ApiError(message, code="previous_response_not_found", param="previous_response_id")


def previous_response_in_progress(response_id: str) -> ApiError:
    """The response to continue is still running (400)."""
    message = (
        f"Previous response with id '{response_id}' is still in progress. "
        "Wait for its terminal event, or continue from a finished response."
    )
    return ApiError(message, code="previous_response_in_progress", param="previous_response_id")


def context_length_exceeded(
    prompt_tokens: int, max_model_len: int, *, truncated: bool = False, at_least: bool = False
) -> ApiError:
    """The prompt does not fit the model's context (400), or is `truncated` as far as can be and still does not.

    `at_least`: nobody has counted its tokens, as there must be so many.

    SDKs raise the message alone, so clients know this error by OpenAI's words in it, of which there are two forms:
    LiteLLM and LangChain look for "Input tokens exceed the configured limit", others for "exceeds the context window".
    """
    tokens = f"at least {prompt_tokens}" if at_least else f"{prompt_tokens}"
    message = (
        "Your input exceeds the context window of this model. Input tokens exceed the configured limit of "
        f"{max_model_len} tokens, which input and output share: "
    )
    if truncated:
        message += (
            f"even without its older messages there are {tokens}. What cannot be left out is the last message, "
            "instructions and tools. Shorten the last message, or send it in several parts, each with a request of its "
            "own; or shorten the instructions and tools."
        )
    else:
        message += f"there are {tokens}. Shorten the input, start a new chain, or set 'truncation' to 'auto'."
    return ApiError(message, code="context_length_exceeded", param="input")


def invalid_encrypted_content(content: str, param: str, *, instead: str) -> ApiError:
    """A sealed item was changed, or sealed elsewhere: by another server, for another project, with a lost key (400).

    `instead` says how else its client can go on than with the item as it was.
    """
    # Enough for its client to find it, and no more: content is long, and part of an answer that may be logged.
    shown = content if len(content) <= 12 else f"{content[:4]}...{content[-4:]}"
    message = (
        f"The encrypted content {shown!r} could not be verified ('{param}'): it was changed, or another server, "
        f"project or key sealed it. Send the item as this server gave it, or {instead}. With FOREIGN_SEALS={NOTE}, or "
        f"the header '{FOREIGN_SEALS}: {NOTE}', the model reads a note in its place."
    )
    return invalid_request(message, param=param, code="invalid_encrypted_content")


def host_not_allowed(host: str, *, status: int = 400) -> ApiError:
    """The name by which the server was called is none of its own (400, of a WebSocket 403)."""
    message = f"The host name '{host[:100]}' is not served here. The operator can add it to ALLOWED_HOSTS."
    kind = "permission_error" if status == 403 else "invalid_request_error"
    return ApiError(message, status=status, type=kind, code="host_not_allowed")


def foreign_page(origin: str | None) -> ApiError:
    """A browser sends this for a web page that is not ours, or asks whether such a page may send something (403)."""
    return forbidden(
        f"Web pages of '{(origin or 'another site')[:100]}' cannot use this server. The operator can add their origin "
        "to ALLOWED_ORIGINS, or a proxy can serve them from this server's own address.",
        code="origin_not_allowed",
    )


def no_tools_of_server(message: str) -> ApiError:
    """A call is demanded of an MCP server whose tools could not be listed (424, as OpenAI has it)."""
    return ApiError(message, status=424, type="external_connector_error", code="http_error", param="tools")


def rate_limited(message: str, *, retry_after: int = 1) -> ApiError:
    """Too much at once (429)."""
    return ApiError(message, status=429, type="rate_limit_error", code="rate_limit_exceeded", retry_after=retry_after)


def overloaded(message: str, *, retry_after: int) -> ApiError:
    """The engine is loading, away or full (503)."""
    return ApiError(message, status=503, type="server_error", code="server_is_overloaded", retry_after=retry_after)


class EndsWorkers(ApiError):
    """A request that ends whoever takes it. The same request is not to be sent again soon."""

    @property
    def helps_to_wait(self) -> bool:
        """Not for anything that waits here."""
        return False


def ends_workers(seconds: float) -> ApiError:
    """The request was running at two deaths of workers, see `limits.suspects` (503). It may come again in so long."""
    minutes = ceil(seconds / 60)
    message = (
        "This request is not carried out: it was running when two worker processes of this server died, and is not "
        f"tried a third time before {minutes} minute{'s' * (minutes != 1)} are over. Change it, or tell the operator."
    )
    return EndsWorkers(message, status=503, type="server_error", code="request_ends_workers", retry_after=ceil(seconds))


def stopping() -> ApiError:
    """Return the error for work that is not begun any more: another worker, or the next server, takes it."""
    return overloaded("The server is stopping. Send the request again.", retry_after=2)


def too_slow() -> ApiError:
    """The client reads a stream more slowly than this server waits for (400, in the stream)."""
    message = "The stream was read too slowly (STREAM_MAX_LAG_BYTES), and so it was given up. Send the request again."
    return ApiError(message, code="reader_too_slow")


def server_error(request_id: str | None = None, *, code: str | None = None, of: str = "server") -> ApiError:
    """Something broke here, or in the engine; the log has it under the request's id (500)."""
    hint = f" If it happens again, tell the operator this request id: {request_id}." if request_id else ""
    message = f"The {of} had an error while processing your request.{hint}"
    return ApiError(message, status=500, type="server_error", code=code)


# A name of a field in a message, such as 'input[3].content'; a tool may have that name, too.
_QUOTED = re.compile(r"(?<!\btool )'([a-z_.\[\]\d]+)'")
_PLACE = re.compile(r"\b(input|tools)\[(\d+)\]")  # the item, or the tool, that a name begins with


@dataclass(frozen=True, slots=True)
class OwnNames:
    """The names of an API."""

    fields: Sequence[tuple[str, str]]  # the longer ones first: each is replaced where it begins a name
    # What only a client of the Responses API can do, and what is said in its place.
    advice: Sequence[tuple[str, str]] = ()


NameOf = Callable[[int, str], str]  # by the index of an item or a tool, and the rest of a name behind it


def in_own_names(
    error: ApiError, names: OwnNames, item_name: NameOf | None = None, tool_name: NameOf | None = None
) -> ApiError:
    """Return an error as a client of the other API is to read it.

    `item_name` gives the name of an item of `input`, `tool_name` that of one of the tools, where these have
    other names, too.
    """

    def renamed(name: str) -> str:
        place = _PLACE.match(name)
        name_of = tool_name if place is not None and place[1] == "tools" else item_name
        if place is not None and name_of is not None:
            return name_of(int(place[2]), name[place.end() :])
        for old, new in names.fields:
            if name == old or name.startswith((f"{old}.", f"{old}[")):
                return new + name[len(old) :]
        return name

    if error.param is not None:
        error.param = renamed(error.param)
    # Before the names: an advice that is exchanged has old ones in it.
    for old, new in names.advice:
        error.message = error.message.replace(old, new)
    error.message = _QUOTED.sub(lambda match: f"'{renamed(match.group(1))}'", error.message)
    return error
