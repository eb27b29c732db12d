"""`GET /openapi.json`: what the API takes and answers, for whoever asks: it tells nothing of a project or a key."""

from functools import cache

import orjson
from django.http import HttpRequest, HttpResponse
from django.urls import get_resolver

from responses_app.http import json_bytes, only_reads
from responses_app.openapi.document import document
from responses_app.wiring import get_site

URLS = "responses_app.urls"  # which names this view: so it is not imported


async def openapi(request: HttpRequest) -> HttpResponse:
    """Return the OpenAPI document of this server."""
    only_reads(request)
    settings = get_site().settings
    return json_bytes(_written(engine_fields=not settings.responses_compatibility_mode, auth=settings.auth))


@cache  # a process has one set of settings
def _written(*, engine_fields: bool, auth: str) -> bytes:
    patterns = get_resolver(URLS).url_patterns
    regexes = [str(pattern.pattern.regex.pattern) for pattern in patterns]
    return orjson.dumps(document(regexes, engine_fields=engine_fields, auth=auth))
