"""`GET /openapi.json` and `/openapi`: what the API takes and answers, for whoever asks, as a document and as a page.

They tell nothing of a project or a key. The page needs nothing but itself: no script, and no style from elsewhere.
"""

from base64 import b64encode
from functools import cache
from hashlib import sha256

import orjson
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.urls import get_resolver

from responses_app.http import json_bytes, only_reads
from responses_app.openapi.document import document
from responses_app.openapi.page import page as shown
from responses_app.protocol.errors import JsonObject
from responses_app.wiring import get_site

URLS = "responses_app.urls"  # which names this view: so it is not imported
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


async def openapi(request: HttpRequest) -> HttpResponse:
    """Return the OpenAPI document of this server."""
    only_reads(request)
    return json_bytes(_written(*_taken()))


async def page(request: HttpRequest) -> HttpResponse:
    """Show the document to people."""
    only_reads(request)
    content = _page(*_taken())
    headers = {"content-length": str(len(content)), "content-security-policy": _POLICY}
    headers["x-content-type-options"] = "nosniff"
    return HttpResponse(content, content_type="text/html; charset=utf-8", headers=headers)


def _taken() -> tuple[bool, str]:
    """Return what the document depends on: whether fields of the engine are taken, and who needs a key."""
    site = get_site()
    return site.takes_engine_fields, site.settings.auth


def _made(engine_fields: bool, auth: str) -> JsonObject:
    patterns = get_resolver(URLS).url_patterns
    regexes = [str(pattern.pattern.regex.pattern) for pattern in patterns]
    return document(regexes, engine_fields=engine_fields, auth=auth)


@cache  # a process has one set of settings
def _written(engine_fields: bool, auth: str) -> bytes:
    return orjson.dumps(_made(engine_fields, auth))


@cache
def _page(engine_fields: bool, auth: str) -> bytes:
    return render_to_string("openapi/page.html", {**shown(_made(engine_fields, auth)), "style": STYLE}).encode()
