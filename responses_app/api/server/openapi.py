"""`GET /openapi.json` and `/openapi`: what the API takes and answers, for whoever asks, as a document and as a page.

They tell nothing of a project or a key. The page needs nothing but itself: no script, and no style from elsewhere.
"""

from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import cache, partial
from hashlib import sha256

import orjson
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from typing_extensions import TypedDict

from responses_app.api.openapi.document import document
from responses_app.api.openapi.page import page as shown
from responses_app.protocol.errors import JsonObject
from responses_app.web.endpoint import HTML, JSON, Endpoint
from responses_app.web.http import json_bytes
from responses_app.wiring.wiring import get_site


class OpenApi(TypedDict):
    """This document."""

    openapi: str
    info: JsonObject
    paths: JsonObject


Table = Callable[[], Sequence[Endpoint]]

STYLE = (
    # Every colour is named: a browser's own blue of links has too little contrast in the dark.
    ":root{color-scheme:light dark;background:light-dark(#fff,#15171c);color:light-dark(#1b1f27,#e6e8ec)}"
    "a{color:light-dark(#1a4fd6,#9db8ff)}"
    "body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;max-width:64rem;padding:1rem}"
    "nav a{margin-right:.75rem}summary{cursor:pointer;padding:.25rem 0}summary span{margin-left:.5rem}"
    "code{font-family:ui-monospace,monospace;font-size:.9em;overflow-wrap:anywhere}"
    "table{border-collapse:collapse;margin:.5rem 0;width:100%}caption{text-align:left;font-weight:600}"
    "th,td{border-top:1px solid #8886;padding:.25rem .5rem;text-align:left;vertical-align:top;overflow-wrap:anywhere}"
    "th{font-weight:400;width:14rem}details{border-bottom:1px solid #8886}"
    "@media(max-width:40rem){th,td{display:block;border:0;width:auto}tr{border-top:1px solid #8886;display:block}}"
)
_STYLE_HASH = b64encode(sha256(STYLE.encode()).digest()).decode()
_POLICY = (
    f"default-src 'none'; img-src 'self'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; frame-ancestors 'none'"
)


def endpoints_of(table: Table) -> Sequence[Endpoint]:
    """Return the endpoints that show a table, which they are in themselves."""

    async def openapi(request: HttpRequest) -> HttpResponse:
        return json_bytes(_written(table, *_taken()))

    async def page(request: HttpRequest) -> HttpResponse:
        content = _page(table, *_taken())
        headers = {"content-length": str(len(content)), "content-security-policy": _POLICY}
        headers["x-content-type-options"] = "nosniff"
        return HttpResponse(content, content_type="text/html; charset=utf-8", headers=headers)

    endpoint = partial(Endpoint, "GET", tag="Server", scope=None)
    return (
        endpoint("/v1/openapi.json", openapi, "getOpenApi", "Return this document", answers={JSON: OpenApi}),
        endpoint("/v1/openapi", page, "getOpenApiPage", "Show this document as a page", answers={HTML: ""}),
    )


def _taken() -> tuple[bool, str]:
    """Return what the document depends on beside the table: whether engine fields are taken, and who needs a key."""
    site = get_site()
    return site.takes_engine_fields, site.settings.auth


@cache  # a process has one set of settings
def _written(table: Table, engine_fields: bool, auth: str) -> bytes:
    return orjson.dumps(document(table(), engine_fields=engine_fields, auth=auth))


@cache
def _page(table: Table, engine_fields: bool, auth: str) -> bytes:
    made = document(table(), engine_fields=engine_fields, auth=auth)
    return render_to_string("openapi/page.html", {**shown(made), "style": STYLE}).encode()
