"""The paths of the API, as `/openapi.json` has them."""

from itertools import groupby
from typing import Any

from django.urls import get_resolver

from docs.extension.tables import code, table
from responses_app.openapi.document import document
from responses_app.protocol.not_served import METHODS_NOT_SERVED, NOT_SERVED
from responses_app.views.openapi import URLS

METHODS = ("get", "post", "put", "patch", "delete")


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    """Return path, method and operation of everything that can be asked for."""
    patterns = [str(pattern.pattern.regex.pattern) for pattern in get_resolver(URLS).url_patterns]
    paths: dict[str, Any] = document(patterns, engine_fields=True, auth="auto")["paths"]  # type: ignore[assignment]
    return [(path, method, of[method]) for path, of in paths.items() for method in METHODS if method in of]


def markdown() -> str:
    """Return a table for each tag."""
    found = sorted(operations(), key=lambda each: each[2]["tags"][0])
    parts = []
    for tag, group in groupby(found, key=lambda each: each[2]["tags"][0]):
        rows = ((method.upper(), code(path), of["summary"], code(of["operationId"])) for path, method, of in group)
        parts += [f"## {tag[0].upper()}{tag[1:]}", table(("method", "path", "what it does", "operation"), rows)]
    return "\n\n".join(parts)


def not_served() -> str:
    """Return what OpenAI's API has and this server does not."""
    rows = [(code(f"/v1/{name}"), told) for name, told in NOT_SERVED.items()]
    rows += [(code(name.replace(" /", " /v1/")), told) for name, told in METHODS_NOT_SERVED.items()]
    return table(("path", "what it is for at OpenAI"), rows)
