"""Every path that OpenAI's SDK can ask for is served, or named as one that is not."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import httpx
import openai
import pytest

from docs.extension import paths
from responses_app.web.endpoint import METHODS_NOT_SERVED, NOT_SERVED, find, not_served_name
from responses_app.web.http import NotServed
from tests.kit.inprocess import Server

VERBS = {"_get": "GET", "_get_api_list": "GET", "_post": "POST", "_delete": "DELETE", "_put": "PUT", "_patch": "PATCH"}


@cache
def queries() -> dict[tuple[str, str], set[str]]:
    """Return the names that the SDK can put into the query of each request."""
    found: dict[tuple[str, str], set[str]] = {}
    for method, path, call in _calls():
        names = found.setdefault((method, path), set())
        for keyword in ast.walk(call):
            if isinstance(keyword, ast.keyword) and keyword.arg == "query":
                names |= {str(key.value) for each in ast.walk(keyword) for key in _keys_of(each)}
    return found


def _keys_of(node: ast.AST) -> list[ast.Constant]:
    return [key for key in node.keys if isinstance(key, ast.Constant)] if isinstance(node, ast.Dict) else []


@cache
def asked_for() -> list[tuple[str, str]]:
    """Return method and path of every request of the SDK. To read its source takes a second."""
    return sorted({(method, path) for method, path, _ in _calls()})


@cache
def _calls() -> list[tuple[str, str, ast.Call]]:
    return list(_read_calls())


def _read_calls() -> Iterator[tuple[str, str, ast.Call]]:
    """Yield method and path of every request that the SDK's resources make, as they are written in its source."""
    for file in (Path(openai.__file__).parent / "resources").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in VERBS:
                given = {keyword.arg: keyword.value for keyword in node.keywords}
                path = node.args[0] if node.args else given["path"]
                path = path.args[0] if isinstance(path, ast.Call) else path  # `path_template("/files/{file_id}", …)`
                method = given.get("method")
                assert isinstance(path, ast.Constant), f"{file}:{node.lineno}"
                told = method.value if isinstance(method, ast.Constant) else VERBS[node.func.attr]
                yield str(told).upper(), str(path.value).partition("?")[0], node


def is_named(method: str, path: str) -> bool:
    """Whether a path is named as one that is not served."""
    return not_served_name(path) is not None or f"{method} {path}" in METHODS_NOT_SERVED


def is_found(path: str) -> bool:
    """Whether something is served at a path."""
    try:
        find(path)
    except NotServed:
        return False
    return True


def test_the_sdk_asks_for_what_it_is_known_to() -> None:
    assert {("POST", "/responses"), ("POST", "/uploads/{upload_id}/parts"), ("GET", "/files")} < set(asked_for())
    assert len(asked_for()) > 200


def test_what_is_named_is_there_and_not_served() -> None:
    assert set(NOT_SERVED) == {name for _, path in asked_for() if (name := not_served_name(path))}
    assert set(METHODS_NOT_SERVED) <= {f"{method} {path}" for method, path in asked_for()}
    assert not [path for _, path in asked_for() if not_served_name(path) and is_found(_with_ids(path))]
    page = paths.not_served()
    assert all(f"`/v1/{name}`" in page for name in NOT_SERVED)
    assert all(f"`{name.replace(' /', ' /v1/')}`" in page for name in METHODS_NOT_SERVED)


def _with_ids(path: str) -> str:
    """Return a path with ids of nothing."""
    return re.sub(r"\{\w+\}", "x", path)


def test_every_path_is_served_or_named(demo_server: Server) -> None:
    with httpx.Client(base_url=demo_server.base_url, verify=False, timeout=30) as client:
        for method, path in asked_for():
            if is_named(method, path):
                continue
            answer = client.request(method, _with_ids(path), json={} if method == "POST" else None)
            assert answer.status_code != 405, (method, path)
            assert "Nothing is served" not in answer.text, (method, path)


def test_every_parameter_of_a_query_is_carried_out() -> None:
    assert queries()["GET", "/vector_stores/{vector_store_id}/files"] == {"after", "before", "filter", "limit", "order"}
    lacking, compared = [], 0
    for (method, path), names in queries().items():
        if names and not is_named(method, path):
            endpoint = find(f"/v1{_with_ids(path)}")[0].endpoint(method)
            assert endpoint is not None
            lacking += [f"{method} {path}: {name}" for name in sorted(names - endpoint.query.keys())]
            compared += 1
    assert compared > 20
    assert not lacking


@pytest.mark.parametrize("below", ["", "/x/y"])
def test_a_path_that_only_openai_has_says_so(demo_server: Server, below: str) -> None:
    for name, told in NOT_SERVED.items():
        for begins in ("/v1", ""):
            answer = httpx.post(f"{demo_server.url}{begins}/{_with_ids(name)}{below}", json={}, verify=False)
            assert (answer.status_code, answer.headers["content-type"]) == (404, "application/json"), name
            assert f"OpenAI's API has {told}." in answer.json()["error"]["message"]
