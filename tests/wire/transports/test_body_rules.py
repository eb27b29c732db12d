"""What a request's head says of its body, and how much of it is taken."""

import gzip
from collections.abc import Mapping

import pytest

from responses_app.protocol.errors import ApiError
from responses_app.protocol.transport import AnswerHeaders, HeaderSettings
from responses_app.web.bodies import (
    OTHER_BODY_BYTES,
    START_BYTES,
    Bodies,
    BodyRules,
    Message,
    Receive,
    RequestHead,
    SendMessage,
)

LARGE = 10 * OTHER_BODY_BYTES


async def everybody(scope: object, method: str, path: str) -> None:
    """Let all in."""


def rules_of(max_body_bytes: int, *, max_file_bytes: int = 0) -> BodyRules:
    """Return rules with these bounds; nobody counts what is refused."""
    bounds = {"max_file_bytes": max_file_bytes, "max_file_setting": "FILE_MAX_BYTES", "max_skill_bytes": max_file_bytes}
    return BodyRules(max_body_bytes, 30, refused=lambda error: None, let_in=everybody, **bounds)


RULES = rules_of(LARGE)


def head(path: str = "/v1/responses", *, method: str = "POST", root: str = "", **headers: str) -> RequestHead:
    """Return a head; underscores of header names stand for hyphens."""
    lines = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return RequestHead.of(method, path, root, lines)


def test_a_length_is_what_the_server_will_read() -> None:
    assert head().length == 0
    assert head(content_length="17").length == 17
    assert head(content_length="9" * 5000).length == int("9" * 18)
    assert head(content_length="0" * 5000 + "17").length == 17, "some servers take any number of zeros"
    assert head(transfer_encoding="chunked").length is None
    assert head(transfer_encoding="chunked", content_length="0").length is None, "the encoding counts"


def test_a_content_type_is_read_as_django_reads_it() -> None:
    assert head(content_type="Application/JSON; charset=utf-8").content_type == "application/json"
    assert head().content_type == ""


@pytest.mark.parametrize("path", ["/v1/responses", "/responses", "/v1/conversations/conv_1", "/v1/responses/compact"])
def test_json_is_large_where_it_is_of_use(path: str) -> None:
    json = {"content_type": "application/json"}
    for length in (LARGE, OTHER_BODY_BYTES, 1):
        RULES.check(head(path, content_length=str(length), **json))
        RULES.check(head(f"/behind{path}", root="/behind/", content_length=str(length), **json))
    assert RULES.limit(head(path, transfer_encoding="chunked", **json)) == LARGE
    with pytest.raises(ApiError) as caught:
        RULES.check(head(path, content_length=str(LARGE + 1), **json))
    assert caught.value.status == 413


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE", "PUT"])
@pytest.mark.parametrize("path", ["/", "/admin/login/", "/v1/responses/a/b/c", "/v1x/responses", "/static/a.css"])
def test_everything_else_is_small(method: str, path: str) -> None:
    json = {"content_type": "application/json"}
    RULES.check(head(path, method=method, content_length=str(OTHER_BODY_BYTES), **json))
    assert RULES.limit(head(path, method=method, transfer_encoding="chunked", **json)) == OTHER_BODY_BYTES
    with pytest.raises(ApiError) as caught:
        RULES.check(head(path, method=method, content_length=str(OTHER_BODY_BYTES + 1), **json))
    assert caught.value.status == 413


def test_a_small_limit_holds_for_all() -> None:
    rules = rules_of(1024)
    for path in ("/v1/responses", "/admin/"):
        with pytest.raises(ApiError):
            rules.check(head(path, content_length="1025", content_type="application/json"))


@pytest.mark.parametrize(
    ("start", "further", "is_taken"),
    [
        (b"", {}, False),
        (b"[", {}, False),
        (b'"', {}, False),
        (b" \t\r\n7", {}, False),
        (b'{"input":', {}, True),
        (b' \t\r\n{"input":', {}, True),
        (b"", {"content_encoding": "identity"}, False),
        (b"", {"content_encoding": "identity, identity"}, False),
        (b"", {"content_type": "multipart/form-data"}, True),
    ],
    ids=["spaces", "array", "text", "number", "object", "object behind spaces", "as it is", "as it is, twice", "form"],
)
async def test_a_long_body_of_json_that_is_no_object_is_refused_while_it_comes(
    start: bytes, further: Mapping[str, str], is_taken: bool
) -> None:
    part = START_BYTES // 4
    parts = [(start + b" " * part)[:part], *[b" " * part] * 99]
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def read(scope: Message, receive: Receive, send: SendMessage) -> None:
        while (await receive())["more_body"]:
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Message) -> None:
        sent.append(message)

    headers = {"content_type": "application/json", "content_length": str(100 * part), **further}
    lines = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    rules = rules_of(100 * part, max_file_bytes=100 * part)
    path = "/v1/files" if "multipart" in headers["content_type"] else "/v1/responses"
    scope: Message = {"type": "http", "method": "POST", "path": path, "headers": lines}
    await Bodies(read, rules, headers=AnswerHeaders(HeaderSettings(), str))(scope, receive, send)
    assert sent[0]["status"] == (200 if is_taken else 400)
    assert len(parts) == (0 if is_taken else 96), "no more than its first START_BYTES were read"


async def test_what_a_packed_body_holds_is_refused_in_the_same_way() -> None:
    packed = gzip.compress(b" " * 100 * START_BYTES)
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": packed, "more_body": False}

    async def read(scope: Message, receive: Receive, send: SendMessage) -> None:
        while (await receive())["more_body"]:
            pass

    async def send(message: Message) -> None:
        sent.append(message)

    headers = {"content-type": "application/json", "content-encoding": "gzip", "content-length": str(len(packed))}
    lines = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope: Message = {"type": "http", "method": "POST", "path": "/v1/responses", "headers": lines}
    rules = rules_of(200 * START_BYTES)
    await Bodies(read, rules, headers=AnswerHeaders(HeaderSettings(), str))(scope, receive, send)
    assert sent[0]["status"] == 400
    assert b"must be a JSON object" in sent[1]["body"]
