"""Lines of batches: those of an input, and those of an output.

An input of OpenAI's is JSON lines: `{"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": {…}}`. It is
read before anything of it is run, a piece at a time (`InputLines`), and a line that is wrong fails the batch: `errors`
has its number, and what is wrong with it. Codes are OpenAI's. Anthropic's requests come in the body of the create.

Lines of outputs are `{"id": …, "custom_id": "a", "response": {…}, "error": null}` at OpenAI, and
`{"custom_id": "a", "result": {"type": "succeeded", …}}` at Anthropic.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal

from pydantic import Field
from typing_extensions import TypedDict

from engine import orjson
from responses_app.protocol.errors import ApiError, JsonObject, invalid_request, invalid_value
from responses_app.protocol.fields import ClientModel, Text, validate
from responses_app.protocol.json_text import dumps

MAX_CUSTOM_ID = 512  # characters
MAX_ERRORS = 100  # of one input

SUCCEEDED, ERRORED, EXPIRED, CANCELLED = "succeeded", "errored", "expired", "cancelled"  # how lines end


class BatchError(TypedDict):
    """What is wrong with an input."""

    code: str
    line: int | None  # from 1 on; null where it is none of one line
    message: str
    param: str | None


class LineFields(ClientModel):
    """A line of an input."""

    custom_id: Text = Field(min_length=1, max_length=MAX_CUSTOM_ID)
    method: Literal["POST"]
    url: str
    body: JsonObject


@dataclass(frozen=True, slots=True)
class NewLine:
    """A line that is to be run."""

    number: int  # in its input, from 1 on
    custom_id: str
    body: bytes  # the JSON of the request


@dataclass(slots=True)
class InputLines:
    """Reads an input as it comes, in pieces of any size; it keeps an unfinished line, and a digest of each id.

    Once something is wrong it goes on looking for more of that, up to `MAX_ERRORS`, and yields no more lines.
    """

    endpoint: str
    max_lines: int
    max_line_bytes: int
    loads: Callable[[bytes], object]  # raises `ApiError` and `orjson.JSONDecodeError`
    check_model: Callable[[str | None], None]  # raises `ApiError` for one that this batch may not use
    errors: list[BatchError] = field(default_factory=list)
    total: int = 0  # lines that are not empty
    model: str | None = None  # of the first line that is readable; the others need to have the same
    _has_model: bool = False  # a line was readable so far that its model is known
    _number: int = 0
    _empty: int = 0  # lines with nothing in them, of which there may be `max_lines` as well
    rest: bytes = b""  # behind the last line break
    _ids: set[bytes] = field(default_factory=set)

    @property
    def is_over(self) -> bool:
        """Whether enough is known: the rest need not be read."""
        return len(self.errors) >= MAX_ERRORS or self.total > self.max_lines or self._empty > self.max_lines

    def feed(self, piece: bytes) -> list[NewLine]:
        """Return the lines that end in this piece."""
        # Of a piece of line breaks there are as many parts as bytes: no more than what can be of use.
        *whole_lines, self.rest = (self.rest + piece).split(b"\n", 2 * self.max_lines + 1)
        lines = list(self._read(whole_lines))
        if len(self.rest) > self.max_line_bytes and not self.is_over:
            self._number += 1
            self._refuse(self._too_long())
            # What is left of it cannot be told from other lines: nothing behind it is looked at.
            self.total = self.max_lines + 1
        return lines

    def end(self) -> list[NewLine]:
        """Return the last line, if there is one without a line break behind it."""
        lines = list(self._read([self.rest])) if self.rest and not self.is_over else []
        self.rest = b""
        if not self.total and not self.errors:
            empty = invalid_request("The input file is empty: it has no line.", code="empty_file")
            self.errors.append(batch_error(empty))
        return lines

    def _read(self, lines: list[bytes]) -> Iterator[NewLine]:
        for raw in lines:
            if self.is_over:
                return
            self._number += 1
            text = raw.strip()
            if not text:
                self._empty += 1
                if self._empty > self.max_lines:
                    message = f"The input has more than {self.max_lines} empty lines (BATCH_MAX_LINES). Leave them out."
                    self._refuse(invalid_request(message, code="too_many_tasks"))
                continue
            self.total += 1
            if self.total > self.max_lines:
                message = f"The input has more than {self.max_lines} lines (BATCH_MAX_LINES). Split it."
                self._refuse(invalid_request(message, code="too_many_tasks"))
                return
            line = self._line(text)
            if line is not None and not self.errors:
                yield line

    def _line(self, text: bytes) -> NewLine | None:
        """Return a line; None where it is wrong, which is noted."""
        try:
            fields = self._fields(text)
            self._check_model(fields.body.get("model"))
            return NewLine(self._number, fields.custom_id, written(fields.body))
        except ApiError as problem:
            self._refuse(problem)
            return None

    def _fields(self, text: bytes) -> LineFields:
        if len(text) > self.max_line_bytes:
            raise self._too_long()
        try:
            data = self.loads(text.removeprefix(b"\xef\xbb\xbf") if self._number == 1 else text)
        except orjson.JSONDecodeError as problem:
            message = f"This line is not parseable as valid JSON: {problem}."
            raise invalid_request(message, code="invalid_json_line") from None
        if not isinstance(data, dict):
            raise invalid_request("This line is not a JSON object.", code="invalid_json_line")
        fields = validate(LineFields, data)
        if fields.url != self.endpoint:
            message = f"The URL '{fields.url[:80]}' is not the endpoint of this batch, which is '{self.endpoint}'."
            raise invalid_request(message, param="url", code="url_mismatch")
        if self._is_double(fields.custom_id):
            message = f"An earlier line has the custom_id '{fields.custom_id[:80]}', too. Each needs its own."
            raise invalid_request(message, param="custom_id", code="duplicate_custom_id")
        return fields

    def _check_model(self, model: object) -> None:
        """Raise `ApiError` for another model than that of the first line, or for one that cannot be used."""
        if model is not None and not isinstance(model, str):
            raise invalid_value("body.model", "it must be a string.")
        if not self._has_model:  # the lines before were wrong: what they name is not known
            self._has_model, self.model = True, model
            self.check_model(model)
        elif model != self.model:
            message = f"The model {str(model)[:80]!r} is not that of the first line, {str(self.model)[:80]!r}."
            raise invalid_request(message, param="body.model", code="model_mismatch")

    def _is_double(self, custom_id: str) -> bool:
        # A digest: 50,000 ids of 512 characters would be 25 MB.
        digest = blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if digest in self._ids:
            return True
        self._ids.add(digest)
        return False

    def _too_long(self) -> ApiError:
        message = f"This line has more than {self.max_line_bytes} bytes (MAX_BODY_BYTES)."
        return invalid_request(message, code="line_too_long")

    def _refuse(self, problem: ApiError) -> None:
        if len(self.errors) < MAX_ERRORS:
            self.errors.append(batch_error(problem, self._number))


def written(body: JsonObject) -> bytes:
    """Return the JSON of a line's request. Raises `ApiError` for what no store could keep."""
    try:
        return orjson.dumps(body)
    except TypeError:  # more than 254 levels
        raise invalid_value("body", "it is nested too deeply.") from None


def batch_error(problem: ApiError, line: int | None = None) -> BatchError:
    """Return an error as a batch has it."""
    code = problem.code or "invalid_request"
    return {"code": code, "line": line, "message": problem.message, "param": problem.param}


def key_gone(key_id: str) -> BatchError:
    """The API key that created the batch was deleted before its input was read."""
    message = f"The API key '{key_id}' that created this batch was deleted."
    return {"code": "invalid_api_key", "line": None, "message": message, "param": None}


def input_gone(file_id: str) -> BatchError:
    """The input file was deleted before it was read."""
    message = f"The input file '{file_id}' was deleted, or has expired, before it was read."
    return {"code": "file_not_found", "line": None, "message": message, "param": "input_file_id"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LineTokens:
    """The tokens that lines used."""

    input: int = 0
    cached: int = 0  # of the input
    output: int = 0
    reasoning: int = 0  # of the output

    def __add__(self, other: "LineTokens") -> "LineTokens":
        return LineTokens(
            input=self.input + other.input,
            cached=self.cached + other.cached,
            output=self.output + other.output,
            reasoning=self.reasoning + other.reasoning,
        )


NO_TOKENS = LineTokens()
NOT_RUN = {  # of a line that was never begun: the code of its error, and the message
    EXPIRED: ("batch_expired", "This request could not be executed before the completion window expired."),
    CANCELLED: ("batch_cancelled", "This request was not executed, since the batch was cancelled."),
}


def output_line(request_id: str, custom_id: str, *, status: int, content: bytes) -> bytes:
    """Return the line of the output of a request that was answered, well or with an error."""
    answer = {"status_code": status, "request_id": request_id, "body": orjson.Fragment(content)}
    return _output(custom_id, request_id, orjson.Fragment(orjson.dumps(answer)), None)


def not_run_line(batch_id: str, number: int, custom_id: str, outcome: str) -> bytes:
    """Return the line of a request that was never run."""
    code, message = NOT_RUN[outcome]
    return _output(custom_id, f"{batch_id}_{number}", None, {"code": code, "message": message})


def broken_line(request_id: str, custom_id: str, message: str) -> bytes:
    """Return the line of a request of which nobody knows how far it came."""
    return _output(custom_id, request_id, None, {"code": "server_error", "message": message})


def _output(custom_id: str, request_id: str, response: object, error: JsonObject | None) -> bytes:
    line = {"id": f"batch_{request_id}", "custom_id": custom_id, "response": response, "error": error}
    return dumps(line) + b"\n"


INTERRUPTED = (
    "The server stopped while this request ran. It may have called tools or changed a conversation, so it was not run "
    "a second time."
)


def message_line(custom_id: str, content: bytes, *, errored: bool = False) -> bytes:
    """Return the line of a request of Anthropic's that was answered: with a message, or with an error."""
    kind, name = (ERRORED, "error") if errored else (SUCCEEDED, "message")
    return _message_output(custom_id, {"type": kind, name: orjson.Fragment(content)})


def message_not_run_line(custom_id: str, outcome: str) -> bytes:
    """Return the line of a request of Anthropic's that was never run."""
    return _message_output(custom_id, {"type": "canceled" if outcome == CANCELLED else outcome})


def _message_output(custom_id: str, result: JsonObject) -> bytes:
    return dumps({"custom_id": custom_id, "result": result}) + b"\n"
