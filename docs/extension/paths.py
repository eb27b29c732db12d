"""The paths of the API, by what they are for."""

from itertools import groupby

from docs.extension.tables import code, table
from responses_app.web.endpoint import METHODS_NOT_SERVED, NOT_SERVED, routes


def markdown() -> str:
    """Return a table for each tag."""
    endpoints = (each for route in routes() for each in route.endpoints)
    found = sorted(endpoints, key=lambda each: each.tag)
    parts = []
    for tag, group in groupby(found, key=lambda each: each.tag):
        rows = ((each.method, code(each.shown_path), f"{each.summary}.", code(each.id)) for each in group)
        parts += [f"## {tag}", table(("method", "path", "what it does", "operation"), rows)]
    return "\n\n".join(parts)


def not_served() -> str:
    """Return what OpenAI's API has and this server does not."""
    rows = [(code(f"/v1/{name}"), told) for name, told in NOT_SERVED.items()]
    rows += [(code(name.replace(" /", " /v1/")), told) for name, told in METHODS_NOT_SERVED.items()]
    return table(("path", "what it is for at OpenAI"), rows)
