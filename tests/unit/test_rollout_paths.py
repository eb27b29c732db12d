"""Base URLs of roll-outs, and what of a request tells it from others where it names one."""

import io
from types import SimpleNamespace
from typing import Any, cast

import pytest
from django.http import HttpRequest

from responses_app.protocol.errors import ApiError
from responses_app.protocol.rollouts.requests import ref_of
from responses_app.protocol.transport import AnswerHeaders, HeaderSettings
from responses_app.web.bodies import RequestHead
from responses_app.web.idempotency import fingerprint_of
from responses_app.web.servers.daphne import peer_of
from responses_app.web.servers.heads import Heads, Senders


async def seen(path: str, *ids: str, root_path: str = "") -> tuple[str, str | None]:
    """Return the path that the application sees, and the roll-out that the headers name."""
    scopes: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)

    headers = [(b"host", b"a"), *((b"x-rollout-id", each.encode()) for each in ids)]
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "root_path": root_path,
        "headers": headers,
        "raw_path": b"/",
    }
    standing = AnswerHeaders(HeaderSettings(), lambda: "req_1")
    await Heads(application, Senders(None, peer_of), standing, lambda error: None)(
        scope, cast(Any, None), cast(Any, None)
    )
    values = [value.decode() for name, value in scopes[0]["headers"] if name == b"x-rollout-id"]
    return scopes[0]["path"], ",".join(values) or None


@pytest.mark.parametrize(
    ("path", "below", "name"),
    [
        ("/rollouts/a.1/v1/responses", "/v1/responses", "a.1"),
        ("/rollouts/a/v1/rollouts/b", "/v1/rollouts/b", "a"),
        ("/rollouts/a/v1/../admin/", "/v1/../admin/", "a"),
        ("/rollouts/a/admin/", "/rollouts/a/admin/", None),
        ("/rollouts/a/rollouts/b/v1/responses", "/rollouts/a/rollouts/b/v1/responses", None),
        ("/rollouts//v1/responses", "/rollouts//v1/responses", None),
        ("/rollouts/a/v1", "/rollouts/a/v1", None),
        ("/v1/rollouts/a/v1/b", "/v1/rollouts/a/v1/b", None),
    ],
)
async def test_what_stands_below_a_rollout(path: str, below: str, name: str | None) -> None:
    assert RequestHead.of("POST", path, "", []).path == below
    assert await seen(path) == (below, name)
    assert await seen(f"/app{path}", root_path="/app") == (f"/app{below}", name)


async def test_a_header_beside_the_path_names_the_same_rollout_or_is_refused() -> None:
    assert await seen("/rollouts/a/v1/responses", "a") == ("/v1/responses", "a")
    assert await seen("/v1/responses", "a") == ("/v1/responses", "a")
    _, both = await seen("/rollouts/a/v1/responses", "b")
    with pytest.raises(ApiError, match="this header, or the URL, names 'a' and 'b'"):
        ref_of({"x-rollout-id": str(both)}, "responses")
    # As one that comes twice is read.
    assert ref_of({"x-rollout-id": "a,a"}, "responses").name == "a"
    for wrong in ("a b, a", "a,", ""):
        with pytest.raises(ApiError, match="is no id of a roll-out"):
            ref_of({"x-rollout-id": wrong}, "responses")


def test_an_idempotency_key_is_of_the_request_of_one_rollout() -> None:
    def of(**headers: str) -> str:
        request = SimpleNamespace(method="POST", path_info="/v1/responses", META={}, content_type="application/json")
        request.content_params, request.headers, request._stream = {}, headers, io.BytesIO(b"{}")
        return fingerprint_of(cast(HttpRequest, request), ())

    assert of() == of() != of(**{"x-rollout-id": "a"})
    assert of(**{"x-rollout-id": "a"}) != of(**{"x-rollout-id": "b"})
